"""An ASGI application that receives deliveries and processes their wakes.

A request is checked before it is believed: its size, its signature, the age of the signature, and
the subscription. Everything else is as for a worker: the outputs of the function and the ack of the
wake are one commit, which the server refuses if the wake has ended. So a delivery that is repeated,
or recorded and sent again by somebody, changes nothing.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from semel.client import errors
from semel.client.aio.client import AsyncClient
from semel.client.aio.subscriptions import AsyncWakeProcessor
from semel.client.subscription_calls import show_subscription
from semel.client.subscription_values import WEBHOOK, WakeInfo, WakeStream
from semel.client.subscription_work import BATCH_MESSAGES_MAX, UnreadStreams
from semel.client.wake_functions import AsyncWakeFunction, async_wake_call
from semel.model.limits import LEASE_MS_MIN, MIB
from semel.webhooks.keys import SignatureCheck, require_cryptography
from semel.wire.webhook_signatures import SIGNATURE_HEADER

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

DELIVERY_BYTES_MAX: Final = 2 * MIB  # more than 1,000 streams with the longest paths need
BODY_SECONDS: Final = 10.0
WAKES_MAX: Final = 100
ANSWER_SECONDS: Final = 5.0  # half of what the server waits for a response
_RENEWALS: Final = 3  # in the time of a lease
_LEASE_SECONDS_MIN: Final = LEASE_MS_MIN / 1000
_LEASES_MAX: Final = 10_000  # as many as a server has subscriptions
_WARNING_SECONDS: Final = 10.0  # a warning about requests of one kind follows another after this
_SIGNATURE: Final = SIGNATURE_HEADER.lower().encode()
_SOON: Final = (b"retry-after", b"1")
_log = logging.getLogger("semel.webhooks")


class _Delivery(Struct, frozen=True):
    """The body of a delivery, as far as it is needed."""

    subscription_id: str
    wake_id: str
    generation: int
    callback_token: str
    streams: list[WakeStream] = []


class _Refusal(Exception):
    """The response to a request that is not processed. The `warning` is logged, but not sent."""

    def __init__(
        self, status: int, reason: str, *headers: tuple[bytes, bytes], warning: str | None = None
    ) -> None:
        super().__init__(reason)
        self.status, self.reason, self.headers = status, reason, headers
        self.warning = warning


class _Warnings:
    """Logs why requests are refused. Anybody can send them, so only some of them are logged."""

    def __init__(self) -> None:
        self._logged_at: dict[int, float] = {}

    def log(self, refusal: _Refusal) -> None:
        """Log a refusal, unless one with this status was logged a moment ago."""
        if refusal.warning is None:
            return
        now = time.monotonic()
        at = self._logged_at.get(refusal.status)
        if at is None or now - at >= _WARNING_SECONDS:
            self._logged_at[refusal.status] = now
            _log.warning("a delivery was refused (status %d): %s", refusal.status, refusal.warning)


class WebhookReceiver:
    """Processes the wakes that a server delivers, exactly once. It is an ASGI application.

    `client` is an AsyncClient of the server that delivers. `function` is called with a batch of
    messages, and returns None, or a mapping from output streams or topics to lists of values: see
    the client's `subscriptions.worker`. A function that is not a coroutine function is called in a
    thread.

    Only wakes of `subscriptions` are processed. By default, wakes of all are: then everybody who
    may create subscriptions on the server chooses what the function gets.

    The signature of each request is verified with the keys of the client's server. They are fetched
    from it and kept for 300 seconds, or they are those of the JWKS document `jwks`.

    If the function takes longer than 5 seconds, the delivery is answered before its end. From then
    on, the wake belongs to this receiver until its lease expires, and the receiver renews it.
    `lease` is the lease of the subscriptions, in seconds, or a shorter time. By default, the server
    is asked for it. That needs the right `describe` on the subscription; without that right, the
    lease is renewed as often as the shortest one.

    At most `max_wakes` wakes are processed at the same time. Further ones are delivered again
    later. An exception of the function is logged; the wake is delivered again.
    """

    def __init__(
        self,
        client: AsyncClient,
        function: AsyncWakeFunction,
        *,
        subscriptions: Collection[str] | None = None,
        jwks: bytes | None = None,
        max_messages: int = BATCH_MESSAGES_MAX,
        max_wakes: int = WAKES_MAX,
        lease: float | None = None,
    ) -> None:
        require_cryptography()
        if not isinstance(client, AsyncClient):
            raise TypeError(f"a receiver needs an AsyncClient, not a {type(client).__name__}")
        if isinstance(subscriptions, str):
            raise TypeError("pass a list of subscriptions, not a str")
        if max_messages < 1 or max_wakes < 1:
            raise ValueError("max_messages and max_wakes must be 1 or more")
        if lease is not None and lease < _LEASE_SECONDS_MIN:
            raise ValueError(f"lease={lease:g} is invalid; expected 1 second or more")
        self._client = client
        self._call = async_wake_call(function, threads=max_wakes)
        self._subscriptions = None if subscriptions is None else frozenset(subscriptions)
        self._check = SignatureCheck(client, jwks)
        self._max_messages, self._max_wakes = max_messages, max_wakes
        self._lease = lease
        self._leases: dict[str, float] = {}
        self._unread = UnreadStreams()
        self._warnings = _Warnings()
        self._running: dict[tuple[str, str], asyncio.Task[int]] = {}
        self._idle: list[AsyncWakeProcessor] = []
        self._is_closed = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request. An ASGI server calls this."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1003})
            return
        try:
            status = await self._respond(scope, receive)
            headers: tuple[tuple[bytes, bytes], ...] = ()
            reason = "{}"
        except _Refusal as refusal:
            self._warnings.log(refusal)
            status, headers = refusal.status, refusal.headers
            reason = msgspec.json.encode({"error": {"message": refusal.reason}}).decode()
        await _send_json(send, status, reason.encode(), headers)

    async def close(self) -> None:
        """Wait until the wakes in progress are processed. Further deliveries are refused.

        An ASGI server calls this at its end, unless the receiver is mounted in another application:
        then that one calls it.
        """
        self._is_closed = True
        while self._running:
            await asyncio.wait(self._running.values())
            await asyncio.sleep(0)  # the tasks remove themselves
        idle, self._idle = self._idle, []
        for processor in idle:
            await processor.retire()

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            event = (await receive())["type"]
            if event == "lifespan.shutdown":
                await self.close()
            await send({"type": f"{event}.complete"})
            if event == "lifespan.shutdown":
                return

    # ---- a delivery ------------------------------------------------------------------------------

    async def _respond(self, scope: Scope, receive: Receive) -> int:
        """Return the status of the response. Raises _Refusal if it is not a success."""
        if scope["method"] != "POST":
            raise _Refusal(405, "only POST is possible here", (b"allow", b"POST"))
        header = self._signature(scope)
        body = await _read_body(scope, receive)
        try:
            if not await self._check.is_valid(body, header):
                raise _Refusal(
                    401,
                    "the signature is not that of the server",
                    warning=self._check.mismatch(header),
                )
        except errors.ClientError as error:
            _log.warning("a delivery was refused: the keys cannot be fetched: %s", error)
            raise _Refusal(503, "the keys of the server cannot be fetched") from None
        return await self._take(_wake_of(body))

    def _signature(self, scope: Scope) -> str:
        """Return the header with the signature. Raises _Refusal if it cannot be valid."""
        found = [value for name, value in scope["headers"] if name.lower() == _SIGNATURE]
        header = found[0].decode("latin-1") if len(found) == 1 else ""
        problem = self._check.problem(header)
        if problem is not None:
            reason = f"the header {SIGNATURE_HEADER} is missing, malformed or too old"
            raise _Refusal(401, reason, warning=problem)
        return header

    async def _take(self, wake: WakeInfo) -> int:
        """Process a wake, unless that is in progress. Return the status of the response."""
        if self._subscriptions is not None and wake.subscription not in self._subscriptions:
            names = ", ".join(sorted(self._subscriptions)) or "none"
            raise _Refusal(
                403,
                "wakes of this subscription are not processed here",
                warning=f"it is for the subscription {wake.subscription}, and this receiver"
                f" processes only: {names}",
            )
        name = (wake.subscription, wake.wake_id)
        task = self._running.get(name)
        if task is None:
            if self._is_closed:
                raise _Refusal(503, "the receiver is closed", _SOON)
            if len(self._running) >= self._max_wakes:
                warning = f"max_wakes={self._max_wakes} wakes are in progress"
                raise _Refusal(503, "too many wakes are in progress", _SOON, warning=warning)
            task = asyncio.get_running_loop().create_task(self._process(wake))
            self._running[name] = task
            task.add_done_callback(lambda _: self._running.pop(name, None))
        done, _ = await asyncio.wait([task], timeout=ANSWER_SECONDS)
        if not done:
            return 202
        status = task.result()
        if status >= 400:
            raise _Refusal(status, "the wake was not processed")
        return status

    async def _process(self, wake: WakeInfo) -> int:
        """Process a wake, and return the status of the response."""
        processor = self._idle.pop() if self._idle else self._new_processor()
        try:
            lease_seconds = await self._lease_seconds(wake.subscription)
            begun_at = time.monotonic()
            done = await processor.process(wake, lease_seconds / _RENEWALS)
        except (errors.Unavailable, errors.Indeterminate) as error:
            _log.warning("the subscription %s waits for the server: %s", wake.subscription, error)
            return 503
        except Exception:  # noqa: BLE001 - the function's
            _log.exception(
                "the subscription %s: the messages of the wake %d were not processed",
                *(wake.subscription, wake.generation),
            )
            return 500
        finally:
            self._idle.append(processor)
        if done.is_fenced:
            self._leases.pop(wake.subscription, None)  # perhaps it is another one, with this id
            seconds = time.monotonic() - begun_at
            _log.log(
                # A delivery that is repeated is usual. A lease runs only after the response.
                logging.INFO if seconds < ANSWER_SECONDS else logging.WARNING,
                "the subscription %s: the wake %d ended in the %.1f s in which it was processed, or"
                " before; its outputs were dropped. It was delivered twice, or its lease (%g s) has"
                " expired, or the subscription was deleted",
                *(wake.subscription, wake.generation, seconds, lease_seconds),
            )
        return 200  # also if the wake had ended: then it need not be delivered again

    async def _lease_seconds(self, subscription: str) -> float:
        """Return the lease of a subscription, or a shorter time if it is not known."""
        if self._lease is not None:
            return self._lease
        if subscription not in self._leases:
            flow = show_subscription(self._client.site, subscription, streams_limit=1)
            try:
                seconds = (await self._client.run(flow)).lease_ttl_ms / 1000
            except errors.Refused:
                seconds = _LEASE_SECONDS_MIN
            if len(self._leases) >= _LEASES_MAX:
                self._leases.clear()
            self._leases[subscription] = seconds
        return self._leases[subscription]

    def _new_processor(self) -> AsyncWakeProcessor:
        return AsyncWakeProcessor(self._client, self._call, self._max_messages, self._unread)


# ---- requests and responses ----------------------------------------------------------------------


async def _read_body(scope: Scope, receive: Receive) -> bytes:
    """Return the body of a request. Raises _Refusal if it is too long, or comes too slowly."""
    declared = [value for name, value in scope["headers"] if name.lower() == b"content-length"]
    if declared and (not declared[0].isdigit() or int(declared[0][:20]) > DELIVERY_BYTES_MAX):
        raise _Refusal(413, "the body is too long for a delivery")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                event = await receive()
                if event["type"] != "http.request":
                    raise _Refusal(400, "the request ended before its body")
                body += event.get("body", b"")
                if len(body) > DELIVERY_BYTES_MAX:
                    raise _Refusal(413, "the body is too long for a delivery")
                if not event.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise _Refusal(408, "the body did not come in time") from None


def _wake_of(body: bytes) -> WakeInfo:
    """Return the wake in the body of a delivery. Raises _Refusal if it is malformed."""
    try:
        delivery = msgspec.json.decode(body, type=_Delivery)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise _Refusal(400, "the body is not a delivery") from None
    return WakeInfo(
        delivery.subscription_id,
        delivery.wake_id,
        delivery.generation,
        delivery.callback_token,
        delivery.streams,
        type=WEBHOOK,
    )


async def _send_json(
    send: Send, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...]
) -> None:
    fields = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})
