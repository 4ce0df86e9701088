"""The targets of webhooks: which URLs and addresses the server may send requests to.

A subscription names a URL, and the server sends requests to it. Without these checks, whoever may
create a subscription could reach services that only the server's machine or network can reach
(server-side request forgery, SSRF).

- `check_url` checks what a URL says: when a subscription is created, and before every delivery.
- `refuse_address` checks an address that a name has: before every delivery, for every address. The
  server then connects to one of the addresses that were checked, and does not look them up again.

URLs are parsed here, by one strict grammar, and the request is built from the same parts. So the
URL that is checked and the URL that is used cannot differ.
"""

import re
from collections.abc import Iterable
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_network,
)
from typing import Final

from msgspec import Struct

from semel.model.limits import WEBHOOK_URL_BYTES_MAX
from semel.server.host_names import to_address

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

NAME_BYTES_MAX: Final = 253
LABEL_BYTES_MAX: Final = 63

_HTTP_PORT: Final = 80
_HTTPS_PORT: Final = 443
_PORT_MAX: Final = 65_535
_PRIVILEGED_PORT_MAX: Final = 1_023
# Web browsers block these ports too: services at them could read a request as one of their own.
_BLOCKED_PORTS: Final = frozenset(
    {1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566, 6679, 6697, 10_080}
    | set(range(6665, 6670))
)

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([/?][^#]*)?")
_VISIBLE: Final = re.compile(r"[!-~]*")
_NOT_IN_URLS: Final = re.compile(r'["<>\\^`{|}]')
_AUTHORITY: Final = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::([0-9]*))?")
_PORT: Final = re.compile(r"[1-9][0-9]{0,4}")
_LABEL: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]*[A-Za-z0-9_])?")
# Systems take a name for an IPv4 address if its last part is such a number.
_ENDS_IN_NUMBER: Final = re.compile(r"(?:.*\.)?(?:[0-9]+|0[xX][0-9A-Fa-f]*)")
_QUAD: Final = re.compile(r"(?:(?:0|[1-9][0-9]{0,2})\.){3}(?:0|[1-9][0-9]{0,2})")


class TargetPolicy(Struct, frozen=True):
    """Which targets are allowed besides those with a public address and https.

    With `allows_loopback`, addresses of this machine are, as literal addresses and as `localhost`.
    All addresses in `networks` are. Both can be used with http, too.
    """

    allows_loopback: bool = False
    networks: tuple[Network, ...] = ()


class WebhookTarget(Struct, frozen=True):
    """The parts of a valid URL. `address` is set if the host is an address and no name."""

    is_tls: bool
    host: str  # in lower case, without brackets
    port: int
    address: Address | None
    path: str  # with the query

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if isinstance(self.address, IPv6Address) else self.host
        is_default = self.port == (_HTTPS_PORT if self.is_tls else _HTTP_PORT)
        return host if is_default else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """The scheme, the host and the port, such as `https://example.com`. It is not secret."""
        return f"{'https' if self.is_tls else 'http'}://{self.authority}"


def parse_network(text: str) -> Network:
    """Return a network in CIDR form, or of one address. Raises ValueError."""
    try:
        return ip_network(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a network; use an address and a length, such as 10.1.0.0/16,"
            " without bits after the length"
        ) from None


def check_url(url: str, policy: TargetPolicy) -> str | None:
    """Return why a subscription cannot have this URL, or None if it can.

    Names are not looked up: their addresses are checked before every delivery.
    """
    target = parse_target(url)
    return target if isinstance(target, str) else refuse_target(target, policy)


# ---- the grammar of URLs -------------------------------------------------------------------------


