"""Wakes: rules W1 to W12 of docs/reference/subscriptions.md, as far as the machine decides them."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from semel.machine import MachineLimits, decide
from semel.machine.events import DecidedWithAcks
from semel.machine.subscription_events import NAMED, NEVER_ACKED, Acked, DeliveryNoted, WakeRow
from semel.model.commands import Commit, CommitTxn, Delete, EngineCommand, PositionMove, Trim
from semel.model.limits import DELIVERY_ERROR_BYTES_MAX
from semel.model.outcomes import (
    DiskFull,
    InvalidRequest,
    Refusal,
    StillAlive,
)
from semel.model.outcomes_subscriptions import (
    AlreadyClaimed,
    Fenced,
    InvalidOffset,
    NoPendingWork,
    TokenInvalid,
    UnknownSubscription,
    WakeAcked,
    WakeChanged,
    WakeClaimed,
    WrongType,
)
from semel.model.outcomes_txn import CommitDone
from semel.model.subscription_commands import (
    PULL_WAKE,
    WEBHOOK,
    AckWake,
    IssueWake,
    WakeAck,
)
from tests.unit.machine.builders import JSON, append, create, unchanged
from tests.unit.machine.subscription_builders import (
    WakeMachine,
    ack,
    check_derived,
    claim_wake,
    delete,
    expire,
    failed,
    hook,
    link,
    pull,
    release,
    resume,
    unlink,
    wake_ack,
    wake_id_of,
    wake_machine,
)
from tests.unit.machine.txn_builders import abort, begin, commit, one_shot, publish


def woken(*more: EngineCommand) -> WakeMachine:
    """Return a machine in which the webhook h and the pull-wake p follow s, with a wake each."""
    return wake_machine(hook("h", "s"), pull("p", "s"), append(), append(), *more)


# ---- W1 ------------------------------------------------------------------------------------------


def test_a_wake_has_the_pending_streams_with_their_stable_offsets() -> None:
    machine = wake_machine(hook("h", "s", "r", "w"))
    machine.issues = False
    machine.execute(append(path="r"))
    machine.execute(append(path="r"))
    machine.execute(append(path="s", now=7))
    machine.issue("h")
    expected = WakeRow(1, "w_h_1", 7, snapshot=((1, 1), (2, 2)), next_stream=4)
    assert machine.wake() == expected
    assert machine.state.subscriptions.due == set()
    check_derived(machine.state)


def test_a_wake_in_flight_keeps_its_snapshot_and_no_other_one_is_issued() -> None:
    machine = woken()
    before = machine.wake()
    assert before.snapshot == ((1, 1),)
    machine.execute(append())
    machine.execute(IssueWake(0, "h", "another"))
    assert machine.wake() == before


@pytest.mark.parametrize("name", ["h", "none"])
def test_a_wake_that_nobody_needs_is_not_issued(name: str) -> None:
    machine = wake_machine(hook("h", "s"))
    assert unchanged(machine, IssueWake(0, name, "w_1")) == WakeChanged()


@pytest.mark.parametrize(("by_limit", "by_frame", "count"), [(3, 9, 3), (9, 2, 2)])
def test_a_snapshot_has_a_limit_and_the_others_follow_with_the_next_wake(
    monkeypatch: pytest.MonkeyPatch, by_limit: int, by_frame: int, count: int
) -> None:
    monkeypatch.setattr("semel.machine.subscriptions.WAKE_STREAMS_MAX", by_limit)
    limits = MachineLimits(txn_streams=by_frame)
    machine = wake_machine(hook("h", pattern="a/*"), limits=limits)
    machine.issues = False
    for number in range(5):
        machine.execute(create(f"a/{number}", batch=append(b"x").batch))
    numbers = sorted(machine.subscription().pending)
    machine.issues = True
    machine.execute(create("a/6"))
    assert [number for number, _ in machine.wake().snapshot] == numbers[:count]
    done = AckWake(0, wake_ack(done=True), WEBHOOK, by_snapshot=True)
    assert machine.execute(done) == WakeAcked(next_wake=True)
    assert [number for number, _ in machine.wake().snapshot] == numbers[count : 2 * count]
    assert machine.wake().generation == 2


def test_streams_that_are_always_pending_do_not_keep_others_out_of_all_snapshots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("semel.machine.subscriptions.WAKE_STREAMS_MAX", 2)
    machine = wake_machine(hook("h", pattern="a/*"))
    machine.issues = False
    for number in range(5):
        machine.execute(create(f"a/{number}", batch=append(b"x").batch))
    first = min(machine.subscription().pending)
    snapshots = []
    machine.issue("h")
    for generation in range(1, 7):
        snapshots.append([number - first for number, _ in machine.wake().snapshot])
        for number in snapshots[-1]:
            machine.execute(append(path=f"a/{number}"))
        done = wake_ack(done=True, generation=generation)
        machine.execute(AckWake(0, done, WEBHOOK, by_snapshot=True))
        assert machine.pending() == {f"a/{number}" for number in range(5)}
        machine.issue("h")
    assert snapshots == [[0, 1], [2, 3], [0, 4], [1, 2], [3, 4], [0, 1]]
    check_derived(machine.state)


def test_after_a_snapshot_with_all_pending_streams_the_next_one_begins_with_the_first() -> None:
    machine = wake_machine(hook("h", "s", "r"), append(path="r"), append())
    assert (machine.wake().snapshot, machine.wake().last) == (((2, 1),), 0)


# ---- W2 ------------------------------------------------------------------------------------------


def test_the_frame_of_a_pull_wake_has_a_message_in_the_wake_stream() -> None:
    machine = wake_machine(pull("p", "s", "r"), append(b"x", path="r", now=12))
    (payload,) = machine.payloads("w")
    assert msgspec.json.decode(payload) == {
        "type": "wake",
        "subscription_id": "p",
        "stream": "r",
        "generation": 1,
        "ts": 12,
    }
    assert machine.stream("w").tail.tail == 1
    assert machine.wake("p").snapshot == ((2, 1),)


def test_a_webhook_appends_no_message() -> None:
    machine = wake_machine(hook("h", "s"), append())
    assert machine.journal[-1].sections == ()


@pytest.mark.parametrize(
    "end", [Delete("w", 0), append(None, path="w", kind=JSON, close=True)], ids=["gone", "closed"]
)
def test_a_wake_without_its_stream_has_no_message_and_can_be_claimed(end: EngineCommand) -> None:
    machine = wake_machine(pull("p", "s"), end, append())
    assert machine.wake("p").wake_id
    assert machine.journal[-1].sections == ()
    assert machine.execute(claim_wake()) == WakeClaimed("w_p_1", 1)


@pytest.mark.parametrize("kind", [JSON, "text/plain"])
def test_a_new_stream_with_the_path_of_the_wake_stream_gets_the_messages_if_it_is_json(
    kind: str,
) -> None:
    machine = wake_machine(pull("p", "s"), Delete("w", 0), create("w", kind=kind, now=1), append())
    assert machine.stream("w").tail.tail == (1 if kind == JSON else 0)
    assert machine.wake("p").generation == 1


# ---- W4 ------------------------------------------------------------------------------------------


def test_a_worker_claims_a_wake_and_nobody_else_gets_it() -> None:
    machine = woken()
    assert machine.execute(claim_wake("é")) == WakeClaimed("w_p_1", 1)
    assert machine.wake("p").worker == "é"
    for worker in ("other", "é"):
        assert unchanged(machine, claim_wake(worker)) == AlreadyClaimed("é", 1)


def test_nothing_is_claimed_if_nothing_is_pending() -> None:
    machine = wake_machine(pull("p", "s"))
    assert unchanged(machine, claim_wake()) == NoPendingWork()


def test_a_claim_is_refused_if_the_disk_was_too_full_for_the_wake() -> None:
    machine = wake_machine(pull("p", "s"))
    machine.issues = False
    machine.execute(append())
    assert unchanged(machine, claim_wake()) == DiskFull()


def test_a_webhook_cannot_be_claimed() -> None:
    assert unchanged(woken(), claim_wake(name="h")) == WrongType(WEBHOOK)


# ---- W5 ------------------------------------------------------------------------------------------


def test_the_checks_of_an_ack_have_an_order() -> None:
    """Each refusal is for a command that the later checks would refuse, too."""
    machine = woken(claim_wake())
    stale = WakeAck("p", "w_other", 7, (("none", 99),))
    wrong = AckWake(0, stale, WEBHOOK, has_token=False)
    unknown = AckWake(0, replace(stale, id="x"), WEBHOOK, has_token=False)
    assert unchanged(machine, unknown) == UnknownSubscription()
    assert unchanged(machine, wrong) == WrongType(PULL_WAKE)
    assert unchanged(machine, replace(wrong, type=PULL_WAKE)) == TokenInvalid()
    fenced = replace(wrong, type=PULL_WAKE, has_token=True)
    assert unchanged(machine, fenced) == Fenced("p", 1)
    current = replace(stale, wake_id="w_p_1", generation=1)
    assert unchanged(machine, replace(fenced, ack=current)) == InvalidOffset("p", "none")


@pytest.mark.parametrize(
    "changes", [{"wake": "w_h_2"}, {"generation": 2, "wake": "w_h_1"}, {"generation": 0}]
)
def test_an_ack_of_another_wake_is_fenced(changes: dict[str, Any]) -> None:
    assert unchanged(woken(), ack(("s", 1), **changes)) == Fenced("h", 1)


def test_an_ack_of_a_pull_wake_that_nobody_has_claimed_is_fenced() -> None:
    machine = woken()
    assert unchanged(machine, ack(("s", 1), name="p")) == Fenced("p", 1)
    machine.execute(claim_wake())
    assert machine.execute(ack(("s", 1), name="p")) == WakeAcked(next_wake=False)


def test_an_ack_of_a_wake_that_has_ended_is_fenced() -> None:
    machine = woken(ack(("s", 2), done=True))
    assert machine.wake() == WakeRow(1)
    assert unchanged(machine, ack(("s", 2), done=True)) == Fenced("h", 1)
    assert unchanged(machine, ack(wake="-")) == Fenced("h", 1)


@pytest.mark.parametrize(
    "pairs",
    [
        (("none", 0),),
        (("w", 0),),  # it exists and is not linked
        (("r", 0),),  # before what was acked
        (("r", -1),),
        (("s", -1),),
        (("s", 3),),  # after the tail
        (("s", 1), ("s", 1)),
        (("s", 1), ("r", 0)),
    ],
)
def test_an_invalid_pair_refuses_all_of_them(pairs: tuple[tuple[str, int], ...]) -> None:
    machine = wake_machine(append(path="r"), hook("h", "s", "r"), append(), append())
    assert unchanged(machine, ack(*pairs, done=True)) == InvalidOffset("h", pairs[-1][0])
    assert machine.links() == {"s": (0, NAMED), "r": (1, NAMED)}


def test_an_offset_after_the_stable_one_can_be_acked_up_to_the_tail() -> None:
    machine = woken(begin(streams=("s", "r")), publish(seq=0), append())
    assert machine.execute(ack(("s", 4), done=True)) == WakeAcked(next_wake=False)
    machine.execute(commit())
    assert machine.pending() == {"s"}, "the control record of the transaction"
    check_derived(machine.state)


def test_an_ack_of_a_stream_that_was_never_acked_begins_at_0() -> None:
    machine = wake_machine(hook("h", pattern="a"), create("a", batch=append(b"x").batch))
    assert machine.links() == {"a": (NEVER_ACKED, 2)}
    assert unchanged(machine, ack(("a", NEVER_ACKED))) == InvalidOffset("h", "a")
    assert machine.execute(ack(("a", 0))) == WakeAcked(next_wake=False)
    assert machine.links() == {"a": (0, 2)}
    assert machine.pending() == {"a"}


def test_a_stream_that_is_named_again_after_it_was_created_again_is_not_acked() -> None:
    machine = woken(Delete("s", 0), unlink("s"), create("s"), link("s"), append())
    assert machine.links() == {"s": (0, NAMED)}
    assert unchanged(machine, ack(("s", 1), done=True)) == InvalidOffset("h", "s")
    assert machine.pending() == {"s"}


def test_a_stream_that_is_older_than_the_wake_can_be_acked_although_the_snapshot_lacks_it() -> None:
    machine = woken(link("r"), append(path="r"))
    assert machine.execute(ack(("r", 1))) == WakeAcked(next_wake=False)
    assert machine.links() == {"s": (0, NAMED), "r": (1, NAMED)}


def test_a_stream_that_has_taken_the_place_of_one_that_was_read_is_not_acked() -> None:
    machine = wake_machine(hook("h", pattern="a"), create("a", batch=append(b"x").batch))
    machine.execute(Delete("a", 0))
    machine.execute(create("a", batch=append(b"y").batch))
    assert unchanged(machine, ack(("a", 1), done=True)) == InvalidOffset("h", "a")
    assert machine.links() == {"a": (NEVER_ACKED, 2)}
    assert machine.pending() == {"a"}


# ---- W6 ------------------------------------------------------------------------------------------


def test_an_ack_without_pairs_writes_nothing() -> None:
    machine = woken()
    assert unchanged(machine, ack()) == WakeAcked(next_wake=False)
    assert unchanged(machine, ack(("s", 0))) == WakeAcked(next_wake=False)


def test_an_ack_moves_what_was_acked_and_the_wake_stays() -> None:
    machine = woken()
    before = machine.wake()
    assert machine.execute(ack(("s", 1))) == WakeAcked(next_wake=False)
    assert machine.links() == {"s": (1, NAMED)}
    assert machine.wake() == before
    assert machine.journal[-1].event == Acked("h", ((1, 1),), False)
    assert machine.execute(ack(("s", 2))) == WakeAcked(next_wake=False)
    assert machine.pending() == set()
    assert machine.wake() == before
    check_derived(machine.state)


@pytest.mark.parametrize(
    ("pairs", "generation"), [((("s", 2),), 1), ((("s", 1),), 2), ((), 2), ((("s", 0),), 2)]
)
def test_the_end_of_a_wake_says_whether_another_one_follows(
    pairs: tuple[tuple[str, int], ...], generation: int
) -> None:
    machine = woken()
    done = machine.execute(ack(*pairs, done=True))
    assert done == WakeAcked(next_wake=generation == 2)
    assert machine.wake().generation == generation
    assert bool(machine.wake().wake_id) == (generation == 2)
    check_derived(machine.state)


def test_a_stream_that_is_pending_and_not_acked_brings_another_wake() -> None:
    machine = woken(link("r"), append(path="r"))
    assert machine.execute(ack(("s", 2), done=True)) == WakeAcked(next_wake=True)
    assert machine.wake().snapshot == ((2, 1),)


# ---- W7 ------------------------------------------------------------------------------------------


def test_the_end_of_a_delivery_acks_its_snapshot_and_not_what_came_later() -> None:
    machine = woken()
    done = AckWake(0, wake_ack(done=True), WEBHOOK, by_snapshot=True)
    assert machine.execute(done) == WakeAcked(next_wake=True)
    assert machine.links() == {"s": (1, NAMED)}
    assert machine.wake().snapshot == ((1, 2),)


def test_streams_of_a_snapshot_that_are_acked_or_unlinked_are_left_out() -> None:
    machine = wake_machine(hook("h", "s", "r", "x"))
    machine.issues = False
    for path in ("s", "r"):
        machine.execute(append(path=path))
    machine.execute(create("x", batch=append(b"x").batch))
    machine.issues = True
    machine.execute(append(path="s"))
    machine.execute(ack(("s", 2)))
    machine.execute(unlink("r"))
    machine.execute(Delete("x", 0))
    assert len(machine.wake().snapshot) == 3
    done = AckWake(0, wake_ack(done=True), WEBHOOK, by_snapshot=True)
    assert machine.execute(done) == WakeAcked(next_wake=False)
    assert machine.journal[-1].event == Acked("h", (), True)
    assert machine.links() == {"s": (2, NAMED)}


# ---- W8 ------------------------------------------------------------------------------------------


def test_a_released_wake_ends_without_an_ack_and_the_next_one_follows() -> None:
    machine = woken(claim_wake())
    assert machine.execute(release()) == WakeChanged()
    assert machine.links("p") == {"s": (0, NAMED)}
    assert (machine.wake("p").generation, machine.wake("p").worker) == (2, "")
    assert unchanged(machine, release()) == Fenced("p", 2)


def test_the_checks_of_a_release_are_those_of_an_ack() -> None:
    machine = woken()
    assert unchanged(machine, release("h", has_token=False)) == WrongType(WEBHOOK)
    assert unchanged(machine, release(has_token=False)) == TokenInvalid()
    assert unchanged(machine, release()) == Fenced("p", 1), "nobody has claimed it"
    machine.execute(claim_wake())
    assert unchanged(machine, release(generation=2)) == Fenced("p", 1)


# ---- W9 ------------------------------------------------------------------------------------------


def test_a_wake_ends_when_its_lease_has_expired() -> None:
    machine = woken(claim_wake())
    for name in ("h", "p"):
        assert unchanged(machine, expire(name, elapsed_ms=29_999)) == StillAlive()
        assert machine.execute(expire(name)) == WakeChanged()
        assert machine.wake(name).generation == 2
        assert machine.links(name) == {"s": (0, NAMED)}
    assert unchanged(machine, ack(("s", 1), name="p")) == Fenced("p", 2)


def test_the_lease_of_another_wake_ends_nothing() -> None:
    machine = woken()
    assert unchanged(machine, expire(generation=2)) == Fenced("h", 1)
    assert unchanged(machine, expire("x")) == UnknownSubscription()
    machine.execute(ack(("s", 2), done=True))
    assert unchanged(machine, expire()) == Fenced("h", 1)


# ---- W10 -----------------------------------------------------------------------------------------


def test_failed_deliveries_are_counted_and_the_wake_stays() -> None:
    machine = woken()
    before = machine.wake()
    assert machine.execute(failed("503", retry_after_ms=5)) == WakeChanged()
    event = DeliveryNoted("h", 1, "503", is_suspended=False, retry_after_ms=5)
    assert machine.journal[-1].event == event
    machine.execute(failed("no answer"))
    assert machine.wake() == replace(before, attempts=2, error="no answer")
    check_derived(machine.state)


def test_the_text_of_an_error_is_cut_between_characters() -> None:
    machine = woken(failed("xé" * 1_000 + "\ud800"))
    error = machine.wake().error
    assert len(error.encode()) == DELIVERY_ERROR_BYTES_MAX - 1
    assert error == ("xé" * 1_000)[: len(error)]


def test_a_delivery_that_succeeds_resets_the_failures() -> None:
    machine = woken(failed("503"))
    assert machine.execute(failed(None)) == WakeChanged()
    assert (machine.wake().attempts, machine.wake().error) == (0, "")
    assert unchanged(machine, failed(None)) == WakeChanged()


@pytest.mark.parametrize("command", [ack(), ack(("s", 1))])
def test_an_ack_resets_the_failures(command: AckWake) -> None:
    machine = woken(failed("503"))
    assert machine.execute(command) == WakeAcked(next_wake=False)
    assert (machine.wake().attempts, machine.wake().error) == (0, "")
    assert machine.wake().wake_id == wake_id_of("h", 1)


def test_a_subscription_is_suspended_after_the_maximum_of_failures() -> None:
    machine = woken(failed(attempts_max=2))
    assert not machine.wake().is_suspended
    machine.execute(failed(attempts_max=2))
    wake = machine.wake()
    assert (wake.is_suspended, wake.attempts, wake.wake_id) == (True, 2, "w_h_1")
    machine.execute(append())
    assert (machine.wake(), machine.pending()) == (wake, {"s"}), "nothing is lost"
    assert machine.execute(resume()) == WakeChanged()
    assert machine.wake() == WakeRow(1, "w_h_1", 0, snapshot=((1, 1),), next_stream=4)
    assert machine.journal[-1].event == DeliveryNoted("h", 0, is_resumed=True)
    assert unchanged(machine, resume()) == WakeChanged()


@pytest.mark.parametrize("done", [False, True])
def test_an_ack_ends_a_suspension(done: bool) -> None:
    machine = woken(failed(attempts_max=1), ack(("s", 1), done=done))
    assert not machine.wake().is_suspended
    assert machine.wake().generation == (2 if done else 1)


def test_a_delivery_of_a_wake_that_is_not_in_flight_is_fenced() -> None:
    machine = woken()
    assert unchanged(machine, failed(generation=2)) == Fenced("h", 1)
    assert unchanged(machine, failed(name="p")) == WrongType(PULL_WAKE)
    assert unchanged(machine, resume("x")) == UnknownSubscription()
    machine.execute(ack(("s", 2), done=True))
    assert unchanged(machine, failed()) == Fenced("h", 1)


@pytest.mark.parametrize("error", [None, "no answer"])
def test_a_late_delivery_to_a_deleted_subscription_is_not_that_of_a_new_one(
    error: str | None,
) -> None:
    machine = woken()
    late = replace(failed(error), wake_id=machine.wake().wake_id, attempts_max=1)
    machine.issues = False
    for command in (delete(), hook("h", "s"), append(), IssueWake(0, "h", "w_new")):
        machine.execute(command)
    assert machine.wake().generation == late.generation
    assert unchanged(machine, late) == Fenced("h", 1)
    assert machine.execute(replace(late, wake_id="w_new")) == WakeChanged()


# ---- W12 -----------------------------------------------------------------------------------------


def one_shot_with(*wakes: WakeAck, seq: int = 0) -> Commit:
    return replace(one_shot(("r", b"out"), seq=seq), wakes=wakes)


def test_a_commit_and_its_acks_are_one_frame() -> None:
    machine = woken(claim_wake())
    acks = (
        wake_ack(("s", 2), name="p", done=True),
        wake_ack(("s", 1)),
    )
    frames = len(machine.journal)
    assert isinstance(machine.execute(one_shot_with(*acks)), CommitDone)
    assert len(machine.journal) == frames + 1
    assert machine.payloads("r") == [b"out"]
    assert machine.wake("p") == WakeRow(1)
    assert machine.links("p") == {"s": (2, NAMED)}
    assert machine.wake("h").wake_id
    assert machine.links("h") == {"s": (1, NAMED)}
    check_derived(machine.state)


@pytest.mark.parametrize(
    ("wakes", "refusal"),
    [
        ((wake_ack(("s", 1), wake="other"),), Fenced("h", 1)),
        ((wake_ack(("s", 9)),), InvalidOffset("h", "s")),
        ((wake_ack(("s", 1)), wake_ack(("s", 2), name="p")), Fenced("p", 1)),
        ((wake_ack(("s", 1), name="x"),), UnknownSubscription("x")),
        ((wake_ack(("s", 1)), wake_ack(("s", 2))), InvalidRequest("subscriptions")),
    ],
)
def test_a_refused_ack_refuses_the_commit(wakes: tuple[WakeAck, ...], refusal: Refusal) -> None:
    machine = woken(begin(streams=("s", "r")), publish(path="r", seq=0))
    assert unchanged(machine, one_shot_with(*wakes)) == refusal
    assert unchanged(machine, replace(commit(), wakes=wakes)) == refusal
    assert machine.links() == {"s": (0, NAMED)}


def test_a_repeated_commit_returns_the_first_result_whatever_became_of_the_wake() -> None:
    machine = woken()
    command = one_shot_with(wake_ack(("s", 2), done=True))
    first = machine.execute(command)
    machine.execute(delete())
    again = unchanged(machine, command)
    assert isinstance(first, CommitDone)
    assert isinstance(again, CommitDone)
    assert (again.result, again.is_duplicate, again.is_mismatch) == (first.result, True, False)


def test_the_output_of_a_commit_can_bring_the_next_wake() -> None:
    machine = woken(link("r"))
    machine.execute(one_shot_with(wake_ack(("s", 2), done=True)))
    assert machine.wake() == WakeRow(2, "w_h_2", 0, snapshot=((2, 1),), next_stream=4)


def test_a_commit_with_acks_keeps_the_metadata_of_its_moves_and_who_commits() -> None:
    machine = woken(begin(streams=("s", "r")), publish(path="r", seq=0))
    move = PositionMove("g", "s", 1, metadata=(("k", "v"),))
    command = replace(one_shot(producer="q"), positions=(move,), wakes=(wake_ack(("s", 1)),))
    assert isinstance(machine.execute(command), CommitDone)
    assert machine.state.groups["g"]["s"].metadata == (("k", "v"),)
    by_operator = replace(commit(), wakes=(wake_ack(("s", 2)),), by_operator=True)
    event = decide(machine.state, by_operator).event
    assert isinstance(event, DecidedWithAcks)
    assert event.by_operator


def test_a_commit_can_have_nothing_but_acks() -> None:
    machine = woken()
    command = replace(one_shot(), wakes=(wake_ack(("s", 2), done=True),))
    assert isinstance(machine.execute(command), CommitDone)
    assert machine.wake() == WakeRow(1)


def test_the_commit_of_a_transaction_acks_wakes_and_its_repeat_does_not() -> None:
    machine = woken(claim_wake(), begin(streams=("s", "r")), publish(path="r", seq=0))
    command: CommitTxn = replace(commit(), wakes=(wake_ack(("s", 2), name="p", done=True),))
    assert isinstance(machine.execute(command), CommitDone)
    assert machine.wake("p") == WakeRow(1)
    assert machine.links("p") == {"s": (2, NAMED)}
    frames = len(machine.journal)
    again = machine.execute(command)
    assert isinstance(again, CommitDone)
    assert again.is_duplicate
    assert len(machine.journal) == frames


def test_an_aborted_transaction_acks_nothing() -> None:
    machine = woken(begin(streams=("s", "r")), publish(path="r", seq=0), abort())
    assert machine.links() == {"s": (0, NAMED)}
    assert machine.wake().wake_id


# ---- disk space ----------------------------------------------------------------------------------


def test_on_a_full_disk_wakes_end_and_are_acked_but_are_neither_issued_nor_claimed() -> None:
    machine = wake_machine(hook("h", "s"), pull("p", "s"))
    machine.issues = False
    machine.execute(append())
    for name in ("h", "p"):
        assert decide(machine.state, IssueWake(0, name, "w")).grows
        machine.issue(name)
    assert decide(machine.state, claim_wake()).grows
    assert decide(machine.state, failed()).grows
    machine.execute(claim_wake())
    machine.execute(failed(attempts_max=1))
    ends = (release(), expire("p"), ack(("s", 1), name="p", done=True), ack(), resume(), delete())
    for command in ends:
        decision = decide(machine.state, command)
        assert decision.event is not None
        assert not decision.grows, command


# ---- time ----------------------------------------------------------------------------------------


def test_a_trim_of_what_a_wake_has_leaves_the_wake() -> None:
    machine = woken(Trim("s", 0, 2))
    assert machine.pending() == set()
    assert machine.wake().wake_id
    assert machine.execute(ack(("s", 1), done=True)) == WakeAcked(next_wake=False)
    assert machine.wake() == WakeRow(1)
    check_derived(machine.state)
