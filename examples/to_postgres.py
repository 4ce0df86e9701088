"""From a stream to PostgreSQL, exactly once.

    PGHOST=localhost PGUSER=me PGDATABASE=shop python examples/to_postgres.py [URL CHECKPOINT]

The batch's number is stored in the same transaction as its rows, and a batch that is there already
is left alone. `pip install 'semel[postgres]'` brings the driver; it reads the variables of libpq.
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
# Takes the batch, and with it a lock on the query's row until the transaction ends: of two drivers
# that come at once the second waits, and then sees that there is nothing to do.
TAKE = """INSERT INTO batches VALUES (%s, %s) ON CONFLICT (query)
DO UPDATE SET batch = excluded.batch WHERE batches.batch < excluded.batch"""


def write(batch: DataFrame, batch_id: int) -> None:
    """Store a batch, unless it is there. The rows pass through the driver."""
    # Kept in the checkpoint. A name of one's own would outlive it: a new checkpoint begins at
    # batch 0 again, and its rows would be taken for written.
    query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    with psycopg.connect() as connection, connection.cursor() as cursor:  # one transaction
        if not cursor.execute(TAKE, (query, batch_id)).rowcount:
            return print(f"batch {batch_id} is stored already")
        with cursor.copy("COPY orders (id, total) FROM STDIN") as copy:
            for row in batch.toLocalIterator():
                copy.write_row((row.id, row.total))


def run(url: str, checkpoint: Path) -> None:
    """Store the orders, up to the end of the stream as it is now."""
    spark = session()
    orders = spark.readStream.format("semel").options(url=url, stream="orders")
    writer = orders.schema("id long, total double").load().writeStream.foreachBatch(write)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def show(url: str, checkpoint: Path) -> None:
    """Run, crash, and run again."""
    with semel.Client(url) as client:
        client.stream("orders").create("application/json", exist_ok=True)
        # Stored once, however often this program is run.
        client.commit(producer_id="example", seq=0, appends={"orders": ORDERS})
    with psycopg.connect(autocommit=True) as connection:
        connection.execute(TABLES)
        run(url, checkpoint)
        # As after a kill right after the batch was stored: Spark does not know that it is done.
        shutil.rmtree(checkpoint / "commits")
        run(url, checkpoint)
        rows = connection.execute("SELECT count(*), count(DISTINCT id) FROM orders").fetchone()
    assert rows == (len(ORDERS), len(ORDERS))
    print(f"{len(ORDERS)} orders in, {rows[0]} rows in the table")


def main() -> None:
    """Take the server that is named, or one of our own."""
    if sys.argv[1:]:
        show(sys.argv[1], Path(sys.argv[2]))
        return
    with semel.local() as server, tempfile.TemporaryDirectory() as place:
        show(server.url, Path(place))


if __name__ == "__main__":
    main()
