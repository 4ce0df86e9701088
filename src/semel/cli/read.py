"""`semel read`: what a stream holds."""

from collections.abc import Iterator

import click

from semel.cli.exit_codes import EXIT_REFUSED, CommandRefused
from semel.cli.options import Offset, path_argument, remote
from semel.cli.output import printable, render_message, style_of, write
from semel.client.errors import ClientError, StreamGone
from semel.client.flows import OnRetry
from semel.client.reading import PageReader
from semel.client.sync.client import Client
from semel.client.values import Message

# ---- reading -------------------------------------------------------------------------------------
# Reads that keep the messages apart, for `semel read` and `semel tail`.


def read_pages(client: Client, path: str, offset: str) -> Iterator[list[Message]]:
    """Read up to the end as it is, an answer at a time."""
    reader = PageReader(client.stream(path).calls, offset, is_live=False)
    while (page := client.run(reader.next_page())) is not None:
        yield page


def live_pages(
    client: Client, path: str, offset: str, on_retry: OnRetry
) -> Iterator[list[Message]]:
    """Read what is there and what comes, an answer at a time; `on_retry` once it has begun.

    Only the first answer must come in time: after that, a server that is gone is waited for.
    """

    def on_trouble(error: ClientError, tries: int) -> None:
        if reader.has_begun:
            on_retry(error, tries)

    reader = PageReader(client.stream(path).calls, offset, is_live=True, on_retry=on_trouble)
    client.run(reader.begin())
    while True:
        page = client.run(reader.next_page(), None if reader.has_begun else client.timeout)
        if page is None:
            return
        yield page


# ---- read ----------------------------------------------------------------------------------------


@click.command("read")
@path_argument
@click.option(
    "--offset",
    type=Offset(is_for_reading=True),
    default="-1",
    show_default=True,
    help="Where to begin; -1 is the beginning.",
)
@click.option("--limit", type=click.IntRange(min=1), help="At most so many messages.")
@click.option("--raw", "is_raw", is_flag=True, help="The bytes as they are, nothing in between.")
@remote
def read_command(
    client: Client, path: str, *, offset: str, limit: int | None, is_raw: bool, is_json: bool
) -> None:
    """Print the messages of the stream PATH up to its end, one per line.

    A JSON stream's are one JSON value per line.
    """
    style = style_of(is_raw=is_raw, is_json=is_json)
    left = limit
    for page in read_pages(client, path, offset):
        messages = page if left is None else page[:left]
        write(b"".join(render_message(messages, style)))
        if left is not None:
            left -= len(messages)
            if not left:
                return


# ---- tail ----------------------------------------------------------------------------------------
# `semel tail`: what a stream gets, as it gets it.


@click.command("tail")
@path_argument
@click.option(
    "--offset",
    type=Offset(is_for_reading=True),
    default="now",
    show_default=True,
    help="Where to begin; -1 is the beginning.",
)
@click.option("--raw", "is_raw", is_flag=True, help="The bytes as they are, nothing in between.")
@remote
def tail_command(client: Client, path: str, *, offset: str, is_raw: bool, is_json: bool) -> None:
    """Print the messages of the stream PATH as they come, until it is closed.

    A lost connection is made again, and no message is skipped or printed twice. Ctrl-C ends it
    with exit code 130.
    """
    style = style_of(is_raw=is_raw, is_json=is_json)
    try:
        for page in live_pages(client, path, offset, _say_once):
            if page:
                write(b"".join(render_message(page, style)))
    except StreamGone as error:
        if error.status:
            raise
        # The client has seen another incarnation.
        message = f"{error.message}; begin again, with --offset -1 for all of it"
        raise CommandRefused(message, EXIT_REFUSED) from error


def _say_once(error: ClientError, tries: int) -> None:
    if not tries:
        message = printable(error.message)
        click.echo(f"semel: {message}; trying again until it is back", err=True)
