"""Verification of subscriptions, wakes and links: planted damage is found and reported."""

import re
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from semel.journal.verify import verify
from semel.machine.rows import NAME_KEY, OWNED_KEY
from semel.machine.subscription_events import (
    MATCHED,
    NAMED,
    NEVER_ACKED,
    LinkRow,
    SubscriptionRow,
    WakeRow,
)
from semel.model.commands import Append, Batch, Create, Delete, EngineCommand, ForkRequest
from semel.model.limits import (
    DELIVERY_ERROR_BYTES_MAX,
    NUMBER_MAX,
    WAKE_ID_BYTES_MAX,
    WAKE_STREAMS_MAX,
    WORKER_BYTES_MAX,
)
from semel.model.outcomes import Refusal
from semel.model.rights import RESERVED
from semel.model.subscription_commands import (
    PULL_WAKE,
    WEBHOOK,
    AckWake,
    ClaimWake,
    CreateSubscription,
    DeleteSubscription,
    NoteDelivery,
    UnlinkStream,
    WakeAck,
)
from semel.model.topic_commands import CreateTopic
from tests.unit.broker.test_transactions import TxnBed
from tests.unit.journal.test_verify_txns import Plant, damaged_rows, planted

encode = msgspec.msgpack.encode
URL = "https://example.com"
S, R, WAKES, A1, A2, TOPIC, T0, FORK, AUDIT = range(1, 10)  # the numbers of the streams


def rich_bed() -> TxnBed:
    """Return a bed with a checkpoint of three subscriptions.

    `hook` names a/1 and none, and matches a/1. Two deliveries of its wake have failed. `pull`
    matches s and r, and a worker has its wake. `idle` names s and matches t/0; its wake is done.
    The stream a/2 is deleted, and the stream b/f is a fork of it.
    """
    bed = TxnBed()
    now = bed.now_ms
    execute(
        bed,
        Create("wakes", now, "i-w", "application/json"),
        Create("a/1", now, "i-a1", "text/plain"),
        Create("a/2", now, "i-a2", "text/plain"),
        CreateTopic("t", now, "i-t", 1),
        CreateSubscription(now, "hook", WEBHOOK, "a/*", ("a/1", "none"), url=URL),
        CreateSubscription(now, "pull", PULL_WAKE, "*", wake_stream="wakes"),
        CreateSubscription(now, "idle", WEBHOOK, "t/**", ("s",), url=URL),
        Append("a/1", now, "text/plain", Batch(b"x")),
        Create("b/f", now, "i-f", None, fork=ForkRequest("a/2", None, 0, None)),
        Create(f"{RESERVED}audit", now, "i-audit", "application/json"),
        bed.append(),
        Delete("a/2", now),
    )
    wake_id = bed.broker.state.subscriptions.by_id["idle"].wake.wake_id
    execute(
        bed,
        NoteDelivery(now, "hook", 1, "no answer"),
        NoteDelivery(now, "hook", 1, "503", attempts_max=2),
        ClaimWake(now, "pull", "worker"),
        AckWake(now, WakeAck("idle", wake_id, 1, (("s", 1),), done=True)),
    )
    bed.checkpoint()
    return bed


def execute(bed: TxnBed, *commands: EngineCommand) -> None:
    for command in commands:
        outcome = bed.execute(command)
        assert not isinstance(outcome, Refusal), (command, outcome)


def rows_in(bed: TxnBed) -> object:
    """Return everything that the state has of subscriptions."""
    return {
        name: (each.row, each.wake, each.links, each.pending)
        for name, each in bed.broker.state.subscriptions.by_id.items()
    }


def test_subscriptions_are_sound() -> None:
    bed = rich_bed()
    by_id = bed.broker.state.subscriptions.by_id
    assert {name: sorted(each.links) for name, each in by_id.items()} == {
        "hook": [A1],
        "pull": [S, R],
        "idle": [S, T0],
    }
    assert by_id["hook"].wake.is_suspended
    assert (by_id["pull"].wake.worker, by_id["idle"].wake) == ("worker", WakeRow(1))
    report = verify(bed.disk, bed.store)
    assert (report.is_sound, report.findings) == (True, [])


def test_subscriptions_are_loaded_from_the_checkpoint_and_from_frames() -> None:
    bed = rich_bed()
    before = rows_in(bed)
    bed.restart()
    assert rows_in(bed) == before
    execute(bed, UnlinkStream(bed.now_ms, "hook", "none"), bed.append())
    before = rows_in(bed)
    bed.restart()
    assert rows_in(bed) == before
    bed.checkpoint()
    bed.restart()
    assert rows_in(bed) == before
    assert verify(bed.disk, bed.store).is_sound


