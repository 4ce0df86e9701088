"""Compute a running total for each customer with transformWithState, exactly once.

    python examples/stateful.py [URL CHECKPOINT]

Spark stores the state by batch. A batch that runs again starts from the state before it.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import semel
from semel.spark import session

ORDERS = [{"customer": "ab"[number % 2], "total": number} for number in range(10)]
STATES = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Total(StatefulProcessor):
    """Adds up the orders of one customer and returns the total after each order."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self.total = handle.getValueState("total", "value long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timer: Any) -> Iterator[Row]:
        """Process the customer's orders of a batch. They arrive unsorted, so sort them."""
        state = self.total.get()
        total = state[0] if state else 0
        for row in sorted(rows, key=lambda row: row._offset):
            total += row.total
            yield Row(customer=key[0], order=row._offset, total=total)
        self.total.update((total,))


def run(url: str, checkpoint: Path) -> None:
    """Write the totals, up to the current tail of the stream."""
    spark = session(**{"spark.sql.streaming.stateStore.providerClass": STATES})
    orders = spark.readStream.format("semel").options(url=url, stream="orders")
    totals = (
        orders.schema("customer string, total long, _offset long")
        .load()
        .groupBy("customer")
        .transformWithState(Total(), "customer string, order long, total long", "Append", "None")
    )
    writer = totals.writeStream.format("semel").options(url=url, stream="totals")
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def show(url: str, checkpoint: Path) -> None:
    """Run the query, then continue it with new orders."""
    with semel.Client(url) as client:
        client.stream("orders").create("application/json", exist_ok=True)
        for seq, orders in enumerate((ORDERS, [{"customer": "a", "total": 100}])):
            client.commit(producer_id="example", seq=seq, appends={"orders": orders})
            run(url, checkpoint)
        totals = [message.value for message in client.stream("totals").read()]
    assert sorted(total["order"] for total in totals) == list(range(11))
    last = {total["customer"]: total["total"] for total in totals}
    print(f"{len(totals)} orders, a: {last['a']}, b: {last['b']}")


def main() -> None:
    """Use the server that the arguments name, or start a private one."""
    if sys.argv[1:]:
        show(sys.argv[1], Path(sys.argv[2]))
        return
    with semel.local() as server, tempfile.TemporaryDirectory() as directory:
        show(server.url, Path(directory))


if __name__ == "__main__":
    main()
