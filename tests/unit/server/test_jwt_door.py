"""JWTs: what is accepted, and every forged, expired or malformed token that is not."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from semel.server.identities import Grant, Identity, JwtRule
from semel.server.jwks import parse_keys
from semel.server.jwt_door import CACHED_MAX, SKEW_MS, TOKEN_BYTES_MAX, JwtDoor
from tests.unit.server.issuer import (
    AUDIENCE,
    HOUR,
    ISSUER,
    KIDS,
    NOW_MS,
    READ,
    WRITE,
    algorithm,
    encode,
    jwk,
    jwks,
    private_keys,
    rule,
    token,
)

NOW = NOW_MS // 1000


def door(*rules: JwtRule, keys: bytes | None = None) -> JwtDoor:
    rules = rules or (rule(),)
    return JwtDoor(rules, {each.name: parse_keys(keys or jwks()) for each in rules})


def verdict(text: str, now_ms: int = NOW_MS, *rules: JwtRule) -> Identity | str:
    return door(*rules).verify(text, now_ms)


# ---- accepted ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KIDS)
def test_a_token_of_each_algorithm_names_its_principal(name: str) -> None:
    expires_ms = NOW_MS + 1000 * HOUR + SKEW_MS
    assert verdict(token(name)) == Identity("corp:alice", (READ,), expires_ms)


@pytest.mark.parametrize("groups", ["writers", ["a", "writers"], "openid writers"])
def test_a_claim_that_has_or_contains_the_value_grants_scopes(groups: object) -> None:
    found = verdict(token(groups=groups))
    assert isinstance(found, Identity)
    assert found.scopes == (READ, WRITE)


@pytest.mark.parametrize("groups", [None, "writer", "writersx", ["a"], [["writers"]], True, 7, {}])
def test_another_claim_does_not(groups: object) -> None:
    found = verdict(token(groups=groups))
    assert isinstance(found, Identity)
    assert found.scopes == (READ,)


def test_a_holder_without_a_grant_is_known_but_may_do_nothing() -> None:
    found = verdict(token(), NOW_MS, rule(grants=(Grant((WRITE,), "groups", "writers"),)))
    assert isinstance(found, Identity)
    assert (found.principal, found.scopes) == ("corp:alice", ())


@pytest.mark.parametrize("audience", [AUDIENCE, [AUDIENCE], ["other", AUDIENCE]])
def test_the_audience_is_a_text_or_a_list(audience: object) -> None:
    assert isinstance(verdict(token(aud=audience)), Identity)


def test_a_slash_in_a_name_is_escaped() -> None:
    """Otherwise one user could make tokens for another, whose name begins with the first one."""
    found = verdict(token(sub="alice/bob%2F"), NOW_MS)
    assert not isinstance(found, str)
    assert found.principal == "corp:alice%2Fbob%252F"


def test_another_claim_can_name_the_principal() -> None:
    found = verdict(token(client_id="billing", sub=None), NOW_MS, rule(principal="client_id"))
    assert isinstance(found, Identity)
    assert found.principal == "corp:billing"


def test_a_clock_may_differ_by_a_minute_and_not_by_more() -> None:
    for expires, expected in ((NOW - 59, True), (NOW - 60, False), (NOW - 61, False)):
        assert isinstance(verdict(token(exp=expires)), Identity) == expected
    for begins, expected in ((NOW + 60, True), (NOW + 61, False)):
        assert isinstance(verdict(token(nbf=begins)), Identity) == expected


def test_two_issuers_with_the_same_kid_are_told_apart() -> None:
    other = rule(name="other", issuer="https://other.example")
    both = JwtDoor(
        (rule(), other),
        {"corp": parse_keys(jwks()), "other": parse_keys(jwks(jwk("RS256", seed=1)))},
    )
    mine = both.verify(token(), NOW_MS)
    theirs = both.verify(token(seed=1, iss="https://other.example"), NOW_MS)
    assert isinstance(mine, Identity)
    assert isinstance(theirs, Identity)
    assert (mine.principal, theirs.principal) == ("corp:alice", "other:alice")
    # The key of one issuer cannot sign for the other one.
    assert isinstance(both.verify(token(seed=1), NOW_MS), str)
    assert isinstance(both.verify(token(iss="https://other.example"), NOW_MS), str)


# ---- refused -------------------------------------------------------------------------------------


def rsa_public_bytes() -> list[bytes]:
    """Return the texts of the public key that a verifier could take for a secret."""
    public = private_keys(0)["RS256"].public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return [pem, pem.strip(), der, json.dumps(jwk("RS256")).encode()]


@pytest.mark.parametrize("hash_name", ["256", "384", "512"])
@pytest.mark.parametrize("secret", rsa_public_bytes(), ids=["pem", "pem without end", "der", "jwk"])
def test_the_public_key_is_not_a_secret(hash_name: str, secret: bytes) -> None:
    def sign(data: bytes) -> bytes:
        return hmac.new(secret, data, f"sha{hash_name}").digest()

    assert verdict(token(f"HS{hash_name}", sign=sign)) == "algorithm"
    # The same signature under an algorithm that is allowed.
    assert verdict(token("RS256", sign=sign)) == "signature"


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE", "", "HS256", "PS256", "RS512"])
@pytest.mark.parametrize("signature", [b"x", b"\0" * 256])
def test_no_other_algorithm_is_accepted(name: str, signature: bytes) -> None:
    assert verdict(token(name, sign=lambda _: signature)) == "algorithm"


def test_a_token_without_a_signature_is_refused() -> None:
    whole = token()
    for text in (
        whole.rpartition(".")[0] + ".",
        whole.rpartition(".")[0],
        token("none", sign=lambda _: b""),
    ):
        assert verdict(text) == "malformed"


def test_an_algorithm_that_is_not_in_the_rule_is_refused() -> None:
    only = rule(algorithms=("ES256",))
    assert verdict(token("RS256"), NOW_MS, only) == "algorithm"
    assert isinstance(verdict(token("ES256"), NOW_MS, only), Identity)


@pytest.mark.parametrize("name", KIDS)
@pytest.mark.parametrize("other", KIDS)
def test_an_algorithm_needs_a_key_of_its_type(name: str, other: str) -> None:
    """The header names a key of another type; the signature is made with the right or wrong one."""
    if name == other:
        return
    assert verdict(token(name, header={"kid": KIDS[other]})) == "algorithm"
    swapped = token(name, header={"alg": other})
    assert verdict(swapped) == "algorithm"
    assert verdict(token(name, header={"alg": other, "kid": KIDS[other]})) == "signature"


@pytest.mark.parametrize("name", KIDS)
def test_a_signature_of_another_key_is_refused(name: str) -> None:
    assert verdict(token(name, seed=1)) == "signature"


@pytest.mark.parametrize("name", KIDS)
def test_every_changed_byte_is_noticed(name: str) -> None:
    gate = door()
    whole = token(name, groups="readers")
    assert isinstance(gate.verify(whole, NOW_MS), Identity)
    for position in range(0, len(whole), 7):
        for letter in "AZ":
            changed = f"{whole[:position]}{letter}{whole[position + 1 :]}"
            if changed != whole:
                assert isinstance(gate.verify(changed, NOW_MS), str), position


def test_claims_that_are_exchanged_are_refused() -> None:
    head, _, signature = token().split(".")
    admin = token(groups="writers").split(".")[1]
    assert verdict(f"{head}.{admin}.{signature}") == "signature"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": NOW - HOUR}, "expired"),
        ({"exp": 0}, "expired"),
        ({"exp": None}, "malformed"),
        ({"exp": str(NOW + HOUR)}, "malformed"),
        ({"exp": True}, "malformed"),
        ({"exp": -1}, "malformed"),
        ({"exp": 1e300}, "malformed"),
        ({"exp": [NOW + HOUR]}, "malformed"),
        ({"nbf": NOW + HOUR}, "not_yet_valid"),
        ({"nbf": "0"}, "malformed"),
        ({"aud": None}, "audience"),
        ({"aud": "other"}, "audience"),
        ({"aud": "semel2"}, "audience"),
        ({"aud": f"x {AUDIENCE}"}, "audience"),
        ({"aud": ["other"]}, "audience"),
        ({"aud": []}, "audience"),
        ({"aud": {AUDIENCE: True}}, "audience"),
        ({"aud": AUDIENCE.upper()}, "audience"),
        ({"iss": None}, "issuer"),
        ({"iss": "https://evil.example"}, "issuer"),
        ({"iss": f"{ISSUER}/"}, "issuer"),
        ({"iss": [ISSUER]}, "issuer"),
        ({"sub": None}, "principal"),
        ({"sub": ""}, "principal"),
        ({"sub": 7}, "principal"),
        ({"sub": ["alice"]}, "principal"),
        ({"sub": "a\nb"}, "principal"),
        ({"sub": "a\x1b[2J"}, "principal"),
        ({"sub": "x" * 252}, "principal"),
    ],
)
def test_wrong_claims_are_refused(changes: dict[str, Any], reason: str) -> None:
    assert verdict(token(**changes)) == reason


@pytest.mark.parametrize(
    "kid",
    [
        "unknown",
        "RSA-1",
        "",
        "../../etc/passwd",
        "/dev/null",
        "file:///etc/semel/jwks.json",
        "https://evil.example/jwks",
        "rsa-1\0",
        "x" * 4000,
        "' OR 1=1 --",
        7,
        None,
        [],
        ["rsa-1"],
        {"rsa-1": 1},
    ],
)
def test_a_kid_is_only_compared_with_those_of_the_keys(kid: object) -> None:
    assert verdict(token(header={"kid": kid})) == "unknown_kid"


@pytest.mark.parametrize("name", ["jwk", "jku", "x5u", "x5c"])
def test_a_key_in_the_token_is_not_used(name: str) -> None:
    """The token is signed with a key that it brings along, or names."""
    forged = {
        "jwk": jwk("RS256", seed=1),
        "jku": "http://127.0.0.1:9/keys",
        "x5u": "http://127.0.0.1:9/cert",
        "x5c": ["MIIB"],
    }[name]
    assert verdict(token(header={name: forged}, seed=1)) == "signature"
    assert verdict(token(header={name: forged, "kid": "new"}, seed=1)) == "unknown_kid"
    assert isinstance(verdict(token(header={name: forged})), Identity), "it is ignored"


@pytest.mark.parametrize(
    "header",
    [
        {"crit": ["exp"], "exp": 1},
        {"crit": []},
        {"crit": ["b64"], "b64": False},
        {"crit": ["b64"], "b64": True},
        {"b64": False},
        {"crit": None, "b64": True},
    ],
)
def test_headers_that_change_the_meaning_are_refused(header: dict[str, Any]) -> None:
    assert verdict(token(header=header)) == "critical"


def test_a_type_is_not_needed_and_not_compared() -> None:
    for name in ("JWT", "at+jwt", None):
        assert isinstance(verdict(token(header={"typ": name})), Identity)


def with_two_signatures() -> str:
    head, body, signature = token().split(".")
    each = {"protected": head, "signature": signature}
    return json.dumps({"payload": body, "signatures": [each, each]})


def padded(text: str) -> str:
    return ".".join(part + "=" * (-len(part) % 4) for part in text.split("."))


@pytest.mark.parametrize(
    "make",
    [
        with_two_signatures,
        lambda: f"{token()}.{token().rpartition('.')[2]}",
        lambda: f"{token()}.{token()}",
        lambda: f" {token()}",
        lambda: f"{token()}\n",
        lambda: f"{token()}, {token()}",
        lambda: padded(token(sub="ab")),
        lambda: token().replace(".", "..", 1),
        lambda: "",
        lambda: ".",
        lambda: "..",
        lambda: "a.b.c",
        lambda: "\0.\0.\0",
        lambda: "é.é.é",
        lambda: "semel_abc_def",
        lambda: f"{encode(b'[]')}.{encode(b'{}')}.{encode(b'x')}",
        lambda: f"{encode(b'null')}.{encode(b'{}')}.{encode(b'x')}",
        lambda: f"{encode(b'[' * 4000)}.{encode(b'{}')}.{encode(b'x')}",
        lambda: token(header={"alg": None}),
        lambda: token(header={"alg": ["RS256"]}),
        lambda: token(payload=b"[]"),
        lambda: token(payload=b"not json"),
        lambda: token(payload=b"\xff\xfe"),
        lambda: token(payload=b'{"exp": NaN}'),
        lambda: token(payload=b"[" * 4000),
        lambda: token(payload=b'{"sub": "\\ud800"}'),
    ],
)
def test_what_is_not_one_signed_token_is_refused(make: Callable[[], str]) -> None:
    assert verdict(make()) == "malformed"


@pytest.mark.parametrize("make", [lambda: token(big="x" * 1_000_000), lambda: "x" * 1_000_000])
def test_a_long_token_is_refused(make: Callable[[], str]) -> None:
    assert verdict(make()) == "too_long"


def test_the_limit_of_the_length_is_exact() -> None:
    short = token(header={"x": "y"})
    size = TOKEN_BYTES_MAX - len(short)
    whole = next(
        found
        for extra in range(size // 4 * 3 + 4, 0, -1)
        if len(found := token(header={"x": "y" * extra})) <= TOKEN_BYTES_MAX
    )
    assert TOKEN_BYTES_MAX - len(whole) < 4
    assert isinstance(verdict(whole), Identity)
    assert verdict(whole + "A" * (TOKEN_BYTES_MAX - len(whole) + 1)) == "too_long"


@given(st.text(alphabet="AZaz09-_.= ", max_size=60))
def test_garbage_is_refused_without_an_exception(text: str) -> None:
    assert isinstance(verdict(text), str)


@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=60))
def test_garbage_in_the_right_form_is_refused(head: bytes, body: bytes, signature: bytes) -> None:
    assert isinstance(verdict(f"{encode(head)}.{encode(body)}.{encode(signature)}"), str)


def test_an_ecdsa_signature_of_zeros_is_refused() -> None:
    assert verdict(token("ES256", sign=lambda _: bytes(64))) == "signature"
    assert verdict(token("ES256", sign=lambda _: bytes(63))) == "signature"


def test_a_key_of_another_curve_is_refused() -> None:
    other = ec.generate_private_key(ec.SECP384R1())

    def sign(data: bytes) -> bytes:
        return algorithm("ES384").sign(data, other)

    assert verdict(token("ES256", sign=sign)) == "signature"
    assert verdict(token("ES384", header={"kid": "ec-1"}, sign=sign)) == "algorithm"


def test_the_two_readers_of_a_header_must_agree() -> None:
    """A header with one name twice has two meanings."""
    fields = b'{"alg":"HS256","kid":"x","alg":"RS256","kid":"rsa-1"}'
    signed = f"{encode(fields)}.{token().split('.')[1]}"
    signature = algorithm("RS256").sign(signed.encode(), private_keys(0)["RS256"])
    found = verdict(f"{signed}.{encode(signature)}")
    assert isinstance(found, Identity), "the last one counts for both"
    secret = hmac.new(b"x", signed.encode(), hashlib.sha256).digest()
    assert verdict(f"{signed}.{encode(secret)}") == "signature"


def test_spare_bits_of_the_last_character_must_be_zero() -> None:
    whole = token("EdDSA")
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    other = whole[:-1] + alphabet[alphabet.index(whole[-1]) + 1]
    last = whole.rpartition(".")[2]
    changed = other.rpartition(".")[2]
    assert base64.urlsafe_b64decode(f"{last}==") == base64.urlsafe_b64decode(f"{changed}==")
    assert verdict(other) == "malformed"


# ---- the cache -----------------------------------------------------------------------------------


def test_a_cached_token_expires_at_its_time() -> None:
    gate = door()
    text = token(exp=NOW + 10)
    found = gate.verify(text, NOW_MS)
    assert gate.verify(text, NOW_MS + 10_000 + SKEW_MS - 1) is found
    assert gate.verify(text, NOW_MS + 10_000 + SKEW_MS) == "expired"
    assert gate.verify(text, NOW_MS + 10_000 + SKEW_MS) == "expired"


def test_the_cache_is_bounded_and_forgets_the_oldest_one() -> None:
    gate = door()
    first = gate.verify(token("EdDSA"), NOW_MS)
    assert gate.verify(token("EdDSA"), NOW_MS) is first
    for number in range(CACHED_MAX):
        gate.verify(token("EdDSA", sub=str(number)), NOW_MS)
    again = gate.verify(token("EdDSA"), NOW_MS)
    assert again == first
    assert again is not first


def test_refused_tokens_are_not_cached() -> None:
    gate = door()
    text = token(nbf=NOW + HOUR)
    assert gate.verify(text, NOW_MS) == "not_yet_valid"
    assert isinstance(gate.verify(text, NOW_MS + 1000 * HOUR), Identity)
