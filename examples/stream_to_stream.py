"""Split a stream into two, exactly once: one query, each batch visible in both streams at once.

    python examples/stream_to_stream.py [URL CHECKPOINT]

Without a URL it starts a private server. With a URL, run it twice: the second run adds nothing.
"""

import sys
import tempfile
from pathlib import Path

import semel
from semel.spark import session

ORDERS = [{"id": number, "total": 7 * number} for number in range(1, 101)]


def run(url: str, checkpoint: Path) -> None:
    """Write orders to `large` or `small`, up to the current tail of the stream."""
    spark = session()
    orders = (
        spark.readStream.format("semel")
        .option("url", url)
        .option("stream", "orders")
        .option("maxOffsetsPerTrigger", 40)  # three batches
        .schema("id long, total double")  # the tasks decode the JSON
        .load()
    )
    # The column `stream` routes each row. The option `stream` is not set: it would override it.
    routed = orders.selectExpr("id", "total", "if(total > 350, 'large', 'small') AS stream")
    query = (
        routed.writeStream.format("semel")
        .option("url", url)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)  # without this line it runs until it is stopped
        .start()
    )
    query.awaitTermination()


def crash(checkpoint: Path) -> None:
    """Change the checkpoint as if the driver was killed right after it wrote the last batch.

    Spark has not stored that the batch is done, and writes it again.
    """
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def show(url: str, checkpoint: Path) -> None:
    """Run the query, simulate a crash, and run it again."""
    with semel.Client(url) as client:
        client.stream("orders").create("application/json", exist_ok=True)
        # Stored once, no matter how often this program runs: a commit has a producer and a number.
        client.commit(producer_id="example", seq=0, appends={"orders": ORDERS})
        run(url, checkpoint)
        crash(checkpoint)
        run(url, checkpoint)
        large, small = (list(client.stream(name).read()) for name in ("large", "small"))
    ids = sorted(message.value["id"] for message in [*large, *small])
    assert ids == [order["id"] for order in ORDERS]
    print(f"{len(ORDERS)} orders in; {len(large)} large and {len(small)} small ones out, each once")


def main() -> None:
    """Use the server that the arguments name, or start a private one."""
    if sys.argv[1:]:
        show(sys.argv[1], Path(sys.argv[2]))
        return
    with semel.local() as server, tempfile.TemporaryDirectory() as directory:
        show(server.url, Path(directory))


if __name__ == "__main__":
    main()
