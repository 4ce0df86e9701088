"""`semel tail`: what a stream gets, as it gets it."""

import time
from typing import Final

import click

from semel.cli.exits import EXIT_REFUSED, Refused
from semel.cli.options import Offset, path_argument, remote
from semel.cli.reading import Page, poll_page, read_page
from semel.cli.remote import Server, ServerRefused, Unreachable
from semel.cli.shown import Style, render, style_of, write
from semel.cli.text import printable

_PAUSE_SECONDS_MIN: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 5.0
# The server is there, or something before it, and will have room later.
_WORTH_A_RETRY: Final = frozenset({429, 502, 503, 504})


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
def command(server: Server, path: str, *, offset: str, is_raw: bool, is_json: bool) -> None:
    """Print the messages of the stream PATH as they come, until it is closed.

    A lost connection is made again, and no message is skipped or printed twice. Ctrl-C ends it
    with exit code 130.
    """
    # `now` must become an offset at once: after a break it would mean another place.
    first = read_page(server, path, offset)
    style = style_of(is_raw=is_raw, is_json=is_json)
    _Tail(server, path, style, first.incarnation).follow(first)


class _Tail:
    """One reader that does not give up."""

    def __init__(self, server: Server, path: str, style: Style, incarnation: str) -> None:
        self._server = server
        self._path = path
        self._style = style
        self._incarnation = incarnation
        self._pause = 0.0

    def follow(self, page: Page) -> None:
        """Print a page and all that come after it."""
        self._print(page)
        while not page.is_closed:
            page = self._next(page.next_offset, page.cursor)
            self._print(page)

    def _print(self, page: Page) -> None:
        if page.incarnation != self._incarnation:
            raise Refused(
                f"{self._path} was deleted and made anew, so this place in it is gone;"
                " begin again, with --offset -1 for all of it",
                EXIT_REFUSED,
            )
        if page.frames is not None:
            write(b"".join(render(page.frames, self._style)))

    def _next(self, offset: str, cursor: str | None) -> Page:
        while True:
            try:
                page = poll_page(self._server, self._path, offset, cursor)
            except Unreachable as error:
                self._wait(error)
            except ServerRefused as error:
                if error.status not in _WORTH_A_RETRY:
                    raise
                self._wait(error)
            else:
                self._pause = 0.0
                return page

    def _wait(self, error: Refused) -> None:
        if not self._pause:
            message = printable(error.format_message())
            click.echo(f"semel: {message}; trying again until it is back", err=True)
        self._pause = min(max(2 * self._pause, _PAUSE_SECONDS_MIN), _PAUSE_SECONDS_MAX)
        time.sleep(self._pause)
