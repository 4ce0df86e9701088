"""Copy a stream to PostgreSQL, exactly once.

    PGHOST=localhost PGUSER=me PGDATABASE=shop python examples/to_postgres.py [URL CHECKPOINT]

The number of a batch is stored in the same transaction as its rows, and a batch that is already
stored is skipped. In a checkout, `pip install '.[postgres]'` installs the database driver, which
reads the variables of libpq.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import psycopg
from pyspark.sql import DataFrame

import semel
from semel.spark import session

ORDERS = [{"id": number, "total": 7.5 * number} for number in range(1, 101)]
TABLES = """CREATE TABLE IF NOT EXISTS orders (id bigint, total double precision);
CREATE TABLE IF NOT EXISTS batches (query text PRIMARY KEY, batch bigint NOT NULL)"""
# Stores the number of the batch, and locks the query's row until the transaction ends: if two
# drivers run this at once, the second one waits, and then finds that there is nothing to do.
TAKE = """INSERT INTO batches VALUES (%s, %s) ON CONFLICT (query)
DO UPDATE SET batch = excluded.batch WHERE batches.batch < excluded.batch"""


def write(batch: DataFrame, batch_id: int) -> None:
    """Store a batch, unless it is already stored. The rows pass through the driver."""
    # The query's id is stored in its checkpoint, so a new checkpoint has a new id. With a fixed
    # name its batch 0 would look as if it was already stored.
    query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    with psycopg.connect() as connection, connection.cursor() as cursor:  # one transaction
        if not cursor.execute(TAKE, (query, batch_id)).rowcount:
            return print(f"batch {batch_id} is stored already")
        with cursor.copy("COPY orders (id, total) FROM STDIN") as copy:
            for row in batch.toLocalIterator():
                copy.write_row((row.id, row.total))


def run(url: str, checkpoint: Path) -> None:
    """Store the orders, up to the current tail of the stream."""
    spark = session()
    orders = spark.readStream.format("semel").options(url=url, stream="orders")
    writer = orders.schema("id long, total double").load().writeStream.foreachBatch(write)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def show(url: str, checkpoint: Path) -> None:
    """Run the query, simulate a crash, and run it again."""
    with semel.Client(url) as client:
        client.stream("orders").create("application/json", exist_ok=True)
        # Stored once, no matter how often this program runs.
        client.commit(producer_id="example", seq=0, appends={"orders": ORDERS})
    with psycopg.connect(autocommit=True) as connection:
        connection.execute(TABLES)
        run(url, checkpoint)
        # As after a kill right after the batch was stored: Spark has not stored that it is done.
        shutil.rmtree(checkpoint / "commits")
        run(url, checkpoint)
        rows = connection.execute("SELECT count(*), count(DISTINCT id) FROM orders").fetchone()
    assert rows == (len(ORDERS), len(ORDERS))
    print(f"{len(ORDERS)} orders in, {rows[0]} rows in the table")


def main() -> None:
    """Use the server that the arguments name, or start a private one."""
    if sys.argv[1:]:
        show(sys.argv[1], Path(sys.argv[2]))
        return
    with semel.local() as server, tempfile.TemporaryDirectory() as directory:
        show(server.url, Path(directory))


if __name__ == "__main__":
    main()