def test_a_subscription_that_is_deleted_is_gone_from_the_checkpoint() -> None:
    bed = rich_bed()
    execute(bed, DeleteSubscription(bed.now_ms, "hook"), Delete("s", bed.now_ms))
    bed.checkpoint()
    with bed.store.read() as view:
        for table in ("subscriptions", "wakes"):
            assert {key for key, _ in view.scan(table)} == {b"idle", b"pull"}
        links = {OWNED_KEY.decode(key) for key, _ in view.scan("links")}
        assert links == {(R, "pull"), (T0, "idle")}
    assert verify(bed.disk, bed.store).is_sound


def test_a_subscription_that_was_never_woken_is_sound() -> None:
    bed = rich_bed()
    execute(bed, CreateSubscription(bed.now_ms, "new", WEBHOOK, "new/*", url=URL))
    bed.checkpoint()
    assert verify(bed.disk, bed.store).findings == []


# ---- planted damage ------------------------------------------------------------------------------

HOOK = SubscriptionRow(WEBHOOK, "a/*", ("a/1", "none"), URL, None, 30_000, None, 1, ("a/1", "none"))
PULL = SubscriptionRow(PULL_WAKE, "*", (), None, "wakes", 30_000, None, 1)
WAKE = WakeRow(1, "w_1", 1, snapshot=((A1, 1),))


def stored(table: str, key: bytes, row: object) -> Plant:
    return lambda tables: tables.put(table, key, encode(row))


def hook(**changes: Any) -> Plant:
    return stored("subscriptions", b"hook", replace(HOOK, **changes))


def pull(**changes: Any) -> Plant:
    return stored("subscriptions", b"pull", replace(PULL, **changes))


def wake(name: bytes = b"hook", **changes: Any) -> Plant:
    return stored("wakes", name, replace(WAKE, **changes))


def link(number: int, name: str, acked: int = 0, kinds: int = NAMED) -> Plant:
    return stored("links", OWNED_KEY.encode((number, name)), LinkRow(acked, kinds))


def without(table: str, key: bytes) -> Plant:
    return lambda tables: tables.delete(table, key)


INVALID_TIME = "the generation or the time of the wake is invalid"
INVALID_DELIVERIES = "the failed deliveries of the wake are invalid"
INVALID_SNAPSHOT = "the snapshot of the wake is empty, too long or not sorted"
NO_STREAM = "the row belongs to a stream that does not exist"
NO_SUBSCRIPTION = "the row belongs to a subscription that does not exist"

