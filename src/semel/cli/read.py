"""`semel read` and `semel tail`: print the messages of a stream."""

from collections.abc import Iterator

import click

from semel.cli.exit_codes import EXIT_REFUSED, CommandRefused
from semel.cli.options import Offset, path_argument, remote
from semel.cli.output import printable, render_messages, style_of, write_stdout
from semel.client.errors import ClientError, StreamGone
from semel.client.flows import OnRetry
from semel.client.reading import PageReader
from semel.client.sync.client import Client
from semel.client.values import Message


def read_pages(client: Client, path: str, offset: str) -> Iterator[list[Message]]:
    """Yield the messages up to the current tail, one response at a time."""
    reader = PageReader(client.stream(path).calls, offset, is_live=False)
    while (page := client.run(reader.next_page())) is not None:
        yield page


def live_pages(
    client: Client, path: str, offset: str, on_retry: OnRetry
) -> Iterator[list[Message]]:
    """Yield the stored messages, then new ones as they arrive, one response at a time.

    Only the first response has a deadline. After it, an unreachable server is retried without
    limit, and `on_retry` is called before each retry.
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
@click.option("--limit", type=click.IntRange(min=1), help="Maximum number of messages.")
@click.option("--raw", "is_raw", is_flag=True, help="Print the bytes only, without separators.")
@remote
def read_command(
    client: Client, path: str, *, offset: str, limit: int | None, is_raw: bool, is_json: bool
) -> None:
    """Print the messages of the stream PATH up to its current end, one per line.

    Of a JSON stream, one JSON value per line.
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
    help="Offset to start at; -1 is the beginning.",
)
@click.option("--raw", "is_raw", is_flag=True, help="Print the bytes only, without separators.")
@remote
def tail_command(client: Client, path: str, *, offset: str, is_raw: bool, is_json: bool) -> None:
    """Print the messages of the stream PATH as they arrive, until it is closed.

    Reconnects if the connection is lost, without skipping or repeating a message. Ctrl-C ends it
    with exit code 130.
    """
    style = style_of(is_raw=is_raw, is_json=is_json)
    try:
        for page in live_pages(client, path, offset, _report_first_retry):
            if page:
                write_stdout(b"".join(render_messages(page, style)))
    except StreamGone as error:
        if error.status:
            raise
        # Without a status, the client itself found another incarnation.
        message = f"{error.message}; run the command again; --offset -1 reads from the beginning"
        raise CommandRefused(message, EXIT_REFUSED) from error


def _report_first_retry(error: ClientError, tries: int) -> None:
    if not tries:
        message = printable(error.message)
        click.echo(f"semel: {message}; retrying until the server responds", err=True)
