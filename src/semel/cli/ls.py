"""`semel ls`: which streams there are."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import click
import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table
from rich.text import Text

from semel.cli.options import remote
from semel.cli.remote import NotUnderstood, Server
from semel.cli.shown import json_line, write
from semel.cli.text import printable
from semel.model.offsets import parse_offset

_PAGE_MAX: Final = 1_000


class _Page(Struct):
    """What the server lists at once; `next` is where to go on."""

    streams: list[dict[str, Any]]
    next: str | None


@click.command("ls")
@click.option("--prefix", default="", help="Only paths that begin like this.")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many.")
@remote
def command(server: Server, *, prefix: str, limit: int | None, is_json: bool) -> None:
    """List the streams in order of their paths: a table on a terminal, else a path per line."""
    for streams in _pages(server, prefix, limit):
        if is_json:
            write(b"".join(map(json_line, streams)))
        elif sys.stdout.isatty():
            Console(highlight=False).print(_table(streams))
        else:
            lines = [printable(str(stream.get("path"))) + "\n" for stream in streams]
            write("".join(lines).encode())


def _pages(server: Server, prefix: str, limit: int | None) -> Iterator[list[dict[str, Any]]]:
    left, after = limit, ""
    while left is None or left > 0:
        size = _PAGE_MAX if left is None else min(left, _PAGE_MAX)
        query = {"prefix": prefix, "after": after, "limit": str(size)}
        body = server.ask("GET", "/v1/streams", query=query).body
        try:
            page = msgspec.json.decode(body, type=_Page)
        except msgspec.DecodeError as error:
            raise NotUnderstood(f"the list of streams cannot be read: {error}") from error
        if page.streams:
            yield page.streams
        if page.next is None:
            return
        if page.next <= after:
            raise NotUnderstood("the list of streams does not go on")
        after = page.next
        left = None if left is None else left - len(page.streams)


def _table(streams: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("path", overflow="fold")
    table.add_column("type", overflow="fold")
    table.add_column("messages", justify="right")
    table.add_column("state")
    table.add_column("written")
    for stream in streams:
        table.add_row(
            Text(printable(str(stream.get("path")))),
            Text(printable(str(stream.get("content_type")))),
            _count(stream),
            "closed" if stream.get("closed") else "open",
            _moment(stream.get("written_at_ms")),
        )
    return table


def _count(stream: dict[str, Any]) -> str:
    first = parse_offset(str(stream.get("first_offset")))
    end = parse_offset(str(stream.get("next_offset")))
    return "?" if first is None or end is None else f"{end - first:,}"


def _moment(value: object) -> str:
    if not isinstance(value, int):
        return "?"
    return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
