"""Where a server is, and where its streams are below it."""

from typing import Final
from urllib.parse import quote, urlsplit

from msgspec import Struct

from semel.wire.paths import PREFIX, stream_path, stream_url

_LABEL_BYTES_MAX: Final = 64
_PORTS: Final = {"http": 80, "https": 443}


class Address(Struct, frozen=True):
    """A server; `prefix` is the path it is served under, such as `/base`, or nothing."""

    scheme: str
    host: str
    port: int
    prefix: str = ""

    @property
    def is_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """What the Host header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The address as it is written."""
        return f"{self.scheme}://{self.authority}{self.prefix}"

    def target(self, path: str) -> str:
        """Give the request target of a page such as `/v1/streams`."""
        return self.prefix + path

    def stream_target(self, path: str) -> str:
        """Give the request target of a stream; ValueError if a stream cannot be named so."""
        return stream_url(self.prefix, checked_path(path))


def parse_address(url: str) -> Address:
    """Read `http://host:port/prefix`; ValueError if it is no such address."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{url!r} is no address of a server: {error}") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"{url!r} is no address of a server, such as http://127.0.0.1:4437")
    if parts.username is not None or parts.password is not None:
        raise ValueError("an address holds no user and password; pass token= or headers=")
    if parts.query or parts.fragment:
        raise ValueError(f"{url!r} has a query or a fragment; an address of a server has none")
    if not _is_host(parts.hostname):
        raise ValueError(f"{parts.hostname!r} is no host name; write it in punycode")
    if port == 0:
        raise ValueError(f"{url!r} names port 0, where no server listens")
    prefix = quote(parts.path.rstrip("/"), safe="/%-._~!$&'()*+,;=:@")
    return Address(parts.scheme, parts.hostname, port or _PORTS[parts.scheme], prefix)


def _is_host(name: str) -> bool:
    labels = name.removesuffix(".").split(".")
    return (
        name.isascii()
        and name.isprintable()
        and all(0 < len(label) < _LABEL_BYTES_MAX for label in labels)
    )


def checked_path(path: str) -> str:
    """Return the name of a stream; ValueError if no stream can have it."""
    try:
        found = stream_path(stream_url("", path))
    except UnicodeEncodeError:
        raise ValueError("the stream's path is refused: it is not UTF-8") from None
    if isinstance(found, str):
        return found
    raise ValueError(found.message)


def stream_reference(path: str) -> str:
    """Print a stream as other streams refer to it: `/v1/stream/` and its quoted name."""
    reference = stream_url("", checked_path(path))
    assert reference.startswith(PREFIX)
    return reference


def query(**values: str | int | None) -> str:
    """Print a query, `?a=b&c=d`; what is None is left away."""
    pairs = [
        f"{name}={quote(str(value), safe='-._~')}"
        for name, value in values.items()
        if value is not None
    ]
    return "?" + "&".join(pairs) if pairs else ""
