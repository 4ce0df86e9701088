"""What every benchmark gets: the options, and a place to say what was left out."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import click

from semel.cli.benchmarks.load import drive
from semel.cli.benchmarks.options import Options
from semel.cli.benchmarks.peers import Missing
from semel.cli.benchmarks.processes import NotStarted, Process
from semel.cli.benchmarks.requests import limited, put

_CREATING: Final = 16


class Bed:
    """One run of the benchmarks."""

    def __init__(self, options: Options) -> None:
        self.options: Final = options
        self.skipped: list[str] = []

    @contextmanager
    def optional(self) -> Iterator[None]:
        """Leave a peer out, with a line, if it is not here."""
        try:
            yield
        except (Missing, NotStarted) as error:
            self.skipped.append(str(error))
            click.echo(f"skipped: {error}", err=True)


async def create_streams(process: Process, names: Sequence[str], content_type: str) -> None:
    """Create streams over a few connections."""
    shares = (names[first::_CREATING] for first in range(min(_CREATING, len(names))))
    requests = [[put(name, content_type) for name in share] for share in shares]
    await drive(process, [limited(iter(each)) for each in requests])
