"""Sinks over plain HTTP, for Spark and other engines that repeat batches."""

from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.spec.process import Answer, Server, Stream, offset_of
from tests.spec.txn_calls import call, commit, committed, fresh, refusal


def digest(batch: object) -> str:
    return f"sha256:{sha256(str(batch).encode()).hexdigest()}"


class Branch:
    """The staged transaction of one attempt of one task."""

    def __init__(self, server: Server, app: str, version: int, partition: int = 0) -> None:
        self.server = server
        self.id = str(uuid4())
        self.sink = {"app": app, "version": version, "partition": partition}
        self.chunks = 0
        self.messages: dict[str, int] = {}

    def begin(self) -> Answer:
        document = {"transaction_id": self.id, "kind": "staged", "sink": self.sink}
        return call(self.server, "POST", "/v1/transactions", document)

    def stage(self, stream: Stream, body: bytes, seq: int | None = None) -> Answer:
        answer = stream.post(
            body,
            transaction_id=self.id,
            transaction_epoch=1,
            transaction_seq=self.chunks if seq is None else seq,
        )
        if answer.status == 200:
            self.chunks += 1
            self.messages[stream.path] = self.messages.get(stream.path, 0) + 1
        return answer

    def prepare(self, **more: Any) -> Answer:
        document = {
            "transaction_epoch": 1,
            "chunks": self.chunks,
            "messages": self.messages,
            **more,
        }
        return self.call("prepare", document)

    def call(self, action: str, document: dict[str, Any] | None = None) -> Answer:
        target = f"/v1/transactions/{self.id}/{action}"
        return call(self.server, "POST", target, document or {"transaction_epoch": 1})

    def status(self) -> Answer:
        return call(self.server, "GET", f"/v1/transactions/{self.id}")

    @property
    def listed(self) -> dict[str, Any]:
        return {"id": self.id, "epoch": 1}


class Sink:
    """A query that writes to a sink."""

    def __init__(self, server: Server, app: str = "", query: str = "Q") -> None:
        self.server = server
        self.app = app or fresh("app")
        self.query = query

    def branch(self, version: int, partition: int = 0) -> Branch:
        branch = Branch(self.server, self.app, version, partition)
        assert branch.begin().status == 201
        return branch

    def filled(self, version: int, stream: Stream, *bodies: bytes, partition: int = 0) -> Branch:
        branch = self.branch(version, partition)
        for body in bodies:
            assert branch.stage(stream, body).status == 200
        assert branch.prepare().status == 200
        return branch

    def commit(
        self,
        version: int,
        *branches: Branch,
        batch: object = None,
        previous: object = None,
        query: str = "",
        **more: Any,
    ) -> Answer:
        """Commit a version; `batch` and `previous` represent lines of an offset log."""
        tag = {
            "app": self.app,
            "query_id": query or self.query,
            "version": version,
            "input": None if batch is None else digest(batch),
            "previous": None if previous is None else digest(previous),
        }
        listed = [branch.listed for branch in branches]
        return commit(self.server, sink=tag, transactions=listed, **more)

    def look(self) -> Answer:
        return call(self.server, "GET", f"/v1/sinks/{self.app}")

    def rebind(self, query: str, version: int) -> Answer:
        document = {"query_id": query, "last_version": version}
        return call(self.server, "POST", f"/v1/sinks/{self.app}/rebind", document)


@pytest.fixture
def sink(server: Server) -> Sink:
    return Sink(server)


@pytest.fixture
def other(server: Server) -> Stream:
    return server.stream()


# ---- normal use ----------------------------------------------------------------------------------


