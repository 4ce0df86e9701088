"""Two workers of one group over HTTP: every row of the tables of positions.

The names in the comments are the rows of `docs/reference/transactions.md`, section Positions.
"""

from typing import Any

import pytest

from tests.spec.process import Answer, Server, Stream, offset_of
from tests.spec.txn_calls import Txn, call, commit, committed, fresh, positions, refusal

CONFLICT = (409, "position_conflict")
UNSTABLE = (409, "unstable_offsets")


class Worker(Txn):
    """A worker of a group, which reads inputs and commits outputs with the position."""

    def __init__(self, inputs: Stream, outputs: Stream, group: str, **more: Any) -> None:
        super().__init__(inputs.server, **more)
        self.inputs = inputs
        self.outputs = outputs
        self.group = group
        self.next_move: dict[str, Any] = {}

    def read(self, to: int) -> None:
        """Read the position of the group, and its inputs up to an offset."""
        answer = call(self.server, "GET", f"/v1/groups/{self.group}/offsets")
        path = self.inputs.path
        self.next_move = {
            "from": answer.json["offsets"].get(path, offset_of(0)),
            "version": answer.json["versions"].get(path, 0),
            "incarnation": self.inputs.head().headers["stream-incarnation"],
            "to": to,
        }

    def work(self, to: int = 3) -> None:
        """Read, begin and publish."""
        self.read(to)
        assert self.begin(streams=[self.outputs.path]).status == 201
        assert self.post(self.outputs, self.id.encode()).status == 200

    def name(self, move: Any = None) -> Answer:
        target = {self.inputs.path: self.next_move if move is None else move}
        return self.call("offsets", group=self.group, offsets=target)


@pytest.fixture
def inputs(server: Server) -> Stream:
    stream = server.stream()
    stream.create()
    for text in (b"a", b"b", b"c", b"d", b"e"):
        assert stream.post(text).status == 204
    return stream


@pytest.fixture
def outputs(server: Server) -> Stream:
    stream = server.stream()
    stream.create()
    return stream


@pytest.fixture
def one(inputs: Stream, outputs: Stream) -> Worker:
    return Worker(inputs, outputs, fresh("g"))


@pytest.fixture
def two(one: Worker) -> Worker:
    return Worker(one.inputs, one.outputs, one.group)


def put(worker: Worker, to: Any) -> Answer:
    document = {"offsets": {worker.inputs.path: to}}
    return call(worker.server, "POST", f"/v1/groups/{worker.group}/offsets", document)


def look(worker: Worker, query: str = "") -> Answer:
    return call(worker.server, "GET", f"/v1/groups/{worker.group}/offsets{query}")


def outputs_of(worker: Worker) -> bytes:
    return committed(worker.outputs).body


# ---- two workers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("is_named_first", [True, False])
def test_two_workers_never_commit_the_same_input(
    one: Worker, two: Worker, is_named_first: bool
) -> None:
    one.work(3)
    two.work(5)
    assert one.name().status == 200
    if is_named_first:
        assert two.name().status == 200, "no transaction is decided yet"
    assert one.commit().status == 200
    answer = two.commit() if is_named_first else two.name()
    assert refusal(answer) == CONFLICT  # A14, A7
    assert answer.json["reason"] == ("moved" if is_named_first else "offset")
    assert answer.json["group"] == two.group
    assert answer.json["stream"] == two.inputs.path
    assert (answer.json["offset"], answer.json["version"]) == (offset_of(3), 1)
    assert answer.json["applied"] == "no"
    assert two.status().json["state"] == "open"
    assert two.abort().status == 200
    assert outputs_of(one) == one.id.encode()
    assert positions(one.server, one.group) == {one.inputs.path: offset_of(3)}


@pytest.mark.parametrize("is_made_anew", [True, False])
def test_no_input_is_committed_twice_because_its_stream_is_gone(
    one: Worker, two: Worker, is_made_anew: bool
) -> None:
    for worker in (one, two):
        worker.work()
        assert worker.name().status == 200
    one.inputs.delete()
    if is_made_anew:
        one.inputs.create(b"other")
    for worker in (one, two):
        answer = worker.commit()
        assert refusal(answer) == CONFLICT  # A14
        assert answer.json["reason"] == "deleted"
        assert worker.status().json["deleted"] == [one.inputs.path]
        assert worker.abort().status == 200
    assert outputs_of(one) == b""


def test_a_worker_that_read_another_incarnation_is_refused(one: Worker) -> None:
    one.work()
    one.inputs.delete()
    one.inputs.create(b"other")
    answer = one.name()
    assert refusal(answer) == CONFLICT  # A2
    assert answer.json["reason"] == "incarnation"
    assert answer.json["incarnation"] == one.inputs.head().headers["stream-incarnation"]


def test_the_same_call_again_is_harmless_and_another_one_goes_on_from_it(one: Worker) -> None:
    one.work(2)
    assert one.name().json["offset_count"] == 1
    assert one.name().status == 200  # A3
    answer = one.name({"from": 0, "to": 3})
    assert refusal(answer) == CONFLICT  # A4
    assert (answer.json["reason"], answer.json["offset"]) == ("pending", offset_of(2))
    assert one.name({"from": 2, "to": 3}).status == 200  # A5
    assert one.name({"to": 4}).status == 200
    assert one.commit().status == 200
    assert look(one).json["versions"] == {one.inputs.path: 1}, "one commit counts as one move"


