"""Positions in the client: an offset keeps its reader, whoever commits the offset."""

import copy
import json
import pickle
from typing import Any

import pytest

from semel.client import commit_calls, errors, group_calls
from semel.client.commit_calls import CommitId, KnownStreams, Parts, commit_known_parts
from semel.client.flows import Lost, Pause
from semel.client.group_calls import GroupCursor, GroupReader, stable_positions
from semel.client.positions import (
    KnownPosition,
    KnownPositions,
    MovePlanner,
    ReadPosition,
    moves_of,
)
from semel.client.txn_calls import TransactionCalls, end_transaction_call, note_listed
from semel.client.values import Message, Metadata, ReadOffset, Registration, encode_json
from semel.model.offsets import print_offset
from tests.unit.client.hand import SITE, Played, answer, body_of, calls, document, play, problem

LOST = Lost("reset")
NAME = ("g", "orders")
DONE: dict[str, Any] = {"streams": {}, "offsets": {}, "deleted": []}


def reader_at(
    positions: KnownPositions, offset: int, version: int, incarnation: str = "i1"
) -> ReadPosition:
    """Return a reader to which the server has reported the position of the group."""
    reading, known = positions.read_position("orders"), KnownPosition(offset, version)
    reading.incarnation = incarnation
    reading.server_position("g", known)
    positions.note_server_position(NAME, known)
    return reading


def after(reading: ReadPosition, to: int) -> ReadOffset:
    """Return the offset after a message of a reader."""
    offset = Message(b"1", "application/json", to - 1, to, source=reading).next_offset
    assert isinstance(offset, ReadOffset)
    return offset


def sent(positions: KnownPositions, to: Any) -> Any:
    """Return a move in the form in which the client sends it."""
    return moves_of(MovePlanner(positions).plan("g", {"orders": to}))["orders"]


def commit(positions: KnownPositions, to: Any) -> None:
    """Move the group successfully."""
    moving = MovePlanner(positions)
    moving.accepted("g", moving.plan("g", {"orders": to}))
    moving.done()


# ---- offsets of readers --------------------------------------------------------------------------


def test_an_offset_knows_what_its_reader_was_told() -> None:
    positions = KnownPositions()
    reading = reader_at(positions, 3, 7)
    assert sent(positions, after(reading, 5)) == (3, 5, "i1", 7)
    commit(positions, after(reading, 5))
    assert sent(positions, after(reading, 6)) == (5, 6, "i1", 8)


def test_no_reader_takes_the_position_that_another_of_the_client_has_moved() -> None:
    positions = KnownPositions()
    one, two = reader_at(positions, 0, 0), reader_at(positions, 0, 0)
    commit(positions, after(two, 10))
    assert sent(positions, after(one, 15)) == (0, 15, "i1", 0), "the server must refuse this"
    assert sent(positions, after(two, 15)) == (10, 15, "i1", 1)


def test_who_read_without_asking_counts_as_told_that_the_group_was_never_moved() -> None:
    positions = KnownPositions()
    one, two = positions.read_position("orders"), positions.read_position("orders")
    one.incarnation = two.incarnation = "i1"
    assert sent(positions, after(one, 10)) == (0, 10, "i1", 0)
    commit(positions, after(one, 10))
    assert sent(positions, after(one, 12)) == (10, 12, "i1", 1)
    assert sent(positions, after(two, 15)) == (0, 15, "i1", 0)
    later = positions.read_position("orders", print_offset(10))
    later.incarnation = "i1"
    assert sent(positions, after(later, 15)) == (10, 15, "i1", 1), "this client's own move to 10"
    again = positions.read_position("orders")
    again.incarnation = "i1"
    assert sent(positions, after(again, 15)) == (0, 15, "i1", None), "this reader began at 0"
    other = positions.read_position("orders", print_offset(10))
    other.incarnation = "i2"
    assert sent(positions, after(other, 15)) == (10, 15, "i2", None), "another stream was moved"
    assert sent(positions, 15) == (0, 15, "i2", 0)


def test_what_was_committed_before_is_sent_with_what_was_told_at_first() -> None:
    positions = KnownPositions()
    reading = reader_at(positions, 3, 7)
    assert sent(positions, after(reading, 3)) == (3, 3, "i1", 7), "a move that changes nothing"
    commit(positions, after(reading, 10))
    for to in (5, 10):
        assert sent(positions, after(reading, to)) == (3, to, "i1", 7), "an old version"


