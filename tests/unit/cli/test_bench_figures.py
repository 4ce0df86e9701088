"""The figures of the benchmarks, and what a benchmark may load."""

import subprocess
import sys

import pytest

from semel.cli.benchmarks.figures import Figure, Target, at_least, at_most


def figure(value: float, target: Target | None) -> Figure:
    return Figure(work="a", name="b", value=value, unit="ms", target=target)


@pytest.mark.parametrize(
    ("value", "target", "is_met"),
    [
        (60, at_most(60), True),
        (61, at_most(60), False),
        (-3, at_most(60), True),
        (2, at_least(2), True),
        (0, at_least(2), False),
        (1, None, None),
    ],
)
def test_a_figure_meets_its_target_or_not(
    value: float, target: Target | None, is_met: bool | None
) -> None:
    assert figure(value, target).is_met is is_met


def test_the_benchmark_of_spark_is_found_without_loading_spark() -> None:
    script = (
        "import sys, semel.cli.bench, semel.cli.benchmarks.spark;"
        "print([name for name in sys.modules if name.startswith(('pyspark', 'pyarrow'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
