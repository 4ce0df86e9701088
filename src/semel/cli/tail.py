"""`semel tail`: what a stream gets, as it gets it."""

import click

from semel.cli.exits import EXIT_REFUSED, Refused
from semel.cli.options import Offset, path_argument, remote
from semel.cli.reading import live_pages
from semel.cli.shown import render, style_of, write
from semel.cli.text import printable
from semel.client.client import Client
from semel.client.errors import ClientError, StreamGone


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
def command(client: Client, path: str, *, offset: str, is_raw: bool, is_json: bool) -> None:
    """Print the messages of the stream PATH as they come, until it is closed.

    A lost connection is made again, and no message is skipped or printed twice. Ctrl-C ends it
    with exit code 130.
    """
    style = style_of(is_raw=is_raw, is_json=is_json)
    try:
        for page in live_pages(client, path, offset, _say_once):
            if page:
                write(b"".join(render(page, style)))
    except StreamGone as error:
        if error.status:
            raise
        # The client has seen another incarnation.
        message = f"{error.message}; begin again, with --offset -1 for all of it"
        raise Refused(message, EXIT_REFUSED) from error


def _say_once(error: ClientError, tries: int) -> None:
    if not tries:
        message = printable(error.message)
        click.echo(f"semel: {message}; trying again until it is back", err=True)