@pytest.mark.spec("design 7.3")
def test_a_version_enters_all_streams_at_once(sink: Sink, stream: Stream, other: Stream) -> None:
    stream.create(b"0")
    other.create()
    branch = sink.branch(17, 3)
    begun = branch.begin()
    assert (begun.status, begun.json["deadline"]) == (200, None)
    first = branch.stage(stream, b"a")
    assert first.status == 200
    assert "stream-next-offset" not in first.headers
    assert branch.stage(stream, b"a", 0).status == 204
    assert branch.stage(other, b"b").status == 200
    assert refusal(branch.stage(other, b"d", 3)) == (409, "OUT_OF_ORDER_SEQUENCE")
    assert (stream.tail, other.tail) == (offset_of(1), offset_of(0))
    assert branch.prepare().json["state"] == "prepared"
    assert refusal(branch.stage(stream, b"late")) == (409, "INVALID_TXN_STATE")
    answer = sink.commit(17, branch, batch=17)
    assert answer.status == 200
    assert answer.json == {
        "duplicate": False,
        "streams": {
            stream.path: {
                "first_offset": offset_of(1),
                "next_offset": offset_of(2),
                "messages": 1,
            },
            other.path: {
                "first_offset": offset_of(0),
                "next_offset": offset_of(1),
                "messages": 1,
            },
        },
        "offsets": {},
        "deleted": [],
        "sink": {"app": sink.app, "version": 17},
    }
    assert (committed(stream).body, committed(other).body) == (b"0a", b"b")
    assert stream.get("offset=-1").body == b"0a", "there are no control records"


@pytest.mark.spec("design 7.3")
def test_branches_enter_in_list_order_then_by_their_own_numbers(sink: Sink, stream: Stream) -> None:
    stream.create()
    branches = [sink.filled(1, stream, b"%da" % n, b"%db" % n, partition=n) for n in range(3)]
    assert sink.commit(1, *reversed(branches)).status == 200
    assert stream.text == "2a2b1a1b0a0b"


@pytest.mark.spec("design 7.3")
def test_an_empty_version_moves_the_sink_on(sink: Sink) -> None:
    assert sink.commit(0, batch=0).json["streams"] == {}
    assert sink.commit(1, batch=1, previous=0).status == 200
    assert sink.look().json["last_version"] == 1


# ---- replays -------------------------------------------------------------------------------------


@pytest.mark.spec("design 7.3")
def test_a_replay_gets_the_first_result_whatever_its_rows(sink: Sink, stream: Stream) -> None:
    stream.create()
    first = sink.commit(5, sink.filled(5, stream, b"a"), batch=5)
    replay = sink.filled(5, stream, b"other", b"rows")
    again = sink.commit(5, replay, batch=5)
    assert again.status == 200
    assert again.json == {**first.json, "duplicate": True}
    assert sink.commit(5, batch=5).json["duplicate"] is True, "a replay needs no branches"
    assert stream.text == "a"
    assert sink.commit(6, batch=6, previous=5).status == 200
    assert replay.status().json["reason"] == "superseded"


@pytest.mark.spec("design 7.3")
def test_older_versions_replay_as_well(sink: Sink, stream: Stream) -> None:
    stream.create()
    results = []
    for version in range(4):
        branch = sink.filled(version, stream, b"%d" % version)
        answer = sink.commit(version, branch, batch=version, previous=version - 1)
        results.append(answer.json)
    for version in range(4):
        again = sink.commit(version, batch=version, previous=version - 1)
        assert again.json == {**results[version], "duplicate": True}
    assert stream.text == "0123"


@pytest.mark.spec("design 7.3")
def test_a_version_that_is_no_longer_kept_is_refused(sink: Sink) -> None:
    for version in range(130):
        assert sink.commit(version, batch=version).status == 200
    forgotten = sink.commit(0, batch=0)
    assert refusal(forgotten) == (409, "version_forgotten")
    assert forgotten.json["last_version"] == 129
    assert sink.commit(2, batch=2).json["duplicate"] is True
    assert len(sink.look().json["versions"]) == 128


# ---- copied and restored checkpoints -------------------------------------------------------------


