"""Sends one request to a webhook: checked addresses, no redirect, no proxy, bounded times.

The name in the URL is looked up once. All its addresses are checked, and the connection is made to
one of those that were checked, so that a name server that changes its answers achieves nothing.
"""

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, cast

from msgspec import Struct

from semel.model.limits import WEBHOOK_CONNECT_MS, WEBHOOK_TOTAL_MS
from semel.server.webhook_lookups import LookupFailed
from semel.server.webhook_responses import (
    BadWebhookResponse,
    WebhookResponse,
    WebhookResponseParser,
)
from semel.server.webhook_targets import (
    Address,
    TargetPolicy,
    WebhookTarget,
    parse_target,
    refuse_address,
    refuse_target,
)
from semel.version import __version__

ADDRESSES_TRIED_MAX: Final = 4
_SHUTDOWN_SECONDS: Final = 1.0  # for the last message of TLS, after the response

Resolve = Callable[[str], Awaitable[tuple[Address, ...]]]


class DeliveryFailed(Exception):
    """No valid response came. The message is a short sentence, without secrets and addresses."""


class Times(Struct, frozen=True):
    """How long one request may take."""

    connect_seconds: float = WEBHOOK_CONNECT_MS / 1000
    total_seconds: float = WEBHOOK_TOTAL_MS / 1000


class WebhookClient:
    """Sends requests, on the loop that is running. `context` has the authorities to trust."""

    def __init__(
        self, policy: TargetPolicy, context: ssl.SSLContext, times: Times | None = None
    ) -> None:
        self.context = context
        self._policy = policy
        self._times = times or Times()
        self._exchanges: set[_Exchange] = set()  # whose connections are open

    async def post(
        self, url: str, body: bytes, headers: list[tuple[str, str]], resolve: Resolve
    ) -> WebhookResponse:
        """Send a body, and return the response. Raises DeliveryFailed.

        `resolve` returns all addresses of a name.
        """
        target = parse_target(url)
        reason = target if isinstance(target, str) else refuse_target(target, self._policy)
        if isinstance(target, str) or reason is not None:
            raise DeliveryFailed(reason)
        try:
            async with asyncio.timeout(self._times.total_seconds):
                exchange = await self._connect(target, resolve)
                try:
                    return await exchange.run(_request(target, body, headers))
                finally:
                    exchange.close()
        except TimeoutError:
            seconds = f"{self._times.total_seconds:g}"
            raise DeliveryFailed(f"no complete response within {seconds} seconds") from None
        except BadWebhookResponse as error:
            raise DeliveryFailed(str(error)) from None
        except OSError as error:
            raise DeliveryFailed(_describe(error)) from None

    async def close(self) -> None:
        """End the connections that are still open, which takes some turns of the loop."""
        for each in self._exchanges:
            each.abort()
        if self._exchanges:
            await asyncio.wait([each.lost for each in self._exchanges], timeout=_SHUTDOWN_SECONDS)

    async def _connect(self, target: WebhookTarget, resolve: Resolve) -> "_Exchange":
        """Return an exchange on a new connection. Raises DeliveryFailed or OSError."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._times.connect_seconds
        exchange = _Exchange(loop, self._exchanges)
        try:
            async with asyncio.timeout_at(until):
                addresses = await self._checked(target, resolve)
                line = await _open(addresses[:ADDRESSES_TRIED_MAX], target.port, until)
                await self._attach(exchange, line, target)
        except TimeoutError:
            seconds = f"{self._times.connect_seconds:g}"
            raise DeliveryFailed(f"no connection within {seconds} seconds") from None
        return exchange

    async def _checked(self, target: WebhookTarget, resolve: Resolve) -> tuple[Address, ...]:
        """Return the addresses of a target, after checking all. Raises DeliveryFailed."""
        if target.address is not None:
            return (target.address,)  # `refuse_target` has checked it
        try:
            addresses = await resolve(target.host)
        except LookupFailed as error:
            raise DeliveryFailed(str(error)) from None
        for address in addresses:
            reason = refuse_address(address, target, self._policy)
            if reason is not None:
                raise DeliveryFailed(f"the name has an address that is {reason}")
        return addresses

    async def _attach(
        self, exchange: "_Exchange", line: socket.socket, target: WebhookTarget
    ) -> None:
        """Let an exchange use a connection, after the handshake of TLS. Raises OSError.

        The transport owns the file descriptor of `line` from the call on, and closes it, also if
        the call fails or is cancelled. Versions of uvloop before 0.23 leave it in `line` then. A
        second close could hit a file that another thread has opened since, such as a segment.
        """
        loop = asyncio.get_running_loop()
        try:
            if target.is_tls:
                await loop.create_connection(
                    lambda: exchange,
                    sock=line,
                    ssl=self.context,
                    server_hostname=target.host,
                    ssl_handshake_timeout=2 * self._times.connect_seconds,  # ours ends before
                    ssl_shutdown_timeout=_SHUTDOWN_SECONDS,
                )
            else:
                await loop.create_connection(lambda: exchange, sock=line)
        except BaseException:
            line.detach()
            exchange.forget()
            raise


async def _open(addresses: tuple[Address, ...], port: int, until: float) -> socket.socket:
    """Return a connection to the first address that accepts one. Raises OSError.

    Each address gets its share of the time until `until`.
    """
    loop = asyncio.get_running_loop()
    last: OSError = OSError(errno.EADDRNOTAVAIL, "no address")
    for index, address in enumerate(addresses):
        seconds = (until - loop.time()) / (len(addresses) - index)
        try:
            async with asyncio.timeout(seconds):
                return await _reach(address, port)
        except OSError as error:  # among them TimeoutError
            last = error
    raise last


async def _reach(address: Address, port: int) -> socket.socket:
    """Return a connection to an address. Raises OSError."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    line = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await _join(line, str(address), port)
    except BaseException:
        line.close()
        raise
    return line


