"""The Delta Lake sink alone, with a real table and a frame that needs no JVM."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from semel.pipeline import Delivery, delta
from semel.pipeline.values import EngineFailed, delivery_hash


class Frame:
    """The part of a DataFrame that the sink uses."""

    def __init__(self, *numbers: int) -> None:
        self._numbers = numbers

    def toArrow(self) -> pa.Table:
        return pa.table({"n": list(self._numbers)})


def write(table: Path, number: int, graph: str, *numbers: int) -> bool:
    told = Delivery("g", "p", number, (), delivery_hash(graph, "p", number, ()))
    frame: Any = Frame(*numbers)
    return delta.write(frame, told, table=str(table))


def stored(table: Path) -> list[int]:
    return sorted(DeltaTable(str(table)).to_pyarrow_table()["n"].to_pylist())


def test_the_last_step_is_stored_once(tmp_path: Path) -> None:
    table = tmp_path / "t"
    assert [write(table, 1, "g", 1), write(table, 1, "g", 1)] == [True, False]
    assert [write(table, 2, "g", 2), write(table, 2, "g", 2)] == [True, False]
    assert stored(table) == [1, 2]


@pytest.mark.parametrize("number", [1, 2])
def test_steps_that_are_counted_anew_are_not_taken_for_old_ones(
    tmp_path: Path, number: int
) -> None:
    table = tmp_path / "t"
    write(table, 1, "g", 1)
    write(table, 2, "g", 2)
    with pytest.raises(EngineFailed, match="cannot accept step"):
        write(table, number, "another history", 3)
    assert stored(table) == [1, 2]
