"""Subscriptions and their streams: rules U1 to U9 of docs/reference/subscriptions.md."""

import pytest
from msgspec.structs import replace

from semel.machine.state import set_owner
from semel.machine.subscription_events import MATCHED, NAMED, Subscribed
from semel.model.commands import Delete, EngineCommand, Expire, Trim
from semel.model.limits import SUBSCRIPTION_NAMES_MAX
from semel.model.outcomes import InvalidRequest, LimitReached, Refusal
from semel.model.outcomes_access import ReservedPath
from semel.model.outcomes_subscriptions import (
    NO_WAKE_STREAM,
    LinksChanged,
    SubscriptionCreated,
    SubscriptionDeleted,
    SubscriptionExists,
    UnknownSubscription,
    WakeStreamRefused,
)
from semel.model.outcomes_topics import IsTopic
from semel.model.outcomes_txn import StreamRefused
from semel.model.rights import RESERVED, SUBSCRIPTION, dead_letters_of
from semel.model.subscription_commands import CreateSubscription
from semel.model.topic_commands import CloseTopic, DeleteTopic
from tests.unit.machine.builders import JSON, append, create, fork, unchanged
from tests.unit.machine.subscription_builders import (
    URL,
    WakeMachine,
    ack,
    check_derived,
    claim_wake,
    delete,
    failed,
    hook,
    link,
    pull,
    release,
    unlink,
    wake_machine,
)
from tests.unit.machine.topic_builders import append_topic, create_topic, grow
from tests.unit.machine.txn_builders import begin, commit, publish

ALL = NAMED | MATCHED
NEVER = -1


# ---- U1 ------------------------------------------------------------------------------------------


def test_a_creation_stores_the_configuration() -> None:
    machine = wake_machine()
    command = CreateSubscription(
        5, "h", "webhook", "a/*", ("s", "r", "s"), url=URL, lease_ms=1_000, description="é"
    )
    assert machine.execute(command) == SubscriptionCreated("h", is_new=True)
    row = machine.subscription().row
    assert (row.type, row.pattern, row.url, row.wake_stream) == ("webhook", "a/*", URL, None)
    assert (row.streams, row.names) == (("r", "s"), ("r", "s"))
    assert (row.lease_ms, row.description, row.created_ms) == (1_000, "é", 5)
    check_derived(machine.state)


@pytest.mark.parametrize(
    "again", [hook("h", "s", "r"), hook("h", "r", "s", "r"), hook("h", "s", "r", now=9)]
)
def test_a_repeated_creation_changes_nothing_whatever_the_order_of_streams(
    again: CreateSubscription,
) -> None:
    machine = wake_machine(hook("h", "s", "r"))
    assert unchanged(machine, again) == SubscriptionCreated("h", is_new=False)
    assert unchanged(machine, replace(again, description="")) == SubscriptionCreated("h", False)


def test_a_repeated_creation_is_compared_with_the_streams_of_the_first_one() -> None:
    machine = wake_machine(hook("h", "s"), link("r"), unlink("s"))
    assert unchanged(machine, hook("h", "s")) == SubscriptionCreated("h", is_new=False)
    assert unchanged(machine, hook("h", "r")) == SubscriptionExists()
    assert machine.links() == {"r": (0, NAMED)}


@pytest.mark.parametrize(
    "other",
    [
        hook("h", "s", "r"),
        hook("h", "s", pattern="a"),
        hook("h", "s", url="https://example.com/other"),
        pull("h", "s"),
        replace(hook("h", "s"), lease_ms=1_000),
        replace(hook("h", "s"), description="x"),
    ],
)
def test_another_configuration_is_refused(other: CreateSubscription) -> None:
    machine = wake_machine(hook("h", "s"))
    assert unchanged(machine, other) == SubscriptionExists()


