"""Clients that request long responses and never read: they delay nobody else's short reads."""

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, cast

import pytest

from semel.model.limits import KIB, MIB
from semel.server.exchange import ConnectionOutput
from semel.server.limits_http import HttpLimits
from semel.server.unread_budget import UnreadBudget
from tests.http.harness import Client, eventually, get, post
from tests.http.test_unread import EVENTS, PAGE, TEXT, TYPED, Bed, a_bed

SILENT: Final = 60
SMALL: Final = "/v1/stream/small"
NEVER: Final = 1_000.0


def patient(**more: float) -> HttpLimits:
    """Return limits with which nobody is closed for not reading, and little memory for reads."""
    return HttpLimits(
        unread_bytes_max=MIB,
        crowded_stall_seconds=NEVER,
        stall_seconds=NEVER,
        **more,  # type: ignore[arg-type]
    )


def silence(bed: Bed, stack: ExitStack, request: bytes = PAGE) -> list[Client]:
    """Connect silent readers, so many that the memory for reads is used up."""
    with bed.server.connect() as client:
        made = f"PUT {SMALL} HTTP/1.1\r\nHost: localhost\r\n{TYPED}\r\n\r\n".encode()
        assert client.ask(made).status == 201
        assert client.ask(post(b"first", TYPED, path=SMALL)).status == 204
    clients = [stack.enter_context(bed.connect()) for _ in range(SILENT)]
    for client in clients:
        client.send(request)
    assert eventually(lambda: bed.server.call(lambda: is_used_up(bed)))
    return clients


def is_used_up(bed: Bed) -> bool:
    """Return True if long reads wait for memory that clients use by not reading."""
    unread = bed.unread
    return unread.is_full and not unread.reserved_bytes and unread.counts.reads_waiting > 0


def test_short_reads_are_answered_while_silent_readers_use_up_the_memory(tmp_path: Path) -> None:
    with a_bed(tmp_path, patient()) as bed, ExitStack() as stack:
        silence(bed, stack)
        with bed.server.connect() as client:
            for query in ("offset=-1", "offset=-1&live=long-poll"):
                assert client.ask(get(f"{SMALL}?{query}")).body == b"first"
            client.send(get(f"{SMALL}?offset=-1&live=sse"))
            assert client.head()[0] == 200
            assert b"data:first" in client.chunk()
        assert eventually(lambda: bed.count() == SILENT)  # not because somebody was closed
        assert bed.server.call(lambda: is_used_up(bed))


def test_live_reads_get_new_messages_while_silent_readers_use_up_the_memory(
    tmp_path: Path,
) -> None:
    with a_bed(tmp_path, patient()) as bed, ExitStack() as stack:
        poll, events, writer = (stack.enter_context(bed.server.connect()) for _ in range(3))
        silence(bed, stack, EVENTS)
        poll.send(get(f"{SMALL}?offset=now&live=long-poll"))
        events.send(get(f"{SMALL}?offset=now&live=sse"))
        assert events.head()[0] == 200
        assert b"upToDate" in events.chunk()
        assert writer.ask(post(b"second", TYPED, path=SMALL)).status == 204
        assert poll.answer().body == b"second"
        assert b"data:second" in events.chunk()
        assert bed.server.call(lambda: is_used_up(bed))


# ---- reads that are not short --------------------------------------------------------------------


def test_many_small_appends_are_read_in_parts_while_there_is_no_memory(tmp_path: Path) -> None:
    texts = [b"%06d" % n * 200 for n in range(50)]
    with a_bed(tmp_path, patient()) as bed, ExitStack() as stack:
        silence(bed, stack)
        with bed.server.connect() as client:
            for text in texts:
                assert client.ask(post(text, TYPED, path=SMALL)).status == 204
            found, offset, is_over = [], "-1", False
            while not is_over:
                answer = client.ask(get(f"{SMALL}?offset={offset}"))
                found.append(answer.body)
                offset = answer.headers["stream-next-offset"]
                is_over = answer.headers.get("stream-up-to-date") == "true"
        assert b"".join(found) == b"first" + b"".join(texts)
        assert len(found) > 1
        assert max(map(len, found)) <= 16 * KIB
        assert bed.server.call(lambda: is_used_up(bed))


