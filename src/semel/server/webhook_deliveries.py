"""Delivers the wakes of webhook subscriptions.

The loop of the engine selects what is delivered next, and submits what came of it. Everything slow,
such as lookups of names, signatures and connections, is done by the thread of `DeliverySender`.
"""

import asyncio
import contextlib
import logging
import socket
from functools import partial
from typing import Final

from semel.broker.engine import Engine
from semel.machine.subscription_views import DeliveryView, delivery_view
from semel.model.errors import EngineStopped
from semel.model.limits import DELIVERIES_MAX, SUBSCRIPTIONS_MAX
from semel.model.outcomes import DiskFull, Outcome, Overloaded
from semel.model.subscription_commands import WEBHOOK, AckWake, NoteDelivery, WakeAck
from semel.server.webhook_client import Times
from semel.server.webhook_keys import BadWebhookKeys
from semel.server.webhook_lookups import Lookup
from semel.server.webhook_sender import DeliveryResult, DeliverySender, WebhookDelivery
from semel.server.webhook_slots import FAST_SECONDS_MAX, DeliverySlots
from semel.server.webhooks import WebhookFiles, Webhooks

DRAIN_SECONDS: Final = 2.0
_TURN_SECONDS_MAX: Final = 0.002
_AGAIN_SECONDS: Final = 1.0
_WATCH_SECONDS: Final = 0.25

_log: Final = logging.getLogger("semel.server")


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
                wake_id=view.wake_id,
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
