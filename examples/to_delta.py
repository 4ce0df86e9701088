"""Copy a stream to a Delta Lake table, exactly once.

    python examples/to_delta.py [URL CHECKPOINT TABLE]

Delta stores the last version of every application in its log, in the same commit as the rows. The
number of the batch is the version. In a checkout, `pip install '.[delta]'` installs the package
that writes the table. The rows pass through the driver: for large batches use Spark's own Delta
connector, whose options txnAppId and txnVersion do the same.
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
    """Add the orders to the table, up to the current tail of the stream."""

    def write(batch: DataFrame, batch_id: int) -> None:
        # The query's id is stored in its checkpoint, so a new checkpoint has a new id. With a
        # fixed name its batch 0 would look as if it was already written.
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
    """Run the query, simulate a crash, and run it again."""
    with semel.Client(url) as client:
        client.stream("orders").create("application/json", exist_ok=True)
        # Stored once, no matter how often this program runs.
        client.commit(producer_id="example", seq=0, appends={"orders": ORDERS})
    run(url, checkpoint, table)
    # As after a kill right after the batch was written: Spark has not stored that it is done.
    shutil.rmtree(checkpoint / "commits")
    run(url, checkpoint, table)
    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    assert sorted(rows, key=lambda row: row["id"]) == ORDERS
    print(f"{len(ORDERS)} orders in, {len(rows)} rows in the table")


def main() -> None:
    """Use the server that the arguments name, or start a private one."""
    if sys.argv[1:]:
        show(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
        return
    with semel.local() as server, tempfile.TemporaryDirectory() as directory:
        show(server.url, Path(directory, "checkpoint"), Path(directory, "table"))


if __name__ == "__main__":
    main()
