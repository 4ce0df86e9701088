"""Runs the blocks of the pages that use Spark, in the session of the tests to save JVM starts.

`session()` in a block returns this session. Settings that a block changes are restored.
"""

import io
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from semel.client.local import LocalServer
from tests.docs.test_docs import ALL, Example, name_of, uses_spark

EXAMPLES: Final = [one for one in ALL if uses_spark(one)]
# The settings that blocks may change.
SETTINGS: Final = ("spark.sql.shuffle.partitions", "spark.sql.session.timeZone")


@pytest.fixture
def kept(spark: SparkSession) -> Iterator[SparkSession]:
    before = {name: spark.conf.get(name) for name in SETTINGS}
    yield spark
    for name, value in before.items():
        spark.conf.set(name, str(value))


@pytest.mark.parametrize(
    "example", EXAMPLES, ids=lambda one: f"{name_of(one.page)}:{one.fence.line}"
)
def test_every_block_that_uses_spark_runs(
    example: Example, kept: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, body in example.modules.items():
        (tmp_path / name).write_text(body, encoding="utf-8")
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    said = io.StringIO()
    names: dict[str, Any] = {"__name__": "__main__"}
    with redirect_stdout(said):
        exec(compile(example.fence.body, name_of(example.page), "exec"), names)
    if example.expected is not None:
        assert said.getvalue() == example.expected
    for query in kept.streams.active:
        query.stop()
    for value in names.values():  # notebook cells leave their server running
        if isinstance(value, LocalServer):
            value.stop()


def test_there_are_such_blocks() -> None:
    assert EXAMPLES
