"""Lifetimes of producers over HTTP: declared idle times, retirement, tombstones, their limits."""

import http.client
import signal
import threading
import time
from collections import Counter
from typing import Any, Final
from urllib.parse import quote

import msgspec
import pytest

from semel import Client
from semel.errors import LimitReached
from tests.spec.clock_rig import MINUTE_MS, Machine, eventually
from tests.spec.process import Answer, Server, Stream, field_names
from tests.spec.txn_calls import Txn

PRODUCERS: Final = "/v1/producers"
HOUR_MS: Final = 60 * MINUTE_MS
SENDERS: Final = 8
SWEPT_SECONDS: Final = 2.5  # in that time the server looks at least once for what is due


def send(stream: Stream, body: bytes, seq: int, **more: Any) -> Answer:
    """Append as the session `x` of the expiring producer `p`, unless other headers are given."""
    fields = {"producer_id": "p", "producer_session": "x", "producer_expires": 60, **more}
    given = {name: value for name, value in fields.items() if value is not None}
    return stream.post(body, producer_seq=seq, **given)


def retire(server: Server, *entries: dict[str, Any]) -> list[dict[str, Any]]:
    body = msgspec.json.encode({"producers": entries})
    answer = server.ask("POST", f"{PRODUCERS}/retire", body)
    assert answer.status == 200, answer
    results: list[dict[str, Any]] = answer.json["producers"]
    return results


def shown(stream: Stream, producer_id: str = "p") -> dict[str, Any] | None:
    answer = stream.server.ask("GET", f"{PRODUCERS}?stream={stream.path}&id={producer_id}")
    return next(iter(answer.json["producers"]), None)


def state_of(stream: Stream, producer_id: str = "p") -> str | None:
    entry = shown(stream, producer_id)
    return None if entry is None else entry["state"]


def let_idle(machine: Machine, ms: int) -> None:
    """Let an idle time pass, after the server has seen the last append.

    It looks for appends four times within an idle time, so after 15 seconds of 60.
    """
    time.sleep(SWEPT_SECONDS)
    machine.let_pass(16_000)
    time.sleep(SWEPT_SECONDS)
    machine.let_pass(ms)


# ---- declared idle times -------------------------------------------------------------------------


def test_a_producer_that_declares_an_idle_time_ends_by_itself(machine: Machine) -> None:
    stream = machine.stream()
    assert send(stream, b"a,", 0).status == 200
    entry = shown(stream)
    assert entry is not None
    assert (entry["state"], entry["expires"], entry["expired"]) == ("expiring", 60, False)
    assert machine.metric("producers_expiring") == 1
    machine.let_pass(50_000)
    assert send(stream, b"b,", 1).status == 200  # used, so its time starts again
    machine.let_pass(50_000)
    assert send(stream, b"c,", 2, producer_expires=None).status == 200  # it keeps its idle time
    assert state_of(stream) == "expiring"
    let_idle(machine, 25_000)
    time.sleep(SWEPT_SECONDS)
    assert state_of(stream) == "expiring"
    machine.let_pass(50_000)
    assert eventually(lambda: state_of(stream) == "retired")
    late = send(stream, b"c,", 2)
    assert (late.status, late.code) == (409, "producer_state_expired")
    assert machine.metric("producers_expiring") == 0
    assert machine.metric("producer_tombstones") == 1
    # The tombstone stays for 10 minutes. The server looks after 8 of them, and again 2.5 later.
    for minutes in (8, 1):
        time.sleep(SWEPT_SECONDS)
        machine.let_pass(minutes * MINUTE_MS)
    time.sleep(SWEPT_SECONDS)
    assert send(stream, b"c,", 2).code == "producer_state_expired"  # after 9 minutes
    machine.let_pass(2 * MINUTE_MS)
    assert eventually(lambda: state_of(stream) is None)  # after 11 minutes
    assert machine.metric("producer_tombstones") == 0
    assert stream.text == "first,a,b,c,"


def test_an_active_producer_does_not_end(machine: Machine) -> None:
    stream = machine.stream()
    for seq in range(6):
        assert send(stream, b"x,", seq).status == 200
        machine.let_pass(30_000)
        time.sleep(SWEPT_SECONDS / 2)
    assert state_of(stream) == "expiring"


