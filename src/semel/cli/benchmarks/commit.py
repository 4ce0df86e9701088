"""One commit over four streams, beside four plain appends of the same messages."""

from contextlib import ExitStack
from functools import partial
from typing import Final

import msgspec

from semel.cli.benchmarks.bed import Bed, create_streams
from semel.cli.benchmarks.bodies import small_values
from semel.cli.benchmarks.figures import Figure, Target, at_most, ratio_at_most
from semel.cli.benchmarks.load import Round, drive, over
from semel.cli.benchmarks.options import scratch
from semel.cli.benchmarks.peers import semel_server
from semel.cli.benchmarks.processes import Process
from semel.cli.benchmarks.requests import JSON, Source, post
from semel.cli.benchmarks.turns import Side, take_turns
from semel.cli.benchmarks.txn_requests import commits, count_syncs

_CONNECTIONS: Final = 64
_STREAMS_EACH: Final = 4
_ALONE: Final = 500
_ALONE_WRITER: Final = _CONNECTIONS  # behind those of the crowd
(_VALUE,) = small_values(1)

_COMMITS: Final = "one commit"
_APPENDS: Final = "four appends"


async def run(bed: Bed) -> list[Figure]:
    """Measure."""
    options = bed.options
    seconds, warm_seconds = options.round_seconds, options.warm_seconds
    writers = range(_CONNECTIONS + 1)
    with scratch(options) as folder, ExitStack() as stack:
        semel = stack.enter_context(semel_server(f"{folder}/semel"))
        await create_streams(semel, [name for each in writers for name in _names(each)], JSON)
        # First of all: rolling a full segment would take syncs of its own.
        syncs = await _syncs_each(semel, options.scaled(_ALONE))
        committing = [_commits(index) for index in range(_CONNECTIONS)]
        appending = [_appends(index) for index in range(_CONNECTIONS)]
        sides: dict[str, Side[Round]] = {
            name: partial(drive, semel, sources, seconds=seconds, warm_seconds=warm_seconds)
            for name, sources in ((_COMMITS, committing), (_APPENDS, appending))
        }
        found = await take_turns(sides, options.rounds, is_warmed=not options.is_quick)
    cpu = over(found[_COMMITS], lambda each: each.cpu_us)
    apart = over(found[_APPENDS], lambda each: each.cpu_us) * _STREAMS_EACH
    return [
        _figure("CPU per commit", cpu, "us", ratio_at_most(1.5), ratio=cpu / apart if apart else 0),
        _figure("CPU per four appends", apart, "us"),
        _figure("commits", over(found[_COMMITS], lambda each: each.rate), "commits/s"),
        _figure("four appends", over(found[_APPENDS], _units), "fours/s"),
        _figure("syncs per commit, one at a time", syncs, "syncs", at_most(1)),
        _figure("p50, one commit", over(found[_COMMITS], lambda each: each.ms(50)), "ms"),
        _figure("p99, one commit", over(found[_COMMITS], lambda each: each.ms(99)), "ms"),
    ]


def _names(writer: int) -> list[str]:
    return [f"commit-{writer}-{number}" for number in range(_STREAMS_EACH)]


def _commits(writer: int) -> Source:
    return commits(f"committer-{writer}", _names(writer), _VALUE)


def _appends(writer: int) -> Source:
    body = msgspec.json.encode(_VALUE)
    requests = [post(name, JSON, body) for name in _names(writer)]
    at = -1

    def next_one() -> bytes:
        nonlocal at
        at = (at + 1) % _STREAMS_EACH
        return requests[at]

    return next_one


def _units(found: Round) -> float:
    return found.rate / _STREAMS_EACH


async def _syncs_each(process: Process, count: int) -> float:
    """Commit one at a time; how often the journal is synced for each."""
    source = _commits(_ALONE_WRITER)
    left = count

    def some() -> bytes | None:
        nonlocal left
        left -= 1
        return source() if left >= 0 else None

    before = await count_syncs(process)
    await drive(process, [some])
    return (await count_syncs(process) - before) / count


def _figure(
    name: str, value: float, unit: str, target: Target | None = None, ratio: float | None = None
) -> Figure:
    beside = "" if ratio is None else _APPENDS
    return Figure(
        work="commit", name=name, value=value, unit=unit, target=target, ratio=ratio, beside=beside
    )
