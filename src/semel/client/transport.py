"""What both drivers know of a server and of connections."""

import os
import ssl
from collections.abc import Mapping
from math import inf
from typing import Final

from msgspec import Struct

from semel.client.flows import NotSent, RetrySafety
from semel.client.requests import Address, fixed_lines, own_headers, parse_address
from semel.model.limits import KIB
from semel.version import __version__

FOREVER: Final = inf
RECEIVE_BYTES: Final = 256 * KIB
IDLE_COUNT_MAX: Final = 64
# semel waits 30 seconds for the next request on a connection, Node's server 5.
IDLE_SECONDS_MAX: Final[Mapping[RetrySafety, float]] = {
    RetrySafety.READ: 25.0,
    RetrySafety.REPEATABLE: 25.0,
    RetrySafety.ONCE: 3.0,
}


class Transport(Struct, frozen=True):
    """How a server is reached; `fixed` are the lines every request begins with."""

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
    """Read what a client is made with; ValueError or OSError if it makes no sense."""
    given: tuple[object, ...] = (timeout, connect_timeout)
    for seconds in given:
        if not (isinstance(seconds, int | float) and seconds > 0):
            raise ValueError(f"a timeout is a number of seconds above 0, not {seconds!r}")
    address = parse_address(url)
    own = (("User-Agent", f"semel-python/{__version__}"), *own_headers(token, headers))
    context = tls_context(tls) if address.is_tls else None
    return Transport(address, fixed_lines(address, own), connect_timeout, context)


def connect_error(transport: Transport, error: OSError) -> NotSent:
    """Say that there is no connection; a certificate that is wrong stays wrong."""
    url = transport.address.url
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = (
            f"the certificate of {url} is not trusted ({error.verify_message}); name the PEM file"
            " of who signed it with tls= or in SSL_CERT_FILE"
        )
        return NotSent(reason, is_hopeless=True)
    reason = error.strerror or str(error) or "the time is over"
    return NotSent(f"{url} cannot be reached: {reason}")


def tls_context(tls: ssl.SSLContext | str | None) -> ssl.SSLContext:
    """Make what TLS needs: of the system's certificates, or of those in a file."""
    if isinstance(tls, ssl.SSLContext):
        return tls
    return ssl.create_default_context(cafile=tls)


# ---- chance --------------------------------------------------------------------------------------
# The client's door for chance.


def random_fraction() -> float:
    """Draw a number from 0 to 1."""
    return int.from_bytes(os.urandom(2), "big") / 65_536


def jitter(seconds: float) -> float:
    """Shorten a pause by up to half, so that many clients do not all come back at once."""
    return seconds * (0.5 + random_fraction() / 2)


def random_id() -> str:
    """Draw a name nobody has used."""
    return os.urandom(16).hex()
