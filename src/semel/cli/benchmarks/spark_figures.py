"""The figures of the queries that Spark ran."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from semel.cli.benchmarks.figures import (
    Figure,
    Target,
    at_least,
    at_most,
    middle,
    percentile,
    ratio_at_least,
)

_WARM_SHARE: Final = 4  # one of so many small batches is not counted
TEXT: Final = "text file to noop"
READ: Final = "source to noop"
DECODE: Final = "source to noop, as 7 columns"
COPY: Final = "source to sink"
NOTHING: Final = "nothing"


class Run(Struct, frozen=True):
    """What one query took: of its batches, and of each one's processor."""

    batches: list[float]
    java_s: float
    python_s: float
    server_s: float

    @property
    def seconds(self) -> float:
        """All batches together."""
        return sum(self.batches)


def rates(best: dict[str, Run], count: int) -> list[Figure]:
    """Tell the rows per second of each query."""
    rate = {name: count / each.seconds for name, each in best.items()}
    text = rate[TEXT]

    def figure(name: str, target: Target, label: str = "") -> Figure:
        return Figure(
            work="spark",
            name=label or name,
            value=rate[name],
            unit="rows/s",
            ratio=rate[name] / text,
            beside="text",
            target=target,
        )

    return [
        plain(TEXT, text, "rows/s"),
        figure(READ, at_least(1_200_000)),
        figure(READ, ratio_at_least(0.6), f"{READ}, beside text"),
        figure(DECODE, at_least(500_000)),
        figure(COPY, at_least(500_000)),
    ]


def small_batches(found: dict[str, list[Run]]) -> list[Figure]:
    """Tell what a small batch takes beside one of nothing."""
    ours, nothing = _batch_ms(found[COPY]), _batch_ms(found[NOTHING])
    return [
        Figure(
            work="spark",
            name="a batch of 100 rows, over one of nothing",
            value=ours - nothing,
            unit="ms",
            target=at_most(60),
        ),
        plain("a batch of 100 rows, source to sink", ours, "ms"),
        plain("a batch of nothing, Python to Python", nothing, "ms"),
    ]


def _batch_ms(runs: Sequence[Run]) -> float:
    """Take the median of the batches; the first of each run are slower."""
    return (
        middle([s for each in runs for s in each.batches[len(each.batches) // _WARM_SHARE :]]) * 1e3
    )


def appends(idle: list[float], reading: list[float], copying: list[float]) -> list[Figure]:
    """Tell how long another client waited for its appends."""
    rest = percentile(idle, 99)
    figures = [plain("another's append, p99, idle", rest * 1e3, "ms")]
    for name, found in ((READ, reading), (COPY, copying)):
        p99 = percentile(found, 99)
        figures.append(
            Figure(
                work="spark",
                name=f"another's append, p99, {name}",
                value=p99 * 1e3,
                unit="ms",
                ratio=p99 / rest if rest else None,
                beside="idle",
            )
        )
    return figures


def processors(best: dict[str, Run], count: int) -> list[Figure]:
    """Tell whose CPU time a row took."""
    figures = []
    for name, each in best.items():
        for who, seconds in (
            ("JVM", each.java_s),
            ("workers", each.python_s),
            ("server", each.server_s),
        ):
            if name != TEXT or who == "JVM":
                figures.append(plain(f"{name}, CPU of {who}", seconds / count * 1e6, "us/row"))
    return figures


def plain(name: str, value: float, unit: str) -> Figure:
    """Make a figure that nothing is asked of."""
    return Figure(work="spark", name=name, value=value, unit=unit)
