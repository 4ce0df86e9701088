"""Write a bill for each order, exactly once, with a worker that is woken by the server.

    semel serve --data data &
    python examples/worker.py http://127.0.0.1:4437 &
    semel create orders/eu --content-type application/json
    semel append orders/eu '{"id": 1, "pieces": 3, "price": 7}'
    semel read bills

Start it several times and kill -9 it at any time: each order still has one bill. One of the workers
has the work, and another one takes over when it is gone.
"""

import signal
import sys

import semel


def main(url: str) -> None:
    """Work until SIGTERM or Ctrl-C."""
    with semel.Client(url) as client:
        for path in ("wakes", "bills"):
            client.stream(path).create("application/json", exist_ok=True)
        client.subscriptions.create(
            "billing", pattern="orders/*", wake_stream="wakes", lease=5, exist_ok=True
        )

        @client.subscriptions.worker("billing")
        def bill(batch: semel.WakeBatch) -> dict[str, list[object]]:
            orders = [message.value for message in batch]
            return {
                "bills": [{"order": o["id"], "total": o["pieces"] * o["price"]} for o in orders]
            }

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: bill.stop())
        print("waiting for orders", flush=True)
        print(f"{bill.run()} orders", flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:4437")
