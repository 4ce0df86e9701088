"""Write a bill for each order that a webhook brings, exactly once, in a FastAPI application.

    pip install '.[webhooks]' fastapi uvicorn   # in a checkout

    semel serve --data data &
    uvicorn examples.webhook:app --port 8000 &
    semel subscriptions create billing --pattern 'orders/*' \
        --webhook http://127.0.0.1:8000/hooks/billing/
    curl -d '{"id": 1, "pieces": 3, "price": 7}' -H 'Content-Type: application/json' \
        http://127.0.0.1:8000/orders/eu
    curl http://127.0.0.1:8000/bills

Kill -9 the application or the server at any time: each order still has one bill. SEMEL_URL is the
address of the server.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

import semel
from semel.webhooks import WebhookReceiver

client = semel.AsyncClient(os.environ.get("SEMEL_URL", "http://127.0.0.1:4437"))


def bill(batch: semel.WakeBatch) -> dict[str, list[object]]:
    """Return the bills for orders. They are stored together with what was processed."""
    orders = [message.value for message in batch]
    return {"bills": [{"order": o["id"], "total": o["pieces"] * o["price"]} for o in orders]}


receiver = WebhookReceiver(client, bill, subscriptions=["billing"])


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Create the output stream; at the end, wait until the orders in progress have their bills."""
    async with client:
        await client.stream("bills").create("application/json", exist_ok=True)
        yield
        await receiver.close()


app = FastAPI(lifespan=lifespan)
app.mount("/hooks/billing", receiver)  # the URL of the webhook ends with a slash


@app.post("/orders/{shop}")
async def order(shop: str, content: dict[str, Any]) -> str:
    """Store an order. It is stored durably when the response comes."""
    orders = client.stream(f"orders/{shop}")
    await orders.create("application/json", exist_ok=True)
    return (await orders.append(content)).next_offset or ""


@app.get("/bills")
async def bills() -> list[Any]:
    """Return all bills."""
    return [message.value async for message in client.stream("bills").read()]
