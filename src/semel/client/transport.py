"""Shared by both flow drivers: the transport to a server, its idle connections, random numbers."""

import os
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from enum import Enum
from math import inf
from typing import Final, Generic, TypeVar

from msgspec import Struct

from semel.client.errors import ClientClosed
from semel.client.flows import Lost, NotSent, RetrySafety
from semel.client.requests import Address, fixed_lines, own_headers, parse_address
from semel.client.response_parser import ParserEvent, ResponseParser
from semel.model.limits import KIB
from semel.version import __version__

TIMEOUT_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 5.0
FOREVER: Final = inf
RECEIVE_BYTES: Final = 256 * KIB
IDLE_COUNT_MAX: Final = 64
# semel closes a connection after 30 idle seconds, the HTTP server of Node after 5.
IDLE_SECONDS_MAX: Final[Mapping[RetrySafety, float]] = {
    RetrySafety.READ: 25.0,
    RetrySafety.REPEATABLE: 25.0,
    RetrySafety.ONCE: 3.0,
}


class ClientDefault(Enum):
    """The type of CLIENT_DEFAULT, which means that a call uses the `timeout` of the client."""

    CLIENT_DEFAULT = "the client's timeout"

    def __repr__(self) -> str:
        return self.name


CLIENT_DEFAULT: Final = ClientDefault.CLIENT_DEFAULT
# Seconds. None means no limit, CLIENT_DEFAULT means the `timeout` of the client.
Timeout = float | None | ClientDefault


def seconds_of(timeout: Timeout, default: float) -> float:
    """Return a timeout in seconds: `default` for CLIENT_DEFAULT, infinity for None."""
    if timeout is None:
        return FOREVER
    return default if timeout is CLIENT_DEFAULT else timeout


class Transport(Struct, frozen=True):
    """The settings of connections to a server. `fixed`: the header lines of every request."""

    address: Address
    fixed: bytes
    connect_timeout: float
    tls: ssl.SSLContext | None = None


def transport_to(
    url: str,
    *,
    token: str | None,
    headers: Mapping[str, str] | None,
    timeout: float,
    connect_timeout: float,
    tls: ssl.SSLContext | str | None,
) -> Transport:
    """Return the transport for the options of a client.

    Raises ValueError for an invalid option, and OSError if the file `tls` cannot be read.
    """
    timeouts: tuple[object, ...] = (timeout, connect_timeout)
    for seconds in timeouts:
        if not (isinstance(seconds, int | float) and seconds > 0):
            raise ValueError(f"{seconds!r} is not a timeout; expected seconds, more than 0")
    address = parse_address(url)
    own = (("User-Agent", f"semel-python/{__version__}"), *own_headers(token, headers))
    if not address.is_tls:
        context = None
    elif isinstance(tls, ssl.SSLContext):
        context = tls
    else:
        context = ssl.create_default_context(cafile=tls)
    return Transport(address, fixed_lines(address, own), connect_timeout, context)


def connect_error(transport: Transport, error: OSError) -> NotSent:
    """Return the reply for a failed connection. An untrusted certificate is a permanent failure."""
    url = transport.address.url
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = (
            f"the certificate of {url} is not trusted ({error.verify_message}); pass the PEM file"
            " of its issuer with tls= or in SSL_CERT_FILE"
        )
        return NotSent(reason, is_permanent=True)
    return NotSent(f"{url} cannot be reached: {reason_of(error)}")


def reason_of(error: Exception) -> str:
    """Return why a connection failed, as text."""
    return getattr(error, "strerror", None) or str(error) or "timed out"


# ---- connections ---------------------------------------------------------------------------------


class PooledConnection(ABC):
    """A connection to the server, with the parser of its responses."""

    def __init__(self) -> None:
        self.parser = ResponseParser()
        self.idle_since = 0.0
        self.is_reused = False
        self.events: deque[ParserEvent] = deque()

    @abstractmethod
    def is_usable(self) -> bool:
        """Return whether a request can be sent on the idle connection.

        It must be open and belong to this process or event loop.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connection, even in the middle of an exchange."""

    def take(self, data: bytes) -> None:
        """Parse received bytes; no bytes mean that the server has closed the connection.

        In that case OSError or ResponseCut is raised, unless the end completes a response.
        """
        self.events.extend(self.parser.feed(data) if data else self.parser.end())
        if not data and not self.events:
            raise ConnectionResetError("the server closed the connection")

    def failure(self, error: Exception, url: str, *, is_sent: bool) -> NotSent | Lost:
        """Return the reply for a request without a response: Lost if all of it was sent."""
        reason = f"no response from {url}: {reason_of(error)}"
        if not is_sent:
            return NotSent(f"{reason}; the request was not sent completely")
        is_stale = self.is_reused and not self.parser.has_begun
        return Lost(reason, is_stale and not isinstance(error, TimeoutError))


C = TypeVar("C", bound=PooledConnection)


class ConnectionPool(Generic[C]):
    """The idle connections of a driver. Threads may share it."""

    def __init__(self) -> None:
        self._idle: list[C] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def take(self, safety: RetrySafety) -> C | None:
        """Return an idle connection that is still open, or None. Raises ClientClosed.

        The server may be about to close a connection that was idle for long. So a request that must
        not be sent twice only gets a connection that was used a short time ago.
        """
        while True:
            with self._lock:
                if self._is_closed:
                    raise ClientClosed("the client is closed")
                if not self._idle:
                    return None
                connection = self._idle.pop()
            idle_seconds = time.monotonic() - connection.idle_since
            if idle_seconds < IDLE_SECONDS_MAX[safety] and connection.is_usable():
                connection.is_reused = True
                return connection
            connection.close()

    def give_back(self, connection: C, *, is_whole: bool) -> None:
        """Keep a connection for later requests, or close it. `is_whole`: no exchange failed."""
        if is_whole and connection.parser.is_reusable and not connection.events:
            connection.idle_since = time.monotonic()
            with self._lock:
                if not self._is_closed and len(self._idle) < IDLE_COUNT_MAX:
                    self._idle.append(connection)
                    return
        connection.close()

    def close(self) -> None:
        """Close idle connections. Requests in progress continue; later ones raise ClientClosed."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


# ---- random numbers ------------------------------------------------------------------------------


def jitter(seconds: float) -> float:
    """Return a pause shortened by up to half, so that many clients do not retry at once."""
    return seconds * (0.5 + int.from_bytes(os.urandom(2), "big") / 131_072)


def random_id() -> str:
    """Return a new id of 128 random bits."""
    return os.urandom(16).hex()
