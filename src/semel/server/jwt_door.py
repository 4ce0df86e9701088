"""JWTs: who the holder of a token is that an issuer has signed.

Only RS256, ES256 and EdDSA are accepted, each only with a key of its type. Keys come from the rules
alone, found by `kid`: a key or an address of a key in a token is not used.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import jwt
import msgspec
from jwt.api_jws import PyJWS

from semel.model.access_commands import is_principal
from semel.model.limits import KIB
from semel.server.identities import ALGORITHMS, Grant, Identity, JwtRule
from semel.server.jwks import NO_KEYS, KeySet, RefreshTimes, RemoteKeys

TOKEN_BYTES_MAX: Final = 8 * KIB
SKEW_MS: Final = 60_000  # the clock of an issuer may differ by this much
CACHED_MAX: Final = 1024

_SECONDS_MAX: Final = 2**53
_JWS: Final = PyJWS(ALGORITHMS)
_COMPACT: Final = re.compile(r"([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")


class _Issuer:
    """A rule with the keys of its issuer."""

    def __init__(self, rule: JwtRule, keys: KeySet | None, times: RefreshTimes) -> None:
        self.rule = rule
        self._keys = keys
        self.remote = RemoteKeys(rule, rule.jwks_url, times) if rule.jwks_url else None

    @property
    def keys(self) -> Mapping[str, jwt.PyJWK]:
        found = self._keys if self.remote is None else self.remote.current
        return NO_KEYS.keys if found is None else found.keys

    def check(self, token: str, header: dict[str, Any], now_ms: int) -> Identity | str:
        """Return who the holder of a token is, or the reason why this issuer did not say so."""
        key, algorithm = self.keys[header["kid"]], header["alg"]
        if algorithm != key.algorithm_name or algorithm not in self.rule.algorithms:
            return "algorithm"
        try:
            decoded = _JWS.decode_complete(token, key, [algorithm])
            claims = msgspec.json.decode(decoded["payload"])
        except jwt.InvalidSignatureError:
            return "signature"
        except (jwt.PyJWTError, msgspec.MsgspecError, ValueError, RecursionError):
            return "malformed"
        if not isinstance(claims, dict) or decoded["header"] != header:
            return "malformed"
        return self._identify(claims, now_ms)

    def _identify(self, claims: dict[str, Any], now_ms: int) -> Identity | str:
        rule = self.rule
        audience = claims.get("aud")
        if claims.get("iss") != rule.issuer:
            return "issuer"
        if audience != rule.audience and not _contains(audience, rule.audience):
            return "audience"
        expires_ms, begins_ms = _time_ms(claims.get("exp")), _time_ms(claims.get("nbf", 0))
        if expires_ms is None or begins_ms is None:
            return "malformed"
        if now_ms >= expires_ms + SKEW_MS:
            return "expired"
        if now_ms < begins_ms - SKEW_MS:
            return "not_yet_valid"
        name = claims.get(rule.principal)
        if not isinstance(name, str) or not name:
            return "principal"
        # A slash would make the principal one below another (rule T4), so it is escaped.
        principal = f"{rule.name}:{name.replace('%', '%25').replace('/', '%2F')}"
        if not is_principal(principal):
            return "principal"
        granted = (scope for g in rule.grants if _applies(g, claims) for scope in g.scopes)
        # A dictionary keeps the order, and each scope once.
        return Identity(principal, tuple(dict.fromkeys(granted)), expires_ms + SKEW_MS)


def _time_ms(value: object) -> int | None:
    """Return a time of a token in milliseconds, or None if it is not a time."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value * 1000) if 0 <= value < _SECONDS_MAX else None


def _contains(values: object, wanted: str | None) -> bool:
    return isinstance(values, list) and wanted in values


def _applies(grant: Grant, claims: Mapping[str, Any]) -> bool:
    if grant.claim is None:
        return True
    value = claims.get(grant.claim)
    words = value.split(" ") if isinstance(value, str) else value
    return value == grant.value or _contains(words, grant.value)


class JwtDoor:
    """Verifies tokens. All methods must be called on one thread, that of the event loop.

    `keys` has the keys of the issuers that have a file, by the name of their rule.
    """

    def __init__(
        self,
        rules: tuple[JwtRule, ...],
        keys: Mapping[str, KeySet],
        times: RefreshTimes | None = None,
    ) -> None:
        times = times or RefreshTimes()
        self._issuers = [_Issuer(rule, keys.get(rule.name), times) for rule in rules]
        self._cache: dict[str, Identity] = {}
        self._on_change: Callable[[], None] | None = None

    def start(self, on_change: Callable[[], None]) -> None:
        """Fetch the keys of issuers that have a URL, now and at regular intervals.

        `on_change` is called on the thread of the running event loop after new keys are in use.
        """
        self._on_change = on_change
        for issuer in self._issuers:
            if issuer.remote is not None:
                issuer.remote.start(self._changed)

    def close(self) -> None:
        """Fetch no keys from now on; those in use stay."""
        for issuer in self._issuers:
            if issuer.remote is not None:
                issuer.remote.close()

    def take_keys(self, earlier: "JwtDoor") -> None:
        """Use the keys that an earlier object has fetched, for issuers with the same URL."""
        fetched = {i.remote.url: i.remote.current for i in earlier._issuers if i.remote is not None}
        for issuer in self._issuers:
            if issuer.remote is not None:
                issuer.remote.current = fetched.get(issuer.remote.url, NO_KEYS)

    def _changed(self) -> None:
        self._cache.clear()
        if self._on_change is not None:
            self._on_change()

    def verify(self, token: str, now_ms: int) -> Identity | str:
        """Return who the holder of a token is, or a short code for the reason why it is refused.

        Results are cached, up to the time at which the token expires.
        """
        if len(token) > TOKEN_BYTES_MAX:
            return "too_long"
        found = self._cache.get(token)
        if found is not None:
            if now_ms < found.expires_ms:
                return found
            del self._cache[token]
            return "expired"
        checked = self._check(token, now_ms)
        if isinstance(checked, Identity):
            if len(self._cache) >= CACHED_MAX:
                del self._cache[next(iter(self._cache))]  # the oldest one
            self._cache[token] = checked
        return checked

    def _check(self, token: str, now_ms: int) -> Identity | str:
        header = _read_header(token)
        if header is None or not isinstance(header.get("alg"), str):
            return "malformed"
        if header["alg"] not in ALGORITHMS:
            return "algorithm"
        if "crit" in header or "b64" in header:
            return "critical"
        kid = header.get("kid")
        issuers = [each for each in self._issuers if isinstance(kid, str) and kid in each.keys]
        if not issuers:
            for each in self._issuers:
                if each.remote is not None and isinstance(kid, str):
                    each.remote.ask()
            return "unknown_kid"
        result: Identity | str = ""
        for each in issuers:
            result = each.check(token, header, now_ms)
            if isinstance(result, Identity):
                break
        return result


def _read_header(token: str) -> dict[str, Any] | None:
    """Return the header of a token in the compact form, or None if the token has no such form."""
    match = _COMPACT.fullmatch(token)
    if match is None:
        return None
    try:
        header = msgspec.json.decode(
            base64.urlsafe_b64decode(match[1] + "=" * (-len(match[1]) % 4))
        )
    except (binascii.Error, msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return header if isinstance(header, dict) else None