async def _join(line: socket.socket, address: str, port: int) -> None:
    """Connect a socket to an address. Raises OSError.

    `loop.sock_connect` could look up what it is given; `connect` of an address does not.
    """
    code = line.connect_ex((address, port))
    if code == errno.EINPROGRESS:
        loop = asyncio.get_running_loop()
        writable = loop.create_future()
        loop.add_writer(line.fileno(), _set_done, writable)
        try:
            await writable
        finally:
            loop.remove_writer(line.fileno())
        code = line.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))


def _set_done(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


# ---- one exchange --------------------------------------------------------------------------------


class _Exchange(asyncio.Protocol):
    """One request and its response on a connection of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, exchanges: "set[_Exchange]") -> None:
        self.lost: asyncio.Future[None] = loop.create_future()  # done when the connection is closed
        self._exchanges = exchanges
        self._parser = WebhookResponseParser()
        self._response: asyncio.Future[WebhookResponse] = loop.create_future()
        self._transport: asyncio.Transport

    async def run(self, request: bytes) -> WebhookResponse:
        """Send a request and return the response. Raises BadWebhookResponse or OSError."""
        self._transport.write(request)
        return await self._response

    def close(self) -> None:
        """Close the connection: in order after a response, else at once."""
        response = self._response
        if response.done() and not response.cancelled() and response.exception() is None:
            self._transport.close()
        else:
            self.abort()

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def forget(self) -> None:
        """Do not wait for the end of a connection that could not be used.

        If it is cancelled after `connection_made`, its end is not reported.
        """
        self._exchanges.discard(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._exchanges.add(self)

    def data_received(self, data: bytes) -> None:
        if not self._response.done():
            self._finish(lambda: self._parser.feed(data))

    def connection_lost(self, exc: Exception | None) -> None:
        self._exchanges.discard(self)
        self.lost.set_result(None)
        if self._response.done():
            return
        if exc is None:
            self._finish(self._parser.end)
        else:
            self._response.set_exception(exc if isinstance(exc, OSError) else OSError(str(exc)))

    def _finish(self, parse: Callable[[], WebhookResponse | None]) -> None:
        try:
            response = parse()
        except BadWebhookResponse as error:
            self._response.set_exception(error)
            return
        if response is not None:
            self._response.set_result(response)


def _request(target: WebhookTarget, body: bytes, headers: Iterable[tuple[str, str]]) -> bytes:
    lines = [
        f"POST {target.path} HTTP/1.1",
        f"Host: {target.authority}",
        f"User-Agent: semel/{__version__}",
        "Accept: application/json",
        "Accept-Encoding: identity",
        "Connection: close",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in headers),
    ]
    return "\r\n".join([*lines, "\r\n"]).encode("ascii") + body


def _describe(error: OSError) -> str:
    """Return an error of a connection in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not valid: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {(error.reason or 'unknown reason').replace('_', ' ').lower()}"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, ConnectionError):
        return "the connection was reset"
    if error.errno:
        return os.strerror(error.errno).lower()
    return "the connection failed"
