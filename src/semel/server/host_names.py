"""Names of servers and origins of web pages, as the settings and web browsers write them."""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

ANY: Final = "*"

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_PORT_MAX: Final = 65_535
_NAME: Final = r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*"
_ORIGIN: Final = re.compile(
    rf"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|{_NAME})(?::([1-9][0-9]{{0,4}}))?"
)
_HOST: Final = re.compile(rf"(?:\*\.)?{_NAME}")
# Browsers take a name for an IPv4 address if its last part is such a number.
_ENDS_IN_NUMBER: Final = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")


def parse_origin(text: str) -> str:
    """Return an origin as browsers send it. `*` means every origin.

    Raises ValueError if `text` is not an origin, or if no browser sends it: a port must be from 1
    to 65535, without leading zeros, and an address must exist. `null` is refused: any page can have
    that origin.
    """
    if text == ANY:
        return ANY
    match = _ORIGIN.fullmatch(text.lower().removesuffix("/"))
    origin = match and _print_origin(match[1], match[2], int(match[3] or 0))
    if not origin:
        raise ValueError(
            f"{text!r} is not an origin; use a scheme, a host and a port, such as"
            " http://localhost:3000, or * for every page"
        )
    return origin


def _print_origin(scheme: str, host: str, port: int) -> str | None:
    """Return an origin as browsers send it; None if the address or the port is not valid.

    The port 0 means that there is none.
    """
    if host.startswith("["):
        address = to_address(host[1:-1])
        is_valid = isinstance(address, IPv6Address)
    else:
        address = to_address(host)
        is_number = scheme in _DEFAULT_PORTS and _ENDS_IN_NUMBER.fullmatch(host) is not None
        is_valid = address is not None or not is_number
    if not is_valid or port > _PORT_MAX:
        return None
    name = host if address is None else print_address(address)
    return f"{scheme}://{name}" + ("" if port in (0, _DEFAULT_PORTS.get(scheme)) else f":{port}")


def parse_host(text: str) -> str:
    """Return a name of the server in lower case. IPv6 addresses are in brackets and short.

    `*.example.com` means all names below example.com, `*` every name. An IPv6 address can be given
    without brackets. Raises ValueError if `text` is not one of these.
    """
    if text == ANY:
        return ANY
    name = text.lower().removesuffix(".")
    address = to_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name)
    if isinstance(address, IPv6Address) and address.scope_id is None:
        return print_address(address)
    if _HOST.fullmatch(name) is None:
        raise ValueError(
            f"{text!r} is not a host name; use a name or an IP address without scheme and port,"
            " such as semel.example or [fd00::1], or *.example for all names below it, or * for"
            " every name"
        )
    return name


def to_address(text: str) -> IPv4Address | IPv6Address | None:
    """Return the IP address in `text`, which has no brackets; None if it is not an address."""
    try:
        return ip_address(text)
    except ValueError:
        return None


def print_address(address: IPv4Address | IPv6Address) -> str:
    """Return an address as browsers write it in URLs."""
    if isinstance(address, IPv4Address):
        return str(address)
    mapped = address.ipv4_mapped
    if mapped is not None:  # Python's own text contains decimals in some versions, and not in URLs
        high, low = divmod(int(mapped), 1 << 16)
        return f"[::ffff:{high:x}:{low:x}]"
    return f"[{address}]"


def name_of(host: str) -> str:
    """Return the name or address in a value of Host, without the port. Brackets are kept."""
    return host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]