def test_an_offset_of_another_stream_or_group_knows_nothing_of_this_one() -> None:
    positions = KnownPositions()
    bills = positions.read_position("bills")
    bills.incarnation = "b1"
    assert sent(positions, after(bills, 5)) == (0, 5, None, 0)
    reading = reader_at(positions, 3, 7)
    other = moves_of(MovePlanner(positions).plan("h", {"orders": after(reading, 5)}))
    assert other == {"orders": (0, 5, "i1", 0)}, "no position is known for that group"


def test_numbers_and_copies_are_of_the_only_reader_there_was() -> None:
    positions = KnownPositions()
    assert sent(positions, 5) == (0, 5, None, 0)
    positions.read_position("orders").incarnation = "i1"
    assert sent(positions, print_offset(5)) == (0, 5, "i1", 0)
    commit(positions, 5)
    assert sent(positions, 6) == (5, 6, "i1", 1), "it continues this client's move"
    reading = reader_at(positions, 6, 2, "i2")
    assert sent(positions, 8) == (6, 8, None, 2)
    assert sent(positions, str(after(reading, 8))) == (6, 8, None, 2)
    reader_at(positions, 6, 2)
    with pytest.raises(ValueError, match="commit_message"):
        sent(positions, 8)
    assert sent(positions, after(reading, 8)) == (6, 8, "i2", 2)


def test_a_move_on_conditions_moves_no_reader() -> None:
    positions = KnownPositions()
    reading = reader_at(positions, 0, 0)
    for move, wanted in (
        ((10, 12), (10, 12, "i1", None)),
        ((12, after(reading, 13)), (12, print_offset(13), "i1", None)),
        ((13, 14, "i0"), (13, 14, "i0", None)),
        ((14, 15, "i0", 6), (14, 15, "i0", 6)),
    ):
        assert sent(positions, move) == wanted
        commit(positions, move)
    assert sent(positions, after(reading, 15)) == (0, 15, "i1", 0)
    later = positions.read_position("orders", print_offset(15))
    later.incarnation = "i1"
    assert later.known("g").version == 7, "a later reader uses the new version"


def test_what_is_known_is_bounded() -> None:
    positions = KnownPositions()
    for number in range(10_001):
        positions.note_server_position((f"g{number}", "orders"), KnownPosition())
        positions.note_read(f"s{number}", "i")
        positions.note_moved(("g", f"s{number}"), 1, 1)
    assert positions.incarnation("s0") is None
    assert positions.incarnation("s10000") == "i"


def test_the_offset_of_a_message_is_a_str_in_all_else() -> None:
    offset = after(KnownPositions().read_position("orders"), 5)
    assert offset == print_offset(5)
    for same in (pickle.loads(pickle.dumps(offset)), copy.deepcopy(offset), copy.copy(offset)):
        assert type(same) is str
        assert same == offset
    assert json.loads(encode_json({"at": offset, offset: 1})) == {"at": offset, offset: 1}
    with pytest.raises(TypeError, match="type object cannot be encoded"):
        encode_json(object())
    assert type(Message(b"1", "application/json", 0, 1).next_offset) is str
    assert Message(b"1", "application/json", source=1).next_offset is None


# ---- transactions and commits --------------------------------------------------------------------


def test_naming_again_in_one_transaction_goes_on_from_its_own_position() -> None:
    positions = KnownPositions()
    reading = reader_at(positions, 3, 7)
    moving = MovePlanner(positions)
    moving.accepted("g", moving.plan("g", {"orders": after(reading, 5)}))
    assert moves_of(moving.plan("g", {"orders": after(reading, 6)})) == {"orders": (5, 6, "i1", 7)}
    moving.accepted("g", moving.plan("g", {"orders": after(reading, 6)}))
    assert moves_of(moving.plan("g", {"orders": after(reading, 4)})) == {"orders": (6, 6, "i1", 7)}
    assert moves_of(moving.plan("g", {"orders": 6})) == {"orders": (6, 6, "i1", 7)}, "no move back"
    assert sent(positions, after(reading, 6)) == (3, 6, "i1", 7), "still undecided"
    moving.done()
    assert sent(positions, after(reading, 7)) == (6, 7, "i1", 8), "a commit counts as one move"
    moving.accepted("g", moving.plan("g", {"orders": after(reading, 9)}))
    moving.dropped()
    moving.done()
    assert sent(positions, after(reading, 9)) == (6, 9, "i1", 8)


