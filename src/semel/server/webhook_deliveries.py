"""Delivers the wakes of webhook subscriptions.

The loop of the engine selects what is delivered next, and submits what came of it. Everything slow,
such as lookups of names, signatures and connections, is done by the thread of `DeliverySender`,
which has a loop of its own.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

import uvloop
from msgspec import Struct

from semel.broker.engine import Engine
from semel.machine.subscription_views import DeliveryView, delivery_view
from semel.model.errors import EngineStopped
from semel.model.limits import DELIVERIES_MAX, LOOKUPS_MAX, SUBSCRIPTIONS_MAX
from semel.model.outcomes import DiskFull, Outcome, Overloaded
from semel.model.subscription_commands import WEBHOOK, AckWake, NoteDelivery, WakeAck
from semel.server.webhook_client import DeliveryFailed, Times, WebhookClient
from semel.server.webhook_keys import BadWebhookKeys, WebhookKeys
from semel.server.webhook_lookups import Lookup, NameLookups
from semel.server.webhook_responses import retry_after_ms
from semel.server.webhook_slots import CLASSES, FAST_SECONDS_MAX, DeliverySlots
from semel.server.webhook_targets import TargetPolicy
from semel.server.webhooks import WebhookFiles, Webhooks
from semel.wire.paths import subscription_url
from semel.wire.subscriptions import delivery_body, is_done
from semel.wire.webhook_signatures import SIGNATURE_HEADER

DRAIN_SECONDS: Final = 2.0
_TURN_SECONDS_MAX: Final = 0.002
_AGAIN_SECONDS: Final = 1.0
_WATCH_SECONDS: Final = 0.25
_STOP_SECONDS: Final = 2.0

_log: Final = logging.getLogger("semel.server")


# ---- the thread ----------------------------------------------------------------------------------


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
                error = f"status {response.status}"
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


# ---- the loop of the engine ----------------------------------------------------------------------


class WebhookDeliveries:
    """Delivers wakes from `start` to `drain`. Methods are called on the thread of the loop.

    At most one delivery of a subscription is made at a time. `lookup` is for tests.
    """

    def __init__(
        self,
        engine: Engine,
        webhooks: Webhooks,
        *,
        count_max: int = DELIVERIES_MAX,
        times: Times | None = None,
        lookup: Lookup = socket.getaddrinfo,
    ) -> None:
        self._engine = engine
        self._wakes = engine.broker.wakes
        self._webhooks = webhooks
        self._times = times
        self._lookup = lookup
        self._loop = asyncio.get_running_loop()
        self._slots = DeliverySlots(count_max)
        self._sender: DeliverySender | None = None
        self._is_fill_due = self._is_draining = self._is_watching = False
        self._idle = asyncio.Event()

    def start(self) -> None:
        """Deliver what is due now and everything that becomes due."""
        self._wakes.on_deliverable = self._offer
        for name in self._wakes.take_deliveries(SUBSCRIPTIONS_MAX):
            self._offer(name)

    async def drain(self, seconds: float = DRAIN_SECONDS) -> None:
        """Begin no delivery any more, and wait some time for the results of the others.

        What has no result by then is delivered again after the next start.
        """
        self._is_draining = True
        self._wakes.on_deliverable = None
        if self._slots.in_flight:
            self._idle.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._idle.wait()
        if self._sender is not None:
            self._sender.stop()

    def replace(self, files: WebhookFiles) -> None:
        """Use keys and authorities that were loaded again. Raises BadWebhookKeys."""
        self._webhooks.replace(files)
        if self._sender is not None:
            self._sender.replace_context(files.context)

    # ---- what is delivered -----------------------------------------------------------------------

    def _offer(self, name: str) -> None:
        subscription = self._engine.broker.state.subscriptions.by_id.get(name)
        if subscription is not None and subscription.row.url is not None:
            self._slots.offer(name, _host_of(subscription.row.url))
            self._fill_soon()

    def _fill_soon(self) -> None:
        if not (self._is_fill_due or self._is_draining):
            self._is_fill_due = True
            self._loop.call_soon(self._fill)

    def _fill(self) -> None:
        """Begin deliveries, for a limited time per turn of the loop."""
        self._is_fill_due = False
        until = self._loop.time() + _TURN_SECONDS_MAX
        while not self._is_draining:
            name = self._slots.take(self._loop.time())
            if name is None:
                return
            self._ask(name)
            self._watch()
            if self._loop.time() > until:
                self._fill_soon()
                return

    def _watch(self) -> None:
        """Look for deliveries that take long, as long as some are being made."""
        if not self._is_watching:
            self._is_watching = True
            self._loop.call_later(_WATCH_SECONDS, self._note_slow)

    def _note_slow(self) -> None:
        self._is_watching = False
        self._slots.note_slow(self._loop.time())
        self._fill_soon()
        if self._slots.in_flight and not self._is_draining:
            self._watch()

    def _ask(self, name: str) -> None:
        """Ask the engine what is to be delivered. It replies when that is durable."""
        if not self._wakes.is_deliverable(name):
            self._slots.release(name)
            return
        try:
            self._engine.ask(partial(delivery_view, name=name), partial(self._send, name))
        except EngineStopped:
            self._is_draining = True

    def _send(self, name: str, view: DeliveryView | None) -> None:
        origin = self._webhooks.callback_origin
        if view is None or self._is_draining:
            self._release(name)
            return
        try:
            keys = self._webhooks.keys
        except BadWebhookKeys as error:
            _log.error("webhooks cannot be signed: %s", error)
            self._note(DeliveryResult(view, "the server has no keys for webhooks", False, 0, 0.0))
            return
        try:
            sender = self._started()
        except (OSError, RuntimeError) as error:  # no file or no thread is left
            _log.error("webhooks cannot be delivered: %s", error)
            error_text = "the server has too few files or threads for webhooks"
            self._note(DeliveryResult(view, error_text, False, 0, 0.0))
            return
        slot_class = self._slots.class_of(name)
        sender.send(WebhookDelivery(view, slot_class, keys, origin or self._webhooks.origin))

    def _started(self) -> DeliverySender:
        if self._sender is None:
            self._sender = DeliverySender(
                self._webhooks.settings.policy,
                self._webhooks.context,
                now_ms=self._engine.clock.now_ms,
                on_results=self._take_results,
                times=self._times,
                lookup=self._lookup,
            )
        return self._sender

    # ---- results ---------------------------------------------------------------------------------

    def _take_results(self) -> None:
        """Submit results, for a limited time per turn of the loop."""
        assert self._sender is not None
        until = self._loop.time() + _TURN_SECONDS_MAX
        while (result := self._sender.take_result()) is not None:
            self._note(result)
            if self._loop.time() > until:
                self._loop.call_soon(self._take_results)
                return

    def _note(self, result: DeliveryResult) -> None:
        view, now_ms = result.view, self._engine.clock.now_ms()
        command: AckWake | NoteDelivery
        if result.is_done:
            ack = WakeAck(view.id, view.wake_id, view.generation, done=True)
            command = AckWake(now_ms, ack, WEBHOOK, by_snapshot=True)
        else:
            command = NoteDelivery(
                now_ms,
                view.id,
                view.generation,
                result.error,
                self._webhooks.settings.attempts_max,
                result.retry_after_ms,
            )
        try:
            self._engine.submit(command, partial(self._noted, result))
        except EngineStopped:
            self._is_draining = True

    def _noted(self, result: DeliveryResult, outcome: Outcome) -> None:
        """End a delivery whose result is durable, or refused: then its wake has ended.

        A result that cannot be stored now is submitted again, because without it the wake would not
        be delivered again.
        """
        if isinstance(outcome, DiskFull | Overloaded) and not self._is_draining:
            self._loop.call_later(_AGAIN_SECONDS, self._note, result)
            return
        is_fast = result.error is None and result.seconds <= FAST_SECONDS_MAX
        self._release(result.view.id, is_fast=is_fast)

    def _release(self, name: str, *, is_fast: bool | None = None) -> None:
        self._slots.release(name, is_fast=is_fast)
        if not self._slots.in_flight:
            self._idle.set()
        self._fill_soon()


def _host_of(url: str) -> str:
    """Return the host and the port in a URL, in any form that is the same for the same text."""
    return url.partition("://")[2].partition("/")[0].partition("?")[0].lower()
