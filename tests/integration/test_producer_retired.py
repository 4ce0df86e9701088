"""Ids that the client generates are retired when they are not used again, or else expire."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from semel import AsyncClient, Client
from semel.client import errors
from semel.client.producer import core
from semel.client.sync.stream import Stream
from semel.client.values import ProducerState
from tests.integration.both import KINDS
from tests.integration.recorder import eventually
from tests.integration.test_producer import values
from tests.spec.clock_rig import MINUTE_MS, Machine, running_machine
from tests.spec.process import PATIENCE_SECONDS, Server

DAY_MS = 24 * 60 * MINUTE_MS
SWEPT_SECONDS = 2.5  # in that time the server looks at least once for what is due
PROGRAM = [sys.executable, "-m", "semel"]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with running_machine(tmp_path, monkeypatch) as it:
        yield it


def only(stream: Stream) -> ProducerState:
    (state,) = stream.producers()
    return state


def let_expire(machine: Machine, stream: Stream) -> None:
    """Let a day pass in which the server gets no append."""
    for ms in (DAY_MS // 3, DAY_MS):  # the server first has to notice the last append
        time.sleep(SWEPT_SECONDS)
        machine.let_pass(ms)
    assert eventually(lambda: only(stream).state == "retired")


def is_gone_after(machine: Machine, stream: Stream, ms: int) -> bool:
    machine.let_pass(ms)
    time.sleep(SWEPT_SECONDS)
    return not stream.producers()


# ---- producers without a name --------------------------------------------------------------------


# rows: P06
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ending", ["producer", "client"])
def test_a_producer_without_a_name_is_retired_when_it_is_closed(
    server: Server, orders: Stream, kind: str, ending: str
) -> None:
    def sync() -> str:
        with Client(server.url) as client:
            producer = client.stream(orders.path).producer()
            producer.append(1)
            producer.flush()
            state = only(orders)
            assert (state.producer_id, state.state, state.expires) == (
                producer.id,
                "expiring",
                86_400,
            )
            if ending == "producer":
                producer.close()
                assert only(orders).state == "retired"
        return producer.id

    async def asynchronous() -> str:
        async with AsyncClient(server.url) as client:
            producer = client.stream(orders.path).producer()
            await producer.append(1)
            await producer.flush()
            assert only(orders).state == "expiring"
            if ending == "producer":
                await producer.close()
                assert only(orders).state == "retired"
        return producer.id

    name = sync() if kind == "sync" else asyncio.run(asynchronous())
    assert (only(orders).producer_id, only(orders).state) == (name, "retired")


# rows: P06
def test_late_copies_of_a_retired_producer_are_refused(server: Server, orders: Stream) -> None:
    with orders.producer() as producer:
        producer.append(1)
    state = only(orders)
    with closing(HTTPConnection("127.0.0.1", server.port)) as connection:
        for session in (state.session, None):
            headers = {
                "Content-Type": "application/json",
                "Producer-Id": producer.id,
                "Producer-Seq": "0",
            }
            headers |= {"Producer-Session": session} if session else {"Producer-Epoch": "1"}
            connection.request("POST", orders.calls.target, b"[1]", headers)
            answer = connection.getresponse()
            body = answer.read()
            assert (answer.status, b"producer_state_expired" in body) == (409, True)
    assert values(orders) == [1]


# rows: P06
def test_a_producer_that_was_not_used_or_has_a_name_is_not_retired(orders: Stream) -> None:
    orders.producer().close()
    assert orders.producers() == []
    with orders.producer("till-1") as producer:
        producer.append(1)
    assert (only(orders).state, only(orders).expires) == ("live", None)


ENDING = """
import os, signal, sys, semel
url, path, ending = sys.argv[1:]
producer = semel.Client(url).stream(path).producer()
producer.append(1)
producer.flush()
if ending == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if ending == "error":
    raise ValueError