def test_two_readers_in_one_transaction_each_say_what_they_have_read() -> None:
    positions = KnownPositions()
    one, two = reader_at(positions, 0, 0), reader_at(positions, 0, 0)
    moving = MovePlanner(positions)
    moving.accepted("g", moving.plan("g", {"orders": after(one, 10)}))
    planned = moves_of(moving.plan("g", {"orders": after(two, 15)}))
    assert planned == {"orders": (0, 15, "i1", 0)}, "the server must refuse this"
    given = MovePlanner(positions)
    given.accepted("g", given.plan("g", {"orders": (5, 6)}))
    assert moves_of(given.plan("g", {"orders": after(two, 15)})) == {"orders": (0, 15, "i1", 0)}
    assert moves_of(given.plan("g", {"orders": 8})) == {"orders": (6, 8, "i1", None)}


def test_a_commit_that_was_done_before_tells_no_version() -> None:
    positions = KnownPositions()
    reading = reader_at(positions, 3, 7)

    def once(to: int, *, duplicate: bool) -> Any:
        parts = Parts(offsets={"g": {"orders": after(reading, to)}})
        flow = commit_known_parts(KnownStreams(SITE), CommitId("p", 0, 0), parts, positions)
        played = Played(flow, [document({**DONE, "duplicate": duplicate})])
        return body_of(played.sends[0])["offsets"]["g"]["orders"]

    move = {"from": print_offset(3), "to": print_offset(5), "incarnation": "i1", "version": 7}
    assert once(5, duplicate=True) == move
    assert sent(positions, after(reading, 6)) == (5, 6, "i1", None)
    once(4, duplicate=True)
    assert sent(positions, after(reading, 6)) == (5, 6, "i1", None), "an older move changes nothing"
    once(6, duplicate=False)
    assert sent(positions, after(reading, 7)) == (6, 7, "i1", None)


def test_a_sink_sends_what_an_offset_knows_and_any_other_as_it_is() -> None:
    positions = KnownPositions()
    reading = reader_at(positions, 3, 7)
    parts = Parts(offsets={"g": {"orders": after(reading, 5), "bills": 2, "x": (0, 1, "i")}})
    version = commit_calls.Version("app", "app", 0)
    flow = commit_calls.commit_version_known(KnownStreams(SITE), version, parts, positions)
    played = Played(flow, [document(DONE)])
    assert body_of(played.sends[0])["offsets"] == {
        "g": {
            "orders": {
                "from": print_offset(3),
                "to": print_offset(5),
                "incarnation": "i1",
                "version": 7,
            },
            "bills": print_offset(2),
            "x": {"from": print_offset(0), "to": print_offset(1), "incarnation": "i"},
        }
    }
    assert sent(positions, after(reading, 6)) == (5, 6, "i1", 8)


def opened(
    positions: KnownPositions, unresolved: dict[str, TransactionCalls] | None = None
) -> TransactionCalls:
    txn = TransactionCalls(SITE, "t", "inline", 60, unresolved, positions)
    begun = answer(
        201, b'{"transaction_epoch": 1, "deadline": null}', content_type="application/json"
    )
    play(txn.begin(Registration("p", 0), ()), begun)
    return txn


class _OnCommit:
    def __init__(self, cursor: GroupCursor) -> None:
        self.cursor = cursor

    def __call__(self, message: Message, metadata: Metadata | None) -> None: ...


def test_a_message_names_the_position_its_own_tail_was_told() -> None:
    positions = KnownPositions()
    cursor = GroupCursor(SITE, "g", "orders", positions)
    cursor.position = KnownPosition(3, 7, "i1")
    message = Message(b"1", "application/json", 4, 5, on_commit=_OnCommit(cursor))
    txn = opened(positions)
    played = Played(txn.add_message(message), [document({})])
    move = {"from": print_offset(3), "to": print_offset(5), "incarnation": "i1", "version": 7}
    assert body_of(played.sends[0])["offsets"] == {"orders": move}
    play(txn.commit(), document(DONE))
    assert (cursor.position.offset, cursor.position.version) == (5, 8)
    with pytest.raises(ValueError, match="tail"):
        play(opened(positions).add_message(Message(b"1", "application/json", 0, 1)))