CASES: list[tuple[str, Plant]] = [
    ("cannot be decoded", stored("subscriptions", b"hook", 1)),
    ("the key is not UTF-8", stored("subscriptions", b"\xff", HOOK)),
    ("the field `id` of the subscription is invalid", stored("subscriptions", b"x" * 257, HOOK)),
    ("the field `type` of the subscription", hook(type="push")),
    ("the field `url` of the subscription", hook(url=None)),
    ("the field `pattern` of the subscription", hook(pattern="a*")),
    ("the field `streams` of the subscription", hook(streams=(), pattern=None)),
    ("the field `streams` of the subscription", pull(names=("wakes",))),
    ("the field `wake_stream` of the subscription", pull(wake_stream=None)),
    ("the field `lease_ttl_ms` of the subscription", hook(lease_ms=1)),
    ("the subscription has an invalid time", hook(created_ms=-1)),
    ("the streams of the subscription are not sorted", hook(streams=("b", "a"))),
    ("the streams of the subscription are not sorted", hook(names=("a", "a"))),
    ("cannot be decoded", stored("wakes", b"hook", 1)),
    (NO_SUBSCRIPTION, stored("wakes", b"other", WAKE)),
    (NO_SUBSCRIPTION, stored("wakes", b"\xff", WAKE)),
    ("the row is missing or damaged", without("wakes", b"hook")),
    (INVALID_TIME, wake(generation=NUMBER_MAX + 1)),
    (INVALID_TIME, wake(issued_ms=-1)),
    ("no wake is in flight, but the row describes one", wake(wake_id="")),
    ("no wake is in flight, but", stored("wakes", b"idle", WakeRow(1, next_stream=1))),
    ("the field `next_stream` of the wake is invalid", wake(next_stream=-1)),
    ("the field `last` of the wake is invalid", stored("wakes", b"idle", WakeRow(1, last=-1))),
    ("the id or the generation of the wake", wake(generation=0)),
    ("the id or the generation of the wake", wake(wake_id="x" * (WAKE_ID_BYTES_MAX + 1))),
    ("the worker of the wake is invalid", wake(worker="w")),
    ("the worker of the wake is invalid", wake(b"pull", worker="x" * (WORKER_BYTES_MAX + 1))),
    (INVALID_DELIVERIES, wake(b"pull", attempts=1)),
    (INVALID_DELIVERIES, wake(b"pull", is_suspended=True)),
    (INVALID_DELIVERIES, wake(attempts=-1)),
    (INVALID_DELIVERIES, wake(attempts=1, error="x" * (DELIVERY_ERROR_BYTES_MAX + 1))),
    (INVALID_SNAPSHOT, wake(snapshot=())),
    (INVALID_SNAPSHOT, wake(snapshot=((A1, 0), (S, 0)))),
    (INVALID_SNAPSHOT, wake(snapshot=((A1, 0), (A1, 0)))),
    (INVALID_SNAPSHOT, wake(snapshot=tuple((n, 0) for n in range(WAKE_STREAMS_MAX + 1)))),
    (f"the offset 2, which stream {A1} does not have", wake(snapshot=((A1, 2),))),
    (f"the offset -1, which stream {A1} does not have", wake(snapshot=((A1, -1),))),
    ("cannot be decoded", stored("links", OWNED_KEY.encode((A1, "hook")), 1)),
    (NO_STREAM, link(99, "hook")),
    (NO_STREAM, link(A2, "hook")),
    (NO_STREAM, link(TOPIC, "hook")),
    (NO_SUBSCRIPTION, link(S, "other")),
    ("the stream does not have the acked offset 2", link(A1, "hook", 2, NAMED | MATCHED)),
    ("the stream does not have the acked offset -2", link(A1, "hook", -2, NAMED | MATCHED)),
    ("the link of the stream a/1 has the kinds 1, and should have 3", link(A1, "hook")),
    ("the link of the stream a/1 has the kinds 4, and should", link(A1, "hook", kinds=4)),
    ("the link of the stream r has the kinds 1, and should have 0", link(R, "hook")),
    ("the link of the stream wakes has the kinds 2", link(WAKES, "pull", kinds=MATCHED)),
    (f"the link of the stream {RESERVED}audit has the kinds 1", link(AUDIT, "hook")),
    (
        "the link of the stream r has the kinds 0, and should have 2",
        without("links", OWNED_KEY.encode((R, "pull"))),
    ),
    ("a subscription that does not exist: other", lambda tables: owner(tables, "other")),
]


def owner(tables: Any, name: str) -> None:
    tables.put("owners", b"u" + bytes(8) + NAME_KEY.encode(name), encode(("me",)))


@pytest.mark.parametrize(("message", "plant"), CASES, ids=range(len(CASES)))
def test_planted_damage_is_found(message: str, plant: Plant) -> None:
    found = planted(rich_bed(), plant)
    assert any(re.search(re.escape(message), each) for each in found), found


@pytest.mark.parametrize(
    "plant",
    [
        wake(attempts=3, error="x", is_suspended=True),
        wake(attempts=1, error=""),
        wake(b"pull", worker="x" * WORKER_BYTES_MAX),
        wake(snapshot=((A1, 0), (99, 7))),  # the stream 99 was deleted
        stored("wakes", b"idle", WakeRow(1, last=99)),
        link(A1, "hook", NEVER_ACKED, NAMED | MATCHED),
        hook(streams=("other",)),
        lambda tables: owner(tables, "hook"),
    ],
)
def test_what_can_be_stored_is_sound(plant: Plant) -> None:
    assert planted(rich_bed(), plant) == []


@pytest.mark.parametrize("table", ["subscriptions", "wakes", "links"])
def test_a_damaged_or_missing_row_is_found(table: str) -> None:
    for findings in damaged_rows(rich_bed, table):
        assert any(each.startswith(f"table {table}") for each in findings), findings


def test_a_name_of_a_new_topic_is_no_damage() -> None:
    bed = rich_bed()
    execute(bed, CreateTopic("none", bed.now_ms, "i-n", 1))
    bed.checkpoint()
    assert verify(bed.disk, bed.store).findings == []
