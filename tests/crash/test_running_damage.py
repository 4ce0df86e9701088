"""Damage that appears under a running server: the read that meets it fails, and nothing else.

The file is changed through the page cache, so that the server sees the damage at once.
"""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import lmdb
import pytest

from tests.crash.directory import CHECKPOINT, quick_directory, segments
from tests.spec.process import Server, Stream
from tests.spec.txn_calls import COMMITTED, Txn, call

pytestmark = pytest.mark.crash

_PAGE_BYTES: Final = 4096
_PAGE_FLAGS_AT: Final = 10
_SEGMENT_BYTES: Final = 64 * 1024
_OPTIONS: Final = ("--segment-bytes", str(_SEGMENT_BYTES))


@pytest.fixture
def server() -> Iterator[Server]:
    """Run a server that has loaded its checkpoint. Its stream `pay` has an aborted message."""
    with quick_directory() as directory:
        first = Server(directory / "data", *_OPTIONS)
        for path in ("pay", "other", "long"):
            first.stream(path).create()
        pay = first.stream("pay")
        call(first, "POST", "/v1/producers", {"id": "p"})
        for number, end in enumerate(("commit", "abort", "commit")):
            txn = Txn(first, "p", name=f"t{number}")
            assert txn.begin(streams=["pay"]).status == 201
            assert txn.post(pay, b"pay %d;" % number, producer_seq=number).status == 200
            assert txn.call(end).status == 200
        for number in range(40):
            assert first.stream("other").post(b"other %d;" % number).status == 204
            assert first.stream("long").post(b"long %d;" % number + b"x" * 4_000).status == 204
        stop(first)
        second = Server(first.data, *_OPTIONS)
        try:
            yield second
        finally:
            second.kill()


def stop(server: Server) -> None:
    server.signal(signal.SIGTERM)
    assert server.wait() == 0, server.stderr
    server.kill()


def rows(data: Path, table: str) -> list[tuple[bytes, bytes]]:
    """Return the rows of a table of the checkpoint."""
    path = str(data / CHECKPOINT)
    env = lmdb.open(path, subdir=False, max_dbs=64, readonly=True, lock=False)
    with env.begin() as transaction:
        found = list(transaction.cursor(env.open_db(table.encode(), transaction, create=False)))
    env.close()
    return found


def positions_of(path: Path, part: bytes) -> list[int]:
    """Return where a file contains these bytes. LMDB may have left copies in unused pages."""
    found = [match.start() for match in re.finditer(re.escape(part), path.read_bytes())]
    assert found, part
    return found