def test_a_repeated_creation_ends_a_suspension() -> None:
    machine = wake_machine(hook("h", "s"), append(), failed(attempts_max=1))
    assert machine.wake().is_suspended
    assert machine.execute(hook("h", "s")) == SubscriptionCreated("h", is_new=False)
    wake = machine.wake()
    assert (wake.is_suspended, wake.attempts, wake.generation) == (False, 0, 1)
    assert unchanged(machine, hook("h", "s")) == SubscriptionCreated("h", is_new=False)


# ---- U2 ------------------------------------------------------------------------------------------


def test_there_are_at_most_so_many_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.machine.subscriptions.SUBSCRIPTIONS_MAX", 2)
    machine = wake_machine(hook("a", "s"), hook("b", "s"))
    assert unchanged(machine, hook("c", "s")) == LimitReached("subscriptions", 2)
    assert unchanged(machine, hook("a", "s")) == SubscriptionCreated("a", is_new=False)
    machine.execute(delete("a"))
    assert machine.execute(hook("c", "s")) == SubscriptionCreated("c", is_new=True)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_creation_links_at_most_so_many_streams(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr("semel.machine.subscriptions.SUBSCRIPTION_LINKS_MAX", 2)
    monkeypatch.setattr("semel.machine.subscriptions.MATCHED_MAX", 3)
    machine = wake_machine(*(create(f"a/{number}") for number in range(count)))
    refused = LimitReached("subscription_streams", 2)
    by_pattern = machine.execute(hook("h", pattern="a/*"))
    assert by_pattern == (SubscriptionCreated("h", True) if count == 2 else refused)
    assert unchanged(machine, hook("i", "s", pattern="a/*")) == refused
    check_derived(machine.state)


def test_a_subscription_names_at_most_so_many_streams() -> None:
    names = [f"n{number}" for number in range(SUBSCRIPTION_NAMES_MAX)]
    machine = wake_machine(hook("h", *names[:-1]))
    assert machine.execute(link(names[0], names[-1])) == LinksChanged()
    assert unchanged(machine, link("one-more")) == LimitReached(
        "subscription_names", SUBSCRIPTION_NAMES_MAX
    )
    assert unchanged(machine, link(*names)) == LinksChanged()


@pytest.mark.parametrize("pattern", ["t/*", "t/**", "t/*/x", "t/**/y"])
def test_so_many_subscriptions_can_match_below_the_same_path(
    monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    monkeypatch.setattr("semel.machine.subscriptions.SUBSCRIPTIONS_PER_STREAM_MAX", 2)
    machine = wake_machine(hook("a", pattern="t/*"), hook("b", pattern="t/*/x"))
    refused = LimitReached("subscriptions_per_stream", 2)
    for each in (pattern, "t"):
        assert unchanged(machine, hook("c", pattern=each)) == refused
    for other in ("**", "t/u/*", "tt/*", "t/u"):
        accepted = machine.execute(hook(f"of-{other}", pattern=other))
        assert accepted == SubscriptionCreated(f"of-{other}", is_new=True)
    machine.execute(delete("a"))
    assert machine.execute(hook("c", pattern=pattern)) == SubscriptionCreated("c", True)


def test_so_many_subscriptions_can_name_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.machine.subscriptions.SUBSCRIPTIONS_PER_STREAM_MAX", 2)
    machine = wake_machine(hook("a", "s"), hook("b", "none", "s"))
    refused = LimitReached("subscriptions_per_stream", 2)
    assert unchanged(machine, hook("c", "r", "s")) == refused
    machine.execute(hook("c", "none"))
    assert unchanged(machine, link("r", "s", name="c")) == refused
    assert unchanged(machine, hook("d", "none")) == refused
    machine.execute(unlink("s", "a"))
    assert machine.execute(link("r", "s", name="c")) == LinksChanged()


# ---- U3 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("none", NO_WAKE_STREAM),
        ("s", "its content type is text/plain, and not application/json"),
        ("closed", "it is closed"),
        ("deleted", NO_WAKE_STREAM),
        ("t", "it is a topic, or a partition of one"),
        ("t/0", "it is a topic, or a partition of one"),
        (f"{RESERVED}audit", "it is below __semel/"),
    ],
)
def test_a_stream_that_takes_no_messages_about_wakes_is_refused(path: str, reason: str) -> None:
    machine = wake_machine(
        create("closed", kind=JSON, closed=True),
        create("deleted", kind=JSON),
        fork("f", "deleted"),
        Delete("deleted", 0),
        create_topic("t", 1),
        create(f"{RESERVED}audit", kind=JSON),
    )
    assert unchanged(machine, pull("p", "r", wakes=path)) == WakeStreamRefused(path, reason)