def test_a_position_named_again_keeps_its_first_guard(one: Worker, two: Worker) -> None:
    one.work(2)
    two.work(3)
    assert two.name().status == 200
    assert one.name().status == 200
    assert one.commit().status == 200
    assert two.name({"from": 3, "to": 5}).status == 200  # A5
    assert two.commit().json["reason"] == "moved"


def test_only_the_last_mover_goes_on_without_from(one: Worker, two: Worker) -> None:
    one.work(2)
    assert one.name(2).status == 200, "the group was never moved"
    assert one.commit().status == 200
    two.work(3)
    answer = two.name(3)
    assert refusal(answer) == CONFLICT  # A8
    assert (answer.json["reason"], answer.json["mover"]) == ("mover", one.producer)
    assert "set `from` to the offset at which you began to read" in answer.json["message"]
    assert two.name({"from": 2, "to": 3}).status == 200
    again = Worker(one.inputs, one.outputs, one.group, producer=one.producer)
    again.begin(streams=[])
    assert again.name(4).status == 200, "this worker moved the group last"
    assert again.commit().status == 200
    assert two.commit().json["reason"] == "moved"
    shot = {"producer_id": two.producer, "producer_epoch": 0, "producer_seq": 0}
    moves: dict[str, Any] = {one.group: {one.inputs.path: 5}}
    assert refusal(commit(one.server, **shot, offsets=moves)) == CONFLICT  # A18
    moves = {one.group: {one.inputs.path: {"from": 4, "version": 2, "to": 5}}}
    assert commit(one.server, **shot, offsets=moves).status == 200


def test_the_version_is_compared_as_well(one: Worker) -> None:
    one.work(2)
    assert put(one, 1).status == 200
    assert put(one, 0).status == 200
    answer = one.name()
    assert refusal(answer) == CONFLICT  # A7
    assert (answer.json["reason"], answer.json["version"]) == ("version", 2)
    assert refusal(put(one, {"to": 1, "version": 1})) == CONFLICT  # A19
    assert put(one, {"to": 1, "version": 2}).json["versions"] == {one.inputs.path: 3}
    assert refusal(put(one, {"to": 1, "version": -1})) == (400, "invalid_request")
    assert refusal(put(one, {"to": 1, "version": "3"})) == (400, "bad_body")


def test_a_rewind_defeats_every_guard_taken_before_it(one: Worker, two: Worker) -> None:
    one.work()
    two.work()
    assert one.name().status == 200
    assert two.name(3).status == 200
    assert put(one, 0).status == 200  # A19
    for worker in (one, two):
        assert worker.commit().json["reason"] == "moved"
    assert positions(one.server, one.group) == {one.inputs.path: offset_of(0)}


def test_a_commit_that_is_repeated_is_not_compared_again(one: Worker) -> None:
    one.work()
    assert one.name().status == 200
    first = one.commit()
    assert put(one, 0).status == 200
    again = one.commit()  # A12
    assert again.json == {**first.json, "duplicate": True}
    one.inputs.delete()
    assert one.commit().json == again.json
    assert positions(one.server, one.group) == {}


# ---- prepared ------------------------------------------------------------------------------------


def test_a_prepared_transaction_holds_its_positions_and_is_never_refused(
    one: Worker, two: Worker
) -> None:
    one.work()
    two.work()
    assert one.name().status == 200
    assert two.name().status == 200
    assert one.call("prepare").status == 200  # A11
    late = Worker(one.inputs, one.outputs, one.group)
    late.work()
    shot = {"producer_id": fresh("p"), "producer_epoch": 0, "producer_seq": 0}
    held = {one.inputs.path: one.next_move}
    for answer in (
        two.commit(),  # A15
        two.call("prepare"),  # A10
        late.name(),  # A6
        put(one, 0),  # A15
        commit(one.server, **shot, offsets={one.group: held}),  # A18
    ):
        assert refusal(answer) == UNSTABLE
        assert answer.json["transaction_id"] == one.id
        assert answer.json["transaction_epoch"] == one.epoch
        assert answer.headers["retry-after"] == "1"
    done = one.commit()  # A13
    assert (done.status, done.json["deleted"]) == (200, [])
    assert two.commit().json["reason"] == "moved"
    assert outputs_of(one) == one.id.encode()


def test_a_stream_that_ended_under_a_prepared_transaction_is_listed(one: Worker) -> None:
    one.work()
    assert one.name().status == 200
    assert one.call("prepare").status == 200
    one.inputs.delete()
    done = one.commit()  # A13
    assert (done.status, done.json["deleted"]) == (200, [one.inputs.path])
    assert done.json["offsets"] == {}
    assert outputs_of(one) == one.id.encode()