"""


# rows: P06
@pytest.mark.parametrize(
    ("ending", "code", "state"),
    [("end", 0, "retired"), ("error", 1, "retired"), ("kill", -signal.SIGKILL, "expiring")],
)
def test_a_program_that_does_not_close_leaves_at_most_an_expiring_producer(
    server: Server, orders: Stream, ending: str, code: int, state: str
) -> None:
    command = [sys.executable, "-c", ENDING, server.url, orders.path, ending]
    ended = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE_SECONDS)
    assert ended.returncode == code, ended.stderr
    assert only(orders).state == state


def test_a_server_that_is_gone_does_not_keep_a_producer_from_closing(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    with Client(server.url) as client:
        producer = client.stream("a").create("application/json").producer()
        producer.append(1)
        producer.flush()
        server.kill()
        start = time.monotonic()
        producer.close()
        assert time.monotonic() - start < 10


# rows: P06
@pytest.mark.parametrize("mode", ["dense", "sparse"])
@pytest.mark.parametrize("is_gone", [False, True], ids=["tombstone", "nothing"])
def test_an_idle_producer_that_the_server_has_removed_continues_by_itself(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, mode: str, is_gone: bool
) -> None:
    with Client(machine.server.url) as client:
        stream = client.stream("orders").create("application/json")
        options: Any = {"mode": mode, "max_batch_messages": 1}
        with stream.producer(**options) as producer:
            for number in range(3):
                producer.append(number)
            producer.flush()
            let_expire(machine, stream)
            if is_gone:
                assert eventually(lambda: is_gone_after(machine, stream, 11 * MINUTE_MS))
                # The clock of this process was not moved.
                monkeypatch.setattr(core, "RENEWAL_SECONDS", 1.0)
            for number in range(3, 9):
                producer.append(number)
            producer.flush()
            assert producer.epoch == 2
            assert only(stream).state == "expiring"
        assert values(stream) == list(range(9))
        assert only(stream).state == "retired"


def test_a_producer_with_a_name_that_the_server_has_removed_fails(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", "--producer-idle-seconds", "0.01")
    try:
        with Client(server.url) as client:
            stream = client.stream("a").create("application/json")
            producer = stream.producer("p")
            producer.append(1)
            producer.flush()
            assert eventually(lambda: only(stream).expired)
            producer.append(2)
            with pytest.raises(errors.ProducerExpired):
                producer.close()
            assert values(stream) == [1]
    finally:
        server.kill()


# ---- ids that are not ASCII ----------------------------------------------------------------------


# rows: D02
def test_an_id_may_be_any_text(orders: Stream) -> None:
    for epoch in (1, 2):
        with orders.producer("Zähler 1/東京") as producer:
            assert producer.cursor == (None if epoch == 1 else "1")
            producer.append(epoch, cursor=str(epoch))
        assert producer.epoch == epoch
    assert only(orders).producer_id == "Zähler 1/東京"
    with orders.producer("Zähler 2") as producer:
        producer.append(3)
    with orders.client.transaction(producer_id="Zähler 3") as txn:
        txn.append(orders.path, 4)
    assert values(orders) == [1, 2, 3, 4]


# ---- transactions --------------------------------------------------------------------------------


def transact(client: Client, *paths: str, fails: bool = False) -> None:
    with suppress(ZeroDivisionError), client.transaction() as txn:
        for path in paths:
            txn.append(path, 1)
        if fails:
            raise ZeroDivisionError


# rows: P06
@pytest.mark.parametrize("kind", KINDS)
def test_the_id_of_a_client_that_made_transactions_is_retired_everywhere(
    server: Server, orders: Stream, kind: str
) -> None:
    client = orders.client
    bills = client.stream(server.stream().path).create("application/json")

    async def asynchronous() -> None:
        async with AsyncClient(server.url) as one:
            for path in (orders.path, bills.path):
                async with one.transaction() as txn:
                    await txn.append(path, 1)
            assert only(orders).state == "expiring"

    if kind == "sync":
        with Client(server.url) as one:
            transact(one, orders.path)
            transact(one, bills.path, fails=True)
            assert (only(orders).state, only(orders).expires) == ("expiring", 86_400)
    else:
        asyncio.run(asynchronous())
    first, second = only(orders), only(bills)
    assert first.producer_id == second.producer_id
    assert {first.state, second.state} == {"retired"}
    with pytest.raises(errors.ProducerRefused) as caught:
        client.register_producer(first.producer_id)
    assert caught.value.code == "UNKNOWN_PRODUCER_ID"


def test_a_prepared_transaction_keeps_its_id(server: Server, orders: Stream) -> None:
    with Client(server.url) as one, one.transaction() as txn:
        txn.append(orders.path, 1)
        token = txn.prepare()
    assert only(orders).state == "expiring"
    orders.client.commit_prepared(token)
    assert values(orders) == [1]


# rows: P06
def test_a_client_whose_id_has_expired_begins_the_next_transaction_with_another(
    machine: Machine,
) -> None:
    with Client(machine.server.url) as client:
        stream = client.stream("orders").create("application/json")
        transact(client, "orders")
        old = only(stream).producer_id
        let_expire(machine, stream)
        # The registration expires after a day in which no stream has the id.
        assert eventually(lambda: is_gone_after(machine, stream, DAY_MS))
        machine.let_pass(2 * DAY_MS)
        time.sleep(SWEPT_SECONDS)
        with pytest.raises(errors.ProducerRefused, match="UNKNOWN_PRODUCER_ID"):
            client.transaction(producer_id=old, producer_epoch=0).begin()
        transact(client, "orders")
        assert values(stream) == [1, 1]
        assert only(stream).producer_id != old


# rows: P06
def test_generated_ids_never_use_up_the_room_of_a_stream(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    try:
        with Client(server.url) as client:
            stream = client.stream("orders").create("application/json")
            for number in range(20):
                with Client(server.url) as one:
                    transact(one, "orders")
                    with one.stream("orders").producer() as producer:
                        producer.append(number)
            states = [state.state for state in stream.producers()]
            assert states == ["retired"] * 40
    finally:
        server.kill()


# ---- semel append --lines ------------------------------------------------------------------------


@pytest.fixture
def lines(server: Server) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start `semel append --lines` with these arguments; standard input is a pipe."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        command = [*PROGRAM, "append", *arguments, "--lines", "--url", server.url]
        environment = {**os.environ, "PRODUCER_ID": "of-another-program"}
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


# rows: P06
@pytest.mark.parametrize(
    ("given", "code", "stored"),
    [(b"1\n2\n", 0, [1, 2]), (b"1\n{\n3\n", 64, [1])],
    ids=["success", "bad line"],
)
def test_the_id_of_the_command_is_retired_when_it_ends(
    lines: Callable[..., subprocess.Popen[bytes]],
    orders: Stream,
    given: bytes,
    code: int,
    stored: list[int],
) -> None:
    process = lines(orders.path)
    process.communicate(given, PATIENCE_SECONDS)
    assert process.returncode == code
    assert values(orders) == stored
    state = only(orders)
    assert state.producer_id.startswith("semel-append-")
    assert state.state == "retired"


# rows: P06
@pytest.mark.parametrize(
    ("number", "state"), [(signal.SIGINT, "retired"), (signal.SIGKILL, "expiring")]
)
def test_the_id_of_a_command_that_is_interrupted_is_retired_or_expires(
    lines: Callable[..., subprocess.Popen[bytes]], orders: Stream, number: int, state: str
) -> None:
    process = lines(orders.path)
    assert process.stdin is not None
    process.stdin.write(b"1\n" * 50_000)
    process.stdin.flush()
    assert eventually(lambda: bool(orders.producers()))
    process.send_signal(number)
    process.wait(PATIENCE_SECONDS)
    found = only(orders)
    assert (found.state, found.producer_id.startswith("semel-append-")) == (state, True)
    if number == signal.SIGKILL:
        assert found.expires == 86_400


def test_an_id_that_was_passed_to_the_command_stays_so_that_it_can_continue(
    lines: Callable[..., subprocess.Popen[bytes]], orders: Stream
) -> None:
    for given, told in ((b"1\n2\n", b"stored 2 lines"), (b"1\n2\n", b"stored 0 lines")):
        process = lines(orders.path, "--producer", "input.csv")
        output, _ = process.communicate(given, PATIENCE_SECONDS)
        assert output.startswith(told)
        assert (only(orders).state, only(orders).expires) == ("live", None)
    assert b"2 lines were already stored" in output
