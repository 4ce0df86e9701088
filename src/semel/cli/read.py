"""`semel read`: what a stream holds."""

import click

from semel.cli.options import Offset, path_argument, remote
from semel.cli.reading import pages
from semel.cli.shown import render, style_of, write
from semel.client.client import Client


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
def command(
    client: Client, path: str, *, offset: str, limit: int | None, is_raw: bool, is_json: bool
) -> None:
    """Print the messages of the stream PATH up to its end, one per line.

    A JSON stream's are one JSON value per line.
    """
    style = style_of(is_raw=is_raw, is_json=is_json)
    left = limit
    for page in pages(client, path, offset):
        messages = page if left is None else page[:left]
        write(b"".join(render(messages, style)))
        if left is not None:
            left -= len(messages)
            if not left:
                return
