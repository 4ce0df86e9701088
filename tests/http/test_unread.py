"""Responses that clients do not read: their total size is limited, and others are served."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from semel.broker.engine import Engine
from semel.broker.settings import Settings
from semel.model.limits import KIB, MIB
from semel.server.admission import AdmittedRead
from semel.server.app import App
from semel.server.event_stream import FanoutGroup
from semel.server.http import Request, Responder
from semel.server.limits_http import HttpLimits
from semel.server.unread_budget import UnreadBudget, client_address
from tests.http.harness import Client, Server, eventually, get, no_webhooks, post, serving

APPEND_BYTES: Final = 64 * KIB
APPENDS: Final = 64
TEXT: Final = b"".join(b"%08d" % n for n in range(APPEND_BYTES // 8)) * APPENDS
TYPED: Final = "Content-Type: text/plain"
EVENTS: Final = get("/v1/stream/s?offset=-1&live=sse")
PAGE: Final = get("/v1/stream/s?offset=-1")
LONG: Final = b"long" * 4 * KIB  # an append that a short read does not read


class Bed:
    """A server with a long stream `s`, and the budget of its unread responses."""

    def __init__(self, server: Server, unread: UnreadBudget, *, is_tls: bool = False) -> None:
        self.server = server
        self._is_tls = is_tls
        self.unread = unread
        self.reads = 0  # long reads
        self.app: App

    def connect(self, receive_buffer: int = 4096) -> Client:
        """Connect a client, by default with a small receive buffer."""
        return self.server.connect(receive_buffer, is_tls=self._is_tls)

    def count(self) -> int:
        count: int = self.server.call(lambda: self.server.listener.connection_count)
        return count


@contextmanager
def a_bed(
    data: Path,
    limits: HttpLimits,
    segment_bytes: int = MIB,
    tls: ssl.SSLContext | None = None,
) -> Iterator[Bed]:
    unread = UnreadBudget(limits)

    def handler(request: Request, responder: Responder) -> None:
        bed.app.handle(request, responder)

    with serving(handler, limits, unread=unread, tls=tls) as server:
        bed = Bed(server, unread, is_tls=tls is not None)

        async def begin() -> Engine:
            engine = await Engine.open(str(data), Settings(segment_bytes, reserve_bytes=0))
            read = engine.read

            def count(*arguments: object, **more: object) -> None:
                bed.reads += not more.get("is_short")
                read(*arguments, **more)  # type: ignore[arg-type]

            engine.read = count  # type: ignore[method-assign]
            bed.app = App(
                engine, webhooks=no_webhooks(), long_poll_seconds=5, sse_seconds=60, unread=unread
            )
            return engine

        engine: Engine = server.run(begin())
        with bed.connect(0) as client:
            typed = TYPED
            made = (
                b"PUT /v1/stream/s HTTP/1.1\r\nHost: localhost\r\n" + typed.encode() + b"\r\n\r\n"
            )
            assert client.ask(made).status == 201
            for n in range(APPENDS):
                body = TEXT[n * APPEND_BYTES : (n + 1) * APPEND_BYTES]
                assert client.ask(post(body, typed, path="/v1/stream/s")).status == 204
        try:
            yield bed
        finally:
            server.run(server.listener.drain(0.0))
            server.run(engine.close())


def limits(**more: float) -> HttpLimits:
    return HttpLimits(unread_bytes_max=MIB, **more)  # type: ignore[arg-type]


def test_stuck_readers_hold_no_more_than_the_limit(tmp_path: Path) -> None:
    with a_bed(tmp_path, limits()) as bed, ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(bed.connect()).send(EVENTS)
        assert eventually(lambda: bed.unread.counts.reads_waiting > 0 and bed.unread.is_full)
        most = 0
        for _ in range(50):
            most = max(most, bed.server.call(lambda: bed.unread.bytes))
        assert most < 2 * MIB  # the limit, and the response that exceeded it
        assert bed.count() == 40


def test_others_are_served_while_readers_are_stuck(tmp_path: Path) -> None:
    with a_bed(tmp_path, limits(crowded_stall_seconds=0.2)) as bed, ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(bed.connect()).send(EVENTS)
        assert eventually(lambda: bed.unread.counts.reads_waiting > 0 and bed.unread.is_full)
        with bed.server.connect() as client:
            assert client.ask(get("/health")).status == 200
            assert client.ask(post(b"x", TYPED, path="/v1/stream/s")).status == 204
            assert client.ask(PAGE).body == TEXT[:MIB]
        assert bed.count() < 40


def test_a_stuck_reader_that_is_in_nobodys_way_is_waited_for(tmp_path: Path) -> None:
    roomy = HttpLimits(unread_bytes_max=4 * MIB, crowded_stall_seconds=0.05)  # for both readers
    with a_bed(tmp_path, roomy) as bed, bed.connect() as client:
        client.send(EVENTS)
        assert eventually(lambda: bed.unread.bytes > 0)
        with bed.server.connect() as other:
            for _ in range(20):
                assert other.ask(PAGE).body == TEXT[:MIB]
        assert bed.unread.bytes > 0


def test_slow_readers_get_everything_in_order(tmp_path: Path) -> None:
    found: list[bytes] = []

    def follow(client: Client) -> None:
        client.send(EVENTS)
        client.head()
        text = b""
        while len(text) < len(TEXT):
            text += client.chunk().partition(b"data:")[2].partition(b"\n")[0]
        found.append(text)

    with a_bed(tmp_path, limits()) as bed, ExitStack() as stack:
        clients = [stack.enter_context(bed.connect()) for _ in range(8)]
        threads = [threading.Thread(target=follow, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [TEXT] * 8


def test_a_read_whose_client_has_gone_is_not_begun(tmp_path: Path) -> None:
    with a_bed(tmp_path, limits(crowded_stall_seconds=0.2)) as bed, ExitStack() as stack:
        bed.unread.reserve(2 * MIB)
        before = bed.reads
        gone = [bed.connect() for _ in range(5)]
        waiting = stack.enter_context(bed.server.connect())
        for client in (*gone, waiting):
            client.send(PAGE)
        assert eventually(lambda: bed.unread.counts.reads_waiting == 6)
        for client in gone:
            client.close()
        assert eventually(lambda: bed.count() == 1)
        assert eventually(lambda: bed.unread.counts.reads_waiting == 1)  # the others are dropped
        bed.server.call(lambda: bed.unread.release(2 * MIB))
        assert waiting.answer().body == TEXT[:MIB]
        assert bed.reads == before + 1


@pytest.mark.parametrize("coding", ["gzip", "identity"])
def test_what_was_read_counts_no_longer(tmp_path: Path, coding: str) -> None:
    with a_bed(tmp_path, limits()) as bed, bed.server.connect() as client:
        for _ in range(5):
            asked = get("/v1/stream/s?offset=-1", f"Accept-Encoding: {coding}")
            assert client.ask(asked).headers.get("content-encoding", "identity") == coding
        assert eventually(lambda: bed.unread.bytes == bed.unread.reserved_bytes == 0)
    assert bed.unread.counts.reads_waiting == 0


def test_a_cut_connection_counts_no_longer(tmp_path: Path) -> None:
    with a_bed(tmp_path, limits()) as bed:
        with bed.connect() as client:
            client.send(EVENTS)
            assert eventually(lambda: bed.unread.bytes > 0)
        assert eventually(lambda: bed.unread.bytes == bed.unread.reserved_bytes == 0)


def test_an_event_of_a_catch_up_is_not_longer_than_it_must_be(tmp_path: Path) -> None:
    """An event has 256 KiB, plus the rest of the append that exceeds them."""
    with a_bed(tmp_path, HttpLimits()) as bed, bed.server.connect() as client:
        client.send(EVENTS)
        client.head()
        sizes: list[int] = []
        while sum(sizes) < len(TEXT):
            sizes.append(len(client.chunk()))
        assert max(sizes) < 256 * KIB + APPEND_BYTES
        assert min(sizes[:-1]) >= 256 * KIB


# ---- fan-out groups ------------------------------------------------------------------------------


def at_tail(bed: Bed, client: Client) -> Client:
    """Start an event stream at the tail, and read up to its first control event."""
    client.send(get("/v1/stream/s?offset=now&live=sse"))
    assert client.head()[0] == 200
    assert b"upToDate" in client.chunk()
    return client


def test_stuck_members_of_a_group_hold_one_event_each(tmp_path: Path) -> None:
    """The next event is read only for members that have read the current one."""
    readers, body = 30, TEXT[:APPEND_BYTES]
    with a_bed(tmp_path, HttpLimits()) as bed, ExitStack() as stack:
        for _ in range(readers):
            at_tail(bed, stack.enter_context(bed.connect()))
        most = 0
        with bed.server.connect() as client:
            for _ in range(100):
                assert client.ask(post(body, TYPED, path="/v1/stream/s")).status == 204
                most = max(most, bed.server.call(lambda: bed.unread.bytes))
        assert bed.count() == readers
        event_bytes = 2 * APPEND_BYTES  # one append, or two that became durable together
        assert 0 < most <= readers * (event_bytes + HttpLimits().write_buffer_bytes)


def test_a_group_reads_only_when_it_is_admitted(tmp_path: Path) -> None:
    with a_bed(tmp_path, limits()) as bed, bed.server.connect() as client:
        reader = at_tail(bed, client)
        bed.server.call(lambda: bed.unread.reserve(2 * MIB))
        before = bed.reads
        with bed.server.connect() as other:
            for text in (LONG, b"two"):
                assert other.ask(post(text, TYPED, path="/v1/stream/s")).status == 204
        assert eventually(lambda: bed.unread.counts.reads_waiting == 1)
        assert bed.reads == before
        bed.server.call(lambda: bed.unread.release(2 * MIB))
        assert b"data:" + LONG + b"two" in reader.chunk()
        assert bed.reads == before + 1
        assert bed.unread.counts.reads_waiting == 0


def test_who_joins_a_group_while_it_waits_for_admission_gets_each_message_once(
    tmp_path: Path,
) -> None:
    with a_bed(tmp_path, limits()) as bed, ExitStack() as stack:
        clients = [stack.enter_context(bed.server.connect()) for _ in range(2)]
        first = at_tail(bed, clients[0])
        group: FanoutGroup = next(iter(bed.app._groups.values()))
        bed.server.call(lambda: bed.unread.reserve(2 * MIB))
        with bed.server.connect() as other:
            assert other.ask(post(LONG, TYPED, path="/v1/stream/s")).status == 204
        assert eventually(lambda: bed.unread.counts.reads_waiting == 1)
        member = next(iter(group._members))
        bed.server.call(lambda: group.join(member))  # as a member that is at the old tail
        bed.server.call(lambda: bed.unread.release(2 * MIB))
        assert b"data:" + LONG in first.chunk()
        with bed.server.connect() as other:
            assert other.ask(post(b"two", TYPED, path="/v1/stream/s")).status == 204
        event = first.chunk()
        assert b"data:two" in event
        assert LONG not in event


# ---- which connections are cut -------------------------------------------------------------------


class Stuck:
    """A connection that holds a part of the unread bytes."""

    def __init__(self, unread: UnreadBudget, address: str, size: int, *, is_short: bool) -> None:
        self.account = unread.open(address)
        self.account.is_short = is_short
        self.account.add(size)
        self.is_cut = False

    def is_stuck(self, now: float) -> bool:
        return now > self.account.bytes  # the larger ones began later

    def reset(self) -> None:
        self.is_cut = True
        self.account.clear()


def a_budget() -> UnreadBudget:
    return UnreadBudget(HttpLimits(unread_bytes_max=800, unread_bytes_per_address_max=300))


def test_all_that_are_stuck_are_closed_while_reads_wait_for_memory() -> None:
    unread = a_budget()
    stuck = [Stuck(unread, f"10.0.0.{n}", 100, is_short=False) for n in range(6)]
    reading = Stuck(unread, "10.0.0.9", 200, is_short=False)
    short = Stuck(unread, "10.0.0.0", 90, is_short=True)
    assert unread.is_full
    unread.close_stuck([*stuck, reading, short], now=150.0)
    assert not any(holder.is_cut for holder in stuck)  # nobody waits for the memory
    unread.counts.reads_waiting = 1
    unread.close_stuck([*stuck, reading, short], now=150.0)
    assert all(holder.is_cut for holder in stuck)
    assert not reading.is_cut
    assert not short.is_cut  # it uses other memory
    assert unread.counts.stalled_closed == len(stuck)


def test_for_an_address_that_is_full_only_its_own_connections_are_closed() -> None:
    unread = a_budget()
    stuck = [Stuck(unread, "10.0.0.1", 100, is_short=False) for _ in range(3)]
    other = Stuck(unread, "10.0.0.2", 100, is_short=False)
    assert stuck[0].account.use.is_full
    assert not unread.is_full
    assert not other.account.use.is_full
    unread.counts.reads_waiting = 1
    unread.close_stuck([*stuck, other], now=150.0)
    assert not any(holder.is_cut for holder in stuck)  # the read that waits is of another address
    stuck[0].account.use.waiting.append(
        AdmittedRead("s", None, lambda _: None, FanoutGroup.__new__(FanoutGroup))
    )
    unread.close_stuck([*stuck, other], now=150.0)
    assert [holder.is_cut for holder in stuck] == [True] * 3
    assert not other.is_cut


def test_stuck_short_responses_are_closed_if_they_use_up_their_part() -> None:
    unread = a_budget()
    short = Stuck(unread, "10.0.0.1", 100, is_short=True)
    assert unread.is_full_for_short
    assert not unread.is_full
    assert not short.account.use.is_full
    unread.counts.reads_waiting = 1
    unread.close_stuck([short], now=150.0)
    assert short.is_cut
    assert unread.short_bytes == unread.bytes == 0


def test_a_long_response_after_a_short_one_makes_all_of_it_long() -> None:
    unread = a_budget()
    account = unread.open("10.0.0.1")
    account.is_short = True
    account.add(10)
    account.is_short = False
    account.add(20)
    assert (unread.short_bytes, unread.bytes, account.use.bytes) == (0, 30, 30)
    unread.close(account)
    assert (unread.bytes, account.use.bytes) == (0, 0)


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (("192.0.2.1", 4711), "192.0.2.1"),
        (("2001:db8:1:2:3:4:5:6", 4711, 0, 0), "2001:0db8:0001:0002::/64"),
        (("fe80::1%eth0", 4711, 0, 2), "fe80:0000:0000:0000::/64"),
        (("::1", 4711, 0, 0), "0000:0000:0000:0000::/64"),
        (None, ""),
        ((), ""),
        ("/run/socket", ""),
    ],
)
def test_an_ipv6_network_counts_as_one_address(peer: object, address: str) -> None:
    assert client_address(peer) == address