@pytest.mark.parametrize(("action", "wanted"), [("commit", (5, 8)), ("abort", (3, 7))])
def test_a_decision_by_token_is_known_as_well(action: str, wanted: tuple[int, int]) -> None:
    positions = KnownPositions()
    known = reader_at(positions, 3, 7).known("g")
    unresolved: dict[str, TransactionCalls] = {}
    txn = opened(positions, unresolved)
    play(txn.add_offsets("g", {"orders": 5}), document({}))
    play(txn.prepare(), document({"token": "t:1"}))
    play(end_transaction_call(SITE, "t:1", action, unresolved), document(DONE))
    assert (known.offset, known.version) == wanted
    assert txn.is_ended
    assert unresolved == {}


def test_a_one_shot_commit_moves_what_its_staged_transactions_name() -> None:
    positions = KnownPositions()
    known = reader_at(positions, 3, 7).known("g")
    unresolved: dict[str, TransactionCalls] = {}
    txn = opened(positions, unresolved)
    play(txn.add_offsets("g", {"orders": 5}), document({}))
    note_listed(unresolved, [txn.token, "of another client:1"])
    assert (known.offset, known.version) == (5, 8)
    assert (txn.state, unresolved) == ("committed", {})


@pytest.mark.parametrize(
    ("code", "facts", "wanted"),
    [
        ("txn_aborted", {"reason": "abort"}, (3, 7)),
        ("TRANSACTION_TIMED_OUT", {}, (3, 7)),
        ("INVALID_TXN_STATE", {"state": "aborted"}, (3, 7)),
        ("INVALID_TXN_STATE", {"state": "committed"}, (5, 8)),
        ("txn_committed", {}, (5, 8)),
    ],
)
def test_what_a_refusal_tells_of_the_end_is_known(
    code: str, facts: dict[str, str], wanted: tuple[int, int]
) -> None:
    positions = KnownPositions()
    known = reader_at(positions, 3, 7).known("g")
    txn = opened(positions)
    play(txn.add_offsets("g", {"orders": 5}), document({}))
    refused = Played(txn.add_streams(["a"]), [problem(409, code, **facts)])
    assert isinstance(refused.error, errors.TransactionRefused)
    assert (known.offset, known.version) == wanted
    with pytest.raises(errors.InvalidTransactionState, match="create a new transaction"):
        play(txn.begin(Registration("p", 0), ()))


def test_a_transaction_that_was_refused_a_position_is_not_committed() -> None:
    txn = opened(KnownPositions())
    refusal = problem(409, "unstable_offsets")
    refused = Played(txn.add_offsets("g", {"orders": 5}), [refusal])
    assert isinstance(refused.error, errors.UnstableOffsets)
    play(txn.add_offsets("h", {"orders": 5}), document({}))
    for flow in (txn.commit(), txn.prepare()):
        with pytest.raises(
            errors.InvalidTransactionState, match="confirmed a group's new position"
        ):
            play(flow)
    play(txn.add_offsets("g", {"orders": 5}), document({}))
    next(txn.add_offsets("g", {"orders": 6}))  # not continued
    with pytest.raises(errors.InvalidTransactionState, match="confirmed a group's new position"):
        play(txn.commit())
    play(txn.abort(), document(DONE))


def test_messages_are_compared_and_copied_without_their_reader() -> None:
    one, two = (
        Message(b"1", "application/json", 0, 1, source=KnownPositions().read_position("orders"))
        for _ in range(2)
    )
    assert one == two
    assert one != Message(b"2", "application/json", 0, 1)
    assert one != 1
    for same in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one)):
        assert same == one
        assert same.source is None


# ---- reading the position ------------------------------------------------------------------------


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
    [{}, {"bills": move(60_000)}, {"orders": move(0)}],
    ids=["nothing", "elsewhere", "overdue"],
)
def test_what_need_not_be_waited_for(pending: dict[str, Any]) -> None:
    played = asked(standing(3, 7, **pending))
    assert not played.pauses
    known = played.result.known("orders")
    assert (known.offset, known.version) == (3, 7)
    assert played.result.known("bills").version == 0, "no position is stored for it"


def test_nobody_waits_for_its_own_but_for_the_one_that_stands_behind_it() -> None:
    mine = standing(3, 7, orders=move(60_000, "mine"))
    played = asked(mine, standing(3, 7), own={"mine:1"})
    assert not played.pauses
    assert played.sends[1].request.target.endswith("/offsets?transaction=mine")
    other = standing(3, 7, orders=move(60_000))
    played = asked(mine, other, standing(9, 8), own={"mine:1"})
    assert len(played.pauses) == 1
    again = standing(3, 7, orders=move(60_000, "also"))
    assert not asked(mine, again, own={"mine:1", "also:1"}).pauses


