"""The signatures of webhooks: the header Webhook-Signature, and the keys that verify it.

The header is `t=<time>,kid=<key>,ed25519=<signature>`. The time is in seconds since 1970, and the
signature, in base64url without padding, is that of the time in decimal, a dot, and the bytes of the
body. The public keys are in a JWKS document (RFC 7517), found by `kid`.

`cryptography` is imported when a signature is verified, because most programs verify none.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec import Struct

from semel.model.limits import KIB

SIGNATURE_HEADER: Final = "Webhook-Signature"
TOLERANCE_SECONDS: Final = 300  # how much older or newer than now a signature may be
JWKS_TYPE: Final = "application/jwk-set+json"
JWKS_BYTES_MAX: Final = 256 * KIB
KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
KID_PREFIX: Final = "ds_"

_HEADER: Final = re.compile(
    r"t=(0|[1-9][0-9]{0,14}),kid=([A-Za-z0-9._~-]{1,256}),ed25519=([A-Za-z0-9_-]{86})"
)
_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]*")
_ALGORITHMS: Final = (None, "EdDSA", "Ed25519")  # both names of the same one, or none


class WebhookSignature(Struct, frozen=True):
    """The values in the header Webhook-Signature."""

    time_s: int
    kid: str
    signature: bytes


def signed_bytes(raw_body: bytes, time_s: int) -> bytes:
    """Return the bytes that are signed: the time, a dot, and the body as it is sent."""
    return f"{time_s}.".encode() + raw_body


def print_signature(value: WebhookSignature) -> str:
    """Return the value of the header Webhook-Signature."""
    return f"t={value.time_s},kid={value.kid},ed25519={to_base64url(value.signature)}"


def parse_signature(text: str) -> WebhookSignature | None:
    """Return the values in a header, or None unless it has exactly the form that is printed."""
    match = _HEADER.fullmatch(text)
    signature = None if match is None else from_base64url(match[3])
    if match is None or signature is None:
        return None
    return WebhookSignature(int(match[1]), match[2], signature)


def verify(
    raw_body: bytes,
    header_value: str,
    jwks: bytes,
    now_s: int,
    tolerance_s: int = TOLERANCE_SECONDS,
) -> bool:
    """Return whether a body was signed with a key of a JWKS document, and not too long ago.

    `raw_body` has the bytes as they were received, not JSON that was parsed and encoded again. The
    result is False for anything malformed, for an unknown `kid`, and for a time that differs from
    `now_s` by more than `tolerance_s`. Nothing in the arguments causes an exception.
    """
    claimed = parse_signature(header_value)
    if claimed is None or abs(now_s - claimed.time_s) > tolerance_s:
        return False
    data = signed_bytes(raw_body, claimed.time_s)
    return any(_is_signed(data, claimed, key) for key in _public_keys(jwks, claimed.kid))


def _is_signed(data: bytes, claimed: WebhookSignature, public_key: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
        Ed25519PublicKey,
    )

    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(claimed.signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


# ---- keys ----------------------------------------------------------------------------------------


class _Jwks(Struct):
    keys: list[dict[str, Any]]


def _public_keys(jwks: bytes, kid: str) -> Iterator[bytes]:
    """Yield the Ed25519 keys with this `kid` in a document, which may be malformed."""
    if len(jwks) > JWKS_BYTES_MAX:
        return
    try:
        documents = msgspec.json.decode(jwks, type=_Jwks).keys
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return
    for document in documents:
        key = _ed25519_of(document) if document.get("kid") == kid else None
        if key is not None:
            yield key


def _ed25519_of(document: dict[str, Any]) -> bytes | None:
    """Return the public key in an entry of a document, or None if it is for something else."""
    if document.get("kty") != "OKP" or document.get("crv") != "Ed25519":
        return None
    if document.get("alg") not in _ALGORITHMS or document.get("use", "sig") != "sig":
        return None
    text = document.get("x")
    key = from_base64url(text) if isinstance(text, str) else None
    return key if key is not None and len(key) == KEY_BYTES else None


def kid_of(public_key: bytes) -> str:
    """Return the `kid` of an Ed25519 key: `ds_` and the thumbprint of its JWK (RFC 7638)."""
    required = {"crv": "Ed25519", "kty": "OKP", "x": to_base64url(public_key)}
    thumbprint = sha256(msgspec.json.encode(required, order="sorted")).digest()
    return KID_PREFIX + to_base64url(thumbprint)


def print_jwks(public_keys: Iterable[bytes]) -> bytes:
    """Return the JWKS document of Ed25519 keys, in this order."""
    keys = [
        {
            "kty": "OKP",
            "crv": "Ed25519",
            "alg": "EdDSA",
            "use": "sig",
            "kid": kid_of(key),
            "x": to_base64url(key),
        }
        for key in public_keys
    ]
    return msgspec.json.encode({"keys": keys})


# ---- base64url -----------------------------------------------------------------------------------


def to_base64url(data: bytes) -> str:
    """Return bytes in base64url without padding."""
    return urlsafe_b64encode(data).decode().rstrip("=")


def from_base64url(text: str) -> bytes | None:
    """Return the bytes in a text, or None unless `to_base64url` returns this text for them.

    So no two texts stand for the same bytes.
    """
    if _BASE64URL.fullmatch(text) is None:
        return None
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (Base64Error, ValueError):
        return None
    return data if to_base64url(data) == text else None