def overwrite(path: Path, position: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        assert os.pwrite(descriptor, data, position) == len(data)
    finally:
        os.close(descriptor)


def damage_rows(data: Path, table: str, *, in_key: bool = False) -> None:
    """Flip one bit in the key or in the value of every row of a table.

    With `in_key`, the key then names another stream or another transaction.
    """
    path = data / CHECKPOINT
    for key, value in rows(data, table):
        row = key + value
        at = {"aborted": 7, "outcomes": 3}[table] if in_key else len(key)
        for position in positions_of(path, row):
            overwrite(path, position + at, bytes([row[at] ^ 0x02]))


def assert_serves(server: Server) -> None:
    """Expect a live server that reads and appends."""
    other = server.stream("other")
    assert other.get("offset=-1").body.startswith(b"other 0;other 1;")
    assert other.post(b"still here").status == 204
    assert server.stream("pay").post(b"still here").status == 204
    assert server.ask("GET", "/health").status == 200
    assert server.process.poll() is None, server.stderr


def assert_corrupt(stream: Stream, query: str) -> None:
    answer = stream.get(query)
    assert answer.status == 500, answer
    assert answer.code == "corrupt_data"


# ---- the checkpoint ------------------------------------------------------------------------------


@pytest.mark.parametrize("in_key", [False, True], ids=["value", "key"])
def test_a_row_damaged_under_the_server_fails_the_reads_that_need_it(
    server: Server, in_key: bool
) -> None:
    pay = server.stream("pay")
    assert pay.get(f"offset=-1&{COMMITTED}").body == b"pay 0;pay 2;"
    damage_rows(server.data, "aborted", in_key=in_key)
    for _ in range(3):
        assert_corrupt(pay, f"offset=-1&{COMMITTED}")
    assert pay.get("offset=-1").body == b"pay 0;pay 1;pay 2;"
    assert_serves(server)


@pytest.mark.parametrize("in_key", [False, True], ids=["value", "key"])
def test_an_outcome_damaged_under_the_server_is_neither_forgotten_nor_changed(
    server: Server, in_key: bool
) -> None:
    committed = Txn(server, "p", name="t0")
    assert committed.call("commit").status == 200
    damage_rows(server.data, "outcomes", in_key=in_key)
    answer = committed.call("commit")
    assert (answer.status, answer.code) == (500, "corrupt_data")
    assert server.ask("GET", "/v1/transactions/t0").code == "corrupt_data"
    assert_serves(server)


def test_a_page_damaged_under_the_server_fails_the_reads_that_need_it(server: Server) -> None:
    """LMDB itself refuses a page of an unknown kind."""
    ((key, value),) = rows(server.data, "aborted")
    path = server.data / CHECKPOINT
    for position in positions_of(path, key + value):
        page = position // _PAGE_BYTES * _PAGE_BYTES
        overwrite(path, page + _PAGE_FLAGS_AT, b"\0\0")
    for _ in range(3):
        assert_corrupt(server.stream("pay"), f"offset=-1&{COMMITTED}")
    assert_serves(server)
    server.kill()
    again = Server(server.data, *_OPTIONS)
    assert (again.greeting, again.wait()) == ("", 65), again.stderr
    again.kill()


def test_a_stream_with_a_damaged_index_block_can_be_deleted(server: Server) -> None:
    """The checkpoint that removes the blocks of the stream must not stop the server."""
    damage_rows(server.data, "index")
    assert_corrupt(server.stream("long"), "offset=-1")
    assert server.stream("long").delete().status == 204
    assert server.stream("other").post(b"another message").status == 204
    stop(server)
    again = Server(server.data, *_OPTIONS)
    try:
        assert again.stream("long").get("offset=-1").status == 404
        assert again.stream("other").post(b"and one more").status == 204
    finally:
        again.kill()


# ---- segments ------------------------------------------------------------------------------------


def segment_with(data: Path, message: bytes) -> tuple[Path, int]:
    """Return the segment that contains a message, and the position of the message in it."""
    for path in segments(data):
        position = path.read_bytes().find(message)
        if position >= 0:
            return path, position
    raise AssertionError(f"no segment contains {message!r}")


# rows: X11
@pytest.mark.parametrize("number", [3, 39], ids=["sealed", "last"])
def test_a_segment_damaged_under_the_server_fails_the_reads_that_need_it(
    server: Server, number: int
) -> None:
    message = b"long %d;" % number
    path, position = segment_with(server.data, message)
    overwrite(path, position, b"L")
    long = server.stream("long")
    # The messages before the damaged frame are served; the read that needs the frame is not.
    offset, found = "-1", b""
    while (answer := long.get(f"offset={offset}")).status == 200:
        found += answer.body
        offset = answer.next_offset
        assert "stream-up-to-date" not in answer.headers, "the damaged message was skipped"
    assert (answer.status, answer.code) == (500, "corrupt_data")
    assert message not in found
    assert b"L" not in found
    assert_serves(server)


def test_a_segment_that_is_cut_or_lost_under_the_server_fails_the_reads_that_need_it(
    server: Server,
) -> None:
    path, _ = segment_with(server.data, b"long 3;")
    os.truncate(path, 4096)
    assert_corrupt(server.stream("long"), "offset=-1")
    path.unlink()
    assert_corrupt(server.stream("long"), "offset=-1")
    assert server.ask("GET", "/health").status == 200
    assert server.stream("long").post(b"appended").status == 204
