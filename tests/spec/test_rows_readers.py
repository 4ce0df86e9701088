"""The rows of docs/reference/seeds.md about writing and reading."""

from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.spec.process import Server, Stream, offset_of

JSON: Final = "application/json"


class Ledger(msgspec.Struct):
    """The state of an application: its sum and its position, stored in one file."""

    total: int = 0
    offset: str = "-1"


# rows: P01
@pytest.mark.crash
def test_an_application_that_stores_its_position_with_its_state_counts_everything_once(
    tmp_path: Path,
) -> None:
    """Every second read is lost before its state is stored; the server is killed as well."""
    server = Server(tmp_path / "data")
    file = tmp_path / "ledger"
    file.write_bytes(msgspec.json.encode(Ledger()))
    try:
        server.stream("a").create(b"", JSON)
        for n in range(10):
            server.stream("a").post(b"[%d,%d]" % (n, 100 * n), content_type=JSON)
            for is_dying in (True, False):
                ledger = msgspec.json.decode(file.read_bytes(), type=Ledger)
                page = server.stream("a").get(f"offset={ledger.offset}")
                after = Ledger(ledger.total + sum(page.json), page.next_offset)
                if not is_dying:
                    file.write_bytes(msgspec.json.encode(after))
            if n % 2:
                server.kill()
                server = Server(tmp_path / "data")
        assert msgspec.json.decode(file.read_bytes(), type=Ledger) == Ledger(
            101 * sum(range(10)), offset_of(20)
        )
    finally:
        server.kill()


# rows: P01
def test_a_reader_may_start_at_every_message(stream: Stream) -> None:
    stream.create(b"", JSON)
    for n in range(0, 12, 3):
        stream.post(b"[%d,%d,%d]" % (n, n + 1, n + 2), content_type=JSON)
    for n in range(12):
        assert stream.get(f"offset={offset_of(n)}").json == list(range(n, 12))
    assert stream.get(f"offset={offset_of(12)}").json == []


# rows: P03, D07
def test_a_repeat_writes_nothing(tmp_path: Path) -> None:
    """A duplicate is recognized before it reaches the journal, which must not grow."""
    server = Server(tmp_path / "data")
    try:
        stream = server.stream("a")
        stream.create()
        producer: dict[str, Any] = {"producer_id": "p", "producer_epoch": 0, "producer_seq": 0}
        assert stream.post(b"a", **producer).status == 200
        before = durable_bytes(server)
        for _ in range(20):
            assert stream.post(b"a", **producer).status == 204
        assert durable_bytes(server) == before
    finally:
        server.kill()


def durable_bytes(server: Server) -> str:
    (found,) = [
        line
        for line in server.ask("GET", "/metrics").body.decode().splitlines()
        if line.startswith("semel_journal_durable_bytes ")
    ]
    return found
