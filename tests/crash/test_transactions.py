"""Transactions and kill -9: before a decision, after it, while staging, and while recovering."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from semel.journal.frame import checksum_seed
from semel.journal.scan import TornTail, frames_of
from semel.machine.events import Decided
from tests.crash.directory import IDENTITY, contents, flip, segments
from tests.crash.txn_lives import (
    LOST,
    Node,
    by_catch_up,
    maybe,
    send_only,
    shown,
    state_of,
    view,
    wait_until,
)
from tests.spec.process import PATIENCE_SECONDS, Server, offset_of
from tests.spec.test_sinks import Sink
from tests.spec.txn_calls import COMMITTED, Txn, begun, call, commit, positions, refusal

pytestmark = pytest.mark.crash

LONG_MS: Final = 900_000  # no transaction times out during a test
SHORT_MS: Final = 2_000
KINDS = pytest.mark.parametrize("kind", ["inline", "staged"])
CHECKPOINTS = pytest.mark.parametrize("is_cut", [False, True], ids=["journal", "checkpoint"])
SEED: Final = 5
RACES: Final = 12
STAGING_KILLS: Final = 5
RECOVERY_KILLS: Final = 6
TAIL_KILLS: Final = 6
CHUNK: Final = 64 * 1024


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    server = Node(tmp_path / "data", "--long-poll-timeout", "0.1")
    try:
        yield server
    finally:
        server.kill()


def fill(txn: Txn, node: Node, kind: str, *paths: str) -> None:
    """Write one message to each stream, and move a group in the first one."""
    for number, path in enumerate(paths):
        stream, body = node.stream(path), path.encode()
        if kind == "inline":
            assert txn.post(stream, body).status == 200
        else:
            assert txn.stage(stream, body, number).status == 200
    answer = txn.call("offsets", group="g", offsets={paths[0]: offset_of(1)})
    assert answer.status == 200, answer


def two_streams(node: Node, kind: str, **more: object) -> Txn:
    """Return an open transaction in two streams that have one other message each."""
    for path in ("a", "b"):
        node.stream(path).create(b"0")
    txn = begun(node.stream("a"), node.stream("b"), kind=kind, timeout_ms=LONG_MS, **more)
    fill(txn, node, kind, "a", "b")
    return txn


def both(node: Node) -> tuple[bytes, bytes]:
    return shown(node.stream("a")), shown(node.stream("b"))


# ---- before and after a decision -----------------------------------------------------------------


# rows: R23, R29, X03, X04
@KINDS
@CHECKPOINTS
def test_a_kill_before_the_decision_leaves_it_open_and_unseen(
    node: Node, kind: str, is_cut: bool
) -> None:
    txn = two_streams(node, kind)
    before = txn.status().json
    if is_cut:
        node.stop()
        node.start()
    node.restart()
    after = txn.status().json
    assert (after["state"], after["begun_at"]) == ("open", before["begun_at"])
    assert after["deadline"] >= before["deadline"]  # the timeout has started again
    assert after["streams"] == before["streams"]
    assert both(node) == (b"0", b"0")
    assert positions(node.server, "g") == {}
    assert txn.commit().status == 200
    assert both(node) == (b"0a", b"0b")
    assert positions(node.server, "g") == {"a": offset_of(1)}


# rows: R23, R28, R29, X05
@KINDS
@pytest.mark.parametrize("action", ["commit", "abort"])
def test_a_kill_after_the_decision_loses_the_answer_and_nothing_else(
    node: Node, kind: str, action: str
) -> None:
    txn = two_streams(node, kind)
    hang_up = send_only(node.server, txn, action)
    wait_until(lambda: state_of(txn) != "open")  # a reported outcome must survive the kill
    decided = txn.status().json
    node.kill()
    hang_up()
    node.start()
    assert txn.status().json == decided
    again, other = txn.call(action), txn.call({"commit": "abort", "abort": "commit"}[action])
    assert again.status == 200
    if action == "commit":
        assert again.json["duplicate"] is True
        assert again.json["streams"] == decided["streams"]
        assert refusal(other) == (409, "txn_committed")
        assert both(node) == (b"0a", b"0b")
        assert positions(node.server, "g") == {"a": offset_of(1)}
    else:
        assert refusal(other) == (409, "txn_aborted")
        assert both(node) == (b"0", b"0")
        assert positions(node.server, "g") == {}


# rows: R28, R29, X24
def test_a_kill_around_the_decision_leaves_all_or_nothing(
    node: Node, figure: Callable[[str], None]
) -> None:
    chance = random.Random(SEED)
    for path in ("a", "b"):
        node.stream(path).create()
    there = ""
    found = {"open": 0, "committed": 0}
    for number in range(RACES):
        kind = ("inline", "staged")[number % 2]
        txn = begun(node.stream("a"), node.stream("b"), kind=kind, timeout_ms=LONG_MS)
        body = b"%d," % number
        for seq, path in enumerate(("a", "b")):
            if kind == "inline":
                txn.post(node.stream(path), body)
            else:
                txn.stage(node.stream(path), body, seq)
        hang_up = send_only(node.server, txn, "commit")
        time.sleep(chance.uniform(0, 0.004))  # about as long as a decision takes
        node.kill()
        hang_up()
        node.start()
        state = state_of(txn)
        found[state] += 1
        seen = both(node)
        then = f"{there}{number},"
        assert seen == ((then if state == "committed" else there).encode(),) * 2
        answer = txn.commit()
        assert (answer.status, answer.json["duplicate"]) == (200, state == "committed")
        there = then
        assert both(node) == (there.encode(),) * 2
    figure(f"kills around a decision: {RACES}, undecided after {found['open']} of them; none torn")


# ---- time ----------------------------------------------------------------------------------------


# rows: R23
@KINDS
def test_an_open_one_has_its_whole_time_again_after_a_restart_and_no_more(
    node: Node, kind: str
) -> None:
    for path in ("a", "b"):
        node.stream(path).create(b"0")
    streams = node.stream("a"), node.stream("b")
    txn = begun(*streams, kind=kind, timeout_ms=SHORT_MS)
    fill(txn, node, kind, "a", "b")
    node.kill()
    time.sleep(SHORT_MS / 1000)  # no server is running
    since = time.monotonic()
    node.start()
    wait_until(lambda: state_of(txn) == "aborted")
    assert time.monotonic() - since >= SHORT_MS / 1000, "it was ended early"
    assert refusal(txn.commit()) == (409, "TRANSACTION_TIMED_OUT")
    found = txn.status().json
    assert (found["state"], found["reason"]) == ("aborted", "timeout")
    assert both(node) == (b"0", b"0")
    node.restart()
    assert refusal(txn.commit()) == (409, "TRANSACTION_TIMED_OUT")
    assert both(node) == (b"0", b"0")


# rows: R23
def test_an_open_one_times_out_in_its_next_life_and_a_prepared_one_never(node: Node) -> None:
    for path in ("a", "b"):
        node.stream(path).create(b"0")
    late, prepared = (begun(node.stream(path), timeout_ms=SHORT_MS) for path in ("a", "b"))
    fill(late, node, "inline", "a")
    fill(prepared, node, "inline", "b")
    assert prepared.call("prepare").status == 200
    node.restart()
    wait_until(lambda: state_of(late) == "aborted")
    assert late.status().json["reason"] == "timeout"
    assert state_of(prepared) == "prepared"
    node.restart()
    assert both(node) == (b"0", b"0")
    assert prepared.commit().status == 200
    assert both(node) == (b"0", b"0b")


# ---- in the middle of staging --------------------------------------------------------------------


def chunk_of(number: int) -> bytes:
    """Return a chunk that cannot be made of parts of other chunks."""
    return b"%06d" % number * (CHUNK // 6)


# rows: X24
def test_kills_in_the_middle_of_staging_leave_whole_chunks(
    node: Node, figure: Callable[[str], None]
) -> None:
    chance = random.Random(SEED)
    stream = node.stream("s")
    stream.create(b"0")
    txn = begun(stream, kind="staged", timeout_ms=LONG_MS)
    acked = resumed = 0
    for _ in range(STAGING_KILLS):
        counts = [acked]
        reached, wanted = threading.Event(), acked + chance.randrange(3, 20)

        def stage(counts: list[int], reached: threading.Event, wanted: int) -> None:
            while True:
                answer = maybe(lambda: txn.stage(stream, chunk_of(counts[0]), counts[0]))
                if answer is None:
                    return
                assert answer.status in (200, 204), answer
                counts[0] += 1
                if counts[0] >= wanted:
                    reached.set()

        thread = threading.Thread(target=stage, args=(counts, reached, wanted))
        thread.start()
        assert reached.wait(PATIENCE_SECONDS)
        time.sleep(chance.uniform(0, 0.002))
        node.kill()
        thread.join(PATIENCE_SECONDS)
        node.start()
        found = txn.status().json
        assert found["state"] == "open"
        assert found["chunks"] == found["next_seq"]
        assert counts[0] <= found["chunks"] <= counts[0] + 1, "an acknowledged chunk is lost"
        resumed += found["chunks"] - counts[0]
        assert shown(stream) == b"0"
        acked = counts[0]
    total = txn.status().json["chunks"]
    prepared = txn.call("prepare", chunks=total, messages={"s": total})
    assert prepared.status == 200, prepared
    node.restart()
    assert shown(stream) == b"0"
    assert txn.commit().json["streams"]["s"]["messages"] == total
    whole = b"0" + b"".join(map(chunk_of, range(total)))
    assert by_catch_up(stream) == whole
    node.restart()
    assert by_catch_up(stream) == whole
    figure(
        f"kills while staging: {STAGING_KILLS}, {total} chunks of {CHUNK // 1024} KiB, all whole;"
        f" {resumed} stored without an answer"
    )


# ---- recovery ------------------------------------------------------------------------------------


class Everything:
    """A directory with a transaction in every state, groups, a fork, a sink and a snapshot."""

    streams: Final = ["a", "b", "fork", "s"]
    groups: Final = [*(f"g{number}" for number in range(8)), "h"]

    def __init__(self, node: Node) -> None:
        self._node = node
        a, b, s = (node.stream(path) for path in "abs")
        for stream in (a, b, s):
            stream.create(b"0")
        make = {"timeout_ms": LONG_MS}
        self.txns = [begun(a, b, **make) for _ in range(4)]
        self.txns += [begun(a, b, kind="staged", **make) for _ in range(4)]
        for number, txn in enumerate(self.txns):
            for seq, stream in enumerate((a, b)):
                body = b"%d" % number
                if number < 4:
                    assert txn.post(stream, body).status == 200
                else:
                    assert txn.stage(stream, body, seq).status == 200
            answer = txn.call("offsets", group=f"g{number}", offsets={"a": offset_of(1)})
            assert answer.status == 200, answer
        for first in (0, 4):
            assert self.txns[first].commit().status == 200
            assert self.txns[first + 1].abort().status == 200
            assert self.txns[first + 2].call("prepare").status == 200
        fork = node.stream("fork")
        assert fork.put(stream_forked_from=a.target, stream_fork_offset=offset_of(1)).status == 201
        self.sink = Sink(node.server, "app")
        assert self.sink.commit(1, self.sink.filled(1, s, b"x"), batch=1).status == 200
        self.branch = self.sink.filled(2, s, b"y")
        one_shot = {"producer_id": "one", "producer_epoch": 0, "producer_seq": 0}
        appends = [{"stream": "s", "messages": ["z"]}]
        offsets = {"h": {"s": offset_of(1)}}
        answer = commit(node.server, **one_shot, appends=appends, offsets=offsets)
        assert answer.status == 200, answer
        incarnation = s.head().headers["stream-incarnation"]
        span = {"incarnation": incarnation, "from": offset_of(0), "to": offset_of(1)}
        pinned = {"number": 0, "ranges": {"s": span}, "hash": "h"}
        call(node.server, "POST", "/v1/groups/h/snapshot", pinned)

    def view(self) -> object:
        return view(self._node.server, self.streams, self.txns, self.groups)

    def decide_the_rest(self) -> None:
        """Commit the pending transactions, and check what the streams contain then."""
        for number in (2, 3, 6, 7):
            assert self.txns[number].commit().status == 200
        self.sink.server = self._node.server
        assert self.sink.commit(2, self.branch, batch=2, previous=1).status == 200
        assert shown(self._node.stream("a")) == b"0" + b"023" + b"467"
        assert shown(self._node.stream("b")) == b"0" + b"023" + b"467"
        assert shown(self._node.stream("fork")) == b"0"
        assert shown(self._node.stream("s")) == b"0xzy"


# rows: X22
@CHECKPOINTS
def test_three_recoveries_give_the_same_state(node: Node, is_cut: bool) -> None:
    everything = Everything(node)
    before = everything.view()
    if is_cut:
        node.stop()
        node.start()
        assert everything.view() == before
    for _ in range(3):
        node.restart()
        assert everything.view() == before
    everything.decide_the_rest()


# rows: X22
def test_kills_during_recovery_change_nothing(node: Node, figure: Callable[[str], None]) -> None:
    chance = random.Random(SEED)
    everything = Everything(node)
    stream = node.stream("large")
    stream.create()
    large = begun(stream, kind="staged", timeout_ms=LONG_MS)
    body = b"x" * (1 << 20)
    for seq in range(24):  # so that recovery takes some time
        assert large.stage(stream, body, seq).status == 200
    before = everything.view()
    node.kill()
    unfinished = sum(node.kill_in_recovery(chance.uniform(0, 0.05)) for _ in range(RECOVERY_KILLS))
    for _ in range(3):
        node.start()
        assert everything.view() == before
        node.kill()
        unfinished += node.kill_in_recovery(chance.uniform(0, 0.05))
    node.start()
    everything.decide_the_rest()
    assert large.commit().json["streams"]["large"]["messages"] == 24
    assert len(by_catch_up(stream)) == 24 * len(body)
    assert unfinished, "no server was killed before its recovery was done"
    figure(f"kills during recovery: {RECOVERY_KILLS + 3}, {unfinished} before it was done")


# ---- readers across restarts ---------------------------------------------------------------------


class Follower:
    """Reads committed messages live, across all restarts of a server."""

    def __init__(self, node: Node, way: str) -> None:
        self.found = ""
        self._offset = "-1"
        self._node = node
        self._read = {"events": self._by_events, "long-poll": self._by_long_poll}[way]
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        while not self._is_over.is_set():
            try:
                self._read()
            except LOST:
                time.sleep(0.01)  # no server is running

    def _by_long_poll(self) -> None:
        stream = self._node.stream("a")
        answer = stream.get(f"offset={self._offset}&live=long-poll&{COMMITTED}")
        if answer.status == 200:
            self.found += answer.body.decode()
        self._offset = answer.next_offset

    def _by_events(self) -> None:
        with self._node.stream("a").listen(f"{self._offset}&{COMMITTED}") as events:
            data = ""
            while not self._is_over.is_set() and (event := events.next()) is not None:
                if event.kind == "data":
                    data += event.data
                else:  # data counts as read once a control event follows
                    self.found, data = self.found + data, ""
                    self._offset = event.json["streamNextOffset"]

    def wait(self, expected: str) -> None:
        """Wait until enough was read, and check that it is exactly what was expected."""
        wait_until(lambda: len(self.found) >= len(expected))
        assert self.found == expected

    def end(self) -> None:
        """Stop the thread; the server was killed before."""
        self._is_over.set()
        self._thread.join(PATIENCE_SECONDS)


# rows: R29, R32, X03
def test_followers_meet_what_is_committed_once_and_nothing_else_across_kills(node: Node) -> None:
    chance = random.Random(SEED)
    stream = node.stream("a")
    stream.create()
    followers = [Follower(node, way) for way in ("events", "long-poll")]
    expected: list[tuple[int, str]] = []
    number = 0
    try:
        for _ in range(TAIL_KILLS):
            undecided: list[tuple[Txn, int, str]] = []
            for _ in range(6):
                txn, body = begun(stream, timeout_ms=LONG_MS), f"<{number}>"
                number += 1
                at = int(txn.post(stream, body.encode()).next_offset.rpartition("_")[2]) - 1
                fate = chance.choice(("commit", "abort", "open"))
                if fate == "open":
                    undecided.append((txn, at, body))
                    continue
                assert txn.call(fate).status == 200
                if fate == "commit":
                    expected.append((at, body))
            node.restart()
            seen = shown(stream).decode()
            for txn, at, body in undecided:
                assert body not in seen
                assert state_of(txn) == "open"
                if chance.random() < 0.5:
                    assert txn.abort().status == 200
                else:
                    assert txn.commit().status == 200
                    expected.append((at, body))
        whole = "".join(body for _, body in sorted(expected))
        assert shown(stream).decode() == whole
        for follower in followers:
            follower.wait(whole)
    finally:
        node.kill()
        for follower in followers:
            follower.end()


# ---- damage (T12) --------------------------------------------------------------------------------


def decisions(data: Path) -> list[tuple[Path, int, int]]:
    """Return the segment, the start and the end of each decision frame."""
    seed = checksum_seed((data / IDENTITY).read_bytes()[-20:-4])
    found = []
    crc = 0
    for path in segments(data):
        first = int(path.stem)
        try:
            for frame in frames_of(
                path.read_bytes(), first, start=first, previous_crc=crc, seed=seed
            ):
                crc = frame.crc
                if isinstance(frame.record, Decided):
                    found.append((path, frame.lsn - first, frame.end - first))
        except TornTail:
            continue
    return found


def refuse_to_start(data: Path) -> str:
    """Check that a server refuses to start and changes no file; return its stderr."""
    before = contents(data)
    server = Server(data)
    assert server.greeting == ""
    assert server.wait() == 65
    stderr = server.stderr
    server.kill()
    assert contents(data) == before
    return stderr


@KINDS
def test_t12_a_damaged_decision_is_never_taken_for_none(node: Node, kind: str) -> None:
    txn = two_streams(node, kind)
    assert txn.commit().status == 200
    node.stream("a").post(b"later")
    node.kill()
    [(path, start, end)] = decisions(node.data)
    whole = path.read_bytes()
    for bit in (8 * (start + 40), 8 * (start + end) // 2, 8 * end - 64):
        flip(path, bit)
        assert path.name in refuse_to_start(node.data)
        path.write_bytes(whole)
    node.start()
    assert both(node) == (b"0alater", b"0b")


@KINDS
def test_t12_damaged_messages_of_a_decided_transaction_are_refused(node: Node, kind: str) -> None:
    for path in ("a", "b"):
        node.stream(path).create(b"0")
    txn = begun(node.stream("a"), kind=kind)
    body = b"find me, I was committed"
    answer = txn.post(node.stream("a"), body) if kind == "inline" else None
    answer = answer or txn.stage(node.stream("a"), body, 0)
    assert answer.status == 200
    assert txn.commit().status == 200
    node.kill()
    [segment] = segments(node.data)
    at = segment.read_bytes().index(body)
    flip(segment, 8 * at)
    assert segment.name in refuse_to_start(node.data)
    flip(segment, 8 * at)
    node.start()
    node.stop()  # now a checkpoint covers it: only a read finds the damage
    flip(segment, 8 * at)
    node.start()
    refused = node.stream("a").get(f"offset=-1&{COMMITTED}")
    assert refused.status == 500, refused
    assert refused.code == "corrupt_data"
    assert shown(node.stream("b")) == b"0"
