"""What both drivers share: how the server is reached, timeouts, and random numbers."""

import os
import ssl
from collections.abc import Mapping
from enum import Enum
from math import inf
from typing import Final

from msgspec import Struct

from semel.client.flows import NotSent, RetrySafety
from semel.client.requests import Address, fixed_lines, own_headers, parse_address
from semel.model.limits import KIB
from semel.version import __version__

TIMEOUT_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 5.0
FOREVER: Final = inf
RECEIVE_BYTES: Final = 256 * KIB
IDLE_COUNT_MAX: Final = 64
# semel waits 30 seconds for the next request on a connection, Node's server 5.
IDLE_SECONDS_MAX: Final[Mapping[RetrySafety, float]] = {
    RetrySafety.READ: 25.0,
    RetrySafety.REPEATABLE: 25.0,
    RetrySafety.ONCE: 3.0,
}


class ClientDefault(Enum):
    """The type of CLIENT_DEFAULT, the timeout of a call that does not pass one."""

    CLIENT_DEFAULT = "the client's timeout"

    def __repr__(self) -> str:
        return self.name


CLIENT_DEFAULT: Final = ClientDefault.CLIENT_DEFAULT
# Seconds; None is no limit, CLIENT_DEFAULT the `timeout` of the client.
Timeout = float | None | ClientDefault


def seconds_of(timeout: Timeout, default: float) -> float:
    """Return a timeout in seconds: `default` for CLIENT_DEFAULT, infinity for None."""
    if timeout is CLIENT_DEFAULT:
        return default
    return FOREVER if timeout is None else timeout


class Transport(Struct, frozen=True):
    """How a server is reached; `fixed` are the header lines that every request has."""

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
    """Check the options of a client. Raises ValueError, or OSError for a file of certificates."""
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
    """Return the reply for a failed connection; a certificate that is not trusted is permanent."""
    url = transport.address.url
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = (
            f"the certificate of {url} is not trusted ({error.verify_message}); pass the PEM file"
            " of its issuer with tls= or in SSL_CERT_FILE"
        )
        return NotSent(reason, is_hopeless=True)
    return NotSent(f"{url} cannot be reached: {reason_of(error)}")


def reason_of(error: Exception) -> str:
    """Return what went wrong on a connection, in words."""
    return getattr(error, "strerror", None) or str(error) or "timed out"


# ---- random numbers: the only place in the client that draws them --------------------------------


def jitter(seconds: float) -> float:
    """Shorten a pause by up to half, so that many clients do not all retry at once."""
    return seconds * (0.5 + int.from_bytes(os.urandom(2), "big") / 131_072)


def random_id() -> str:
    """Return a new id of 128 random bits."""
    return os.urandom(16).hex()