def test_the_wake_stream_cannot_be_named() -> None:
    machine = wake_machine(pull("p", "s"))
    assert unchanged(machine, pull("q", "s", "w")) == InvalidRequest("streams")
    assert unchanged(machine, link("r", "w", name="p")) == InvalidRequest("streams")


def test_a_pattern_does_not_match_its_own_wake_stream_but_that_of_others() -> None:
    machine = wake_machine(create("v", kind=JSON), pull("p", pattern="**"))
    machine.execute(pull("q", pattern="**", wakes="v"))
    assert set(machine.links("p")) == {"s", "r", "v"}
    assert set(machine.links("q")) == {"s", "r", "w"}
    machine.execute(Delete("w", 0))
    machine.execute(create("w", kind=JSON, now=1))
    assert set(machine.links("p")) == {"s", "r", "v"}
    assert set(machine.links("q")) == {"s", "r", "w"}
    check_derived(machine.state)


def test_two_subscriptions_that_match_each_other_s_wake_streams_wake_each_other_once_per_wake() -> (
    None
):
    """Each message about a wake is work for the other one, but nobody is woken without an ack."""
    machine = wake_machine(create("v", kind=JSON), pull("p", pattern="v"))
    machine.execute(pull("q", pattern="w", wakes="v"))
    machine.execute(append(b"1", path="v", kind=JSON))
    assert (machine.wake("p").generation, machine.wake("q").generation) == (1, 1)
    assert (machine.stream("v").tail.tail, machine.stream("w").tail.tail) == (2, 1)
    check_derived(machine.state)


# ---- U4 ------------------------------------------------------------------------------------------


def test_a_topic_cannot_be_named_but_its_partitions_can() -> None:
    machine = wake_machine(create_topic("t", 2))
    refused = StreamRefused("t", IsTopic())
    assert unchanged(machine, hook("h", "s", "t")) == refused
    machine.execute(hook("h", "s"))
    assert unchanged(machine, link("r", "t")) == refused
    assert machine.execute(link("t/0")) == LinksChanged()
    assert machine.links() == {"s": (0, NAMED), "t/0": (0, NAMED)}


def test_a_stream_of_the_server_cannot_be_named_and_is_not_matched() -> None:
    audit, letters = f"{RESERVED}audit", dead_letters_of("g")
    machine = wake_machine(create(audit, kind=JSON), create(letters))
    refused = StreamRefused(audit, ReservedPath())
    assert unchanged(machine, hook("h", "s", audit)) == refused
    machine.execute(hook("h", "s", letters, pattern="**"))
    assert unchanged(machine, link("r", audit)) == refused
    assert machine.links() == {
        "s": (0, ALL),
        "r": (0, MATCHED),
        "w": (0, MATCHED),
        letters: (0, NAMED),
    }
    machine.execute(create(f"{RESERVED}other", kind=JSON))
    machine.execute(create(dead_letters_of("h")))
    assert len(machine.links()) == 4
    check_derived(machine.state)


# ---- U5 ------------------------------------------------------------------------------------------


def test_a_creation_links_named_and_matched_streams_at_their_stable_offsets() -> None:
    machine = wake_machine(
        append(),
        append(),
        create("a/1"),
        create("b/1"),
        begin(streams=("s", "r")),
        publish(seq=0),
        hook("h", "s", "none", "a/1", pattern="*/1"),
    )
    assert machine.stream().tail.tail == 3
    assert machine.links() == {"s": (2, NAMED), "a/1": (0, ALL), "b/1": (0, MATCHED)}
    assert machine.pending() == set()
    machine.execute(commit())
    assert machine.pending() == {"s"}
    check_derived(machine.state)