@pytest.mark.spec("design 7.3")
def test_a_copied_checkpoint_that_went_another_way_is_refused(sink: Sink, stream: Stream) -> None:
    stream.create()
    for version in range(3):
        branch = sink.filled(version, stream, b"%d" % version)
        sink.commit(version, branch, batch=version, previous=version - 1)
    # The copy was taken after version 1, and its batch 2 holds other input.
    copied = sink.commit(2, sink.filled(2, stream, b"x"), batch="other 2", previous=1)
    assert refusal(copied) == (409, "checkpoint_diverged")
    assert copied.json["last_version"] == 2
    ahead = sink.commit(3, sink.filled(3, stream, b"x"), batch="other 3", previous="other 2")
    assert refusal(ahead) == (409, "checkpoint_diverged")
    assert stream.text == "012", "no message is lost silently or duplicated"
    assert sink.commit(3, sink.filled(3, stream, b"3"), batch=3, previous=2).status == 200
    assert stream.text == "0123"


@pytest.mark.spec("design 7.3")
def test_a_restored_checkpoint_of_the_same_history_catches_up(sink: Sink, stream: Stream) -> None:
    stream.create()
    for version in range(5):
        branch = sink.filled(version, stream, b"%d" % version)
        sink.commit(version, branch, batch=version, previous=version - 1)
    for version in range(2, 6):  # restored to its state after version 1
        branch = sink.filled(version, stream, b"%d" % version)
        answer = sink.commit(version, branch, batch=version, previous=version - 1)
        assert answer.json["duplicate"] is (version < 5)
    assert stream.text == "012345"


@pytest.mark.spec("design 7.3")
def test_without_digests_only_the_last_version_is_answered_again(sink: Sink) -> None:
    assert "warning" not in sink.commit(0).json
    assert sink.commit(1).status == 200, "without a digest there is no comparison"
    again = sink.commit(1)
    assert again.json["duplicate"] is True
    assert again.json["warning"]
    assert sink.commit(1, batch=1).json["warning"]
    assert refusal(sink.commit(0)) == (409, "checkpoint_diverged")


# rows: K09
@pytest.mark.spec("design 7.3")
def test_another_query_needs_the_app_rebound(sink: Sink, stream: Stream) -> None:
    stream.create()
    sink.commit(7, sink.filled(7, stream, b"a"), batch=7)
    branch = sink.filled(0, stream, b"b")
    bound = sink.commit(0, branch, batch=0, query="R")
    assert refusal(bound) == (409, "app_bound")
    assert bound.json["query_id"] == "Q"
    rebound = sink.rebind("R", 3)
    assert rebound.status == 200
    assert rebound.json == {"app": sink.app, "query_id": "R", "last_version": 3}
    assert refusal(sink.commit(8, batch=8, previous=7)) == (409, "app_bound")
    assert sink.commit(4, sink.filled(4, stream, b"b"), batch=4, query="R").status == 200
    assert stream.text == "ab"


# rows: K07
@pytest.mark.spec("design 7.3")
def test_a_query_that_takes_over_has_a_history_of_its_own(sink: Sink, stream: Stream) -> None:
    stream.create()
    for version in range(3):
        sink.commit(version, batch=version, previous=version - 1 if version else None)
    sink.rebind("R", 2)
    assert sink.look().json["versions"] == []
    assert refusal(sink.commit(2, batch=2, query="R")) == (409, "version_forgotten")
    taken = sink.commit(3, sink.filled(3, stream, b"a"), batch=30, previous=20, query="R")
    assert taken.status == 200
    assert refusal(sink.commit(4, batch=40, previous=31, query="R")) == (409, "checkpoint_diverged")
    assert sink.rebind("S", -1).json["last_version"] == -1
    first = sink.commit(0, sink.filled(0, stream, b"b"), batch=0, query="S")
    assert (first.status, first.json["duplicate"]) == (200, False)
    assert stream.text == "ab"
    assert refusal(sink.rebind("S", -2)) == (400, "invalid_request")


# ---- incomplete branches -------------------------------------------------------------------------