def test_after_a_restart_an_idle_time_starts_again(machine: Machine) -> None:
    assert send(machine.stream(), b"a,", 0).status == 200
    machine.let_pass(50_000)
    machine.restart()
    machine.let_pass(50_000)
    stream = machine.stream()
    assert send(stream, b"a,", 0).status == 204, "it still recognises the duplicate"
    assert state_of(stream) == "expiring"
    let_idle(machine, 80_000)
    assert eventually(lambda: state_of(stream) == "retired")
    machine.restart()
    assert send(machine.stream(), b"a,", 0).code == "producer_state_expired"


@pytest.mark.parametrize("value", ["59", "604801", "0", "-1", "1.5", "060", "", "60, 60"])
def test_a_wrong_idle_time_is_refused(stream: Stream, value: str) -> None:
    stream.create()
    answer = send(stream, b"a", 0, producer_expires=value)
    assert (answer.status, answer.code) == (400, "invalid_header")
    assert "60 to 604800" in answer.json["message"]


def test_a_registration_that_declares_an_idle_time_ends_by_itself(machine: Machine) -> None:
    server = machine.server
    made = server.ask("POST", PRODUCERS, b'{"expires":60}')
    assert made.status == 201
    name = made.json["producer_id"]
    stream = machine.stream()
    identity = {"producer_id": name, "producer_session": None, "producer_epoch": 0}
    # An append without the header gets the idle time of the registration.
    assert send(stream, b"a,", 0, **identity, producer_expires=None).status == 200
    entry = shown(stream, name)
    assert entry is not None
    assert (entry["state"], entry["expires"]) == ("expiring", 60)
    let_idle(machine, 80_000)
    assert eventually(lambda: state_of(stream, name) == "retired")
    let_idle(machine, 80_000)
    assert eventually(lambda: send(stream, b"a,", 0, **identity).status == 404)
    assert send(stream, b"a,", 0, **identity).code == "UNKNOWN_PRODUCER_ID"
    again = server.ask("POST", PRODUCERS, msgspec.json.encode({"producer_id": name}))
    assert again.code == "UNKNOWN_PRODUCER_ID"
    assert stream.text == "first,a,"


def test_a_registration_ends_although_its_stream_was_soft_deleted(machine: Machine) -> None:
    server, stream = machine.server, machine.stream()
    name = server.ask("POST", PRODUCERS, b'{"expires":60}').json["producer_id"]
    identity = {"producer_id": name, "producer_session": None, "producer_epoch": 0}
    assert send(stream, b"a,", 0, **identity).status == 200
    assert server.ask("PUT", "/v1/stream/f", stream_forked_from=stream.target).status == 201
    assert server.ask("DELETE", stream.target).status == 204

    def has_left() -> bool:
        machine.let_pass(1_000)
        return not server.ask("GET", f"{PRODUCERS}?id={name}").json["producers"]

    assert eventually(has_left)
    again = server.ask("POST", PRODUCERS, msgspec.json.encode({"producer_id": name}))
    assert again.code == "UNKNOWN_PRODUCER_ID"


def test_a_pending_transaction_keeps_a_registration(machine: Machine) -> None:
    made = machine.server.ask("POST", PRODUCERS, b'{"expires":60}').json
    txn = Txn(machine.server, made["producer_id"], epoch=made["producer_epoch"])
    assert txn.begin(streams=["s"], timeout_ms=15 * MINUTE_MS).status == 201
    for _ in range(4):
        machine.let_pass(100_000)
        time.sleep(SWEPT_SECONDS)
    assert txn.commit().status == 200, "its producer is still registered"


def test_restarts_do_not_prevent_the_end_of_an_idle_producer(machine: Machine) -> None:
    stream, run = machine.stream(), 0
    assert send(stream, b"a,", 0, producer_expires=3 * 3600).status == 200
    while state_of(stream) == "expiring":
        run += 1
        assert run <= 6, "it never ends, because no run of the server is as long as the idle time"
        assert machine.server.ask("PUT", f"/v1/stream/{run}", stream_ttl=60).status == 201
        machine.let_pass(HOUR_MS)
        assert eventually(lambda: machine.metric("streams") == 1), "the server has looked"
        if run % 2:
            machine.server.signal(signal.SIGTERM)
            machine.server.wait()
        machine.restart()
        stream = machine.stream()
    assert run >= 3
    assert state_of(stream) == "retired"
    assert send(stream, b"a,", 0).code == "producer_state_expired"
    assert stream.text == "first,a,"


