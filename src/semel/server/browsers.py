"""Which requests of web browsers are answered, and the response headers for browsers (ADR 0019).

A web page can send requests to every server that the browser reaches, also to one that listens on
127.0.0.1 only. Browsers mark such requests, and this module refuses them:

- `Host` must be a name of this server. A page whose own name was made to resolve to this server
  (DNS rebinding) has the same origin as the server for the browser, but sends its own name.
- `Origin` must be that of the server itself, or listed, on a request that changes something.
- `Sec-Fetch-Site` must not name another origin, unless `Origin` is listed. This also refuses reads
  by elements of a page such as images, which have no `Origin`.

Other programs send neither `Origin` nor `Sec-Fetch-Site`, and only pages of listed origins can read
the responses.

The decision depends only on the request head and on settings that do not change. So it is part of
the parsed head, and a cached head is not checked again (see `HeadCache`).
"""

import logging
import shlex
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Final

from msgspec import Struct

from semel.server.host_names import (
    ANY,
    name_of,
    parse_host,
    parse_origin,
    print_address,
    to_address,
)
from semel.server.http import Head
from semel.wire.paths import HEALTH
from semel.wire.problems import Problem
from semel.wire.rendering import EXPOSED_HEADER, NOSNIFF_HEADER

_log: Final = logging.getLogger("semel.server")

# The keys of `header_lines`, besides the listed origins. They are the values of `Head.cors`.
NO_CORS: Final = ""
VARIES: Final = "vary"

_READS: Final = frozenset({"GET", "HEAD"})
_PREFLIGHT: Final = "OPTIONS"
_OWN_SITES: Final = frozenset({"same-origin", "none"})  # "none": a person entered the address
_SCHEMES: Final = ("http://", "https://")
_HOSTS_MAX: Final = 4096
_HOST_CHARS_MAX: Final = 256  # a longer value of Host is not cached
_LOGGED_MAX: Final = 16
_SHOWN_CHARS_MAX: Final = 200


class BrowserRules(Struct, frozen=True, kw_only=True):
    """The settings about web browsers.

    `cors_origins` are the origins whose pages can use the server. `allowed_hosts` are names of the
    server, besides localhost and its own addresses. See `parse_origin` and `parse_host`.
    """

    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()


