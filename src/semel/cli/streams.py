"""The commands about streams: create, head, ls, trim, close, delete."""

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
from semel.cli.output import json_line, print_facts, printable, report, write_stdout
from semel.client.requests import CreateHeaders
from semel.client.sync.client import Client
from semel.client.values import StreamEntry, StreamInfo, milliseconds
from semel.model.offsets import parse_offset
from semel.wire.headers import print_instant


@click.command("create")
@path_argument
@click.option("--content-type", metavar="TYPE", help="Such as application/json or text/plain.")
@click.option(
    "--ttl", type=click.IntRange(min=0), help="Seconds until it expires after its last use."
)
@click.option("--expires-at", type=Moment(), help="When it expires: 2030-01-31T12:00:00Z.")
@click.option("--closed", is_flag=True, help="Create it closed.")
@click.option(
    "--dedup",
    type=click.Choice(["on", "off"]),
    help="Whether it recognises duplicates; default: the server's setting.",
)
@click.option("--fork-from", type=Path(), help="The stream to fork.")
@click.option("--fork-offset", type=Offset(), help="Where to fork it; default: at its end.")
@click.option(
    "--fork-sub-offset", type=click.IntRange(min=0), help="Units to add to --fork-offset."
)
@remote
def create_command(client: Client, path: str, *, is_json: bool, **options: Any) -> None:
    """Create the stream PATH.

    Succeeds if it already exists with the same configuration; exit code 1 if it has another one.
    """
    result = client.run(client.stream(path).calls.create(_configuration(**options), exist_ok=True))
    info = result.info
    facts = {
        "path": path,
        "created": result.is_new,
        "content_type": info.content_type,
        "next_offset": info.next_offset,
        "closed": info.closed,
    }
    what = "created" if result.is_new else "already exists with this configuration:"
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
        content_type=content_type,
        ttl=ttl,
        expires_at=expires_at,
        is_closed=closed,
        forked_from=fork_from,
        fork_offset=fork_offset,
        fork_sub_offset=fork_sub_offset,
        dedup=None if dedup is None else dedup == "on",
    )


@click.command("head")
@path_argument
@remote
def head_command(client: Client, path: str, *, is_json: bool) -> None:
    """Show the content type, the next offset and the state of the stream PATH."""
    facts = _facts(path, client.stream(path).head())
    if is_json:
        write_stdout(json_line(facts))
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


_PAGE_MAX: Final = 1_000  # what a server lists in one response


@click.command("ls")
@click.option("--prefix", default="", help="Only paths with this prefix.")
@click.option("--limit", type=click.IntRange(min=1), help="Maximum number of streams.")
@remote
def ls_command(client: Client, *, prefix: str, limit: int | None, is_json: bool) -> None:
    """List the streams, sorted by path: a table on a terminal, otherwise one path per line."""
    for streams in _pages(islice(client.streams(prefix), limit)):
        if is_json:
            write_stdout(b"".join(map(json_line, streams)))
        elif sys.stdout.isatty():
            Console(highlight=False).print(_table(streams))
        else:
            write_stdout("".join(f"{printable(stream.path)}\n" for stream in streams).encode())


def _pages(streams: Iterable[StreamEntry]) -> Iterator[list[StreamEntry]]:
    entries = iter(streams)
    while page := list(islice(entries, _PAGE_MAX)):
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


@click.command("trim")
@path_argument
@click.option("--before", type=Offset(), required=True, help="Offset of the first message to keep.")
@remote
def trim_command(client: Client, path: str, *, before: str, is_json: bool) -> None:
    """Remove the messages of the stream PATH before an offset."""
    client.stream(path).trim(before)
    facts = {"path": path, "first_offset": before}
    report(f"trimmed {path}: the first offset is {before}", facts, is_json=is_json)


@click.command("close")
@path_argument
@remote
def close_command(client: Client, path: str, *, is_json: bool) -> None:
    """Close the stream PATH: it stays readable, but refuses appends. Can be repeated."""
    receipt = client.stream(path).close()
    facts = {"path": path, "next_offset": receipt.next_offset, "closed": receipt.closed}
    report(f"closed {path} at {receipt.next_offset}", facts, is_json=is_json)


@click.command("delete")
@path_argument
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask.")
@remote
def delete_command(client: Client, path: str, *, is_sure: bool, is_json: bool) -> None:
    """Delete the stream PATH and its messages. Its forks keep what they share with it."""
    if not is_sure:
        if not sys.stdin.isatty():
            raise CommandRefused("a deletion cannot be undone; add --yes to confirm it")
        question = f"Delete {printable(path)} on {printable(client.url)} and all its messages?"
        click.confirm(question, abort=True, err=True)
    client.stream(path).delete()
    report(f"deleted {path}", {"path": path, "deleted": True}, is_json=is_json)