def test_a_long_read_is_refused_while_too_many_of_its_address_wait(tmp_path: Path) -> None:
    with a_bed(tmp_path, patient(waiting_reads_per_address_max=5)) as bed, ExitStack() as stack:
        silence(bed, stack)
        assert eventually(lambda: bed.unread.counts.reads_refused > 0)
        assert bed.unread.counts.reads_waiting == 5
        with bed.server.connect() as client:
            for request in (PAGE, get("/v1/stream/s?offset=-1&live=long-poll"), EVENTS):
                answer = client.ask(request)
                assert (answer.status, answer.json["code"]) == (503, "overloaded")
                assert answer.json["applied"] == "no"
                assert answer.headers["retry-after"] == "1"
                assert not answer.closes
            assert client.ask(get(f"{SMALL}?offset=-1")).body == b"first"


def test_a_read_that_waits_for_too_long_is_refused(tmp_path: Path) -> None:
    with a_bed(tmp_path, patient(read_wait_seconds=0.2)) as bed, ExitStack() as stack:
        silence(bed, stack)
        with bed.server.connect() as client:
            assert client.ask(PAGE).status == 503
            assert client.ask(get(f"{SMALL}?offset=-1")).body == b"first"
        assert eventually(lambda: bed.unread.counts.reads_waiting == 0)
        assert bed.count() >= SILENT  # the silent readers cannot know that they were refused


