"""Workers and receivers that use what the client has for them."""

import asyncio
import logging
import threading
from typing import Any, Final

import uvicorn

from semel import AsyncClient, Client
from semel.client.subscription_values import WakeBatch
from semel.webhooks import WebhookReceiver
from tests.sharing.crews import JOINS, Leave, Tally
from tests.wakes.calls import ordinal
from tests.wakes.task import LEASE_SECONDS, Task, effect_of

_BATCH_MAX: Final = 7


def work_client(task: Task, name: str, tally: Tally, leave: Leave) -> None:
    """Process wakes with the client's decorator, until `leave` is set."""
    _log_errors_only()
    with Client(task.url) as client:

        @client.subscriptions.worker(
            task.subscription, name=name, max_messages=_BATCH_MAX, retries=None
        )
        def worker(batch: WakeBatch) -> dict[str, list[Any]]:
            tally.add(JOINS)
            return {task.output: _effects(batch, name)}

        def stop() -> None:
            leave.wait()
            worker.stop()

        threading.Thread(target=stop, daemon=True).start()
        worker.run()


def receive_client(task: Task, name: str, tally: Tally, leave: Leave) -> None:
    """Process deliveries with the ASGI receiver, until `leave` is set."""
    _log_errors_only()
    asyncio.run(_receive(task, name, tally, leave))


async def _receive(task: Task, name: str, tally: Tally, leave: Leave) -> None:
    async def bill(batch: WakeBatch) -> dict[str, list[Any]]:
        tally.add(JOINS)
        return {task.output: _effects(batch, name)}

    async with AsyncClient(task.url) as client:
        receiver = WebhookReceiver(
            client,
            bill,
            subscriptions=[task.subscription],
            max_messages=_BATCH_MAX,
            lease=LEASE_SECONDS,
        )
        config = uvicorn.Config(receiver, port=task.port, log_level="error", lifespan="on")
        server = uvicorn.Server(config)

        def stop() -> None:
            leave.wait()
            server.should_exit = True

        threading.Thread(target=stop, daemon=True).start()
        await server.serve()


def _effects(batch: WakeBatch, name: str) -> list[dict[str, Any]]:
    found = []
    for message in batch:
        assert message.stream is not None
        assert message.offset is not None
        found.append(effect_of(message.value, message.stream, ordinal(message.offset), name))
    return found


def _log_errors_only() -> None:
    # A server that is down is expected here. What a function raises is logged as an error.
    logging.getLogger("semel").setLevel(logging.ERROR)
