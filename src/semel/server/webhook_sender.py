"""The thread that makes deliveries: it builds, signs and sends requests, on a loop of its own."""

import asyncio
import logging
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import uvloop
from msgspec import Struct

from semel.machine.subscription_views import DeliveryView
from semel.model.limits import LOOKUPS_MAX
from semel.server.webhook_client import DeliveryFailed, Times, WebhookClient
from semel.server.webhook_keys import WebhookKeys
from semel.server.webhook_lookups import Lookup, NameLookups
from semel.server.webhook_responses import retry_after_ms
from semel.server.webhook_slots import CLASSES
from semel.server.webhook_targets import TargetPolicy
from semel.wire.paths import subscription_url
from semel.wire.subscriptions import delivery_body, is_done
from semel.wire.webhook_signatures import SIGNATURE_HEADER

_STOP_SECONDS: Final = 2.0

_log: Final = logging.getLogger("semel.server")


class WebhookDelivery(Struct, frozen=True):
    """A delivery to be made. `slot_class` is that of the subscription: see `webhook_slots`."""

    view: DeliveryView
    slot_class: str
    keys: WebhookKeys
    callback_origin: str


class DeliveryResult(Struct, frozen=True):
    """How a delivery has ended. `error` is None after a response with the status 2xx."""

    view: DeliveryView
    error: str | None
    is_done: bool
    retry_after_ms: int
    seconds: float


class DeliverySender:
    """Makes deliveries on a thread. Methods are called on the thread of the engine's loop.

    `on_results` is called on that loop when there are results, which `take_results` returns.
    """

    def __init__(
        self,
        policy: TargetPolicy,
        context: ssl.SSLContext,
        *,
        now_ms: Callable[[], int],
        on_results: Callable[[], None],
        times: Times | None = None,
        lookup: Lookup = socket.getaddrinfo,
    ) -> None:
        self._client = WebhookClient(policy, context, times)
        self._now_ms = now_ms
        self._on_results = on_results
        self._lookup = lookup
        self._lookups: dict[str, NameLookups] = {}
        self._main_loop = asyncio.get_running_loop()
        self._loop = uvloop.new_event_loop()
        # Only one thread appends to a deque, and only the other one takes from it. A flag is set
        # before the other loop is woken, and reset before the deque is emptied.
        self._inputs: deque[WebhookDelivery] = deque()
        self._results: deque[DeliveryResult] = deque()
        self._is_input_due = self._is_result_due = self._is_stopped = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="semel-webhooks", daemon=True)
        self._thread.start()

    def replace_context(self, context: ssl.SSLContext) -> None:
        """Trust other authorities from now on."""
        self._client.context = context

    def send(self, delivery: WebhookDelivery) -> None:
        """Make a delivery. Its result follows."""
        self._inputs.append(delivery)
        if not self._is_input_due:
            self._is_input_due = True
            self._loop.call_soon_threadsafe(self._begin)

    def take_result(self) -> DeliveryResult | None:
        """Return a result, or None if there is no other one now."""
        self._is_result_due = False
        return self._results.popleft() if self._results else None

    def stop(self) -> None:
        """Give up the deliveries that are being made, and end the thread."""
        if not self._is_stopped:
            self._is_stopped = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_STOP_SECONDS)

    # ---- on the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            for task in self._tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
            loop.run_until_complete(self._client.close())
            for lookups in self._lookups.values():
                lookups.close()
        finally:
            loop.close()

    def _begin(self) -> None:
        self._is_input_due = False
        if not self._lookups:
            count = LOOKUPS_MAX // len(CLASSES)
            self._lookups = {each: NameLookups(count, self._lookup) for each in CLASSES}
        while self._inputs:
            task = self._loop.create_task(self._deliver(self._inputs.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _deliver(self, delivery: WebhookDelivery) -> None:
        started = self._loop.time()
        error, done, delay_ms = None, False, 0
        try:
            now_s = self._now_ms() // 1000
            body, headers = _sign(delivery, now_s)
            resolve = self._lookups[delivery.slot_class].addresses
            response = await self._client.post(delivery.view.url, body, headers, resolve)
            if response.is_success:
                done = is_done(response.body)
            else:
                error = _describe(response.status)
                delay_ms = retry_after_ms(response.retry_after, now_s)
        except DeliveryFailed as failure:
            error = str(failure)
        except ImportError as failure:
            _log.error("webhooks cannot be signed: %s", failure)
            error = "the server lacks a package to sign webhooks"
        except Exception:  # noqa: BLE001 - without a result, the subscription would wait for ever
            _log.exception("a delivery has failed because of a bug")
            error = "the server could not make the request"
        seconds = self._loop.time() - started
        self._results.append(DeliveryResult(delivery.view, error, done, delay_ms, seconds))
        if not self._is_result_due:
            self._is_result_due = True
            self._main_loop.call_soon_threadsafe(self._on_results)


def _describe(status: int) -> str:
    """Return what is recorded of a response that is not a success."""
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return f"status {status}; redirects are not followed"
    return f"status {status}"


def _sign(delivery: WebhookDelivery, now_s: int) -> tuple[bytes, list[tuple[str, str]]]:
    """Return the body of a delivery, and the headers about it."""
    view, keys = delivery.view, delivery.keys
    body = delivery_body(
        view,
        callback_url=f"{subscription_url(delivery.callback_origin, view.id)}/callback",
        callback_token=keys.token(view.id, view.wake_id, view.generation),
    )
    headers = [
        ("Content-Type", "application/json"),
        (SIGNATURE_HEADER, keys.sign(body, now_s)),
    ]
    return body, headers