def test_streams_with_the_same_followers_are_linked_and_unlinked_together() -> None:
    """All streams are compared, whoever else follows them and whether that is pending or not."""
    machine = wake_machine(hook("a", pattern="*"), hook("b", "s", "w"), hook("c", "s"))
    machine.execute(append())
    machine.execute(append(path="r"))
    machine.execute(ack(("s", 1), name="c"))
    machine.execute(unlink("w", "b"))
    for name in ("h", "i"):
        machine.execute(hook(name, pattern="*"))
        assert machine.links(name) == {"s": (1, MATCHED), "r": (1, MATCHED), "w": (0, MATCHED)}
        check_derived(machine.state)
    for name in ("a", "h", "c", "i", "b"):
        machine.execute(delete(name))
        check_derived(machine.state)
    assert (machine.stream().links, machine.stream().watchers) == (None, None)


def test_a_link_that_is_pending_when_it_is_created_needs_a_wake() -> None:
    """No command of this version creates one."""
    machine = wake_machine(append(), hook("a", "s"))
    machine.execute(hook("h", "s"))
    created = machine.journal.pop()
    assert isinstance(created.event, Subscribed)
    twin = WakeMachine()
    for written in machine.journal:
        twin.replay(written)
    links = tuple((number, 0, kinds) for number, _, kinds in created.event.links)
    twin.replay(created._replace(event=replace(created.event, links=links)))
    assert (twin.pending(), twin.state.subscriptions.due) == ({"s"}, {"h"})
    check_derived(twin.state)


def test_streams_are_linked_later_at_their_stable_offsets() -> None:
    machine = wake_machine(append(path="r"), hook("h", "s"), append())
    assert machine.execute(link("r", "none", "r")) == LinksChanged()
    assert machine.links() == {"s": (0, NAMED), "r": (1, NAMED)}
    assert machine.subscription().row.names == ("none", "r", "s")
    assert machine.pending() == {"s"}
    check_derived(machine.state)


# ---- U6 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["later", "a/1"])
def test_a_stream_that_is_created_with_messages_is_pending_at_once(path: str) -> None:
    machine = wake_machine(hook("h", "later", "later/x", pattern="a/*"))
    machine.execute(create(path, batch=append(b"x").batch))
    kinds = NAMED if path == "later" else MATCHED
    assert machine.links() == {path: (NEVER, kinds)}
    assert machine.pending() == {path}
    assert machine.wake().snapshot == ((machine.stream(path).row.number, 1),)


def test_an_empty_new_stream_is_linked_and_not_pending() -> None:
    machine = wake_machine(hook("h", "a/1", pattern="a/*"), create("a/1"))
    assert machine.links() == {"a/1": (NEVER, ALL)}
    assert machine.pending() == set()
    machine.execute(append(path="a/1"))
    assert machine.pending() == {"a/1"}
    check_derived(machine.state)


def test_a_topic_is_never_linked_and_its_partitions_are() -> None:
    machine = wake_machine(hook("h", "t", pattern="t/**"), hook("i", "t/1"))
    machine.execute(create_topic("t", 1))
    assert machine.links() == {"t/0": (NEVER, MATCHED)}
    machine.execute(grow("t", 2))
    assert machine.links() == {"t/0": (NEVER, MATCHED), "t/1": (NEVER, MATCHED)}
    assert machine.links("i") == {"t/1": (NEVER, NAMED)}
    machine.execute(append_topic((b"k", b"1"), (b"l", b"2"), (b"m", b"3"), path="t"))
    assert machine.pending() == {
        f"t/{number}" for number in range(2) if machine.stream(f"t/{number}").tail.tail
    }
    check_derived(machine.state)


def test_the_messages_that_a_fork_inherits_are_pending() -> None:
    machine = wake_machine(append(), hook("h", pattern="f"), fork("f", "s"))
    assert machine.links() == {"f": (NEVER, MATCHED)}
    assert machine.pending() == {"f"}
    check_derived(machine.state)