@pytest.mark.parametrize("cause", ["moved", "deleted"])
def test_prepare_compares_what_the_commit_would(one: Worker, cause: str) -> None:
    one.work()
    assert one.name().status == 200
    if cause == "moved":
        put(one, 0)
    else:
        one.inputs.delete()
    answer = one.call("prepare")  # A10
    assert refusal(answer) == CONFLICT
    assert answer.json["reason"] == cause
    assert one.status().json["state"] == "open"


def test_an_abort_lets_the_position_go(one: Worker, two: Worker) -> None:
    one.work()
    two.work()
    assert one.name().status == 200
    assert one.call("prepare").status == 200
    assert one.abort().status == 200  # A16
    assert two.name().status == 200
    assert two.commit().status == 200
    assert positions(one.server, one.group) == {one.inputs.path: offset_of(3)}


# ---- one-shot commits ----------------------------------------------------------------------------


def test_a_staged_transaction_is_compared_by_the_commit_that_lists_it(
    one: Worker, two: Worker
) -> None:
    for worker in (one, two):
        worker.read(3)
        assert worker.begin(kind="staged", implicit=True).status == 201
        assert worker.stage(worker.outputs, worker.id.encode(), 0).status == 200
        assert worker.name().status == 200

    def shot(worker: Worker, **more: Any) -> Answer:
        return commit(
            worker.server,
            producer_id=worker.producer,
            producer_epoch=0,
            producer_seq=0,
            transactions=[{"id": worker.id, "epoch": worker.epoch}],
            **more,
        )

    twice = shot(one, offsets={one.group: {one.inputs.path: {"from": 0, "to": 3}}})
    assert refusal(twice) == (400, "invalid_request")  # A18, 8c
    assert twice.json["field"] == "positions"
    assert shot(one).status == 200
    assert shot(two).json["reason"] == "moved"  # A14
    again = shot(one)  # A17
    assert (again.status, again.json["duplicate"]) == (200, True)
    assert outputs_of(one) == one.id.encode()


# ---- reading positions ---------------------------------------------------------------------------


def test_a_group_shows_versions_and_what_is_pending(one: Worker, two: Worker) -> None:
    path = one.inputs.path
    one.work()
    assert look(one, "?stable=true").status == 200
    assert one.name().status == 200
    found = look(one).json
    assert (found["offsets"], found["versions"]) == ({}, {})
    pending = found["pending"][path]
    assert (pending["transaction_id"], pending["transaction_epoch"]) == (one.id, one.epoch)
    assert (pending["state"], pending["to"]) == ("open", offset_of(3))
    assert pending["deadline"] == one.status().json["deadline"]
    assert 0 < pending["remaining_ms"] <= 60_000
    unstable = look(one, "?stable=true")
    assert refusal(unstable) == UNSTABLE
    assert unstable.headers["retry-after"] == "1"
    assert unstable.json["pending"][path]["transaction_id"] == one.id
    assert refusal(look(one, f"?stable=true&stream={path}")) == UNSTABLE
    assert look(one, f"?stable=true&stream={one.outputs.path}").status == 200
    assert look(one, "?stable=true&stream=nowhere").status == 200
    assert look(one, f"?stable=true&transaction={one.id}").status == 200, "it ignores its own move"
    assert refusal(look(one, "?stable=maybe")) == (400, "invalid_query")
    two.work(5)
    assert two.name().status == 200
    assert refusal(look(one, f"?stable=true&transaction={one.id}")) == UNSTABLE
    assert two.call("prepare").status == 200
    held = look(one).json["pending"][path]
    assert (held["transaction_id"], held["state"], held["deadline"]) == (two.id, "prepared", None)
    assert held["remaining_ms"] is None
    assert two.commit().status == 200
    assert one.abort().status == 200
    found = look(one, "?stable=true").json
    assert found == {
        "group": one.group,
        "offsets": {path: offset_of(5)},
        "versions": {path: 1},
        "pending": {},
    }


# ---- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("move", "code"),
    [
        ({"to": 1.5}, "bad_body"),
        ({"to": True}, "bad_body"),
        ({"to": -1}, "invalid_offset"),
        ({"to": 2**63}, "invalid_offset"),
        ({"to": 1, "from": "x"}, "invalid_offset"),
        ({"to": 1, "version": 1.5}, "bad_body"),
        ({"to": 1, "version": 2**63}, "invalid_request"),
        ({"to": 1, "incarnation": 7}, "bad_body"),
        ({"to": 1, "incarnation": "i" * 100}, "invalid_request"),
        ({"to": 1, "more": 1}, "bad_body"),
        ({}, "bad_body"),
        ([1], "bad_body"),
        ("\x00", "invalid_offset"),
    ],
)
def test_a_move_that_means_nothing_is_refused_and_changes_nothing(
    one: Worker, move: Any, code: str
) -> None:
    one.work()
    shot = {"producer_id": fresh("p"), "producer_epoch": 0, "producer_seq": 0}
    moves = {one.inputs.path: move}
    for answer in (
        one.name(move),
        put(one, move),
        commit(one.server, **shot, offsets={one.group: moves}),
    ):
        assert refusal(answer) == (400, code)
    assert look(one).json["pending"] == {}
    assert one.name().status == 200
    assert one.commit().status == 200
