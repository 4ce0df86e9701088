"""The rows that Spark reads: JSON of about 200 bytes, as a text file and as a stream."""

import os
from typing import Final

from semel.cli.benchmarks.bed import create_streams
from semel.cli.benchmarks.load import drive
from semel.cli.benchmarks.processes import Process
from semel.cli.benchmarks.requests import JSON, limited, post
from semel.model.limits import BATCH_MESSAGES_MAX

SCHEMA: Final = (
    "id long, customer string, amount double, currency string, is_paid boolean,"
    " placed_at timestamp, note string"
)
_NOTE: Final = b"an order as orders are, with a few words about where to leave it"


def rows(first: int, count: int) -> list[bytes]:
    """Make rows of seven fields."""
    return [_row(number) for number in range(first, first + count)]


def _row(number: int) -> bytes:
    return (
        b'{"id":%d,"customer":"customer-%05d","amount":%d.%02d,"currency":"EUR","is_paid":%b,'
        b'"placed_at":"2026-01-%02dT%02d:%02d:00Z","note":"%b"}'
        % (
            *(number, number * 7919 % 100_000, number % 900, number % 100),
            *(b"true" if number % 3 else b"false", number % 28 + 1, number % 24, number % 60),
            _NOTE,
        )
    )


def write_file(directory: str, count: int) -> None:
    """Write them as lines of the only file of a directory."""
    os.mkdir(directory)
    with open(f"{directory}/rows.json", "wb") as file:
        for first in range(0, count, BATCH_MESSAGES_MAX):
            lines = rows(first, min(BATCH_MESSAGES_MAX, count - first))
            file.write(b"".join(line + b"\n" for line in lines))


async def append_rows(process: Process, name: str, count: int) -> None:
    """Append them to a new stream of JSON."""
    await create_streams(process, [name], JSON)
    bodies = (
        b"[" + b",".join(rows(first, min(BATCH_MESSAGES_MAX, count - first))) + b"]"
        for first in range(0, count, BATCH_MESSAGES_MAX)
    )
    await drive(process, [limited(post(name, JSON, body) for body in bodies)])
