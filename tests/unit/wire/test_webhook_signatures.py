"""The signatures of webhooks: what is signed, what is accepted, and what is not."""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from semel.wire.webhook_signatures import (
    JWKS_BYTES_MAX,
    TOLERANCE_SECONDS,
    WebhookSignature,
    from_base64url,
    kid_of,
    parse_signature,
    print_jwks,
    print_signature,
    signed_bytes,
    to_base64url,
    verify,
)

NOW_S = 1_800_000_000
BODY = b'{"subscription_id":"s","wake_id":"w_1"}'
# The example of RFC 8037, appendices A.1 to A.3.
SECRET = urlsafe_b64decode("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=")
PUBLIC = urlsafe_b64decode("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo=")
THUMBPRINT = "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
KEY = Ed25519PrivateKey.from_private_bytes(SECRET)
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32))
KID = kid_of(PUBLIC)


def sign(body: bytes = BODY, *, time_s: int = NOW_S, kid: str = KID, key: Any = KEY) -> str:
    return print_signature(WebhookSignature(time_s, kid, key.sign(signed_bytes(body, time_s))))


def public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


JWKS = print_jwks([PUBLIC])


def test_a_kid_is_the_thumbprint_of_its_key() -> None:
    assert f"ds_{THUMBPRINT}" == KID


def test_the_document_has_what_receivers_need() -> None:
    assert json.loads(print_jwks([PUBLIC, public(OTHER)]))["keys"][0] == {
        "kty": "OKP",
        "crv": "Ed25519",
        "alg": "EdDSA",
        "use": "sig",
        "kid": KID,
        "x": to_base64url(PUBLIC),
    }


def test_a_signature_is_of_the_time_a_dot_and_the_raw_body() -> None:
    header = sign()
    time, kid, signature = (part.partition("=")[2] for part in header.split(","))
    assert header == f"t={time},kid={kid},ed25519={signature}"
    assert (time, kid) == (str(NOW_S), KID)
    value = from_base64url(signature)
    assert value is not None
    KEY.public_key().verify(value, time.encode() + b"." + BODY)


def test_a_signature_is_verified_with_the_key_that_it_names() -> None:
    assert verify(BODY, sign(), JWKS, NOW_S)
    assert verify(BODY, sign(), print_jwks([public(OTHER), PUBLIC]), NOW_S)
    assert not verify(BODY, sign(), print_jwks([public(OTHER)]), NOW_S)
    assert not verify(BODY, sign(kid=kid_of(public(OTHER))), print_jwks([public(OTHER)]), NOW_S)


def test_a_time_may_differ_by_five_minutes() -> None:
    for difference in (0, TOLERANCE_SECONDS, -TOLERANCE_SECONDS):
        assert verify(BODY, sign(), JWKS, NOW_S + difference)
    for difference in (TOLERANCE_SECONDS + 1, -TOLERANCE_SECONDS - 1):
        assert not verify(BODY, sign(), JWKS, NOW_S + difference)
    assert verify(BODY, sign(), JWKS, NOW_S + 5, tolerance_s=5)
    assert not verify(BODY, sign(), JWKS, NOW_S + 6, tolerance_s=5)


def test_any_change_is_found() -> None:
    header = sign()
    assert not verify(BODY + b" ", header, JWKS, NOW_S)
    assert not verify(b"", header, JWKS, NOW_S)
    assert not verify(BODY, header.replace(f"t={NOW_S}", f"t={NOW_S + 1}"), JWKS, NOW_S)
    for index in range(len(BODY)):
        changed = bytearray(BODY)
        changed[index] ^= 1
        assert not verify(bytes(changed), header, JWKS, NOW_S)


HEADER = sign()


