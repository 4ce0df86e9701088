"""The public keys of the issuers of JWTs: JWKS documents, from files and from URLs."""

import asyncio
import contextlib
import http.client
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Final
from urllib.parse import urlsplit

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from msgspec import Struct

from semel.model.limits import KIB
from semel.server.identities import JwtRule

KEYS_BYTES_MAX: Final = 1024 * KIB
FETCH_SECONDS: Final = 5.0
RSA_BITS_MIN: Final = 2048

_log: Final = logging.getLogger("semel.server")

_ALGORITHM_OF: Final = {
    ("RSA", None): "RS256",
    ("EC", "P-256"): "ES256",
    ("OKP", "Ed25519"): "EdDSA",
}


class KeySet(Struct, frozen=True):
    """The keys of an issuer, by `kid`: as objects, and as in the document, to compare them."""

    keys: Mapping[str, jwt.PyJWK]
    documents: Mapping[str, Mapping[str, Any]]


class _Jwks(Struct):
    keys: list[dict[str, Any]]


NO_KEYS: Final = KeySet({}, {})


def parse_keys(data: bytes) -> KeySet:
    """Return the keys in a JWKS document. Keys that cannot verify our algorithms are left out.

    Raises ValueError if the document or a key is not valid, if a key is private, if two keys have
    the same `kid`, or if no key is left.
    """
    try:
        found = msgspec.json.decode(data, type=_Jwks).keys
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueError(f"it is not a JWKS document: {error}") from error
    keys: dict[str, jwt.PyJWK] = {}
    documents: dict[str, Mapping[str, Any]] = {}
    for document in found:
        kid, algorithm = document.get("kid"), _algorithm_of(document)
        if algorithm is None or not isinstance(kid, str) or not kid:
            continue
        if "d" in document:
            raise ValueError(f"the key {kid!r} is private; only its public part belongs here")
        if kid in keys:
            raise ValueError(f"two keys have the kid {kid!r}")
        try:
            key = jwt.PyJWK(document, algorithm)
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise ValueError(f"the key {kid!r} is not valid: {error}") from error
        if isinstance(key.key, RSAPublicKey) and key.key.key_size < RSA_BITS_MIN:
            raise ValueError(f"the key {kid!r} has fewer than {RSA_BITS_MIN} bits")
        keys[kid], documents[kid] = key, document
    if not keys:
        raise ValueError("it has no key of the type RSA, EC P-256 or OKP Ed25519 with a kid")
    return KeySet(keys, documents)


def _algorithm_of(document: Mapping[str, Any]) -> str | None:
    """Return the algorithm that a key of a JWKS document is for, or None if it is not one of ours.

    A key can say that it is for another algorithm, or for encryption only.
    """
    kind, curve = document.get("kty"), document.get("crv")
    algorithm = _ALGORITHM_OF.get((str(kind), None if curve is None else str(curve)))
    if document.get("alg", algorithm) != algorithm or document.get("use", "sig") != "sig":
        return None
    operations = document.get("key_ops", ["verify"])
    return algorithm if isinstance(operations, list) and "verify" in operations else None


def read_keys(path: str) -> KeySet:
    """Return the keys in a JWKS file. Raises ValueError with the name of the file."""
    try:
        with open(path, "rb") as file:
            data = file.read(KEYS_BYTES_MAX + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > KEYS_BYTES_MAX:
        raise ValueError(f"{path} has more than {KEYS_BYTES_MAX} bytes")
    try:
        return parse_keys(data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


# ---- keys from a URL -----------------------------------------------------------------------------


def fetch_keys(url: str) -> KeySet:
    """Return the keys in a JWKS document at a URL. This blocks for about 5 seconds at most.

    Redirects are not followed, and no proxy is used. Raises ValueError, OSError or HTTPException.
    """
    parts = urlsplit(url)
    assert parts.hostname is not None
    is_tls = parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    until = monotonic() + FETCH_SECONDS
    with contextlib.ExitStack() as stack:
        line = stack.enter_context(
            socket.create_connection((parts.hostname, port), timeout=FETCH_SECONDS)
        )
        if is_tls:
            context = ssl.create_default_context()
            wrapped = context.wrap_socket(
                line, server_hostname=parts.hostname, do_handshake_on_connect=False
            )
            line = stack.enter_context(wrapped)
        # The timeout of a socket is for one read. The timer ends a response of single bytes.
        timer = threading.Timer(max(0.0, until - monotonic()), _shut, (line,))
        timer.daemon = True
        stack.callback(timer.cancel)
        timer.start()
        if isinstance(line, ssl.SSLSocket):
            line.do_handshake()
        connection = http.client.HTTPConnection(parts.hostname, port)
        connection.sock = line
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = {"Accept": "application/json", "Connection": "close", "Host": parts.netloc}
        connection.request("GET", target, headers=headers)
        with contextlib.closing(connection.getresponse()) as response:
            return parse_keys(_read_body(response, until))


def _shut(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        socket.socket.shutdown(line, socket.SHUT_RDWR)  # without a change of the TLS object


def _read_body(response: http.client.HTTPResponse, until: float) -> bytes:
    if response.status != 200:
        raise ValueError(f"the status is {response.status}, and redirects are not followed")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise ValueError("the response is compressed")
    data = response.read(KEYS_BYTES_MAX + 1)
    if monotonic() >= until:
        raise TimeoutError(f"no complete response within {FETCH_SECONDS:g} seconds")
    if len(data) > KEYS_BYTES_MAX:
        raise ValueError(f"the response has more than {KEYS_BYTES_MAX} bytes")
    return data


class RefreshTimes(Struct, frozen=True):
    """When keys are fetched again: regularly, and at the earliest after an attempt."""

    every_seconds: float = 600.0
    again_seconds: float = 60.0


class RemoteKeys:
    """The keys at a URL, fetched by a thread. Methods are called on the event loop's thread.

    If they cannot be fetched, the last keys stay in use. All attempts are at least a minute apart,
    and so are the warnings about them.
    """

    def __init__(self, rule: JwtRule, url: str, times: RefreshTimes) -> None:
        self.current = NO_KEYS
        self.url = url
        self._where = f"{rule.name!r}, {url.partition('?')[0]}"
        self._times = times
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_change: Callable[[], None]
        self._timer: asyncio.TimerHandle | None = None
        self._tried = -1e9
        self._is_fetching = False

    def start(self, on_change: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_change = on_change
        self._fetch()

    def close(self) -> None:
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()

    def ask(self) -> None:
        """Fetch the keys, because a token has an unknown `kid`; not if the last attempt is new."""
        if self._loop is not None and monotonic() - self._tried >= self._times.again_seconds:
            self._fetch()

    def _fetch(self) -> None:
        if self._loop is None or self._is_fetching:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._is_fetching = True
        self._tried = monotonic()
        threading.Thread(target=self._run, args=(self._loop,), daemon=True).start()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        found: KeySet | Exception
        try:
            found = fetch_keys(self.url)
        except Exception as error:  # noqa: BLE001 - the boundary of a thread
            found = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._fetched, found)

    def _fetched(self, found: KeySet | Exception) -> None:
        self._is_fetching = False
        if self._loop is None:
            return
        if isinstance(found, Exception):
            rest = "the last keys stay in use" if self.current.keys else "its tokens are refused"
            reason = str(found) or type(found).__name__
            _log.warning("the keys of %s cannot be fetched (%s); %s", self._where, reason, rest)
            delay = self._times.again_seconds
        else:
            delay = self._times.every_seconds
            if found.documents != self.current.documents:
                self.current = found
                self._on_change()
        self._timer = self._loop.call_later(delay, self._fetch)