# ---- U7 ------------------------------------------------------------------------------------------


def test_naming_a_matched_stream_keeps_what_was_acked() -> None:
    machine = wake_machine(hook("h", pattern="*"), append(), append())
    machine.execute(ack(("s", 1)))
    assert machine.execute(link("s")) == LinksChanged()
    assert machine.links()["s"] == (1, ALL)
    assert machine.execute(unlink("s")) == LinksChanged()
    assert machine.links()["s"] == (1, MATCHED)
    assert machine.pending() == {"s"}
    check_derived(machine.state)


def test_naming_a_stream_that_is_created_after_the_pattern_keeps_that_it_was_never_acked() -> None:
    machine = wake_machine(hook("h", pattern="*"), create("x"), link("x"))
    assert machine.links()["x"] == (NEVER, ALL)


def test_unlinking_removes_the_link_if_nothing_matches() -> None:
    machine = wake_machine(hook("h", "s", "none"), append())
    assert machine.pending() == {"s"}
    assert machine.execute(unlink("s")) == LinksChanged()
    assert (machine.links(), machine.pending()) == ({}, set())
    assert machine.execute(unlink("none")) == LinksChanged()
    assert machine.subscription().row.names == ()
    machine.execute(create("none"))
    assert machine.links() == {}
    check_derived(machine.state)


@pytest.mark.parametrize("command", [link("s"), link("s", "s"), unlink("r"), unlink("none")])
def test_a_link_that_changes_nothing_writes_nothing(command: EngineCommand) -> None:
    machine = wake_machine(hook("h", "s", pattern="r"))
    assert unchanged(machine, command) == LinksChanged()


# ---- U8 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [Delete("a/1", 9), Expire("a/1", 9, 5)])
@pytest.mark.parametrize("is_forked", [False, True])
def test_a_stream_that_ends_loses_its_links_and_a_new_one_begins_without_ack(
    end: EngineCommand, is_forked: bool
) -> None:
    machine = wake_machine(
        create("a/1", ttl=5),
        hook("h", "a/1", pattern="a/*"),
        append(path="a/1"),
        *([fork("f", "a/1")] if is_forked else []),
    )
    assert machine.pending() == {"a/1"}
    assert not isinstance(machine.execute(end), Refusal)
    assert (machine.links(), machine.pending()) == ({}, set())
    assert machine.subscription().row.names == ("a/1",)
    check_derived(machine.state)
    if not is_forked:
        machine.execute(create("a/1", now=10, batch=append(b"y").batch))
        assert machine.links() == {"a/1": (NEVER, ALL)}
        assert machine.pending() == {"a/1"}
        check_derived(machine.state)


def test_the_partitions_of_a_topic_that_is_deleted_lose_their_links() -> None:
    machine = wake_machine(create_topic("t", 2), hook("h", "t/0", pattern="t/*"))
    machine.execute(append_topic((b"k", b"1"), (b"l", b"2"), path="t"))
    assert machine.pending()
    machine.execute(DeleteTopic("t", 0))
    assert (machine.links(), machine.pending()) == ({}, set())
    machine.execute(create_topic("t", 1, now=1))
    assert machine.links() == {"t/0": (NEVER, ALL)}
    check_derived(machine.state)


def test_a_closed_stream_keeps_its_links() -> None:
    machine = wake_machine(create_topic("t", 1), hook("h", "s", pattern="t/*"))
    machine.execute(append(b"x", close=True))
    machine.execute(CloseTopic("t", 0))
    assert machine.links() == {"s": (0, NAMED), "t/0": (0, MATCHED)}
    assert machine.pending() == {"s"}
    check_derived(machine.state)


# ---- U9 ------------------------------------------------------------------------------------------


