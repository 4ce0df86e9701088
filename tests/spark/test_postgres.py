"""The PostgreSQL sink alone, with a real database and a frame that needs no JVM."""

from collections.abc import Callable, Iterator
from typing import Any, Self
from uuid import uuid4

import psycopg
import pyarrow as pa
import pytest

from semel.pipeline import Delivery, postgres


class Frame:
    """The part of a DataFrame that the sink uses, with one partition and one attempt."""

    def __init__(self, **columns: list[Any]) -> None:
        self.columns = list(columns)
        self._batch = pa.RecordBatch.from_pydict(columns)
        self._rows: list[Any] = []

    def mapInArrow(self, task: Callable[..., Any], schema: str) -> Self:
        del schema
        self._rows = [Row(*row.values()) for one in task([self._batch]) for row in one.to_pylist()]
        return self

    def collect(self) -> list[Any]:
        return self._rows


class Row:
    """A row that a task returned."""

    def __init__(self, attempt: str, rows: int) -> None:
        self.attempt = attempt
        self.rows = rows


class Context:
    """The context of a task, without a task."""

    @classmethod
    def get(cls) -> Self:
        return cls()

    def partitionId(self) -> int:
        return 0


@pytest.fixture
def connection(
    database: str | None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[psycopg.Connection[Any]]:
    if database is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    monkeypatch.setattr(postgres, "TaskContext", Context)
    with psycopg.connect(database, autocommit=True) as found:
        yield found


def delivery() -> Delivery:
    return Delivery("g", "p", 1, (), uuid4().hex)


def write(frame: Frame, told: Delivery, to: str | None, table: str) -> bool:
    assert to is not None
    given: Any = frame
    return postgres.write(given, told, to=to, table=table)


def test_a_sink_may_write_to_several_tables(
    connection: psycopg.Connection[Any], database: str | None
) -> None:
    connection.execute("CREATE TABLE heads (n int); CREATE TABLE lines (n int)")
    told = delivery()
    for is_new in (True, False):
        for table, numbers in (("heads", [1]), ("lines", [2, 3])):
            assert write(Frame(n=numbers), told, database, table) is is_new
    assert connection.execute("SELECT n FROM heads").fetchall() == [(1,)]
    assert connection.execute("SELECT n FROM lines").fetchall() == [(2,), (3,)]


def test_columns_may_have_any_name(
    connection: psycopg.Connection[Any], database: str | None
) -> None:
    connection.execute('CREATE TABLE odd (n int, "100%s; --" int, "a""b" int)')
    told = delivery()
    frame = Frame(**{"n": [1], "100%s; --": [2], 'a"b': [3]})
    assert write(frame, told, database, "odd")
    assert connection.execute("SELECT * FROM odd").fetchall() == [(1, 2, 3)]


def test_a_table_may_get_another_column(
    connection: psycopg.Connection[Any], database: str | None
) -> None:
    connection.execute("CREATE TABLE grown (n int)")
    assert write(Frame(n=[1]), delivery(), database, "grown")
    connection.execute("ALTER TABLE grown ADD COLUMN tags text[]")
    assert write(Frame(n=[2], tags=[["x"]]), delivery(), database, "grown")
    assert connection.execute("SELECT * FROM grown").fetchall() == [(1, None), (2, ["x"])]
