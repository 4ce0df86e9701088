"""Whether a request is a delivery of the server: the public keys of the server, and the check.

The keys are fetched from the server that the client uses, never from an address in a request.
"""

import importlib.util
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from semel.client.aio.client import AsyncClient
from semel.client.async_driver import AsyncLock
from semel.client.errors import Unavailable
from semel.client.subscription_calls import fetch_webhook_keys
from semel.version import install_advice
from semel.wire.webhook_signatures import (
    SIGNATURE_HEADER,
    TOLERANCE_SECONDS,
    parse_signature,
    verify,
)

KEYS_SECONDS: Final = 300.0  # how long fetched keys are used
REFETCH_SECONDS: Final = 10.0  # a key that is unknown is looked for at most so often
_RETRY_SECONDS: Final = 1.0  # after a fetch that has failed
FETCH_SECONDS: Final = 5.0


class _Jwks(msgspec.Struct):
    keys: list[dict[str, Any]]


def require_cryptography() -> None:
    """Raise RuntimeError unless the package that verifies signatures is installed."""
    if importlib.util.find_spec("cryptography") is None:
        raise RuntimeError(
            "signatures of webhooks are verified with the package cryptography, which is not"
            " installed; " + install_advice("'.[webhooks]'")
        )


class SignatureCheck:
    """Verifies the signatures of deliveries with the keys of the client's server.

    `jwks` is the JWKS document, if it is not to be fetched. Otherwise the keys are fetched with the
    client when they are needed, kept for 300 seconds, and fetched again for an unknown key. `now`
    returns the time in seconds since 1970, and `clock` that of a monotonic clock.
    """

    def __init__(
        self,
        client: AsyncClient,
        jwks: bytes | None = None,
        *,
        now: Callable[[], float] = time.time,  # noqa: TID251 - the age of a signature
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if jwks is not None and not _kids(jwks):
            raise ValueError("jwks is not a JWKS document with keys, as bytes")
        self._client = client
        self._is_fixed = jwks is not None
        self._jwks = jwks or b""
        self._now, self._clock = now, clock
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._lock = AsyncLock()

    def problem(self, header: str) -> str | None:
        """Return why no body can make this header a valid signature now, or None."""
        claimed = parse_signature(header)
        if claimed is None:
            return f"its header {SIGNATURE_HEADER} is missing or malformed"
        age = self._now() - claimed.time_s
        if abs(age) <= TOLERANCE_SECONDS:
            return None
        return (
            f"its signature is {age:.0f} s old, and at most {TOLERANCE_SECONDS} s are accepted. If"
            " it was not recorded, the clock of this machine differs from that of the server"
        )

    def mismatch(self, header: str) -> str:
        """Return why the signature was not valid."""
        claimed = parse_signature(header)
        if claimed is not None and claimed.kid not in _kids(self._jwks):
            home = "the document in jwks" if self._is_fixed else self._client.site.address.url
            return f"it is signed with the key {claimed.kid}, which {home} does not have"
        return "its signature does not fit its body. Perhaps a proxy has changed the body"

    async def is_valid(self, body: bytes, header: str) -> bool:
        """Return True if the server has signed this body, and not too long ago.

        Raises ClientError if the keys are needed and cannot be fetched.
        """
        claimed = parse_signature(header)
        if claimed is None:
            return False
        async with self._lock:
            if self._needs_fetch(claimed.kid):
                await self._fetch()
            jwks = self._jwks
        return verify(body, header, jwks, int(self._now()))

    def _needs_fetch(self, kid: str) -> bool:
        """Return True if the keys are too old, or lack this one and were not fetched just now."""
        if self._is_fixed:
            return False
        if self._fetched_at is None or self._clock() - self._fetched_at >= KEYS_SECONDS:
            return True
        return kid not in _kids(self._jwks) and not self._has_tried(REFETCH_SECONDS)

    def _has_tried(self, seconds: float) -> bool:
        """Return True if the keys were fetched, or tried to be, in the last seconds."""
        return self._tried_at is not None and self._clock() - self._tried_at < seconds

    async def _fetch(self) -> None:
        if self._has_tried(_RETRY_SECONDS):
            raise Unavailable("the keys of the server could not be fetched a moment ago")
        self._tried_at = self._clock()
        self._jwks = await self._client.run(fetch_webhook_keys(self._client.site), FETCH_SECONDS)
        self._fetched_at = self._clock()


def _kids(jwks: bytes) -> set[object]:
    """Return the ids of the keys in a document, which may be malformed."""
    try:
        return {key.get("kid") for key in msgspec.json.decode(jwks, type=_Jwks).keys}
    except (msgspec.MsgspecError, ValueError, RecursionError, TypeError):
        return set()