@pytest.mark.parametrize(
    "header",
    [
        "",
        "t=1",
        HEADER + ",",
        HEADER + " ",
        " " + HEADER,
        HEADER + "\n",
        HEADER + "A",
        HEADER[:-1],
        HEADER + "=",
        HEADER.replace("t=", "T="),
        HEADER.replace(f"t={NOW_S}", f"t=0{NOW_S}"),
        HEADER.replace(f"t={NOW_S}", f"t=-{NOW_S}"),
        HEADER.replace(f"t={NOW_S}", f"t={NOW_S}.0"),
        HEADER.replace(f"t={NOW_S}", "t=" + "9" * 16),
        HEADER.replace(f"t={NOW_S}", "t=\u0661"),
        HEADER.replace("ed25519=", "sha256="),
        HEADER.replace(",kid", ", kid"),
        HEADER.replace(f"kid={KID}", "kid="),
        HEADER.replace(f"kid={KID}", "kid=" + "x" * 257),
        HEADER.replace(f"kid={KID}", "kid=a b"),
        HEADER.rpartition("=")[0] + "=" + "A" * 85 + "B",  # other bits than those of the bytes
        HEADER.rpartition("=")[0] + "=" + "\u00e9" * 86,
        f"kid={KID},t={NOW_S},{HEADER.rpartition(',')[2]}",
    ],
)
def test_every_other_form_is_refused(header: str) -> None:
    assert parse_signature(header) is None
    assert not verify(BODY, header, JWKS, NOW_S)


def test_what_is_printed_is_parsed() -> None:
    value = WebhookSignature(0, "k", bytes(range(64)))
    assert parse_signature(print_signature(value)) == value


def document(**changes: Any) -> bytes:
    key: dict[str, Any] = json.loads(JWKS)["keys"][0] | changes
    return json.dumps({"keys": [{k: v for k, v in key.items() if v is not None}]}).encode()


def test_optional_members_of_a_key_can_be_absent() -> None:
    for changes in ({}, {"alg": None}, {"use": None}, {"alg": "Ed25519"}, {"more": [1]}):
        assert verify(BODY, HEADER, document(**changes), NOW_S)


@pytest.mark.parametrize(
    "jwks",
    [
        b"",
        b"{}",
        b"[]",
        b'{"keys":{}}',
        b'{"keys":[1]}',
        b'{"keys":[]}',
        b"\xff",
        b"[" * 100_000,
        b'{"keys":[' + b"[" * 100_000,
        document(kid="ds_other"),
        document(kid=None),
        document(kid=7),
        document(kty="RSA"),
        document(crv="X25519"),
        document(alg="ES256"),
        document(use="enc"),
        document(x=None),
        document(x=7),
        document(x=""),
        document(x="AA"),
        document(x=to_base64url(PUBLIC) + "="),
        document(x=to_base64url(bytes(33))),
        document(x=to_base64url(b"\xff" * 32)),  # no point of the curve
        document(more="x" * JWKS_BYTES_MAX),
    ],
)
def test_a_document_without_the_key_verifies_nothing(jwks: bytes) -> None:
    assert not verify(BODY, HEADER, jwks, NOW_S)


def test_one_of_several_keys_with_a_kid_is_enough() -> None:
    key = json.loads(JWKS)["keys"][0]
    other = key | {"x": to_base64url(public(OTHER))}
    assert verify(BODY, HEADER, json.dumps({"keys": [other, key]}).encode(), NOW_S)


# ---- base64url -----------------------------------------------------------------------------------


def test_base64url_has_no_padding_and_one_text_for_the_same_bytes() -> None:
    for count in range(70):
        data = sha256(b"%d" % count).digest() * 3
        text = to_base64url(data[:count])
        assert from_base64url(text) == data[:count]
        assert text == urlsafe_b64encode(data[:count]).decode().rstrip("=")


@pytest.mark.parametrize(
    "text", ["A", "AAAAA", "AB", "AAB", "A=", "AA==", "A+", "A/", "A A", "\u00e9"]
)
def test_other_texts_are_no_base64url(text: str) -> None:
    assert from_base64url(text) is None
