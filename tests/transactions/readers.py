"""Readers by page, long poll and SSE. A share of the page reads is read_uncommitted."""

import threading
from random import Random
from time import monotonic_ns
from typing import Final

from semel import Client
from semel.client.values import READ_COMMITTED, READ_UNCOMMITTED, START
from tests.transactions.notes import Notes
from tests.transactions.pages import Cursor, Line
from tests.transactions.writers import STREAMS

WAYS: Final = ("long-poll", "sse")
_PAUSE_SECONDS: Final = 0.015
_UNCOMMITTED_SHARE: Final = 0.1


def catch_up(url: str, notes: Notes, name: str, random: Random, over: threading.Event) -> None:
    """Read the next page of a random stream, again and again."""
    line = Line(url)
    isolations = (READ_COMMITTED, READ_UNCOMMITTED)
    cursors = {(s, each): Cursor(s, each) for s in STREAMS for each in isolations}
    while not over.is_set():
        is_committed = random.random() > _UNCOMMITTED_SHARE
        cursor = cursors[random.choice(STREAMS), isolations[not is_committed]]
        invoked_at = monotonic_ns()
        page = cursor.read(line)
        if page is not None:
            notes.read(
                cursor.stream,
                page.values,
                start=cursor.count,
                invoked_at=invoked_at,
                reader=name,
                is_up_to_date=page.is_up_to_date,
                is_committed=is_committed,
            )
            cursor.move(page)
        over.wait(_PAUSE_SECONDS)
    line.close()


def follow(url: str, notes: Notes, stream: str, live: str) -> None:
    """Tail a stream from its start until it is closed; record each page as one read."""
    reader = f"{live} of {stream}"
    piece: list[str] = []
    count, offset = 0, ""
    invoked_at = returned_at = monotonic_ns()
    with Client(url) as client, client.stream(stream).tail(START, live=live) as tail:
        for message in tail:
            if tail.offset != offset and piece:
                _note(notes, stream, piece, count, invoked_at, returned_at, reader)
                count, piece, invoked_at = count + len(piece), [], returned_at
            offset, returned_at = tail.offset, monotonic_ns()
            piece.append(message.value)
    _note(notes, stream, piece, count, invoked_at, returned_at, reader)


def _note(
    notes: Notes,
    stream: str,
    piece: list[str],
    count: int,
    invoked_at: int,
    returned_at: int,
    reader: str,
) -> None:
    notes.read(
        stream,
        piece,
        start=count,
        invoked_at=invoked_at,
        returned_at=returned_at,
        reader=reader,
        is_up_to_date=False,
    )
