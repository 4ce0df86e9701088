"""A sink to PostgreSQL, exactly once: for functions `(df, delivery)` on Spark.

Every task copies its rows into a staging table, under the hash of the step, its partition and its
attempt. Then the driver stores the hash and moves the rows of the attempts that count, in one
transaction. A step whose hash is there for this table was stored before, and is left alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import psycopg
import pyarrow as pa
from msgspec import Struct
from psycopg import Connection, sql
from pyspark import TaskContext
from pyspark.sql import DataFrame

from semel.client.transport import random_id
from semel.pipeline.delivery import Delivery
from semel.pipeline.spark.tasks import job_failed
from semel.spark.sink.rows import json_texts

_DELIVERIES_SQL: Final = """
CREATE TABLE IF NOT EXISTS semel_deliveries (
    hash text,
    table_name text,
    processor text NOT NULL,
    number bigint NOT NULL,
    stored_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (hash, table_name)
)
"""
# None of the table's rules holds there: only what is moved must keep them.
_STAGING_SQL: Final = """
CREATE TABLE IF NOT EXISTS {staging} AS
SELECT ''::text AS _hash, 0::int AS _part, ''::text AS _attempt, 0::bigint AS _row, *
FROM {table} WITH NO DATA
"""
# What the table has got since: column and type.
_MISSING_SQL: Final = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = {table_text}::regclass AND attnum > 0 AND NOT attisdropped AND attname NOT IN
(SELECT attname FROM pg_attribute WHERE attrelid = {staging_text}::regclass AND NOT attisdropped)
"""
_ADD_SQL: Final = "ALTER TABLE {staging} ADD COLUMN {column} {type}"
_LOCK_SQL: Final = "SELECT pg_advisory_xact_lock(hashtext('semel_deliveries'))"
_COPY_SQL: Final = "COPY {staging} (_hash, _part, _attempt, _row, {columns}) FROM STDIN"
_TAKE_SQL: Final = """
INSERT INTO semel_deliveries (hash, table_name, processor, number) VALUES (%s, %s, %s, %s)
ON CONFLICT DO NOTHING
"""
# Values stand in these as literals: in a statement with parameters a name could have no %.
_MOVE_SQL: Final = """
INSERT INTO {table} ({columns}) SELECT {columns} FROM {staging}
WHERE _hash = {hash} AND _attempt = ANY({attempts}) ORDER BY _part, _row
"""
_CLEAR_SQL: Final = "DELETE FROM {staging} WHERE _hash = {hash}"
_COPIED: Final = pa.schema([("attempt", pa.string()), ("rows", pa.int64())])
_COPIED_DDL: Final = "attempt string, rows long"


def write(frame: DataFrame, delivery: Delivery, *, to: str, table: str) -> bool:
    """Append the rows of a step to a table, by the names of their columns; False if they are there.

    `to` is a connection string of libpq, which Spark's workers use, too. The table must exist;
    `semel_deliveries` and `<table>_staging` are made beside it. A sink may write to several tables,
    to each of them once in a step.
    """
    place = _Place(table, frame.columns)
    with psycopg.connect(to) as connection:
        _prepare(connection, place)
        if _is_stored(connection, place, delivery):
            return False
        statement = place.filled(_COPY_SQL).as_string(connection)
    try:
        task = _Copy(to, statement, delivery.hash)
        copied = frame.mapInArrow(task, _COPIED_DDL).collect()
    except Exception as error:
        raise job_failed(error) from error
    attempts = [row.attempt for row in copied]
    with psycopg.connect(to) as connection:  # one transaction
        return _move(connection, place, delivery, attempts, sum(row.rows for row in copied))


class _Place:
    """A table, what stands beside it, and the columns that are written."""

    def __init__(self, table: str, columns: Sequence[str]) -> None:
        *schema, name = table.split(".")
        self.table = table
        self.names = sql.Identifier(*schema, name), sql.Identifier(*schema, f"{name}_staging")
        self._parts = {
            "table": self.names[0],
            "staging": self.names[1],
            "columns": sql.SQL(", ").join(map(sql.Identifier, columns)),
        }

    def filled(self, statement: str, **more: sql.Composable) -> sql.Composed:
        """Put the names, and what else is given, into a statement."""
        return sql.SQL(statement).format(**self._parts, **more)


def _prepare(connection: Connection[Any], place: _Place) -> None:
    with connection.transaction():
        connection.execute(_LOCK_SQL)  # of two that make a table at once one would fail
        connection.execute(_DELIVERIES_SQL)
        connection.execute(place.filled(_STAGING_SQL))
        table, staging = (sql.Literal(name.as_string(connection)) for name in place.names)
        asked = place.filled(_MISSING_SQL, table_text=table, staging_text=staging)
        for name, kind in connection.execute(asked).fetchall():
            column = sql.Identifier(name)
            connection.execute(place.filled(_ADD_SQL, column=column, type=sql.SQL(kind)))


def _is_stored(connection: Connection[Any], place: _Place, delivery: Delivery) -> bool:
    asked = "SELECT 1 FROM semel_deliveries WHERE hash = %s AND table_name = %s"
    return connection.execute(asked, [delivery.hash, place.table]).fetchone() is not None


def _move(
    connection: Connection[Any],
    place: _Place,
    delivery: Delivery,
    attempts: Sequence[str],
    count: int,
) -> bool:
    """Store the hash and the rows together; of two drivers the second finds the hash."""
    processor = f"{delivery.graph}/{delivery.processor}"
    named = [delivery.hash, place.table, processor, delivery.number]
    hash = sql.Literal(delivery.hash)
    taken = connection.execute(_TAKE_SQL, named)
    is_new = taken.rowcount == 1
    if is_new:
        listed = sql.Literal(list(attempts))
        moved = connection.execute(place.filled(_MOVE_SQL, hash=hash, attempts=listed))
        if moved.rowcount != count:
            raise RuntimeError(
                f"{moved.rowcount} of {count} rows are in the staging table: somebody has deleted"
                " some; nothing was stored, start again"
            )
    connection.execute(place.filled(_CLEAR_SQL, hash=hash))
    return is_new


class _Copy(Struct, frozen=True):
    """Copies the rows of one attempt of a task; one row comes out, with the attempt's name."""

    to: str
    statement: str
    hash: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        # A name of its own: Spark counts attempts anew after a restart of the driver.
        attempt, count = random_id(), 0
        with (
            psycopg.connect(self.to) as connection,
            connection.cursor() as cursor,
            cursor.copy(self.statement) as copy,
        ):
            for row in _rows(batches):
                copy.write_row((self.hash, context.partitionId(), attempt, count, *row))
                count += 1
        yield pa.record_batch([[attempt], [count]], schema=_COPIED)


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zip(*map(_values, batch.columns), strict=True)


def _values(column: pa.Array) -> list[Any]:
    """Give what PostgreSQL takes; objects as JSON."""
    if pa.types.is_struct(column.type) or pa.types.is_map(column.type):
        texts = json_texts(column).to_pylist()
        return [
            text if there else None for text, there in zip(texts, column.is_valid(), strict=True)
        ]
    return list(column.to_pylist())
