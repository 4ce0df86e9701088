"""`semel create`: make a stream."""

import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from semel.cli.exit_codes import CommandRefused
from semel.cli.options import Moment, Offset, Path, path_argument, remote
from semel.cli.output import json_line, print_facts, printable, report, write
from semel.client.requests import CreateHeaders
from semel.client.sync.client import Client
from semel.client.values import StreamEntry, StreamInfo, milliseconds
from semel.model.offsets import parse_offset
from semel.wire.headers import print_instant


@click.command("create")
@path_argument
@click.option("--content-type", metavar="TYPE", help="Such as application/json or text/plain.")
@click.option("--ttl", type=click.IntRange(min=0), help="Seconds it lives after its last use.")
@click.option("--expires-at", type=Moment(), help="When it ends: 2030-01-31T12:00:00Z.")
@click.option("--closed", is_flag=True, help="Make it closed.")
@click.option(
    "--dedup",
    type=click.Choice(["on", "off"]),
    help="Whether it recognises duplicates; the server's setting if not given.",
)
@click.option("--fork-from", type=Path(), help="The stream to go on from.")
@click.option("--fork-offset", type=Offset(), help="Where to leave it; its end if not given.")
@click.option("--fork-sub-offset", type=click.IntRange(min=0), help="So many units further.")
@remote
def create_command(client: Client, path: str, *, is_json: bool, **given: Any) -> None:
    """Create the stream PATH.

    Asking again for the same is fine. Exit code 1 if it is there with another configuration.
    """
    made = client.run(client.stream(path).calls.create(_configuration(**given), exist_ok=True))
    info = made.info
    facts = {
        "path": path,
        "created": made.is_new,
        "content_type": info.content_type,
        "next_offset": info.next_offset,
        "closed": info.closed,
    }
    what = "created" if made.is_new else "it was there already, just like that:"
    sentence = f"{what} {path} ({info.content_type}), next offset {info.next_offset}"
    report(sentence, facts, is_json=is_json)


def _configuration(
    *,
    content_type: str | None,
    ttl: int | None,
    expires_at: datetime | None,
    closed: bool,
    dedup: str | None,
    fork_from: str | None,
    fork_offset: str | None,
    fork_sub_offset: int | None,
) -> CreateHeaders:
    if fork_from is None and (fork_offset is not None or fork_sub_offset is not None):
        raise CommandRefused("--fork-offset and --fork-sub-offset need --fork-from")
    return CreateHeaders(
        content_type,
        ttl,
        expires_at,
        closed,
        fork_from,
        fork_offset,
        fork_sub_offset,
        None if dedup is None else dedup == "on",
    )


# ---- head ----------------------------------------------------------------------------------------
# `semel head`: what a stream is.


@click.command("head")
@path_argument
@remote
def head_command(client: Client, path: str, *, is_json: bool) -> None:
    """Show the type, the end and the state of the stream PATH."""
    facts = _facts(path, client.stream(path).head())
    if is_json:
        write(json_line(facts))
    else:
        print_facts(facts)


def _facts(path: str, info: StreamInfo) -> dict[str, object]:
    ends = info.expires_at
    return {
        "path": path,
        "content_type": info.content_type,
        "next_offset": info.next_offset,
        "closed": info.closed,
        "incarnation": info.incarnation,
        "ttl_seconds": info.ttl,
        "expires_at": None if ends is None else print_instant(milliseconds(ends)),
        "dedup": None if info.dedup else "off",
        "dedup_from": info.dedup_from,
    }


# ---- ls ------------------------------------------------------------------------------------------
# `semel ls`: which streams there are.


_PAGE_MAX: Final = 1_000  # as many as a server lists at once


@click.command("ls")
@click.option("--prefix", default="", help="Only paths that begin like this.")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many.")
@remote
def ls_command(client: Client, *, prefix: str, limit: int | None, is_json: bool) -> None:
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


# ---- trim ----------------------------------------------------------------------------------------
# `semel trim`: forget the oldest messages.


@click.command("trim")
@path_argument
@click.option("--before", type=Offset(), required=True, help="The first message to keep.")
@remote
def trim_command(client: Client, path: str, *, before: str, is_json: bool) -> None:
    """Forget the messages of the stream PATH that lie before an offset."""
    client.stream(path).trim(before)
    facts = {"path": path, "first_offset": before}
    report(f"trimmed {path}: nothing before {before} is kept", facts, is_json=is_json)


# ---- close ---------------------------------------------------------------------------------------
# `semel close`: let nothing follow.


@click.command("close")
@path_argument
@remote
def close_command(client: Client, path: str, *, is_json: bool) -> None:
    """Close the stream PATH: it can be read, but takes no more appends. Closing again is fine."""
    receipt = client.stream(path).close()
    facts = {"path": path, "next_offset": receipt.next_offset, "closed": receipt.closed}
    report(f"closed {path} at {receipt.next_offset}", facts, is_json=is_json)


# ---- delete --------------------------------------------------------------------------------------
# `semel delete`: remove a stream.


@click.command("delete")
@path_argument
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask.")
@remote
def delete_command(client: Client, path: str, *, is_sure: bool, is_json: bool) -> None:
    """Delete the stream PATH and all it holds. What its forks have of it stays with them."""
    if not is_sure:
        if not sys.stdin.isatty():
            raise CommandRefused("a deletion cannot be undone; add --yes if it is meant")
        url = client.url
        question = f"Delete {printable(path)} on {printable(url)}, and all it holds?"
        click.confirm(question, abort=True, err=True)
    client.stream(path).delete()
    report(f"deleted {path}", {"path": path, "deleted": True}, is_json=is_json)