def parse_target(url: str) -> WebhookTarget | str:
    """Return the parts of a URL, or why it is not valid."""
    if len(url.encode("utf-8", "replace")) > WEBHOOK_URL_BYTES_MAX:
        return f"the URL has more than {WEBHOOK_URL_BYTES_MAX} bytes"
    match = _URL.fullmatch(url)
    reason = _refuse_characters(url)
    if reason is not None:
        return reason
    if match is None:
        return "it is not a URL with a scheme and a host, such as https://example.com/hook"
    scheme, authority, path = match[1].lower(), match[2], match[3] or "/"
    if scheme not in ("http", "https"):
        return f"the scheme is {scheme!r}, not https"
    if "@" in authority:
        return "the URL has a user name or a password"
    parts = _AUTHORITY.fullmatch(authority)
    if parts is None:
        return "the host is not a name or an address"
    is_tls = scheme == "https"
    port = _parse_port(parts[2], is_tls=is_tls)
    if isinstance(port, str):
        return port
    host = _parse_host(parts[1])
    if isinstance(host, str):
        return host
    name, address = host
    return WebhookTarget(is_tls, name, port, address, path if path.startswith("/") else f"/{path}")


def _refuse_characters(url: str) -> str | None:
    if not url.isascii():
        return "the URL has characters outside ASCII; write a name as xn--..., and a path with %"
    if _VISIBLE.fullmatch(url) is None:
        return "the URL has a space or a control character"
    if _NOT_IN_URLS.search(url) is not None:
        return "the URL has a character that must be written with %"
    return "the URL has a fragment" if "#" in url else None


def _parse_port(text: str | None, *, is_tls: bool) -> int | str:
    if text is None:
        return _HTTPS_PORT if is_tls else _HTTP_PORT
    if _PORT.fullmatch(text) is None or int(text) > _PORT_MAX:
        return "the port is not a number from 1 to 65535"
    port = int(text)
    if port <= _PRIVILEGED_PORT_MAX and port not in (_HTTP_PORT, _HTTPS_PORT):
        return f"the port {port} is that of another service; use 80, 443 or a port from 1024"
    if port in _BLOCKED_PORTS:
        return f"the port {port} is that of another service"
    return port


def _parse_host(text: str) -> tuple[str, Address | None] | str:
    """Return a host in lower case, and its address if it is one; or why it is not valid."""
    if text.startswith("["):
        address = to_address(text[1:-1])
        if not isinstance(address, IPv6Address):
            return "the host in brackets is not an IPv6 address"
        if address.scope_id is not None:
            return "the address has a zone"
        return address.compressed, address
    if _ENDS_IN_NUMBER.fullmatch(text) is not None:
        # Systems read 127.1, 0x7f000001, 2130706433 and 0177.0.0.1 as addresses, in different ways.
        address = to_address(text) if _QUAD.fullmatch(text) else None
        if address is None:
            return "an IPv4 address must be four decimal numbers, such as 192.0.2.1"
        return str(address), address
    if text.endswith("."):
        return "the name ends with a dot"
    labels = text.split(".")
    if len(text) > NAME_BYTES_MAX or any(len(label) > LABEL_BYTES_MAX for label in labels):
        return "the name is too long"
    if any(_LABEL.fullmatch(label) is None for label in labels):
        return "the host is not a name or an address"
    return text.lower(), None


# ---- what is allowed -----------------------------------------------------------------------------


def refuse_target(target: WebhookTarget, policy: TargetPolicy) -> str | None:
    """Return why requests must not be sent to a target, by its scheme and host, or None.

    None for a name says nothing about its addresses: see `refuse_address`.
    """
    if target.address is not None:
        reason = refuse_address(target.address, target, policy)
        return None if reason is None else f"the address is {reason}"
    if is_localhost(target.host):
        if policy.allows_loopback or _any_loopback(policy.networks):
            return None
        return "localhost is this machine"
    if target.is_tls or policy.networks:
        return None
    return "the scheme is 'http', not https"