# ---- retirement ----------------------------------------------------------------------------------


def test_a_retired_producer_refuses_late_copies_and_can_be_used_again(server: Server) -> None:
    stream = server.stream()
    stream.create()
    for seq in range(2):
        assert send(stream, b"%d" % seq, seq).status == 200
    entry = {"producer_id": "p", "stream": stream.path, "session": "x"}
    done = {"producer_id": "p", "stream": stream.path, "retired": True}
    assert retire(server, entry) == [done]
    assert retire(server, entry) == [done], "a repeat has the same answer"
    for seq in (0, 1, 2):
        late = send(stream, b"%d" % seq, seq)
        assert (late.status, late.code) == (409, "producer_state_expired")
        assert late.json["applied"] == "no"
    assert send(stream, b"n", 0, producer_session="y").status == 200, "a new session"
    assert state_of(stream) == "expiring"
    assert retire(server, {**entry, "session": "y"}) == [done]
    higher = {"producer_session": None, "producer_epoch": 9}
    assert send(stream, b"e", 0, **higher).status == 200, "a higher epoch"
    assert stream.text == "01ne"


def test_only_the_current_instance_can_retire_a_producer(server: Server) -> None:
    stream = server.stream()
    stream.create()
    send(stream, b"a", 0)
    send(stream, b"b", 0, producer_session="y")  # fences the session x; its epoch is 2
    named = {"producer_id": "p", "stream": stream.path}
    entries: list[dict[str, Any]] = [
        {**named, "session": "x"},
        {**named, "producer_epoch": 1},
        {**named, "producer_epoch": 3},
        {**named, "session": "never"},
        {**named, "session": "y", "producer_epoch": 1},
        {"producer_id": "q", "stream": stream.path, "session": "x"},
        {"producer_id": "p", "stream": "no/such/stream", "session": "x"},
        {"producer_id": "p", "producer_epoch": 2},
    ]
    results = retire(server, *entries)
    assert [(result["retired"], result["code"]) for result in results] == [
        (False, "stale_session"),
        (False, "PRODUCER_FENCED"),
        (False, "UNKNOWN_PRODUCER_ID"),
        (False, "UNKNOWN_PRODUCER_ID"),
        (False, "PRODUCER_FENCED"),
        (False, "UNKNOWN_PRODUCER_ID"),
        (False, "stream_not_found"),
        (False, "UNKNOWN_PRODUCER_ID"),
    ]
    assert send(stream, b"c", 1, producer_session="y").status == 200, "it was not retired"
    assert retire(server, {**named, "producer_epoch": 2})[0]["retired"]


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"producers":[]}',
        b'{"producers":[{"producer_id":"p","stream":"s"}]}',
        b'{"producers":[{"producer_id":"p","session":"x"}]}',
        b'{"producers":[{"stream":"s","session":"x"}]}',
        b'{"producers":[{"producer_id":"p","stream":"s","sesion":"x"}]}',
        b'{"producers":[{"producer_id":"","stream":"s","session":"x"}]}',
        b'{"producers":[{"producer_id":"p","stream":"s","producer_epoch":-1}]}',
        b'{"producers":[%s]}' % b",".join([b'{"producer_id":"p","producer_epoch":0}'] * 1001),
    ],
)
def test_a_wrong_retirement_is_refused(server: Server, body: bytes) -> None:
    answer = server.ask("POST", f"{PRODUCERS}/retire", body)
    assert answer.status == 400, answer
    assert answer.json["applied"] == "no"


