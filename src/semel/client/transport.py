"""What the sync and async flow drivers share: settings, connection pool, random numbers."""

import os
import socket
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from math import inf
from typing import Any, Final, Generic, Protocol, TypeVar
from weakref import WeakSet

from msgspec import Struct

from semel.client.addresses import STREAM_PATH, Address, parse_address
from semel.client.computed import AsyncFieldValue, ComputedFields, computed_fields
from semel.client.errors import ClientClosed
from semel.client.flows import Lost, NotSent, RetrySafety
from semel.client.requests import fixed_lines
from semel.client.response_parser import ParserEvent, ResponseCut, ResponseParser
from semel.model.limits import KIB
from semel.version import __version__

TIMEOUT_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 5.0
FOREVER: Final = inf
RECEIVE_BYTES: Final = 256 * KIB
IDLE_COUNT_MAX: Final = 64
TRUST_ADVICE: Final = "set tls= or SSL_CERT_FILE to the name of the issuer's PEM file"
# What OpenSSL says if the other side sends something that is not TLS.
_PLAIN_REASONS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}
)
_PROBE_SECONDS: Final = 0.5
# A connection that was idle longer than this is not used again. The limits are shorter than those
# of servers: semel closes a connection after 30 idle seconds, and the Node HTTP server after 5.
IDLE_SECONDS_MAX: Final[Mapping[RetrySafety, float]] = {
    RetrySafety.READ: 25.0,
    RetrySafety.REPEATABLE: 25.0,
    RetrySafety.ONCE: 3.0,
}


class ClientDefault(Enum):
    """The type of CLIENT_DEFAULT. CLIENT_DEFAULT makes a call use the client's `timeout`."""

    CLIENT_DEFAULT = "the client's timeout"

    def __repr__(self) -> str:
        return self.name


CLIENT_DEFAULT: Final = ClientDefault.CLIENT_DEFAULT
# A timeout in seconds. None means no limit. CLIENT_DEFAULT means the client's `timeout`.
Timeout = float | None | ClientDefault


def seconds_of(timeout: Timeout, default: float) -> float:
    """Return `timeout` in seconds.

    Return `default` for CLIENT_DEFAULT, and infinity for None.
    """
    if timeout is None:
        return FOREVER
    return default if timeout is CLIENT_DEFAULT else timeout


class Transport(Struct, frozen=True):
    """The settings for connections to a server.

    `fixed` contains the header lines that every request has. `computed` is None if no header and no
    query parameter must be added to each request.
    """

    address: Address
    fixed: bytes
    connect_timeout: float
    tls: ssl.SSLContext | None = None
    computed: ComputedFields | None = None

    def __repr__(self) -> str:
        """Return the address. The header lines can contain a token."""
        return f"Transport({self.address.url!r})"

    @property
    def renews_token(self) -> bool:
        """True if a function computes the token of each request."""
        return self.computed is not None and self.computed.has_token


def transport_to(
    url: str,
    *,
    token: AsyncFieldValue | None,
    headers: Mapping[str, AsyncFieldValue] | None,
    timeout: float,
    connect_timeout: float,
    tls: ssl.SSLContext | str | None,
    params: Mapping[str, AsyncFieldValue] | None = None,
    stream_path: str = STREAM_PATH,
) -> Transport:
    """Return the transport for a client with these options.

    `tls` is an SSL context or the name of a PEM file. None means the system's trusted certificates.
    Raises ValueError or TypeError if an option is invalid.
    """
    timeouts: tuple[object, ...] = (timeout, connect_timeout)
    for seconds in timeouts:
        if not (isinstance(seconds, int | float) and seconds > 0):
            raise ValueError(
                f"{seconds!r} is not a valid timeout; expected a number of seconds greater than 0"
            )
    address = parse_address(url, stream_path)
    constants, computed = computed_fields(token, headers, params)
    own = (("User-Agent", f"semel-python/{__version__}"), *constants)
    # A file is checked even if the address needs no TLS, because its name can be wrong.
    context = _context(tls) if address.is_tls or isinstance(tls, str) else None
    return Transport(
        address,
        fixed_lines(address, own),
        connect_timeout,
        context if address.is_tls else None,
        computed,
    )