def refuse_address(address: Address, target: WebhookTarget, policy: TargetPolicy) -> str | None:
    """Return why requests to a target must not be sent to an address, such as `private`, or None.

    A name other than localhost cannot have an address of this machine, except one in `networks`:
    otherwise every name server could make the server send requests to its own machine.
    """
    if isinstance(address, IPv6Address) and _is_in(address, _EMBEDDING):
        if address not in _NAT64 or target.address is not None:
            return "an IPv4 address in IPv6 form"
        # A network without IPv4 gives every name such an address. It stands for an IPv4 address.
        address = IPv4Address(int(address) & 0xFFFF_FFFF)
    if _is_in(address, _METADATA):
        return "for metadata of machines in a cloud"
    if _is_in(address, policy.networks):
        return None
    if policy.allows_loopback and _is_in(address, _LOOPBACK):
        is_named = target.address is not None or is_localhost(target.host)
        return None if is_named else "this machine's"
    reason = _kind_of(address)
    if reason is None and not target.is_tls:
        return "public, which needs https"
    return reason


def is_localhost(host: str) -> bool:
    """Return whether a name in lower case always means this machine."""
    return host == "localhost" or host.endswith(".localhost")


def _is_in(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)


def _any_loopback(networks: Iterable[Network]) -> bool:
    return any(
        each.version == own.version and each.overlaps(own) for each in networks for own in _LOOPBACK
    )


def _kind_of(address: Address) -> str | None:
    """Return what an address is for, or None if it is a public one."""
    for network, kind in _KINDS:
        if address in network:
            return kind
    return None if isinstance(address, IPv4Address) or address in _GLOBAL else "reserved"


_NAT64: Final = ip_network("64:ff9b::/96")
_GLOBAL: Final = ip_network("2000::/3")
_LOOPBACK: Final = (ip_network("127.0.0.0/8"), ip_network("::1/128"))

# An IPv6 address in one of these contains an IPv4 address. No network that is allowed changes that
# they are refused, because it would say nothing about the IPv4 address.
_EMBEDDING: Final = (
    *IPv6Network("::/96").address_exclude(IPv6Network("::/127")),  # without :: and ::1
    ip_network("::ffff:0:0/96"),
    ip_network("::ffff:0:0:0/96"),
    _NAT64,
    ip_network("64:ff9b:1::/48"),
    ip_network("2001::/32"),  # Teredo
    ip_network("2002::/16"),  # 6to4
)

# Services of clouds that give keys to every program that can send them a request. These are refused
# even if a network that is allowed contains them.
_METADATA: Final = tuple(
    ip_network(each)
    for each in (
        "169.254.169.0/24",  # AWS, Azure, Google, Oracle, OpenStack, and their neighbours
        "169.254.170.0/24",  # AWS: containers
        "169.254.0.23",  # Tencent
        "169.254.42.42",  # Scaleway
        "100.100.100.200",  # Alibaba
        "168.63.129.16",  # Azure, at a public address
        "192.0.0.192",  # Oracle
        "fd00:ec2::/32",  # AWS
        "fd00:c1::/32",  # Oracle
        "fd00:42::/32",  # Scaleway
        "fd20:ce::/32",  # Google
        "fe80::a9fe:a9fe",  # OpenStack
    )
)

# What is not public of the registries of special addresses (RFC 6890), instead of the properties in
# `ipaddress`, which differ between versions of Python.
_KINDS: Final = tuple(
    (ip_network(network), kind)
    for network, kind in (
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared by the customers of a provider"),
        ("127.0.0.0/8", "this machine's"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "for documentation"),
        ("192.88.99.0/24", "reserved"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "for measurements"),
        ("198.51.100.0/24", "for documentation"),
        ("203.0.113.0/24", "for documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
        ("::/128", "unspecified"),
        ("::1/128", "this machine's"),
        ("2001::/23", "reserved"),
        ("2001:db8::/32", "for documentation"),
        ("3fff::/20", "for documentation"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "private"),
        ("ff00::/8", "multicast"),
    )
)
