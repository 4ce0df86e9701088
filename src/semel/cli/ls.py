"""`semel ls`: which streams there are."""

import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from semel.cli.options import remote
from semel.cli.shown import json_line, write
from semel.cli.text import printable
from semel.client.client import Client
from semel.client.values import StreamEntry
from semel.model.offsets import parse_offset

_PAGE_MAX: Final = 1_000  # as many as a server lists at once


@click.command("ls")
@click.option("--prefix", default="", help="Only paths that begin like this.")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many.")
@remote
def command(client: Client, *, prefix: str, limit: int | None, is_json: bool) -> None:
    """List the streams in order of their paths: a table on a terminal, else a path per line."""
    for streams in _pages(islice(client.streams(prefix), limit)):
        if is_json:
            write(b"".join(map(json_line, streams)))
        elif sys.stdout.isatty():
            Console(highlight=False).print(_table(streams))
        else:
            write("".join(f"{printable(stream.path)}\n" for stream in streams).encode())


def _pages(streams: Iterable[StreamEntry]) -> Iterator[list[StreamEntry]]:
    found = iter(streams)
    while page := list(islice(found, _PAGE_MAX)):
        yield page


def _table(streams: list[StreamEntry]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("path", overflow="fold")
    table.add_column("type", overflow="fold")
    table.add_column("messages", justify="right")
    table.add_column("state")
    table.add_column("written")
    for stream in streams:
        table.add_row(
            Text(printable(stream.path)),
            Text(printable(stream.content_type)),
            _count(stream),
            "closed" if stream.closed else "open",
            _moment(stream.written_at_ms),
        )
    return table


def _count(stream: StreamEntry) -> str:
    first, end = parse_offset(stream.first_offset), parse_offset(stream.next_offset)
    return "?" if first is None or end is None else f"{end - first:,}"


def _moment(instant_ms: int) -> str:
    return datetime.fromtimestamp(instant_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
