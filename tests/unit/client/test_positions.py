"""What a client knows of positions: by worker, moved on by what it has done itself."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from semel.client import errors, group_calls
from semel.client.commit_calls import KnownStreams, Mark, Parts, commit_known
from semel.client.flows import Lost, Pause
from semel.client.group_calls import GroupReader, GroupReading, Place, stable_positions
from semel.client.positions import KnownPosition, KnownPositions, Moving, Worker, moves_of
from semel.client.reading import Reader
from semel.client.txn_calls import TransactionCalls, decide
from semel.client.values import Message, Registration
from semel.model.offsets import print_offset
from tests.unit.client.hand import SITE, Played, answer, body_of, calls, document, play, problem

T = TypeVar("T")
LOST = Lost("reset")
NAME = ("g", "orders")
DONE: dict[str, Any] = {"streams": {}, "offsets": {}, "deleted": []}


class _Reader:
    """Something that is read from until it is closed."""

    is_open = True


def in_a_thread(work: Callable[[], T]) -> T:
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def sent(worker: Worker, to: Any) -> Any:
    """Return what a move without conditions is sent as."""
    return moves_of(Moving(worker).plan("g", {"orders": to}))["orders"]


# ---- who was told --------------------------------------------------------------------------------


def test_who_was_not_told_counts_as_told_that_the_group_was_never_moved() -> None:
    worker = KnownPositions().worker()
    assert sent(worker, 5) == (0, 5, None, None)
    worker.note_read("orders", "i1")
    assert sent(worker, print_offset(5)) == (0, 5, "i1", None)


def test_what_the_reader_of_a_thread_was_told_is_what_the_thread_sends() -> None:
    worker, reader = KnownPositions().worker(), _Reader()
    worker.note_told(NAME, KnownPosition(3, 7, "i1"), reader)
    assert sent(worker, 5) == (3, 5, "i1", 7)
    reader.is_open = False
    assert sent(worker, 5) == (3, 5, "i1", 7), "a batch is committed after its tail was closed"
    worker.note_told(NAME, KnownPosition(5, 8, "i1"), _Reader())
    assert sent(worker, 6) == (5, 6, "i1", 8), "and the newest one counts"


def test_a_thread_never_takes_what_another_worker_of_the_client_was_told() -> None:
    positions = KnownPositions()
    mine, reader = positions.worker(), _Reader()
    known = KnownPosition(0, 0, "i1")
    mine.note_told(NAME, known, reader)

    def other() -> Any:
        worker = positions.worker()
        worker.note_told(NAME, KnownPosition(0, 0, "i1"), other_reader)
        moving = Moving(worker)
        moving.accepted("g", moving.plan("g", {"orders": 10}))
        moving.done()
        return sent(worker, 15)

    other_reader = _Reader()
    assert in_a_thread(other) == (10, 15, "i1", 1)
    assert sent(mine, 15) == (0, 15, "i1", 0), "so the server refuses"


def test_a_thread_that_only_commits_takes_what_the_only_reader_was_told() -> None:
    positions, reader = KnownPositions(), _Reader()
    positions.worker().note_told(NAME, KnownPosition(3, 7), reader)
    assert in_a_thread(lambda: sent(positions.worker(), 5)) == (3, 5, None, 7)

    def has_read() -> Any:
        worker = positions.worker()
        worker.note_read("orders", "i2")
        return sent(worker, 5)

    assert in_a_thread(has_read) == (0, 5, "i2", None), "it has read by itself, and never asked"


def test_several_readers_at_work_for_one_position_are_told_apart_by_their_messages_only() -> None:
    worker = KnownPositions().worker()
    first, second = _Reader(), _Reader()
    worker.note_told(NAME, KnownPosition(0), first)
    worker.note_told(NAME, KnownPosition(2), second)
    with pytest.raises(ValueError, match="commit_message"):
        sent(worker, 5)
    first.is_open = False
    assert sent(worker, 5) == (2, 5, None, None)
    del second
    worker.note_told(NAME, KnownPosition(4), first)
    assert sent(worker, 5) == (4, 5, None, None), "a reader that nobody holds is not read"


def test_a_task_is_a_worker_and_waiting_for_it_is_not() -> None:
    positions = KnownPositions()

    async def work() -> Any:
        worker = positions.worker()
        reader = _Reader()
        worker.note_told(NAME, KnownPosition(3, 7), reader)

        async def wait() -> bool:
            return positions.worker() is worker

        assert positions.worker() is worker
        assert not await asyncio.wait_for(asyncio.create_task(wait()), 10)
        return sent(worker, 5)

    async def both() -> Any:
        return await asyncio.gather(asyncio.create_task(work()), asyncio.create_task(work()))

    assert asyncio.run(both()) == [(3, 5, None, 7)] * 2


# ---- moves ---------------------------------------------------------------------------------------


def test_a_move_of_this_client_moves_what_it_knows() -> None:
    worker, reader = KnownPositions().worker(), _Reader()
    known = KnownPosition(3, 7, "i1")
    worker.note_told(NAME, known, reader)
    moving = Moving(worker)
    moving.accepted("g", moving.plan("g", {"orders": 5}))
    assert moves_of(moving.plan("g", {"orders": 6})) == {"orders": (5, 6, "i1", 7)}
    assert (known.offset, known.version) == (3, 7), "nothing is moved before the decision"
    moving.accepted("g", moving.plan("g", {"orders": 6}))
    moving.done()
    assert (known.offset, known.version) == (6, 8), "one commit is one move"
    moving.accepted("g", moving.plan("g", {"orders": 9}))
    moving.dropped()
    moving.done()
    assert (known.offset, known.version) == (6, 8)


def test_a_move_back_never_names_what_was_not_told() -> None:
    worker, reader = KnownPositions().worker(), _Reader()
    worker.note_told(NAME, KnownPosition(10, 7, "i1"), reader)
    assert sent(worker, 4) == (4, 4, "i1", None), "refused, as the group is at 10"


def test_a_move_on_conditions_is_sent_as_it_is_and_known_afterwards() -> None:
    worker = KnownPositions().worker()
    for move, after in (
        ((1, 2), (2, None)),
        ((print_offset(2), 3, "i1"), (3, None)),
        ((3, 4, "i1", 6), (4, 7)),
    ):
        moving = Moving(worker)
        planned = moving.plan("g", {"orders": move})
        assert moves_of(planned) == {"orders": move}
        moving.accepted("g", planned)
        moving.done()
        known = worker.find_own(NAME)
        assert (known.offset, known.version) == after


def test_a_commit_that_was_done_before_tells_no_version() -> None:
    worker, reader = KnownPositions().worker(), _Reader()
    known = KnownPosition(3, 7)
    worker.note_told(NAME, known, reader)
    parts = Parts(offsets={"g": {"orders": 5}})
    flow = commit_known(KnownStreams(SITE), Mark("p", 0, 0), parts, worker)
    played = Played(flow, [document({**DONE, "duplicate": True})])
    move = {"from": print_offset(3), "to": print_offset(5), "version": 7}
    assert body_of(played.sends[0])["offsets"] == {"g": {"orders": move}}
    assert (known.offset, known.version) == (5, None)
    older = Parts(offsets={"g": {"orders": 4}})
    play(
        commit_known(KnownStreams(SITE), Mark("p", 0, 0), older, worker),
        document({**DONE, "duplicate": True}),
    )
    assert known.offset == 5, "it was moved on since"
    play(
        commit_known(
            KnownStreams(SITE), Mark("p", 0, 1), Parts(offsets={"g": {"orders": 6}}), worker
        ),
        document(DONE),
    )
    assert (known.offset, known.version) == (6, None)


# ---- transactions --------------------------------------------------------------------------------


def opened(worker: Worker, undecided: dict[str, TransactionCalls]) -> TransactionCalls:
    txn = TransactionCalls(SITE, "t", "inline", 60, undecided, worker)
    begun = answer(
        201, b'{"transaction_epoch": 1, "deadline": null}', content_type="application/json"
    )
    play(txn.begin(Registration("p", 0), ()), begun)
    return txn


def message_of(place: Place, to: int) -> Message:
    message = Message(b"1", "application/json", to - 1, to)

    class OnCommit:
        def __init__(self) -> None:
            self.place = place

        def __call__(self, message: Message) -> None: ...

    message.on_commit = OnCommit()
    return message


def test_a_message_names_the_position_its_own_tail_was_told() -> None:
    worker = KnownPositions().worker()
    place = Place(GroupReading(SITE, "g", worker), "orders")
    place.known = KnownPosition(3, 7, "i1")
    txn = opened(worker, {})
    played = Played(txn.add_message(message_of(place, 5)), [document({})])
    assert body_of(played.sends[0])["offsets"] == {
        "orders": {
            "from": print_offset(3),
            "to": print_offset(5),
            "incarnation": "i1",
            "version": 7,
        }
    }
    again = Played(txn.add_message(message_of(place, 6)), [document({})])
    assert body_of(again.sends[0])["offsets"]["orders"]["from"] == print_offset(5)
    play(txn.commit(), document(DONE))
    assert (place.known.offset, place.known.version) == (6, 8)
    with pytest.raises(ValueError, match="tail"):
        play(opened(worker, {}).add_message(Message(b"1", "application/json", 0, 1)))


@pytest.mark.parametrize(("action", "after"), [("commit", (5, 8)), ("abort", (3, 7))])
def test_a_decision_by_token_is_known_as_well(action: str, after: tuple[int, int]) -> None:
    worker, reader = KnownPositions().worker(), _Reader()
    known = KnownPosition(3, 7)
    worker.note_told(NAME, known, reader)
    undecided: dict[str, TransactionCalls] = {}
    txn = opened(worker, undecided)
    play(txn.add_offsets("g", {"orders": 5}), document({}))
    play(txn.prepare(), document({"token": "t:1"}))
    play(decide(SITE, "t:1", action, undecided), document(DONE))
    assert (known.offset, known.version) == after
    assert txn.is_decided
    assert undecided == {}


def test_a_one_shot_commit_moves_what_its_staged_transactions_name() -> None:
    worker, reader = KnownPositions().worker(), _Reader()
    known = KnownPosition(3, 7)
    worker.note_told(NAME, known, reader)
    txn = opened(worker, {})
    play(txn.add_offsets("g", {"orders": 5}), document({}))
    txn.moved()
    assert (known.offset, known.version) == (5, 8)


# ---- asking --------------------------------------------------------------------------------------


def standing(offset: int, version: int, **pending: Any) -> Any:
    found = {"group": "g", "offsets": {"orders": print_offset(offset)}}
    return document({**found, "versions": {"orders": version}, "pending": pending})


def move(remaining_ms: int | None, name: str = "t") -> dict[str, Any]:
    return {
        "transaction_id": name,
        "transaction_epoch": 1,
        "state": "prepared" if remaining_ms is None else "open",
        "to": print_offset(9),
        "deadline": None,
        "remaining_ms": remaining_ms,
    }


def asked(*replies: Any, **options: Any) -> Played:
    return Played(stable_positions(SITE, "g", ["orders"], **options), replies)


def test_a_transaction_that_may_move_the_group_is_waited_for() -> None:
    pending = standing(3, 7, orders=move(60_000))
    played = asked(pending, pending, standing(9, 8))
    assert played.result.known("orders").offset == 9
    assert [pause.seconds for pause in played.pauses] == [0.02, 0.04]


@pytest.mark.parametrize(
    "pending",
    [{}, {"bills": move(60_000)}, {"orders": move(60_000, "mine")}, {"orders": move(0)}],
    ids=["nothing", "elsewhere", "own", "overdue"],
)
def test_what_need_not_be_waited_for(pending: dict[str, Any]) -> None:
    played = asked(standing(3, 7, **pending), own={"mine:1"})
    assert not played.pauses
    known = played.result.known("orders")
    assert (known.offset, known.version) == (3, 7)
    assert played.result.known("bills").version == 0, "it was never moved there"


@pytest.mark.parametrize(("remaining_ms", "seconds"), [(None, 5.0), (1_000, 1.0), (10**9, 5.0)])
def test_the_wait_is_over_in_time_and_the_guard_keeps_it_safe(
    remaining_ms: int | None, seconds: float
) -> None:
    left, replies = remaining_ms, []
    flow = stable_positions(SITE, "g", ["orders"])
    waited, reply = 0.0, None
    with pytest.raises(StopIteration) as ended:
        while True:
            step = flow.send(reply)
            if isinstance(step, Pause):
                waited += step.seconds
                left = None if left is None else max(0, round(left - step.seconds * 1000))
                reply = True
            else:
                reply = standing(3, 7, orders=move(left))
                replies.append(reply)
    assert ended.value.value.known("orders").offset == 3
    assert waited == pytest.approx(seconds, abs=0.01)


def test_a_call_whose_time_is_over_goes_on_as_well() -> None:
    played = asked(standing(3, 7, orders=move(None)), False)
    assert played.result.known("orders").offset == 3


def test_a_reader_is_open_until_its_stream_ends_or_it_is_closed() -> None:
    def reader() -> GroupReader:
        reading = GroupReading(SITE, "g", KnownPositions().worker())
        place = Place(reading, "orders")
        found = GroupReader(calls(), "-1", reading, place, print, isolation="read_committed")
        play(found.begin(), standing(3, 7))
        assert found.is_open
        return found

    closed = reader()
    play(closed.hang_up())
    assert not closed.is_open
    ended = reader()
    ended._is_over = True
    assert play(ended.next_page()) is None
    assert not ended.is_open


def test_a_reader_reports_the_stream_it_reads_once() -> None:
    seen: list[tuple[str, str]] = []
    reader = Reader(calls(), "-1", is_live=True)
    reader.on_incarnation = lambda path, incarnation: seen.append((path, incarnation))
    for _ in range(2):
        reader.check({"stream-incarnation": "i1"})
    assert seen == [("orders", "i1")]


def test_a_lost_move_was_done_only_if_the_version_is_the_next_one() -> None:
    moves = {"orders": (0, 1, None, 4)}
    refusal = problem(409, "position_conflict", group="g", offset=print_offset(1), version=5)
    flow = group_calls.set_positions(SITE, "g", moves)
    assert play(flow, LOST, refusal, standing(1, 5)).versions == {"orders": 5}
    flow = group_calls.set_positions(SITE, "g", moves)
    played = Played(flow, [LOST, refusal, standing(1, 6)])
    assert isinstance(played.error, errors.PositionConflict)
    assert (played.error.version, played.error.mover, played.error.reason) == (5, None, None)
