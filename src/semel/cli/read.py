"""`semel read`: what a stream holds."""

from itertools import islice

import click

from semel.cli.options import Offset, path_argument, remote
from semel.cli.reading import read_page
from semel.cli.remote import NotUnderstood, Server
from semel.cli.shown import render, style_of, write


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
    server: Server, path: str, *, offset: str, limit: int | None, is_raw: bool, is_json: bool
) -> None:
    """Print the messages of the stream PATH up to its end, one per line.

    A JSON stream's are one JSON value per line.
    """
    style = style_of(is_raw=is_raw, is_json=is_json)
    left = limit
    while left is None or left > 0:
        page = read_page(server, path, offset)
        if page.frames is None:
            raise NotUnderstood("a read was answered without a body; is this semel?")
        lines = list(islice(render(page.frames, style), left))
        write(b"".join(lines))
        if left is not None:
            left -= len(lines)
        if page.is_up_to_date:
            return
        offset = page.next_offset