def test_a_producer_with_a_pending_transaction_is_not_retired(server: Server) -> None:
    stream = server.stream()
    stream.create()
    txn = Txn(server)
    assert txn.begin(streams=[stream.path]).status == 201
    assert txn.post(stream, b"a").status == 200
    registration = {"producer_id": txn.producer, "producer_epoch": txn.producer_epoch}
    row = {**registration, "stream": stream.path}
    results = retire(server, row, registration)
    assert [(each["retired"], each["code"]) for each in results] == [
        (False, "stream_in_transaction"),
        (False, "CONCURRENT_TRANSACTIONS"),
    ]
    assert txn.commit().status == 200
    assert all(each["retired"] for each in retire(server, row, registration))
    assert retire(server, registration)[0]["retired"], "a registration with a name is idempotent"


def test_a_retired_registration_of_the_server_is_refused_for_ever(server: Server) -> None:
    stream = server.stream()
    stream.create()
    made = server.ask("POST", PRODUCERS, b"{}").json
    name, epoch = made["producer_id"], made["producer_epoch"]
    identity = {"producer_id": name, "producer_session": None, "producer_epoch": epoch}
    assert send(stream, b"a", 0, **identity).status == 200
    row = {"producer_id": name, "stream": stream.path, "producer_epoch": epoch}
    assert all(each["retired"] for each in retire(server, row, {**row, "stream": None}))
    late = send(stream, b"a", 0, **identity)
    assert (late.status, late.code) == (404, "UNKNOWN_PRODUCER_ID")
    assert retire(server, {**row, "stream": None})[0]["code"] == "UNKNOWN_PRODUCER_ID"


def test_a_retirement_survives_a_kill(machine: Machine) -> None:
    stream = machine.stream()
    send(stream, b"a,", 0)
    assert retire(machine.server, {"producer_id": "p", "stream": "s", "session": "x"})[0]["retired"]
    machine.restart()
    stream = machine.stream()
    assert send(stream, b"a,", 0).code == "producer_state_expired"
    assert state_of(stream) == "retired"
    time.sleep(SWEPT_SECONDS)
    machine.let_pass(11 * MINUTE_MS)
    assert eventually(lambda: state_of(stream) is None)
    machine.restart()
    assert state_of(machine.stream()) is None


# ---- room ----------------------------------------------------------------------------------------


class Sender(threading.Thread):
    """Appends once as each of many producers, on one connection, and counts the responses."""

    def __init__(self, stream: Stream, names: list[str], **headers: Any) -> None:
        super().__init__()
        self.stream, self.names, self.headers = stream, names, headers
        self.statuses: Counter[int] = Counter()
        self.start()

    def run(self) -> None:
        connection = self.stream.server.connect()
        for name in self.names:
            fields = {"producer_id": name, "producer_session": "x", "producer_seq": 0}
            fields |= {"content_type": "text/plain", **self.headers}
            self.statuses[self._send(connection, field_names(fields))] += 1
        connection.close()

    def _send(self, connection: http.client.HTTPConnection, fields: dict[str, str]) -> int:
        connection.request("POST", self.stream.target, b".", fields)
        response = connection.getresponse()
        response.read()
        return response.status


def send_all(stream: Stream, names: list[str], **headers: Any) -> Counter[int]:
    senders = [Sender(stream, names[part::SENDERS], **headers) for part in range(SENDERS)]
    for sender in senders:
        sender.join()
    return sum((sender.statuses for sender in senders), Counter())


@pytest.mark.timeout(300)
def test_10500_producers_that_are_retired_never_fill_a_stream(machine: Machine) -> None:
    stream, server = machine.stream(), machine.server
    for begin in range(0, 10_500, 500):
        names = [f"p{number}" for number in range(begin, begin + 500)]
        assert send_all(stream, names) == {200: 500}
        entries = [{"producer_id": name, "stream": "s", "session": "x"} for name in names]
        assert all(each["retired"] for each in retire(server, *entries))
    assert (machine.metric("producers"), machine.metric("producer_tombstones")) == (0, 10_000)
    assert stream.tail.endswith("_0000000000010501")
    # The oldest 500 have left, because 10,000 tombstones stay. The others refuse late copies.
    assert state_of(stream, "p499") is None
    for name in ("p500", "p10499"):
        late = send(stream, b".", 0, producer_id=name, producer_expires=None)
        assert late.code == "producer_state_expired"
    machine.restart()
    assert (machine.metric("producers"), machine.metric("producer_tombstones")) == (0, 10_000)
    machine.let_pass(11 * MINUTE_MS)
    assert eventually(lambda: machine.metric("producer_tombstones") == 0)


