"""The commands about streams: create, head, ls, trim, close, delete, read, tail."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

import click
from msgspec.structs import asdict

from semel.cli.options import Moment, Name, Number, Offset, Path, TokenText, path_argument, remote
from semel.cli.output import (
    EXIT_REFUSED,
    ChangingCommand,
    CommandRefused,
    confirm,
    print_facts,
    print_list,
    printable,
    render_messages,
    report,
    style_of,
    write_stdout,
)
from semel.client.errors import ClientError, StreamGone, StreamNotFound
from semel.client.extras import milliseconds
from semel.client.flows import OnRetry
from semel.client.reading import PageReader
from semel.client.requests import CreateHeaders, DedupSetting
from semel.client.server_calls import list_streams
from semel.client.sync.client import Client
from semel.client.values import (
    START,
    Message,
    StreamEntry,
)
from semel.model.limits import NUMBER_MAX
from semel.model.offsets import parse_offset
from semel.wire.headers import print_instant


@click.command("create", cls=ChangingCommand)
@path_argument
@click.option(
    "--content-type",
    type=TokenText(),
    metavar="TYPE",
    help="Content type, such as application/json.",
)
@click.option(
    "--ttl",
    type=Number(0, NUMBER_MAX // 1000),
    help="Expire the stream this many seconds after the last read or write.",
)
@click.option("--expires-at", type=Moment(), help="Time of expiry, such as 2030-01-31T12:00:00Z.")
@click.option("--closed", is_flag=True, help="Create a closed stream.")
@click.option(
    "--dedup",
    type=click.Choice(["on", "off", "inherit"]),
    help="Whether the stream recognises repeated appends. By default, the policies decide (see"
    " `semel policies`). A fork of a stream with a setting of its own has the same setting, except"
    " with `inherit`.",
)
@click.option("--fork-from", type=Path(), help="Create a fork of this stream.")
@click.option(
    "--fork-offset",
    type=Offset(),
    help="The fork shares the source's messages before this offset (default: all messages).",
)
@click.option(
    "--fork-sub-offset",
    type=Number(),
    help="The fork also shares the start of the append at --fork-offset: this many messages in a"
    " JSON stream, or this many bytes in any other stream.",
)
@remote
def create_command(client: Client, path: str, *, is_json: bool, **options: Any) -> None:
    """Create the stream PATH.

    Succeeds if the stream already exists with the same configuration. The exit code is 1 if the
    stream exists with a different configuration.
    """
    configuration = _configuration(**options)
    try:
        result = client.run(client.stream(path).calls.create(configuration, exist_ok=True))
    except StreamNotFound as error:
        source = configuration.forked_from
        if source is None:
            raise
        raise StreamNotFound(f"there is no stream {source} to fork", status=error.status) from None
    info = result.info
    facts = {
        "path": path,
        "created": result.is_new,
        "content_type": info.content_type,
        "next_offset": info.next_offset,
        "closed": info.closed,
    }
    what = "created" if result.is_new else "the stream already exists with this configuration:"
    sentence = f"{what} {path} ({info.content_type}), next offset {info.next_offset}"
    report(sentence, facts, is_json=is_json)


_DEDUP: Final[dict[str | None, DedupSetting]] = {
    None: None,
    "on": True,
    "off": False,
    "inherit": "inherit",
}


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
        raise CommandRefused("--fork-offset and --fork-sub-offset require --fork-from")
    return CreateHeaders(
        content_type=content_type,
        ttl=ttl,
        expires_at=expires_at,
        is_closed=closed,
        forked_from=fork_from,
        fork_offset=fork_offset,
        fork_sub_offset=fork_sub_offset,
        dedup=_DEDUP[dedup],
    )


@click.command("head")
@path_argument
@remote
def head_command(client: Client, path: str, *, is_json: bool) -> None:
    """Show the properties of the stream PATH.

    Prints the stream's content type, next offset, incarnation, generation and expiry, whether it is
    closed, and where its setting for duplicates comes from.
    """
    info = client.stream(path).head()
    ends = info.expires_at
    facts = {
        "path": path,
        "content_type": info.content_type,
        "next_offset": info.next_offset,
        "closed": info.closed,
        "incarnation": info.incarnation,
        "generation": info.generation,
        "ttl_seconds": info.ttl,
        "expires_at": None if ends is None else print_instant(milliseconds(ends)),
        "dedup": None if info.dedup else "off",
        "dedup_from": info.dedup_from,
        "dedup_source": info.dedup_source,
        "dedup_policy": info.dedup_policy,
        "dedup_pending": None if info.dedup_pending is None else ("off", "on")[info.dedup_pending],
    }
    print_facts(facts, is_json=is_json)


@click.command("ls")
@click.option(
    "--prefix",
    type=Name(can_be_empty=True),
    default="",
    help="List only paths with this prefix.",
)
@click.option("--limit", type=Number(1), help="Maximum number of streams.")
@click.option(
    "--count",
    "is_counted",
    is_flag=True,
    help="Read every listed stream, and show how many messages it has.",
)
@remote
def ls_command(
    client: Client, *, prefix: str, limit: int | None, is_counted: bool, is_json: bool
) -> None:
    """List the streams, sorted by path.

    Prints a table on a terminal. Otherwise prints one path per line. The number of offsets of a
    stream is at least its number of messages: the end of a transaction and an aborted message also
    have an offset. With --count, the messages are counted, which takes as long as reading them. If
    the output is not a terminal, each path is then followed by a tab and the number of messages.
    """
    counts = ("messages", "offsets") if is_counted else ("offsets",)
    titles = ("path", "type", *counts, "state", "written")
    entries = islice(client.streams(prefix), limit)
    while page := list(islice(entries, 1_000)):  # one response contains 1,000 streams
        found = (
            [_count(client, stream.path) for stream in page] if is_counted else [None] * len(page)
        )
        rows = [_cells(stream, count) for stream, count in zip(page, found, strict=True)]
        documents = [
            stream if count is None else {**asdict(stream), "messages": count}
            for stream, count in zip(page, found, strict=True)
        ]
        lines = [
            (stream.path,) if count is None else (stream.path, count)
            for stream, count in zip(page, found, strict=True)
        ]
        print_list(documents, titles, rows, is_json=is_json, right=counts, lines=lines)


def _cells(stream: StreamEntry, count: int | None) -> tuple[str, ...]:
    state = "closed" if stream.closed else "open"
    written = datetime.fromtimestamp(stream.written_at_ms / 1000, UTC)
    moment = written.strftime("%Y-%m-%d %H:%M:%SZ")
    messages = () if count is None else (f"{count:,}",)
    return stream.path, stream.content_type, *messages, _offsets(stream), state, moment


def _offsets(stream: StreamEntry) -> str:
    first, end = parse_offset(stream.first_offset), parse_offset(stream.next_offset)
    return "?" if first is None or end is None else f"{end - first:,}"


def _count(client: Client, path: str) -> int:
    """Return the number of messages that `semel read` prints. A deleted stream has none."""
    try:
        return sum(map(len, read_pages(client, path, START)))
    except (StreamGone, StreamNotFound):
        return 0


@click.command("trim", cls=ChangingCommand)
@path_argument
@click.option("--before", type=Offset(), required=True, help="Offset of the first message to keep.")
@remote
def trim_command(client: Client, path: str, *, before: str, is_json: bool) -> None:
    """Remove the oldest messages of the stream PATH.

    All messages before the offset --before are removed.
    """
    client.stream(path).trim(before)
    # The stream can begin later than --before, because it was trimmed before.
    entries = client.run(list_streams(client.site, path, None, 1)).streams
    first = entries[0].first_offset if entries and entries[0].path == path else before
    facts = {"path": path, "first_offset": first}
    report(f"trimmed {path}: messages before {first} are dropped", facts, is_json=is_json)


@click.command("close", cls=ChangingCommand)
@path_argument
@remote
def close_command(client: Client, path: str, *, is_json: bool) -> None:
    """Close the stream PATH.

    A closed stream can be read, but refuses appends. Closing a closed stream succeeds.
    """
    receipt = client.stream(path).close()
    facts = {"path": path, "next_offset": receipt.next_offset, "closed": receipt.closed}
    report(f"closed {path} at {receipt.next_offset}", facts, is_json=is_json)


@click.command("delete", cls=ChangingCommand)
@path_argument
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask for confirmation.")
@remote
def delete_command(client: Client, path: str, *, is_sure: bool, is_json: bool) -> None:
    """Delete the stream PATH and its messages.

    Forks of the stream keep the messages that they share with it.
    """
    if not is_sure:
        if not sys.stdin.isatty():
            raise CommandRefused("a deletion cannot be undone; confirm the deletion with --yes")
        question = f"Delete stream {printable(path)} and its messages on {printable(client.url)}?"
        confirm(question, f"{path} was not deleted")
    client.stream(path).delete()
    report(f"deleted {path}", {"path": path, "deleted": True}, is_json=is_json)


# ---- read and tail -------------------------------------------------------------------------------


def read_pages(client: Client, path: str, offset: str) -> Iterator[list[Message]]:
    """Yield the messages from `offset` to the current tail. Each response becomes one list."""
    reader = PageReader(client.stream(path).calls, offset, is_live=False)
    while (page := client.run(reader.next_page())) is not None:
        yield page


def live_pages(
    client: Client, path: str, offset: str, on_retry: OnRetry
) -> Iterator[list[Message]]:
    """Yield the stored messages, starting at `offset`, then new messages as they arrive.

    Each list has the messages of one response. The client's timeout applies only to the first
    request. Later requests are retried without limit, and `on_retry` is called before each of these
    retries.
    """

    def on_retry_after_begin(error: ClientError, tries: int) -> None:
        if reader.has_begun:
            on_retry(error, tries)

    reader = PageReader(
        client.stream(path).calls, offset, is_live=True, on_retry=on_retry_after_begin
    )
    client.run(reader.begin())
    while True:
        page = client.run(reader.next_page(), None if reader.has_begun else client.timeout)
        if page is None:
            return
        yield page


@click.command("read")
@path_argument
@click.option(
    "--offset",
    type=Offset(is_for_reading=True),
    default="-1",
    show_default=True,
    help="Offset to start at; -1 is the beginning.",
)
@click.option("--limit", type=Number(1), help="Maximum number of messages.")
@click.option("--raw", "is_raw", is_flag=True, help="Print the bytes only, without separators.")
@remote
def read_command(
    client: Client, path: str, *, offset: str, limit: int | None, is_raw: bool, is_json: bool
) -> None:
    """Print the messages of the stream PATH, one per line.

    Stops at the current tail. In a JSON stream, each message is one JSON value.
    """
    style = style_of(is_raw=is_raw, is_json=is_json)
    count = 0
    for page in read_pages(client, path, offset):
        messages = page if limit is None else page[: limit - count]
        write_stdout(b"".join(render_messages(messages, style)))
        count += len(messages)
        if count == limit:
            return


@click.command("tail")
@path_argument
@click.option(
    "--offset",
    type=Offset(is_for_reading=True),
    default="now",
    show_default=True,
    help="Offset to start at; -1 is the beginning, and 'now' is the tail.",
)
@click.option("--raw", "is_raw", is_flag=True, help="Print the bytes only, without separators.")
@remote
def tail_command(client: Client, path: str, *, offset: str, is_raw: bool, is_json: bool) -> None:
    """Print the messages of the stream PATH as they arrive.

    Ends when the stream is closed. If the connection is lost, the command reconnects, and no
    message is skipped or repeated. Ctrl-C ends the command with exit code 130.
    """
    style = style_of(is_raw=is_raw, is_json=is_json)
    try:
        for page in live_pages(client, path, offset, report_first_retry):
            if page:
                write_stdout(b"".join(render_messages(page, style)))
    except StreamGone as error:
        if error.status:
            raise
        # An error without a status comes from the client. It means that the stream was deleted and
        # created again, so that it has a new incarnation.
        message = f"{error.message}; to read the new stream, run the command with --offset -1"
        raise CommandRefused(message, EXIT_REFUSED) from error


def report_first_retry(error: ClientError, tries: int) -> None:
    if not tries:
        message = printable(error.message)
        click.echo(f"semel: {message}; the command retries until the server responds", err=True)
