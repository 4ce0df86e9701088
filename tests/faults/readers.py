"""Readers, which record what they read and when."""

from collections.abc import Iterable
from functools import partial
from random import Random
from typing import Final

from semel import Client
from semel.client.errors import DamagedResponse, Unavailable
from semel.client.values import START, Message
from semel.model.offsets import print_offset
from tests.faults.notes import Notes, Work

_PIECE: Final = 200  # messages that a tail records at once


def read_again_and_again(notes: Notes, random: Random) -> None:
    """Read to the tail, from at most 1,000 messages before the end of the last read."""
    history, offset = notes.history, 0
    with Client(notes.url) as client:
        stream = client.stream(notes.path)
        while not notes.over.is_set():
            start = random.randint(max(0, offset - 1_000), offset)
            invoked_at = history.clock()
            try:
                values = _values(stream.read(print_offset(start), timeout=random.choice((0.5, 30))))
            except (Unavailable, DamagedResponse):
                continue
            history.read(values, invoked_at=invoked_at, offset=start, reader="reads")
            offset = max(offset, start + len(values))
            notes.count("messages read: read", len(values))
            notes.over.wait(0.01)


def follow(notes: Notes, random: Random, *, live: str) -> None:
    """Tail the stream from its start until it is closed."""
    history = notes.history
    with Client(notes.url) as client:
        stream = client.stream(notes.path)
        piece: list[str] = []
        count, invoked_at = 0, history.clock()
        with stream.tail(START, live=live) as tail:
            for message in tail:
                piece += _values([message])
                if len(piece) == _PIECE:
                    history.read(
                        piece,
                        invoked_at=invoked_at,
                        offset=count,
                        reader=live,
                        is_up_to_date=False,
                    )
                    count, piece, invoked_at = count + len(piece), [], history.clock()
        history.read(piece, invoked_at=invoked_at, offset=count, reader=live, is_up_to_date=False)
        notes.count(f"messages read: {live}", count + len(piece))


def _values(messages: Iterable[Message]) -> list[str]:
    return [message.raw.decode().strip('"') for message in messages]


def ways_to_follow(content_type: str) -> tuple[str, ...]:
    """Return the live modes that separate messages: an SSE event of bytes may hold several."""
    return ("long-poll", "sse") if content_type == "application/json" else ("long-poll",)


def work(content_type: str) -> list[Work]:
    """Return all readers of one stream."""
    ways = (partial(follow, live=live) for live in ways_to_follow(content_type))
    return [read_again_and_again, *ways]