def _context(tls: ssl.SSLContext | str | None) -> ssl.SSLContext:
    """Return the SSL context for `tls`. Raises ValueError if its file cannot be used."""
    if isinstance(tls, ssl.SSLContext):
        return tls
    try:
        return ssl.create_default_context(cafile=tls)
    except ssl.SSLError as error:
        raise ValueError(f"the file {tls!r} (tls=) has no valid certificate: {error}") from None
    except OSError as error:
        raise ValueError(f"the file {tls!r} (tls=) cannot be read: {reason_of(error)}") from None


def connect_error(transport: Transport, error: OSError) -> NotSent:
    """Return the result that a flow receives if connecting to the server failed with `error`.

    If the server's certificate is not trusted, or if the server does not use TLS, the result says
    the flow not to retry.
    """
    url = transport.address.url
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = f"the certificate of {url} is not trusted ({error.verify_message}); {TRUST_ADVICE}"
        return NotSent(reason, is_permanent=True)
    if isinstance(error, ssl.SSLError) and error.reason in _PLAIN_REASONS:
        plain = url.replace("https:", "http:", 1)
        reason = f"the server at {url} does not use TLS; if this is intended, use {plain}"
        return NotSent(reason, is_permanent=True)
    return NotSent(f"{url} cannot be reached: {reason_of(error)}")


def speaks_tls(transport: Transport, deadline: float) -> bool:
    """Connect to a server that has closed a connection, and return True if it uses TLS.

    Most of the time until `deadline` is left for other attempts.
    """
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent
    address = transport.address
    seconds = min((deadline - time.monotonic()) / 4, _PROBE_SECONDS)
    if seconds <= 0:
        return False
    try:
        with socket.create_connection((address.host, address.port), seconds) as line:
            context.wrap_socket(line, server_hostname=address.host).close()
    except (OSError, ValueError):
        return False
    return True


def uses_tls(transport: Transport) -> NotSent:
    """Return the result that a flow receives if the server at an http:// address uses TLS."""
    url = transport.address.url
    secure = url.replace("http:", "https:", 1)
    return NotSent(f"the server at {url} uses TLS; use {secure}", is_permanent=True)


def reason_of(error: Exception) -> str:
    """Return the reason why a connection failed, as text."""
    text = getattr(error, "strerror", None) or getattr(error, "message", None)  # without advice
    return text or str(error) or "timed out"


# ---- connections ---------------------------------------------------------------------------------


class PooledConnection(ABC):
    """A connection to the server, with a parser for its responses."""

    def __init__(self) -> None:
        self.parser = ResponseParser()
        self.idle_since = 0.0
        self.is_reused = False
        self.events: deque[ParserEvent] = deque()

    @abstractmethod
    def is_usable(self) -> bool:
        """Return True if a request can be sent on this idle connection.

        The connection must be open, and must belong to the current process or event loop.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connection, even in the middle of an exchange."""

    def take(self, data: bytes) -> None:
        """Parse received bytes. Empty `data` means that the server has closed the connection.

        The end of the connection can complete a response. If it does not, OSError or ResponseCut
        is raised.
        """
        self.events.extend(self.parser.feed(data) if data else self.parser.end())
        if not data and not self.events:
            raise ConnectionResetError("the server closed the connection")

    def was_refused(self, error: Exception) -> bool:
        """Return True if the server has closed a new connection without a response."""
        is_closed = isinstance(error, ConnectionError) and not self.parser.has_begun
        return is_closed and not self.is_reused

    def failure(self, error: Exception, url: str, *, is_sent: bool) -> NotSent | Lost:
        """Return the result that a flow receives if a request got no response because of `error`.

        Return Lost if the whole request was sent, and otherwise NotSent.
        """
        reason = f"no response from {url}: {reason_of(error)}"
        if not is_sent:
            return NotSent(f"{reason}; the request was not sent completely")
        is_stale = self.is_reused and not self.parser.has_begun
        return Lost(
            reason,
            is_stale and not isinstance(error, TimeoutError),
            isinstance(error, ResponseCut),
        )


