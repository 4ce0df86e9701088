"""From a stream to a Delta Lake table, exactly once.

    python examples/to_delta.py [URL CHECKPOINT TABLE]

Delta keeps the last version of every application in its log, in the same commit as the rows. The
batch's number is the version. `pip install 'semel[delta]'` brings what writes here; the rows pass
through the driver, so for large batches use Spark's own Delta connector, whose options txnAppId and
txnVersion do the same.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import DataFrame

import semel
from semel.spark import session

ORDERS = [{"id": number, "total": 7.5 * number} for number in range(1, 101)]


def run(url: str, checkpoint: Path, table: Path) -> None:
    """Add the orders to the table, up to the end of the stream as it is now."""

    def write(batch: DataFrame, batch_id: int) -> None:
        # The query's id is kept in its checkpoint. A name of one's own would outlive a checkpoint:
        # a new one begins at batch 0 again, and its rows would be taken for written.
        app = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert app is not None
        if DeltaTable.is_deltatable(str(table)):
            done = DeltaTable(table).transaction_version(app)
            if done is not None and batch_id <= done:
                return print(f"batch {batch_id} is in the table already")
        properties = CommitProperties(app_transactions=[Transaction(app, batch_id)])
        write_deltalake(table, batch.toArrow(), mode="append", commit_properties=properties)

    spark = session()
    orders = spark.readStream.format("semel").options(url=url, stream="orders")
    writer = orders.schema("id long, total double").load().writeStream.foreachBatch(write)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def show(url: str, checkpoint: Path, table: Path) -> None:
    """Run, crash, and run again."""
    with semel.Client(url) as client:
        client.stream("orders").create("application/json", exist_ok=True)
        # Stored once, however often this program is run.
        client.commit(producer_id="example", seq=0, appends={"orders": ORDERS})
    run(url, checkpoint, table)
    # As after a kill right after the batch was written: Spark does not know that it is done.
    shutil.rmtree(checkpoint / "commits")
    run(url, checkpoint, table)
    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    assert sorted(rows, key=lambda row: row["id"]) == ORDERS
    print(f"{len(ORDERS)} orders in, {len(rows)} rows in the table")


def main() -> None:
    """Take the server that is named, or one of our own."""
    if sys.argv[1:]:
        show(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
        return
    with semel.local() as server, tempfile.TemporaryDirectory() as place:
        show(server.url, Path(place, "checkpoint"), Path(place, "table"))


if __name__ == "__main__":
    main()
