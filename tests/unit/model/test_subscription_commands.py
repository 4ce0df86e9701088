"""The fields of commands on subscriptions, and their limits."""

from typing import Any

import pytest
from msgspec.structs import replace

from semel.model import limits
from semel.model.commands import Commit, CommitTxn
from semel.model.subscription_commands import (
    PULL_WAKE,
    WEBHOOK,
    AckWake,
    ClaimWake,
    CreateSubscription,
    DeleteSubscription,
    ExpireWake,
    IssueWake,
    LinkStreams,
    NoteDelivery,
    ReleaseWake,
    ResumeSubscription,
    SubscriptionCommand,
    UnlinkStream,
    WakeAck,
    invalid_wake_acks,
    shorten_error,
)
from semel.model.validation import find_invalid_field

URL = "https://example.com/in"
HOOK = CreateSubscription(0, "h", WEBHOOK, "a/*", url=URL)
PULL = CreateSubscription(0, "p", PULL_WAKE, "a/*", wake_stream="w")
ACK = WakeAck("h", "w_1", 1, (("s", 0),))


def long(count: int) -> str:
    return "x" * count


@pytest.mark.parametrize(
    "command",
    [
        HOOK,
        PULL,
        replace(HOOK, pattern=None, streams=("s",)),
        replace(HOOK, streams=tuple(f"s{n}" for n in range(limits.SUBSCRIPTION_NAMES_MAX))),
        replace(HOOK, url=long(limits.WEBHOOK_URL_BYTES_MAX)),
        replace(HOOK, id=long(limits.SUBSCRIPTION_ID_BYTES_MAX)),
        replace(HOOK, lease_ms=limits.LEASE_MS_MIN, description=""),
        replace(HOOK, lease_ms=limits.LEASE_MS_MAX),
        replace(HOOK, description=long(limits.SUBSCRIPTION_DESCRIPTION_BYTES_MAX)),
        replace(PULL, wake_stream=long(limits.PATH_BYTES_MAX), streams=("s",)),
        DeleteSubscription(0, "h"),
        LinkStreams(0, "h", ("s",)),
        UnlinkStream(0, "h", "s"),
        IssueWake(0, "h", long(limits.WAKE_ID_BYTES_MAX)),
        ClaimWake(0, "p", long(limits.WORKER_BYTES_MAX)),
        AckWake(0, ACK),
        AckWake(0, replace(ACK, acks=tuple((f"s{n}", -1) for n in range(limits.ACKS_MAX)))),
        ReleaseWake(0, "p", "w_1", limits.NUMBER_MAX),
        ExpireWake(0, "h", 0, 0),
        NoteDelivery(0, "h", 1, None),
        NoteDelivery(0, "h", 1, None, wake_id=long(limits.WAKE_ID_BYTES_MAX)),
        ResumeSubscription(0, "h"),
    ],
)
def test_a_command_within_the_limits_is_valid(command: SubscriptionCommand) -> None:
    assert find_invalid_field(command) is None


