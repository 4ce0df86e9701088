"""From stream to streams, exactly once: one query, two streams, each batch at once in both.

    python examples/stream_to_stream.py [URL CHECKPOINT]

Without a URL it starts a server of its own. With one, run it twice: the second run adds nothing.
"""

import sys
import tempfile
from pathlib import Path

import semel
from semel.spark import session

ORDERS = [{"id": number, "total": 7 * number} for number in range(1, 101)]


def run(url: str, checkpoint: Path) -> None:
    """Write orders to `large` or `small`, up to the end of the stream as it is now."""
    spark = session()
    orders = (
        spark.readStream.format("semel")
        .option("url", url)
        .option("stream", "orders")
        .option("maxOffsetsPerTrigger", 40)  # three batches
        .schema("id long, total double")  # decoded from JSON where it is read
        .load()
    )
    # The column `stream` says where a row goes. There is no option `stream`, which would win.
    routed = orders.selectExpr("id", "total", "if(total > 350, 'large', 'small') AS stream")
    query = (
        routed.writeStream.format("semel")
        .option("url", url)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)  # drop this line to run for ever
        .start()
    )
    query.awaitTermination()


def crash(checkpoint: Path) -> None:
    """Leave the checkpoint as a driver does that is killed right after the last batch is written.

    Spark has not noted that the batch is done, and will write it again.
    """
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def show(url: str, checkpoint: Path) -> None:
    """Run, crash, and run again."""
    with semel.Client(url) as client:
        client.stream("orders").create("application/json", exist_ok=True)
        # Stored once, however often this program is run: a commit has a producer and a number.
        client.commit(producer_id="example", seq=0, appends={"orders": ORDERS})
        run(url, checkpoint)
        crash(checkpoint)
        run(url, checkpoint)
        large, small = (list(client.stream(name).read()) for name in ("large", "small"))
    ids = sorted(message.value["id"] for message in [*large, *small])
    assert ids == [order["id"] for order in ORDERS]
    print(f"{len(ORDERS)} orders in; {len(large)} large and {len(small)} small ones out, each once")


def main() -> None:
    """Take the server that is named, or one of our own."""
    if sys.argv[1:]:
        show(sys.argv[1], Path(sys.argv[2]))
        return
    with semel.local() as server, tempfile.TemporaryDirectory() as place:
        show(server.url, Path(place))


if __name__ == "__main__":
    main()