@pytest.mark.parametrize("answer_seconds", [0.0, 0.7])
@pytest.mark.parametrize(("remaining_ms", "seconds"), [(None, 5.0), (1_000, 1.0), (10**9, 5.0)])
def test_the_wait_is_over_in_time_however_slow_the_server_is(
    remaining_ms: int | None, seconds: float, answer_seconds: float
) -> None:
    now = 0.0
    flow = stable_positions(SITE, "g", ["orders"], clock=lambda: now)
    reply: Any = None
    with pytest.raises(StopIteration) as ended:
        while True:
            step = flow.send(reply)
            now += step.seconds if isinstance(step, Pause) else answer_seconds
            left = None if remaining_ms is None else max(0, round(remaining_ms - now * 1000))
            reply = True if isinstance(step, Pause) else standing(3, 7, orders=move(left))
    assert ended.value.value.known("orders").offset == 3
    assert seconds <= now + 0.001
    assert now <= seconds + 2 * answer_seconds + 0.001


def test_a_call_whose_time_is_over_goes_on_as_well() -> None:
    played = asked(standing(3, 7, orders=move(None)), False)
    assert played.result.known("orders").offset == 3


def test_a_tail_of_a_group_tells_its_messages() -> None:
    positions = KnownPositions()
    cursor = GroupCursor(SITE, "g", "orders", positions)
    reader = GroupReader(calls(), "-1", cursor, print, isolation="read_committed")
    play(reader.begin(), standing(3, 7))
    reader.check({"stream-incarnation": "i1"})
    assert isinstance(reader.source, ReadPosition)
    assert sent(positions, after(reader.source, 5)) == (3, 5, "i1", 7)
    other = moves_of(MovePlanner(positions).plan("h", {"orders": after(reader.source, 5)}))
    assert other == {"orders": (3, 5, "i1", None)}, "same offset assumed for another group"
    assert positions.incarnation("orders") == "i1"


# ---- setting positions ---------------------------------------------------------------------------


def test_a_lost_move_was_done_only_if_the_version_is_the_next_one() -> None:
    moves = {"orders": (0, 1, None, 4)}
    refusal = problem(
        409, "position_conflict", group="g", stream="orders", offset=print_offset(1), version=5
    )
    flow = group_calls.set_positions(SITE, "g", moves)
    assert play(flow, LOST, refusal, standing(1, 5)).versions == {"orders": 5}
    flow = group_calls.set_positions(SITE, "g", moves)
    played = Played(flow, [LOST, refusal, standing(1, 6)])
    assert isinstance(played.error, errors.PositionConflict)
    assert (played.error.version, played.error.mover, played.error.reason) == (5, None, None)
    assert played.error.applied == "unknown", "it may have been applied before the other move"


def test_a_set_by_hand_is_done_once_although_its_answer_is_lost() -> None:
    flow = group_calls.set_positions(SITE, "g", {"orders": 0})
    moved = problem(409, "position_conflict", group="g", stream="orders", version=8)
    done = standing(0, 8)
    played = Played(flow, [standing(9, 7), LOST, moved, done])
    move = {"from": print_offset(9), "to": print_offset(0), "version": 7}
    assert [body_of(send)["offsets"]["orders"] for send in played.sends[1:3]] == [move] * 2
    assert played.result.versions == {"orders": 8}
    flow = group_calls.set_positions(SITE, "g", {"orders": 0})
    played = Played(flow, [standing(9, 7), LOST, moved, standing(3, 9)])
    assert isinstance(played.error, errors.Indeterminate), "another client has moved it since"


def test_a_set_by_hand_wins_over_whoever_moves_meanwhile() -> None:
    flow = group_calls.set_positions(SITE, "g", {"orders": 0, "bills": (1, 2)})
    moved = problem(409, "position_conflict", group="g", stream="orders", version=8)
    played = Played(flow, [standing(9, 7), moved, standing(11, 8), standing(0, 9)])
    assert played.result.versions == {"orders": 9}
    other = problem(409, "position_conflict", group="g", stream="bills", version=8)
    flow = group_calls.set_positions(SITE, "g", {"orders": 0, "bills": (1, 2)})
    assert isinstance(Played(flow, [standing(9, 7), other]).error, errors.PositionConflict)
    flow = group_calls.set_positions(SITE, "g", {"orders": 0})
    for_ever = Played(flow, [standing(9, 7), moved] * 10)
    assert isinstance(for_ever.error, errors.PositionConflict)