def test_silent_readers_of_one_address_do_not_delay_long_reads_of_another(tmp_path: Path) -> None:
    limits = HttpLimits(
        unread_bytes_max=8 * MIB,
        unread_bytes_per_address_max=2 * MIB,
        crowded_stall_seconds=NEVER,
        stall_seconds=NEVER,
    )
    with a_bed(tmp_path, limits) as bed, ExitStack() as stack:
        for _ in range(SILENT):
            stack.enter_context(bed.connect()).send(PAGE)
        assert eventually(lambda: bed.unread.counts.reads_waiting > SILENT // 2)
        with bed.server.connect(source="127.0.0.2") as client:
            assert client.ask(PAGE).body == TEXT[:MIB]
        assert bed.unread.counts.reads_waiting > SILENT // 2
        assert bed.unread.bytes <= 4 * MIB  # the limit, and the two reads that exceeded it


def test_waiting_reads_are_admitted_one_of_each_address_in_turn(tmp_path: Path) -> None:
    with a_bed(tmp_path, HttpLimits()) as bed, ExitStack() as stack:
        bed.unread.reserve(256 * MIB)
        many = [stack.enter_context(bed.server.connect()) for _ in range(20)]
        for client in many:
            client.send(PAGE)
        assert eventually(lambda: bed.unread.counts.reads_waiting == 20)
        other = stack.enter_context(bed.server.connect(source="127.0.0.2"))
        other.send(PAGE)
        assert eventually(lambda: bed.unread.counts.reads_waiting == 21)
        admitted: list[str] = []
        read = bed.app._engine.read

        def note(*arguments: Any, **more: Any) -> None:
            finish = arguments[2]
            admitted.append(finish.args[0].reader.account.address)
            read(*arguments, **more)

        bed.app._engine.read = note  # type: ignore[method-assign]
        bed.server.call(lambda: bed.unread.release(256 * MIB))
        for client in (other, *many):
            assert client.answer().body == TEXT[:MIB]
        assert "127.0.0.2" in admitted[:2]
        assert admitted.count("127.0.0.1") == 20


# ---- who is stuck --------------------------------------------------------------------------------


class SlowTransport:
    """A transport whose client reads what the test says."""

    def __init__(self) -> None:
        self.unread = 0

    def write(self, data: bytes) -> None:
        self.unread += len(data)

    def get_write_buffer_size(self) -> int:
        return self.unread


@pytest.mark.parametrize(
    ("bytes_per_second", "is_stuck"), [(200_000, False), (70_000, False), (60_000, True), (0, True)]
)
def test_a_slow_client_that_reads_is_not_stuck(bytes_per_second: int, is_stuck: bool) -> None:
    limits = HttpLimits()
    transport = SlowTransport()

    async def read_slowly() -> bool:
        account = UnreadBudget(limits).open("192.0.2.1")
        output = ConnectionOutput(cast("asyncio.Transport", transport), limits, account)
        began = asyncio.get_running_loop().time()
        output.emit(bytes(4 * MIB))
        assert account.bytes == 4 * MIB
        found = False
        for second in range(1, 20):
            transport.unread -= bytes_per_second
            found = found or output.is_stuck(began + second + 0.01)
        return found

    assert asyncio.run(read_slowly()) is is_stuck


# ---- lists ---------------------------------------------------------------------------------------

LISTED: Final = get("/v1/streams?limit=1000")


def create_streams(bed: Bed, count: int = 1000) -> None:
    """Create streams with long paths, so that the list of them is longer than kernel buffers."""
    with bed.server.connect() as client:
        for start in range(0, count, 50):
            for n in range(start, start + 50):
                path = f"/v1/stream/{'x' * 480}{n:03}"
                client.send(f"PUT {path} HTTP/1.1\r\nHost: localhost\r\n{TYPED}\r\n\r\n".encode())
            assert {client.answer().status for _ in range(50)} == {201}


def request_list(bed: Bed, stack: ExitStack) -> None:
    """Connect a client that requests a list and does not read it."""
    before = bed.server.call(lambda: bed.unread.bytes)
    stack.enter_context(bed.connect()).send(LISTED)
    assert eventually(lambda: bed.server.call(lambda: bed.unread.bytes) > before)


def test_lists_that_nobody_reads_use_limited_memory(tmp_path: Path) -> None:
    """Others get short lists meanwhile, and long ones when the silent clients were closed."""
    limits = HttpLimits(unread_bytes_max=MIB, crowded_stall_seconds=1.0, stall_seconds=NEVER)
    with a_bed(tmp_path, limits) as bed, ExitStack() as stack:
        create_streams(bed)
        for _ in range(SILENT):
            stack.enter_context(bed.connect()).send(LISTED)
        assert eventually(lambda: bed.server.call(lambda: bed.unread.is_full))
        with bed.server.connect() as client:
            answer = client.ask(LISTED)
            assert (answer.status, answer.json["code"]) == (503, "overloaded")
            assert (answer.json["applied"], answer.headers["retry-after"]) == ("no", "1")
            assert client.ask(get("/v1/streams?limit=2")).status == 200
            assert bed.server.call(lambda: bed.unread.bytes) < 2 * MIB
            assert eventually(lambda: client.ask(LISTED).status == 200)
        assert bed.unread.counts.stalled_closed > 0


def test_silent_clients_of_lists_are_not_closed_while_nobody_needs_their_memory(
    tmp_path: Path,
) -> None:
    limits = HttpLimits(unread_bytes_max=MIB, crowded_stall_seconds=0.1)
    with a_bed(tmp_path, limits) as bed, ExitStack() as stack:
        create_streams(bed)
        while not bed.server.call(lambda: bed.unread.is_full):
            request_list(bed, stack)
        assert bed.unread.counts.reads_refused == 0
        for _ in range(20):
            with bed.server.connect() as other:
                assert other.ask(get("/v1/streams?limit=2")).status == 200
            time.sleep(limits.sweep_seconds)
        assert bed.unread.counts.stalled_closed == 0
