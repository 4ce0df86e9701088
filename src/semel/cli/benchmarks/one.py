"""One connection, one append at a time, beside the least that could take."""

import asyncio
from contextlib import ExitStack
from functools import partial
from typing import Final

from semel.cli.benchmarks.bare_disk import FRAME_EXTRA_BYTES, BareFiles, write_seconds
from semel.cli.benchmarks.bed import Bed, create_streams
from semel.cli.benchmarks.figures import Figure, middle, percentile, ratio_at_most
from semel.cli.benchmarks.load import drive
from semel.cli.benchmarks.options import Options, scratch
from semel.cli.benchmarks.peers import bare_server, semel_server
from semel.cli.benchmarks.processes import Process
from semel.cli.benchmarks.requests import BYTES, plain_appends
from semel.cli.benchmarks.turns import Side, take_turns

_BODY: Final = bytes(range(256))
_WRITTEN: Final = [_BODY, bytes(FRAME_EXTRA_BYTES)]
_STREAM: Final = "one"

_SEMEL: Final = "semel"
_ROUND_TRIP: Final = "constant answer"
_WRITE: Final = "bare write and fdatasync"
_BARE: Final = "bare limit, both in one server"


async def run(bed: Bed) -> list[Figure]:
    """Measure."""
    options = bed.options
    with scratch(options) as folder, ExitStack() as stack:
        semel = stack.enter_context(semel_server(f"{folder}/semel"))
        await create_streams(semel, [_STREAM], BYTES)
        constant = stack.enter_context(bare_server(None))
        bare = stack.enter_context(bare_server(f"{folder}/server"))
        files = BareFiles(f"{folder}/bare")
        stack.callback(files.close)
        sides: dict[str, Side[list[float]]] = {
            _SEMEL: partial(_calls, semel, options),
            _ROUND_TRIP: partial(_calls, constant, options),
            _WRITE: partial(_writes, files, options),
            _BARE: partial(_calls, bare, options),
        }
        # Many short rounds: what is compared must meet the same disk.
        found = await take_turns(sides, 3 * options.rounds)
    p50 = {name: middle([middle(each) for each in rounds]) * 1e6 for name, rounds in found.items()}
    p99 = middle([percentile(each, 99) for each in found[_SEMEL]]) * 1e6
    least = p50[_ROUND_TRIP] + p50[_WRITE]
    return [
        _figure("p50, semel", p50[_SEMEL], p50[_SEMEL] / least),
        _figure("p99, semel", p99),
        _figure(f"p50, {_ROUND_TRIP}", p50[_ROUND_TRIP]),
        _figure(f"p50, {_WRITE}", p50[_WRITE]),
        # The sum is a little less than any server can do: a sync after a wait is a slower one.
        _figure(f"p50, {_BARE}", p50[_BARE], p50[_BARE] / least, is_judged=False),
    ]


async def _calls(process: Process, options: Options) -> list[float]:
    source = plain_appends([_STREAM], _BODY)
    seconds = options.round_seconds / 3
    return (await drive(process, [source], seconds=seconds, warm_seconds=seconds / 5)).latencies


async def _writes(files: BareFiles, options: Options) -> list[float]:
    times = options.scaled(2_000)
    return await asyncio.to_thread(write_seconds, files, _WRITTEN, times)


def _figure(
    name: str, value: float, ratio: float | None = None, *, is_judged: bool = True
) -> Figure:
    return Figure(
        work="one",
        name=name,
        value=value,
        unit="us",
        ratio=ratio,
        beside="" if ratio is None else "round trip + write",
        target=ratio_at_most(1.3) if is_judged and ratio is not None else None,
    )