@pytest.mark.timeout(300)
def test_expiring_producers_have_a_limit_of_their_own(machine: Machine) -> None:
    stream = machine.stream()
    names = [f"p{number}" for number in range(10_000)]
    assert send_all(stream, names, producer_expires=60) == {200: 10_000}
    full = send(stream, b"x", 0, producer_id="one more")
    assert (full.status, full.code) == (429, "limit_reached")
    assert (full.json["limit"], full.json["applied"]) == ("expiring_producers_per_stream", "no")
    assert machine.metric("producers_limit_ratio") == 1
    assert "--producer-idle-seconds" not in full.json["message"]  # it does not hold for them
    with Client(machine.server.url) as client:
        producer = client.stream("s").producer(delivery_timeout=30)
        producer.append(b"x")
        with pytest.raises(LimitReached):  # at once, and not Unavailable after 30 seconds
            producer.flush()
        producer.close()
        assert client.stream("s").append(b"y").next_offset  # without a producer
    assert send(stream, b"x", 0, producer_id="lasting", producer_expires=None).status == 200
    let_idle(machine, 80_000)
    assert eventually(lambda: machine.metric("producers_expiring") == 0)
    assert send(stream, b"x", 0, producer_id="one more").status == 200
    more = [f"q{number}" for number in range(500)]
    assert send_all(stream, more, producer_expires=60) == {200: 500}
    assert machine.metric("producer_tombstones") == 10_000
    assert machine.metric("producers") == 502


# ---- tombstones of idle producers ----------------------------------------------------------------


# rows: D16, D43, R12, X12
def test_the_tombstone_of_an_idle_producer_leaves_after_the_stated_hours(machine: Machine) -> None:
    machine.server.kill()
    options = ("--producer-idle-seconds", "60", "--producer-tombstone-hours", "2")
    machine.server = Server(machine.server.data, *options)
    stream = machine.stream()
    assert send(stream, b"a,", 0, producer_expires=None).status == 200
    assert state_of(stream) == "live"
    machine.let_pass(61_000)
    assert eventually(lambda: state_of(stream) == "expired")
    for _ in range(2):
        machine.let_pass(HOUR_MS)
        time.sleep(SWEPT_SECONDS)
        assert send(stream, b"a,", 0, producer_expires=None).code == "producer_state_expired"
    machine.let_pass(HOUR_MS)
    assert eventually(lambda: state_of(stream) is None)
    # What is promised for that time only: now the same append counts as new.
    assert send(stream, b"a,", 0, producer_expires=None).status == 200
    assert stream.text == "first,a,a,"


# ---- the code of a missing sequence --------------------------------------------------------------


def codes(answer: Answer) -> tuple[int, str, str]:
    return answer.status, answer.code, answer.json["alias"]


# rows: R08
def test_a_missing_sequence_has_a_code_by_its_surface(server: Server) -> None:
    stream = server.stream()
    stream.create()
    plain = (409, "producer_seq_conflict", "OUT_OF_ORDER_SEQUENCE")
    strict = (409, "OUT_OF_ORDER_SEQUENCE", "producer_seq_conflict")
    assert codes(send(stream, b"x", 3)) == plain
    registered = server.ask("POST", PRODUCERS, b'{"producer_id":"named"}').json
    named = {"producer_session": None, "producer_epoch": registered["producer_epoch"]}
    assert codes(send(stream, b"x", 3, producer_id="named", **named)) == plain
    given = server.ask("POST", PRODUCERS, b"{}").json
    assert codes(send(stream, b"x", 3, producer_id=given["producer_id"], **named)) == strict
    txn = Txn(server)
    assert txn.begin(streams=[stream.path]).status == 201
    assert codes(txn.post(stream, b"x", producer_seq=7)) == strict
    first = {"producer_id": "c", "producer_epoch": 0, "producer_seq": 0}
    one = {"appends": [{"stream": stream.path, "messages": ["a"]}]}
    assert server.ask("POST", "/v1/commits", msgspec.json.encode({**first, **one})).status == 200
    gap = msgspec.json.encode({**first, **one, "producer_seq": 5})
    assert codes(server.ask("POST", "/v1/commits", gap)) == strict
    explained = f"{PRODUCERS}/explain?stream={stream.path}&id={given['producer_id']}&seq=3&epoch=0"
    assert server.ask("GET", explained).json["outcome"] == "OUT_OF_ORDER_SEQUENCE"


