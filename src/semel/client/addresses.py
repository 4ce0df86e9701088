"""Addresses of servers and streams. A stream has a path on its server, or only a URL."""

import re
from typing import Final
from urllib.parse import quote, urlsplit

from msgspec import Struct

from semel.wire.paths import STREAM_PREFIX, stream_path, stream_url

URL_DEFAULT: Final = "http://127.0.0.1:4437"
_LABEL_BYTES_MAX: Final = 64
_PORTS: Final = {"http": 80, "https": 443}
STREAM_PATH: Final = STREAM_PREFIX.removesuffix("/")
_URL: Final = re.compile(r"https?://", re.IGNORECASE)
_OTHER_URL: Final = re.compile(r"(?!https?:)[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_PATH_SAFE: Final = "/%-._~!$&'()*+,;=:@"


class Address(Struct, frozen=True):
    """The address of a server. Every request target begins with `prefix`, such as `/base`.

    The targets of streams continue with `stream_path`, such as `/v1/stream`.
    """

    scheme: str
    host: str
    port: int
    prefix: str = ""
    stream_path: str = STREAM_PATH

    @property
    def is_tls(self) -> bool:
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def url(self) -> str:
        return self.origin + self.prefix

    def target(self, path: str, *names: str) -> str:
        """Return the request target for a path such as `/v1/streams`.

        Each of `names` is percent-encoded and added to the path as a segment. Raises ValueError for
        a name that cannot be encoded as UTF-8.
        """
        for name in names:
            if not _is_utf8(name):
                raise ValueError(f"the name {name!r} has an unpaired surrogate, so it is not UTF-8")
        return self.prefix + "/".join([path, *[quote(name, safe="") for name in names]])

    def stream_target(self, path: str) -> str:
        """Return the request target for a stream. Raises ValueError if the path is invalid."""
        escaped = stream_url("", checked_path(path)).removeprefix(STREAM_PATH)
        return f"{self.prefix}{self.stream_path}{escaped}"


def parse_address(url: str, stream_path: str = STREAM_PATH) -> Address:
    """Parse an address such as `http://host:port/prefix`. Raises ValueError if it is invalid.

    `stream_path` is the path below which the server has its streams. It can be empty.
    """
    if not _is_utf8(url):
        raise ValueError(
            f"{url!r} is not valid UTF-8; use an address such as http://127.0.0.1:4437"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{url!r} is not the address of a server: {error}") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(
            f"{url!r} is not the address of a server; use an address such as http://127.0.0.1:4437"
        )
    if parts.username is not None or parts.password is not None:
        raise ValueError("an address must not contain credentials; pass them as token= or headers=")
    if parts.query or parts.fragment:
        raise ValueError(f"the server address {url!r} must not contain a query or a fragment")
    if not _is_host(parts.hostname):
        raise ValueError(
            f"{parts.hostname!r} is not a valid host name; write a non-ASCII name in punycode"
        )
    if port == 0:
        raise ValueError(f"{url!r} has port 0, but no server can listen on port 0")
    streams = stream_path.strip("/")
    if _URL.match(streams) or not set("?#").isdisjoint(streams):
        raise ValueError(f"stream_path={stream_path!r} is not a path such as {STREAM_PATH}")
    return Address(
        parts.scheme,
        parts.hostname,
        port or _PORTS[parts.scheme],
        quote(parts.path.rstrip("/"), safe=_PATH_SAFE),
        f"/{quote(streams, safe=_PATH_SAFE)}" if streams else "",
    )


class StreamPlace(Struct, frozen=True):
    """Where a stream is.

    `path` is its path on the server. It is None if the stream has a URL of another form. Calls that
    only semel has refer to a stream by its path, so they cannot be made for such a stream.
    """

    address: Address
    target: str
    path: str | None


def locate_stream(given: str, own: Address) -> StreamPlace:
    """Return the place of the stream with the path or the URL `given`.

    `own` is the address of the client's server. Raises ValueError if `given` is invalid.
    """
    if _URL.match(given) is None:
        return StreamPlace(own, own.stream_target(given), given)
    server = parse_address(_without_path(given), own.stream_path)
    raw = quote(urlsplit(given).path, safe=_PATH_SAFE)
    prefix, mark, rest = own.prefix, f"{own.prefix}{own.stream_path}/", ""
    if server.origin == own.origin and raw.startswith(mark):
        rest = raw.removeprefix(mark)
    elif STREAM_PREFIX in raw:
        prefix, _, rest = raw.partition(STREAM_PREFIX)
        server = parse_address(server.origin)
    path = stream_path(STREAM_PREFIX + rest) if rest else None
    if isinstance(path, str):
        address = Address(server.scheme, server.host, server.port, prefix, server.stream_path)
        return StreamPlace(address, address.stream_target(path), path)
    return StreamPlace(own if server.origin == own.origin else server, raw or "/", None)


def _without_path(url: str) -> str:
    """Return the URL of a stream without its path. Raises ValueError if the URL is invalid."""
    if not _is_utf8(url):
        raise ValueError(
            f"the address {url!r} of a stream is not valid UTF-8; percent-encode what is not ASCII"
        )
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ValueError(f"{url!r} is not the address of a stream: {error}") from None
    if parts.query or parts.fragment:
        raise ValueError(f"the address {url!r} of a stream must not have a query or a fragment")
    return f"{parts.scheme}://{parts.netloc}"


def path_of(stream: object, own: Address) -> str:
    """Return the path of a stream on the client's server. `stream` is its path or a stream object.

    Raises ValueError if the stream is on another server, or if it has no path. Raises TypeError if
    `stream` is neither a path nor a stream object.
    """
    if isinstance(stream, str):
        place = locate_stream(stream, own)
    else:
        found = getattr(getattr(stream, "calls", None), "place", None)
        if not isinstance(found, StreamPlace):
            raise TypeError(
                f"expected the path of a stream or a stream object, not {type(stream).__name__}"
            )
        place = found
    if place.address != own:
        raise ValueError(f"{place.address.origin}{place.target} is not on the server {own.url}")
    if place.path is None:
        raise ValueError(
            f"this call needs the path of a stream, but {own.origin}{place.target} is not below"
            f" {own.url}{own.stream_path}/"
        )
    return place.path


def _is_utf8(text: str) -> bool:
    """Return False if the text has a surrogate, which cannot be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_host(name: str) -> bool:
    labels = name.removesuffix(".").split(".")
    return (
        name.isascii()
        and name.isprintable()
        and " " not in name
        and all(0 < len(label) < _LABEL_BYTES_MAX for label in labels)
    )


def checked_path(path: str) -> str:
    """Return the stream's path in its normal form. Raises ValueError if the path is invalid."""
    if not isinstance(path, str):
        raise TypeError(f"the path of a stream must be a str, not {type(path).__name__}")
    if not _is_utf8(path):
        raise ValueError("the path of the stream cannot be encoded as UTF-8")
    if _OTHER_URL.match(path):
        raise ValueError(f"{path!r} is not a stream: a URL must begin with http:// or https://")
    parsed = stream_path(stream_url("", path))
    if isinstance(parsed, str):
        return parsed
    raise ValueError(parsed.message)


def stream_reference(path: str) -> str:
    """Return a stream reference for a header: `/v1/stream/` and the percent-encoded path.

    A request target, which begins with a slash, is returned unchanged.
    """
    return path if path.startswith("/") else stream_url("", checked_path(path))
