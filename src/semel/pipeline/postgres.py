"""Exactly-once writes to PostgreSQL, for sink functions `(df, delivery)` on Spark.

Every Spark task copies its rows into a staging table. Then the driver runs one transaction. The
transaction stores the step's hash, and moves the rows of successful task attempts to the target
table. If the hash is already stored for this table, no row is moved.
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
from semel.pipeline.spark.tasks import job_failed
from semel.pipeline.values import Delivery
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
# The staging table has no constraints. Rows must satisfy the constraints of the target table only
# when they are moved there.
_STAGING_SQL: Final = """
CREATE TABLE IF NOT EXISTS {staging} AS
SELECT ''::text AS _hash, 0::int AS _part, ''::text AS _attempt, 0::bigint AS _row, *
FROM {table} WITH NO DATA
"""
# Selects the name and type of each column that the target table has and the staging table does not
# have. Such a column was added to the target table after the staging table was created.
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
# The values are inserted as literals, not as parameters. In a statement with parameters, psycopg
# would not allow a % in the name of a table or a column.
_MOVE_SQL: Final = """
INSERT INTO {table} ({columns}) SELECT {columns} FROM {staging}
WHERE _hash = {hash} AND _attempt = ANY({attempts}) ORDER BY _part, _row
"""
_CLEAR_SQL: Final = "DELETE FROM {staging} WHERE _hash = {hash}"
_COPIED: Final = pa.schema([("attempt", pa.string()), ("rows", pa.int64())])
_COPIED_DDL: Final = "attempt string, rows long"


def write(frame: DataFrame, delivery: Delivery, *, to: str, table: str) -> bool:
    """Append the rows of a step to a table. Return False if the step was already written.

    `to` is a libpq connection string, which Spark's workers use too. The table must exist and have
    the columns of `frame`. Tables `semel_deliveries` and `<table>_staging` are created if missing.

    A sink can write to several tables, but only once to each table in each step.
    """
    tables = _Tables(table, frame.columns)
    with psycopg.connect(to) as connection:
        _prepare(connection, tables)
        if _is_stored(connection, tables, delivery):
            return False
        statement = tables.format(_COPY_SQL).as_string(connection)
    try:
        task = _Copy(to, statement, delivery.hash)
        copied = frame.mapInArrow(task, _COPIED_DDL).collect()
    except Exception as error:
        raise job_failed(error) from error
    attempts = [row.attempt for row in copied]
    with psycopg.connect(to) as connection:  # the block is one transaction
        return _move(connection, tables, delivery, attempts, sum(row.rows for row in copied))


class _Tables:
    """The names of the target table, the staging table, and the columns that are written."""

    def __init__(self, table: str, columns: Sequence[str]) -> None:
        *schema, name = table.split(".")
        self.table = table
        self.names = sql.Identifier(*schema, name), sql.Identifier(*schema, f"{name}_staging")
        self._parts = {
            "table": self.names[0],
            "staging": self.names[1],
            "columns": sql.SQL(", ").join(map(sql.Identifier, columns)),
        }

    def format(self, statement: str, **more: sql.Composable) -> sql.Composed:
        return sql.SQL(statement).format(**self._parts, **more)


def _prepare(connection: Connection[Any], tables: _Tables) -> None:
    with connection.transaction():
        # Without a lock, a driver could fail if another driver creates the same table at the same
        # time.
        connection.execute(_LOCK_SQL)
        connection.execute(_DELIVERIES_SQL)
        connection.execute(tables.format(_STAGING_SQL))
        table, staging = (sql.Literal(name.as_string(connection)) for name in tables.names)
        query = tables.format(_MISSING_SQL, table_text=table, staging_text=staging)
        for name, kind in connection.execute(query).fetchall():
            column = sql.Identifier(name)
            connection.execute(tables.format(_ADD_SQL, column=column, type=sql.SQL(kind)))


def _is_stored(connection: Connection[Any], tables: _Tables, delivery: Delivery) -> bool:
    query = "SELECT 1 FROM semel_deliveries WHERE hash = %s AND table_name = %s"
    return connection.execute(query, [delivery.hash, tables.table]).fetchone() is not None


def _move(
    connection: Connection[Any],
    tables: _Tables,
    delivery: Delivery,
    attempts: Sequence[str],
    count: int,
) -> bool:
    """Store the hash, move the step's rows to the target table, and return True.

    If the hash was already stored, another driver has moved the rows. In this case, return False.
    In both cases, delete the step's rows from the staging table.

    Raises RuntimeError if rows are missing. The error rolls back the caller's transaction.
    """
    processor = f"{delivery.graph}/{delivery.processor}"
    identity = [delivery.hash, tables.table, processor, delivery.number]
    hash = sql.Literal(delivery.hash)
    is_new = connection.execute(_TAKE_SQL, identity).rowcount == 1
    if is_new:
        listed = sql.Literal(list(attempts))
        moved = connection.execute(tables.format(_MOVE_SQL, hash=hash, attempts=listed))
        if moved.rowcount != count:
            raise RuntimeError(
                f"the staging table has only {moved.rowcount} of {count} rows, because some were"
                " deleted. The target table is unchanged; run the step again"
            )
    connection.execute(tables.format(_CLEAR_SQL, hash=hash))
    return is_new


class _Copy(Struct, frozen=True):
    """A Spark task that copies its rows into the staging table.

    The task yields one row with the random id of this attempt and the number of copied rows.
    """

    to: str
    statement: str
    hash: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        # The id is random, because Spark's own attempt numbers start at 0 again when the driver
        # restarts.
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
    """Return the values of a column for psycopg. Structs and maps are converted to JSON."""
    if pa.types.is_struct(column.type) or pa.types.is_map(column.type):
        texts = zip(json_texts(column).to_pylist(), column.is_valid(), strict=True)
        return [text if is_valid else None for text, is_valid in texts]
    return list(column.to_pylist())