# ---- ids that are not ASCII ----------------------------------------------------------------------

NAME: Final = "Zähler €1"
ENCODED: Final = "UTF-8''Z%C3%A4hler%20%E2%82%AC1"


def raw_append(stream: Stream, *lines: str) -> Answer:
    head = [
        f"POST {stream.target} HTTP/1.1",
        f"Host: 127.0.0.1:{stream.server.port}",
        "Content-Type: text/plain",
        "Content-Length: 1",
        *lines,
    ]
    answer = stream.server.raw("\r\n".join([*head, "", "x"]).encode("latin-1"))
    assert answer is not None
    return answer


# rows: D02
def test_an_id_that_is_not_ascii_is_the_same_in_headers_and_documents(server: Server) -> None:
    stream = server.stream()
    stream.create()
    ours = (f"Producer-Id*: {ENCODED}", "Producer-Epoch: 0")
    assert raw_append(stream, *ours, "Producer-Seq: 0").status == 200
    assert raw_append(stream, *ours, "Producer-Seq: 0").status == 204
    bare = raw_append(stream, f"X-Producer-Id*: {ENCODED}", "X-Producer-Seq: 0")
    assert (bare.status, bare.headers["x-producer-epoch"]) == (204, "0")
    quoted = quote(NAME)
    listed = server.ask("GET", f"{PRODUCERS}?stream={stream.path}&id={quoted}").json["producers"]
    assert [entry["producer_id"] for entry in listed] == [NAME]
    claim = {"stream": stream.path, "producer_id": NAME, "session": "s"}
    taken = server.ask("POST", f"{PRODUCERS}/claim", msgspec.json.encode(claim))
    assert (taken.status, taken.json["producer_id"], taken.json["last_seq"]) == (200, NAME, 0)
    late = raw_append(stream, *ours, "Producer-Seq: 1")
    assert late.code == "PRODUCER_FENCED"
    made = server.ask("POST", PRODUCERS, msgspec.json.encode({"producer_id": NAME}))
    assert made.json["producer_id"] == NAME
    txn = Txn(server, NAME, epoch=made.json["producer_epoch"] + 5)
    assert txn.begin(streams=[stream.path]).status == 201
    entry = {"producer_id": NAME, "stream": stream.path, "session": "s"}
    assert retire(server, entry)[0]["code"] == "PRODUCER_FENCED"


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ((f"Producer-Id*: {ENCODED}", "Producer-Id: p"), "producer_headers_conflict"),
        ((f"Producer-Id*: {ENCODED}", f"Producer-Id*: {ENCODED}"), "invalid_header"),
        (("Producer-Id*: UTF-8''%C3",), "invalid_header"),
        (("Producer-Id*: UTF-8''%ZZ",), "invalid_header"),
        (("Producer-Id*: UTF-8'en'a",), "invalid_header"),
        (("Producer-Id*: iso-8859-1''%E4",), "invalid_header"),
        (("Producer-Id*: plain",), "invalid_header"),
        (("Producer-Id: \xe4",), "invalid_header"),
    ],
)
def test_a_wrong_form_of_an_id_is_refused(
    server: Server, lines: tuple[str, ...], code: str
) -> None:
    stream = server.stream()
    stream.create()
    answer = raw_append(stream, *lines, "Producer-Epoch: 0", "Producer-Seq: 0")
    assert (answer.status, answer.code) == (400, code)
    assert stream.text == ""


# rows: D02
def test_an_id_of_digits_stays_reserved_in_every_form(server: Server) -> None:
    stream = server.stream()
    stream.create()
    digits = "Producer-Id*: UTF-8''%39" + 12 * "9"
    answer = raw_append(stream, digits, "Producer-Epoch: 0", "Producer-Seq: 0")
    assert (answer.status, answer.code) == (404, "UNKNOWN_PRODUCER_ID")