class BrowserPolicy:
    """Decides about the requests of one listener.

    `bound_host` is the name or address in its settings, and `addresses` are the IP addresses on
    which it listens.
    """

    def __init__(
        self,
        rules: BrowserRules | None = None,
        bound_host: str = "",
        addresses: Iterable[str] = (),
    ) -> None:
        rules = rules or BrowserRules()
        self._origins = frozenset(map(parse_origin, rules.cors_origins))
        hosts = {"localhost", "*.localhost", *map(parse_host, rules.allowed_hosts)}
        self._is_any = ANY in hosts
        self._names = frozenset(hosts | {bound_host.lower()} - {""})
        self._endings = tuple(host[1:] for host in hosts if host.startswith("*."))
        self._addresses = frozenset(map(ip_address, addresses))
        self._is_on_all = any(address.is_unspecified for address in self._addresses)
        self._known: dict[str, bool] = {}  # a cache: whether a value of Host is allowed
        self._logged: set[str] = set()

    # ---- the headers of responses --------------------------------------------------------------

    def header_lines(self) -> Mapping[str, str]:
        """Return the constant header lines of responses, keyed by the values of `Head.cors`."""
        shared = "cross-origin" if self._origins else "same-origin"
        constant = _lines(NOSNIFF_HEADER, ("Cross-Origin-Resource-Policy", shared))
        varies = _lines(("Vary", "Origin"))
        lines = {NO_CORS: constant, VARIES: constant + varies}
        for origin in self._origins:
            allowed = _lines(("Access-Control-Allow-Origin", origin), EXPOSED_HEADER)
            lines[origin] = constant + allowed + ("" if origin == ANY else varies)
        return lines

    def _cors_of(self, head: Head) -> str:
        """Return the key of the response's header lines.

        The response to a read can be stored by a cache, which may return it to others.
        """
        origins = self._origins
        if not origins:
            return NO_CORS
        origin = head.headers.get("origin")
        is_read = head.method in _READS or head.method == _PREFLIGHT
        if ANY in origins:
            return ANY if is_read or origin is not None else NO_CORS
        if origin in origins:
            return origin
        return VARIES if is_read else NO_CORS

    # ---- requests ------------------------------------------------------------------------------

    def apply(self, head: Head) -> None:
        """Decide about a request: set `head.cors`, and `head.refusal` if it is refused."""
        head.cors = self._cors_of(head)
        head.refusal = self._refusal_of(head)

    def _refusal_of(self, head: Head) -> Problem | None:
        headers = head.headers
        host = headers.get("host")
        if host and not self._is_allowed(host) and head.path != HEALTH:
            return self._host_refused(host)
        # A preflight changes nothing, and its response is the same for everybody.
        if head.method == _PREFLIGHT or ANY in self._origins:
            return None
        origin = headers.get("origin")
        if origin in self._origins:
            return None
        site = headers.get("sec-fetch-site")
        if site is not None and site not in _OWN_SITES:
            return self._origin_refused(origin)
        if origin is None or head.method in _READS or _is_own(origin, host):
            return None
        return self._origin_refused(origin)

    def _is_allowed(self, host: str) -> bool:
        allowed = self._known.get(host)
        if allowed is None:
            allowed = self._is_name(host.lower())
            if len(host) <= _HOST_CHARS_MAX:
                if len(self._known) >= _HOSTS_MAX:
                    self._known.clear()
                self._known[host] = allowed
        return allowed

    def _is_name(self, host: str) -> bool:
        """Return True if `host`, with or without a port, is a name of this server.

        If the server listens on every address of the machine, every IP address is one, because it
        cannot know them all. But 0.0.0.0 is only one if the server listens on it: for a browser,
        this address leads to the same machine, and its requests to it have no `Sec-Fetch-Site`.
        """
        name = name_of(host).removesuffix(".")
        if self._is_any or name in self._names or name.endswith(self._endings):
            return True
        address = to_address(name.strip("[]"))
        if address is None:
            return False
        is_other = self._is_on_all and not address.is_unspecified
        is_own = address in self._addresses or address.is_loopback or is_other
        return is_own or print_address(address) in self._names

    def _host_refused(self, host: str) -> Problem:
        name = _shown(name_of(host))
        message = (
            f"'{name}' is not a name of this server; if it is one, start the server with"
            f" --allowed-host {shlex.quote(name)}"
        )
        self._log_once(message)
        return Problem(421, "host_not_allowed", message, {"host": _shown(host)})

    def _origin_refused(self, origin: str | None) -> Problem:
        if origin is None:
            message = (
                "pages of other origins can use this server only with CORS: start the server with"
                " --cors-origin and the origin of the page, and use fetch or EventSource"
            )
            facts = {}
        else:
            origin = _shown(origin)
            message = f"pages of the origin '{origin}' cannot use this server"
            if _is_origin(origin):
                message += f"; to allow them, start the server with --cors-origin '{origin}'"
            else:
                message += "; only --cors-origin '*' allows them, and with them every other page"
            facts = {"origin": origin}
        self._log_once(message)
        return Problem(403, "origin_not_allowed", message, facts)

    def _log_once(self, message: str) -> None:
        """Log a refusal, because a browser does not show the response to the author of a page."""
        if message not in self._logged and len(self._logged) < _LOGGED_MAX:
            self._logged.add(message)
            _log.warning("a request was refused: %s", message)


def _is_own(origin: str, host: str | None) -> bool:
    """Return True if `origin` is that of the server itself, with `Host: host`."""
    return host is not None and origin.lower() in [scheme + host.lower() for scheme in _SCHEMES]


def _is_origin(text: str) -> bool:
    """Return True if a page whose browser sends this value of Origin can be listed."""
    try:
        return text != ANY and parse_origin(text) == text
    except ValueError:
        return False


def _lines(*headers: tuple[str, str]) -> str:
    return "".join([f"{name}: {value}\r\n" for name, value in headers])


def _shown(text: str) -> str:
    """Return the printable part of a value that an unknown client chose."""
    return "".join([each if each.isprintable() else "?" for each in text[:_SHOWN_CHARS_MAX]])
