"""Clients that request long responses and never read: they delay nobody else's short reads."""

from contextlib import ExitStack
from pathlib import Path
from typing import Final

from semel.model.limits import MIB
from semel.server.limits_http import HttpLimits
from tests.http.harness import Client, eventually, get, post
from tests.http.test_unread import EVENTS, PAGE, TYPED, Bed, a_bed

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
        made = f"PUT {SMALL} HTTP/1.1\r\nHost: h\r\n{TYPED}\r\n\r\n".encode()
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