# rows: K13
@pytest.mark.spec("design 7.3")
def test_a_branch_that_is_not_whole_is_not_sealed(sink: Sink, stream: Stream) -> None:
    stream.create()
    branch = sink.branch(1)
    branch.stage(stream, b"a")
    cases: list[dict[str, Any]] = [
        {"chunks": 2},
        {"messages": {stream.path: 2}},
        {"messages": {"elsewhere": 1}},
        {"messages": {}},
    ]
    for wrong in cases:
        answer = branch.prepare(**wrong)
        assert refusal(answer) == (409, "branch_incomplete"), wrong
        assert (answer.json["chunks"], answer.json["messages"]) == (1, 1)
    unsealed = sink.commit(1, branch)
    assert refusal(unsealed) == (409, "branch_incomplete")
    assert unsealed.json["transaction_id"] == branch.id
    assert stream.text == ""
    assert branch.prepare().status == 200
    assert sink.commit(1, branch).status == 200


@pytest.mark.spec("design 7.3")
def test_a_branch_that_is_gone_spoils_the_commit(sink: Sink, stream: Stream) -> None:
    stream.create()
    good, gone = (sink.filled(1, stream, b"x", partition=n) for n in range(2))
    assert gone.call("abort").status == 200
    answer = sink.commit(1, good, gone, batch=1)
    assert refusal(answer) == (409, "branch_missing")
    assert answer.json["transaction_id"] == gone.id
    never = Branch(sink.server, sink.app, 1)
    assert refusal(sink.commit(1, good, never, batch=1)) == (409, "branch_missing")
    assert stream.text == ""
    again = sink.filled(1, stream, b"y", partition=1)
    assert sink.commit(1, good, again, batch=1).status == 200
    assert stream.text == "xy"


@pytest.mark.spec("design 7.3")
def test_a_commit_drops_what_failed_attempts_have_left(sink: Sink, stream: Stream) -> None:
    stream.create()
    failed, older, next_one = sink.branch(2), sink.branch(1), sink.branch(3)
    failed.stage(stream, b"failed")
    older.stage(stream, b"older")
    sink.commit(2, sink.filled(2, stream, b"good"), batch=2)
    for branch in (failed, older):
        assert branch.status().json["reason"] == "superseded"
        assert refusal(branch.stage(stream, b"late")) == (409, "INVALID_TXN_STATE")
    assert next_one.status().json["state"] == "open"
    assert stream.text == "good"


# rows: K06
@pytest.mark.spec("design 7.3")
def test_only_a_commit_of_the_sink_decides(sink: Sink, stream: Stream) -> None:
    stream.create()
    branch = sink.filled(1, stream, b"a")
    alone = branch.call("commit")
    assert refusal(alone) == (409, "INVALID_TXN_STATE")
    stranger = Sink(sink.server)
    assert refusal(stranger.commit(1, branch)) == (403, "PRODUCER_FENCED")
    assert sink.commit(1, branch).status == 200
    assert refusal(branch.call("abort")) == (409, "txn_committed"), "abort after commit"
    assert stream.text == "a"


@pytest.mark.spec("design 7.3")
def test_a_stream_made_anew_takes_no_chunk_of_the_old_one(sink: Sink, stream: Stream) -> None:
    stream.create()
    branch = sink.filled(1, stream, b"a")
    stream.delete()
    stream.create()
    answer = sink.commit(1, branch, batch=1)
    assert refusal(answer) == (409, "incarnation_conflict")
    assert answer.json["stream"] == stream.path
    assert answer.json["incarnation"] == stream.head().headers["stream-incarnation"]
    assert sink.commit(1, sink.filled(1, stream, b"b"), batch=1).status == 200
    assert stream.text == "b"


@pytest.mark.spec("design 7.3")
def test_a_stream_that_is_gone_refuses_the_batch_whose_next_run_is_stored_once(
    sink: Sink, stream: Stream
) -> None:
    """A commit without the stream would lose its rows: a replay would be a duplicate."""
    stream.create()
    branch = sink.filled(1, stream, b"a")
    stream.delete()
    refused = sink.commit(1, branch, batch=1)
    assert (refused.status, refused.code) == (404, "stream_not_found")
    stream.create()
    again = sink.filled(1, stream, b"a")
    assert sink.commit(1, again, batch=1).json["deleted"] == []
    assert sink.commit(1, again, batch=1).json["duplicate"] is True
    assert stream.text == "a"