C = TypeVar("C", bound=PooledConnection)


class ConnectionPool(Generic[C]):
    """The idle connections of a flow driver. Threads can share a pool.

    There is no lock: it could be held by a call that a signal handler has interrupted, or by a
    thread that does not exist in a forked process. `append` and `pop` of a list are atomic.
    """

    def __init__(self) -> None:
        self._idle: list[C] = []
        self._is_closed = False

    def take(self, safety: RetrySafety) -> C | None:
        """Return an idle connection that is still open, or None if there is none.

        A server closes a connection that was idle for a long time. A request that is sent at that
        moment can be lost. So a request that must not be sent twice gets only a recently used
        connection. Raises ClientClosed if the pool is closed.
        """
        while True:
            if self._is_closed:
                raise ClientClosed("the client is closed")
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            idle_seconds = time.monotonic() - connection.idle_since
            if idle_seconds < IDLE_SECONDS_MAX[safety] and connection.is_usable():
                connection.is_reused = True
                return connection
            connection.close()

    def give_back(self, connection: C, *, is_whole: bool) -> None:
        """Keep a connection for later requests if it can be reused. Otherwise close it.

        `is_whole` is False if an exchange on the connection failed.
        """
        if is_whole and connection.parser.is_reusable and not connection.events:
            connection.idle_since = time.monotonic()
            if len(self._idle) < IDLE_COUNT_MAX:
                self._idle.append(connection)
                if self._is_closed:
                    self.close()
                return
        connection.close()

    def close(self) -> None:
        """Close the idle connections.

        Requests in progress continue. Later requests raise ClientClosed.
        """
        self._is_closed = True
        while self._idle:
            with suppress(IndexError):  # another thread has closed the last one
                self._idle.pop().close()


# ---- forked processes ----------------------------------------------------------------------------


class _ForkAware(Protocol):
    def _after_fork(self) -> None: ...


_locks: Final[WeakSet[Any]] = WeakSet()
_fork_aware: Final[WeakSet[_ForkAware]] = WeakSet()


def fork_safe_lock() -> threading.Lock:
    """Return a lock that is free in a forked process, also if a thread held it at the fork."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def reset_in_child(it: _ForkAware) -> None:
    """Call the method `_after_fork` of an object in every forked process that inherits it."""
    _fork_aware.add(it)


def _after_fork() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()
    for it in list(_fork_aware):
        it._after_fork()


os.register_at_fork(after_in_child=_after_fork)


class ProcessOwner:
    """The process that has begun something that no other process can use."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pid = os.getpid()

    @property
    def is_parent(self) -> bool:
        """True if this is a forked process, and its parent has begun it."""
        return self._pid != os.getpid()

    def adopt(self) -> None:
        """Make the current process the owner."""
        self._pid = os.getpid()

    def check(self) -> None:
        """Raise RuntimeError in a forked process."""
        if self.is_parent:
            raise RuntimeError(
                f"{self._name} of the parent cannot be used in a forked process; nothing was"
                " applied. Create a new one there"
            )


# ---- random numbers ------------------------------------------------------------------------------


def jitter(seconds: float) -> float:
    """Return `seconds`, shortened at random by up to half.

    This prevents many clients from retrying at the same moment.
    """
    return seconds * (0.5 + int.from_bytes(os.urandom(2), "big") / 131_072)


def random_id() -> str:
    """Return a new id of 128 random bits."""
    return os.urandom(16).hex()