def test_a_deletion_removes_everything() -> None:
    machine = wake_machine(hook("h", "s", "none", pattern="*"), hook("i", "s"), append())
    machine.state.take_dirty()
    numbers = sorted(machine.subscription().links)
    assert machine.execute(delete()) == SubscriptionDeleted()
    assert machine.state.subscriptions.by_id.keys() == {"i"}
    dirty = machine.state.dirty
    assert (dirty.subscriptions, dirty.wakes) == ({"h": None}, {"h": None})
    assert dirty.links == {(number, "h"): None for number in numbers}
    check_derived(machine.state)
    machine.execute(create("none"))
    assert machine.stream("none").links is None


def test_a_new_subscription_with_the_id_of_a_deleted_one_has_no_owner() -> None:
    machine = wake_machine(hook("h", "s"))
    key = (SUBSCRIPTION, 0, "h")
    set_owner(machine.state, key, "me")
    machine.execute(delete())
    assert machine.state.owners == {}
    assert machine.state.dirty.owners == {key: None}


def test_a_subscription_that_needs_a_wake_can_be_deleted() -> None:
    machine = wake_machine(hook("h", "s"))
    machine.issues = False
    machine.execute(append())
    assert machine.state.subscriptions.due == {"h"}
    machine.execute(delete())
    assert machine.state.subscriptions.due == set()


@pytest.mark.parametrize(
    "command",
    [
        delete("x"),
        link("s", name="x"),
        unlink("s", "x"),
        claim_wake(name="x"),
        ack(name="x"),
        release("x"),
        failed(name="x"),
    ],
)
def test_an_unknown_subscription_is_refused(command: EngineCommand) -> None:
    machine = wake_machine(hook("h", "s"))
    assert unchanged(machine, command) == UnknownSubscription()


def test_a_new_subscription_with_an_old_id_begins_at_generation_0() -> None:
    machine = wake_machine(hook("h", "s"), append(), delete(), hook("h", "s"))
    assert machine.wake().generation == 0
    assert machine.links() == {"s": (1, NAMED)}
    machine.execute(append())
    assert machine.wake().generation == 1


# ---- what is pending -----------------------------------------------------------------------------


def test_what_is_trimmed_is_not_pending() -> None:
    machine = wake_machine(hook("h", "s"), append(), append(), append())
    machine.execute(Trim("s", 0, 2))
    assert machine.pending() == {"s"}
    machine.execute(Trim("s", 0, 3))
    assert machine.pending() == set()
    check_derived(machine.state)


def test_a_trim_before_the_wake_makes_it_unnecessary() -> None:
    machine = wake_machine(hook("h", "s"))
    machine.issues = False
    machine.execute(append())
    assert machine.state.subscriptions.due == {"h"}
    machine.execute(Trim("s", 0, 1))
    assert machine.state.subscriptions.due == set()
    check_derived(machine.state)


def test_an_open_transaction_wakes_nobody_and_its_end_does() -> None:
    machine = wake_machine(hook("h", "s"), begin(streams=("s", "r")), publish(seq=0))
    machine.execute(append())
    assert machine.pending() == set()
    machine.execute(commit())
    assert machine.pending() == {"s"}
    assert machine.wake().snapshot == ((1, 3),)
    check_derived(machine.state)


def test_streams_that_are_created_with_the_same_followers_share_one_set() -> None:
    machine = wake_machine(hook("a", pattern="x/*"), hook("b", pattern="x/*"), hook("c", "x/3"))
    for number in range(1, 4):
        machine.execute(create(f"x/{number}"))
    first, second, third = (machine.stream(f"x/{number}") for number in range(1, 4))
    assert first.links is first.watchers is second.links is second.watchers
    assert third.links == {"a", "b", "c"}
    machine.execute(append(path="x/1"))
    machine.execute(create("x/4", batch=append(b"x").batch))
    assert (first.watchers, second.watchers, machine.stream("x/4").watchers) == (
        None,
        {"a", "b"},
        None,
    )
    machine.execute(delete("a"))
    assert (first.links, second.watchers, third.links) == ({"b"}, {"b"}, {"b", "c"})
    check_derived(machine.state)