@pytest.mark.parametrize(
    ("command", "changes", "field"),
    [
        (HOOK, {"id": ""}, "id"),
        (HOOK, {"id": long(limits.SUBSCRIPTION_ID_BYTES_MAX + 1)}, "id"),
        (HOOK, {"type": "push"}, "type"),
        (HOOK, {"pattern": "a*"}, "pattern"),
        (HOOK, {"pattern": ""}, "pattern"),
        (HOOK, {"pattern": None}, "streams"),
        (HOOK, {"streams": ("",)}, "streams"),
        (HOOK, {"streams": ("s",) * (limits.SUBSCRIPTION_NAMES_MAX + 1)}, "streams"),
        (HOOK, {"streams": (long(limits.PATH_BYTES_MAX + 1),)}, "streams"),
        (HOOK, {"url": None}, "url"),
        (HOOK, {"url": long(limits.WEBHOOK_URL_BYTES_MAX + 1)}, "url"),
        (HOOK, {"wake_stream": "w"}, "wake_stream"),
        (HOOK, {"lease_ms": limits.LEASE_MS_MIN - 1}, "lease_ttl_ms"),
        (HOOK, {"lease_ms": limits.LEASE_MS_MAX + 1}, "lease_ttl_ms"),
        (
            HOOK,
            {"description": long(limits.SUBSCRIPTION_DESCRIPTION_BYTES_MAX + 1)},
            "description",
        ),
        (PULL, {"url": URL}, "url"),
        (PULL, {"wake_stream": None}, "wake_stream"),
        (PULL, {"wake_stream": ""}, "wake_stream"),
        (PULL, {"streams": ("s", "w")}, "streams"),
        (DeleteSubscription(0, "h"), {"id": ""}, "id"),
        (LinkStreams(0, "h", ("s",)), {"streams": ()}, "streams"),
        (LinkStreams(0, "h", ("s",)), {"streams": ("s", "")}, "streams"),
        (UnlinkStream(0, "h", "s"), {"path": ""}, "path"),
        (IssueWake(0, "h", "w"), {"wake_id": long(limits.WAKE_ID_BYTES_MAX + 1)}, "wake_id"),
        (ClaimWake(0, "h", "w"), {"worker": ""}, "worker"),
        (ClaimWake(0, "h", "w"), {"worker": long(limits.WORKER_BYTES_MAX + 1)}, "worker"),
        (ReleaseWake(0, "h", "w", 1), {"wake_id": ""}, "wake_id"),
        (ReleaseWake(0, "h", "w", 1), {"generation": -1}, "generation"),
        (ExpireWake(0, "h", 1, 0), {"generation": limits.NUMBER_MAX + 1}, "generation"),
        (NoteDelivery(0, "h", 1, ""), {"generation": -1}, "generation"),
        (NoteDelivery(0, "h", 1, "", wake_id="w"), {"wake_id": ""}, "wake_id"),
    ],
)
def test_an_invalid_field_is_named(
    command: SubscriptionCommand, changes: dict[str, Any], field: str
) -> None:
    assert find_invalid_field(replace(command, **changes)) == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"id": ""}, "id"),
        ({"wake_id": ""}, "wake_id"),
        ({"wake_id": long(limits.WAKE_ID_BYTES_MAX + 1)}, "wake_id"),
        ({"generation": -1}, "generation"),
        ({"acks": (("", 0),)}, "acks"),
        ({"acks": (("s", 0),) * (limits.ACKS_MAX + 1)}, "acks"),
    ],
)
def test_an_invalid_ack_is_found_in_every_command_that_has_acks(
    changes: dict[str, Any], field: str
) -> None:
    wakes = (ACK, replace(ACK, **changes))
    assert find_invalid_field(AckWake(0, wakes[1])) == field
    commit = Commit(0, producer_id="p", producer_epoch=0, producer_seq=0, wakes=wakes)
    assert find_invalid_field(replace(commit, wakes=(ACK,))) is None
    assert find_invalid_field(commit) == field
    ending = CommitTxn(0, "t", 1, "p", 0, wakes=wakes)
    assert find_invalid_field(replace(ending, wakes=())) is None
    assert find_invalid_field(ending) == field


def test_a_commit_has_a_limit_of_subscriptions() -> None:
    wakes = tuple(replace(ACK, id=f"h{number}") for number in range(limits.TXN_LIST_MAX))
    assert invalid_wake_acks(wakes) is None
    assert invalid_wake_acks((*wakes, ACK)) == "subscriptions"


def test_the_acks_of_a_commit_have_a_limit_together() -> None:
    half = tuple((f"s{number}", 0) for number in range(limits.ACKS_MAX // 2))
    wakes = (replace(ACK, acks=half), replace(ACK, id="other", acks=half))
    assert invalid_wake_acks(wakes) is None
    assert invalid_wake_acks((*wakes, ACK)) == "acks"


@pytest.mark.parametrize(
    ("error", "stored"),
    [
        ("503", "503"),
        ("x" * 600, "x" * limits.DELIVERY_ERROR_BYTES_MAX),
        ("é" * 600, "é" * (limits.DELIVERY_ERROR_BYTES_MAX // 2)),
        ("x" + "é" * 600, "x" + "é" * ((limits.DELIVERY_ERROR_BYTES_MAX - 1) // 2)),
        ("\ud800x", "?x"),
    ],
)
def test_an_error_is_cut_to_whole_characters(error: str, stored: str) -> None:
    assert shorten_error(error) == stored