@pytest.mark.spec("issue: sinks")
def test_two_hundred_attempts_at_once_leave_one_batch(sink: Sink, stream: Stream) -> None:
    stream.create()

    def attempt(number: int) -> Branch:
        partition = number % 50
        return sink.filled(1, stream, b"[%d]" % partition, b"(%d)" % partition, partition=partition)

    with ThreadPoolExecutor(20) as pool:
        branches = list(pool.map(attempt, range(200)))
    winners = branches[50:100]  # the second attempt of each task
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: sink.commit(1, *winners, batch=1), range(4)))
    assert [answer.status for answer in answers] == [200] * 4
    assert sorted(answer.json["duplicate"] for answer in answers) == [False, True, True, True]
    assert stream.text == "".join(f"[{n}]({n})" for n in range(50))
    assert sink.look().json["open_transactions"] == 0
    losers = [branch.status().json["reason"] for branch in (branches[0], branches[199])]
    assert losers == ["superseded", "superseded"]


# ---- sink state ----------------------------------------------------------------------------------


@pytest.mark.spec("design 7.3")
def test_sinks_are_listed_shown_and_forgotten(sink: Sink, stream: Stream) -> None:
    stream.create()
    assert refusal(sink.look()) == (404, "unknown_sink")
    assert refusal(sink.rebind("Q", 1)) == (404, "unknown_sink")
    sink.commit(1, sink.filled(1, stream, b"a"), batch=1)
    sink.branch(2)
    shown = sink.look().json
    versions = shown.pop("versions")
    assert shown == {
        "app": sink.app,
        "query_id": "Q",
        "last_version": 1,
        "open_transactions": 1,
    }
    assert [version["version"] for version in versions] == [1]
    assert versions[0]["input"] == digest(1)
    assert versions[0]["streams"][stream.path]["messages"] == 1
    assert shown in call(sink.server, "GET", "/v1/sinks").json["sinks"]
    target = f"/v1/sinks/{sink.app}"
    assert call(sink.server, "DELETE", target).status == 204
    assert refusal(call(sink.server, "DELETE", target)) == (404, "unknown_sink")
    assert refusal(sink.look()) == (404, "unknown_sink")


@pytest.mark.crash
def test_a_sink_knows_its_versions_after_a_kill(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    try:
        stream, sink = server.stream("s"), Sink(server, "A")
        stream.create()
        staged = sink.filled(2, stream, b"b")
        first = sink.commit(1, sink.filled(1, stream, b"a"), batch=1)
        server.kill()
        server = sink.server = staged.server = Server(tmp_path / "data")
        stream = server.stream("s")
        assert sink.commit(1, batch=1).json == {**first.json, "duplicate": True}
        assert refusal(sink.commit(1, batch="other")) == (409, "checkpoint_diverged")
        assert sink.commit(2, staged, batch=2, previous=1).status == 200
        assert stream.text == "ab"
    finally:
        server.kill()


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("POST", "/v1/sinks", 405),
        ("PUT", "/v1/sinks/a", 405),
        ("GET", "/v1/sinks/a/rebind", 405),
        ("POST", "/v1/sinks/a/other", 404),
        ("GET", "/v1/sinks/%f", 400),
    ],
)
def test_addresses_and_methods_that_are_not_there(
    server: Server, method: str, target: str, status: int
) -> None:
    answer = call(server, method, target)
    assert answer.status == status
    assert answer.code


def test_a_rebinding_that_means_nothing_is_refused(server: Server) -> None:
    for document in ({}, {"query_id": "q"}, {"query_id": "q", "last_version": "1"}):
        answer = call(server, "POST", "/v1/sinks/a/rebind", document)
        assert refusal(answer) == (400, "bad_body")
