"""The table [access] of the configuration file, and the identities of client certificates."""

import ssl
import tomllib
from pathlib import Path
from typing import Any

import pytest

from semel.model.rights import parse_scope
from semel.server.identities import (
    ALGORITHMS,
    AccessRules,
    CertificateRule,
    Grant,
    Identity,
    JwtRule,
    identity_of_certificate,
    is_key_url,
    parse_access,
    parse_subject,
)
from tests.certificates import Authority

READ = parse_scope("stream:orders/*:read")
WRITE = parse_scope("group:*:read,write")

JWT = """
[[access.jwt]]
name = "corp"
issuer = "https://login.example"
audience = "semel"
jwks_file = "jwks.json"
[[access.jwt.grants]]
scopes = ["stream:orders/*:read"]
"""
CERTIFICATE = """
[[access.certificate]]
subject = "CN=billing,O=Example"
principal = "billing"
scopes = ["stream:orders/*:read"]
"""


def rules_of(text: str) -> AccessRules:
    return parse_access(tomllib.loads(text)["access"])


# ---- the table -----------------------------------------------------------------------------------


def test_a_short_table_has_defaults() -> None:
    assert parse_access({}) == AccessRules()
    (rule,) = rules_of(JWT).jwt
    assert rule == JwtRule(
        name="corp",
        issuer="https://login.example",
        audience="semel",
        grants=(Grant((READ,)),),
        algorithms=ALGORITHMS,
        jwks_file="jwks.json",
        principal="sub",
    )


def test_every_key_of_the_table_is_used() -> None:
    text = """
    [[access.jwt]]
    name = "corp"
    issuer = "i"
    audience = "a"
    algorithms = ["ES256", "EdDSA"]
    jwks_url = "https://login.example/keys"
    principal = "client_id"
    [[access.jwt.grants]]
    claim = "groups"
    value = "writers"
    scopes = ["stream:orders/*:read", "group:*:read,write"]
    [[access.jwt.grants]]
    scopes = ["stream:orders/*:read"]

    [[access.certificate]]
    san_dns = "Billing.Example"
    principal = "billing"
    scopes = ["group:*:read,write"]
    [[access.certificate]]
    san_uri = "spiffe://example/billing"
    principal = "billing"
    scopes = ["stream:orders/*:read"]
    """
    assert rules_of(text) == AccessRules(
        jwt=(
            JwtRule(
                name="corp",
                issuer="i",
                audience="a",
                algorithms=("ES256", "EdDSA"),
                jwks_url="https://login.example/keys",
                principal="client_id",
                grants=(Grant((READ, WRITE), "groups", "writers"), Grant((READ,))),
            ),
        ),
        certificates=(
            CertificateRule(san_dns="billing.example", principal="billing", scopes=(WRITE,)),
            CertificateRule(
                san_uri="spiffe://example/billing", principal="billing", scopes=(READ,)
            ),
        ),
    )


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('issuer = "https', 'isuer = "https', "'isuer' is not a key; did you mean 'issuer'?"),
        ("jwks_file =", "jwks-file =", "did you mean 'jwks_file'?"),
        (
            "jwks_file =",
            "zzz =",
            "'zzz' is not a key; expected one of algorithms, audience, grants",
        ),
        ('name = "corp"', 'name = ""', "'name' is ''; expected a string"),
        ('name = "corp"', 'name = "a:b"', "'name' is 'a:b'; expected up to 64 letters"),
        ('name = "corp"', "name = 7", "'name' is 7; expected a string"),
        ('issuer = "https://login.example"', "", "[[access.jwt]] number 1: 'issuer' is missing"),
        ('audience = "semel"', "", "'audience' is missing"),
        (
            'audience = "semel"',
            'audience = ["semel"]',
            "'audience' is ['semel']; expected a string",
        ),
        ('jwks_file = "jwks.json"', "", "set exactly one of jwks_file, jwks_url"),
        (
            'jwks_file = "jwks.json"',
            'jwks_file = "a"\njwks_url = "https://b"',
            "set exactly one of jwks_file, jwks_url",
        ),
        (
            'jwks_file = "jwks.json"',
            'jwks_url = "http://login.example/keys"',
            "expected an https URL (or http on 127.0.0.1, ::1 or localhost)",
        ),
        ("jwks_file", 'algorithms = ["HS256"]\njwks_file', "expected some of RS256, ES256, EdDSA"),
        ("jwks_file", 'algorithms = ["none"]\njwks_file', "expected some of RS256, ES256, EdDSA"),
        ("jwks_file", "algorithms = []\njwks_file", "'algorithms' is []; expected a list"),
        ("jwks_file", 'algorithms = "RS256"\njwks_file', "expected a list of strings"),
        ("[[access.jwt]]", "[access.jwt]", "expected tables; write [[access.jwt]]"),
        ("[[access.jwt]]", "[[access.jwts]]", "'jwts' is not a key; did you mean 'jwt'?"),
        ("[[access.jwt.grants]]", "[[access.jwt.grant]]", "did you mean 'grants'?"),
        (
            '[[access.jwt.grants]]\nscopes = ["stream:orders/*:read"]',
            "",
            "'grants' is missing; add at least one table of scopes",
        ),
        ("scopes = [", 'claim = "a"\nscopes = [', "set both 'claim' and 'value', or none of them"),
        ("scopes = [", 'value = "a"\nscopes = [', "set both 'claim' and 'value', or none of them"),
        (
            "scopes = [",
            'claims = "a"\nscopes = [',
            "[[access.jwt]] number 1, [[access.jwt.grants]] number 1: 'claims' is not a key",
        ),
        ('["stream:orders/*:read"]', "[]", "'scopes' is []; expected a list of strings"),
        ('["stream:orders/*:read"]', "[1]", "'scopes' is [1]; expected a list of strings"),
        ('["stream:orders/*:read"]', '["a"]', "'scopes': 'a' is not a scope"),
        ('["stream:orders/*:read"]', '["stream:*:fly"]', "'fly' is not a right on a stream"),
    ],
)
def test_a_wrong_issuer_is_refused_with_the_names(old: str, new: str, complaint: str) -> None:
    assert old in JWT
    with pytest.raises(ValueError, match=r"\[access") as caught:
        rules_of(JWT.replace(old, new))
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('subject = "CN=billing,O=Example"', "", "set exactly one of subject, san_dns, san_uri"),
        ("subject", 'san_dns = "a"\nsubject', "set exactly one of subject, san_dns, san_uri"),
        ("CN=billing,O=Example", "billing", "'subject': 'billing' is not a subject"),
        ("CN=billing,O=Example", "XY=billing", "'subject': 'XY' is not an attribute"),
        ('principal = "billing"', "", "[[access.certificate]] number 1: 'principal' is missing"),
        ('principal = "billing"', f'principal = "{"x" * 257}"', "expected at most 256 bytes"),
        ('principal = "billing"', 'principal = "a\\u0007b"', "without control characters"),
        ('scopes = ["stream:orders/*:read"]', "", "'scopes' is missing"),
        ("subject", "subjects", "'subjects' is not a key; did you mean 'subject'?"),
    ],
)
def test_a_wrong_certificate_is_refused_with_the_names(old: str, new: str, complaint: str) -> None:
    assert old in CERTIFICATE
    with pytest.raises(ValueError, match=r"\[access") as caught:
        rules_of(CERTIFICATE.replace(old, new))
    assert complaint in str(caught.value)


def test_two_issuers_need_two_names() -> None:
    with pytest.raises(ValueError, match="two issuers have the name 'corp'"):
        rules_of(JWT + JWT)
    assert len(rules_of(JWT + JWT.replace('"corp"', '"other"')).jwt) == 2


@pytest.mark.parametrize("table", [7, "on", [], [{}]])
def test_what_is_not_a_table_is_refused(table: object) -> None:
    with pytest.raises(ValueError, match=r"\[access\] is .*; expected a table"):
        parse_access(table)


@pytest.mark.parametrize(
    ("url", "is_allowed"),
    [
        ("https://login.example/keys?a=b", True),
        ("https://login.example:8443", True),
        ("http://127.0.0.1:8080/keys", True),
        ("http://127.9.9.9/keys", True),
        ("http://[::1]/keys", True),
        ("http://localhost/keys", True),
        ("http://login.example/keys", False),
        ("http://localhost.example/keys", False),
        ("http://10.0.0.1/keys", False),
        ("http://127.0.0.1@evil.example/keys", False),
        ("https://user:secret@login.example/keys", False),
        ("https://login.example/keys#a", False),
        ("https://login.example:x/keys", False),
        ("https:///keys", False),
        ("https://login.example/a b", False),
        ("https://login.example/é", False),
        ("file:///etc/passwd", False),
        ("ftp://login.example/keys", False),
        ("login.example/keys", False),
        ("", False),
    ],
)
def test_keys_come_by_https_or_from_this_machine(url: str, is_allowed: bool) -> None:
    assert is_key_url(url) == is_allowed


# ---- subjects ------------------------------------------------------------------------------------

CN, ORG, OU = "commonName", "organizationName", "organizationalUnitName"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CN=billing", [(CN, "billing")]),
        ("CN=billing,O=Example", [(CN, "billing"), (ORG, "Example")]),
        ("O = Example, CN = billing", [(CN, "billing"), (ORG, "Example")]),
        ("cn=billing + o=Example", [(CN, "billing"), (ORG, "Example")]),
        ("commonName=billing", [(CN, "billing")]),
        ("OU=b,OU=a,CN=x", [(CN, "x"), (OU, "a"), (OU, "b")]),
        (r"CN=a\,b,O=c\+d", [(CN, "a,b"), (ORG, "c+d")]),
        (r"CN=a\2Cb", [(CN, "a,b")]),
        (r"CN=M\C3\BCller", [(CN, "Müller")]),
        ("CN=Müller GmbH", [(CN, "Müller GmbH")]),
        (r"CN=a\ ,O=b", [(CN, "a "), (ORG, "b")]),
        (r"CN=a\\", [(CN, "a\\")]),
        ("CN=a=b", [(CN, "a=b")]),
    ],
)
def test_a_subject_is_a_set_of_attributes(text: str, expected: list[tuple[str, str]]) -> None:
    assert parse_subject(text) == tuple(expected)


@pytest.mark.parametrize(
    "text", ["", " ", "CN", "CN=", "=a", "CN=a,,O=b", "CN=a,", 'CN="a"', "CN=a;O=b"]
)
def test_what_is_not_a_subject_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a subject"):
        parse_subject(text)


@pytest.mark.parametrize("text", [r"CN=a\FF", r"CN=a\zb"])
def test_a_wrong_escape_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a subject"):
        parse_subject(text)


# ---- certificates --------------------------------------------------------------------------------


def peer_of(tmp_path: Path, **given: Any) -> dict[str, Any]:
    """Return a certificate as the server gets it, from a handshake in memory."""
    authority = Authority(tmp_path)
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(*authority.issue("server"))
    server_side.load_verify_locations(authority.ca)
    server_side.verify_mode = ssl.CERT_REQUIRED
    client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_side.check_hostname, client_side.verify_mode = False, ssl.CERT_NONE
    client_side.load_cert_chain(*authority.issue("client", **given))
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side.wrap_bio(down, up)
    server = server_side.wrap_bio(up, down, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    found = server.getpeercert()
    assert found
    return dict(found)


def rule_for(**which: Any) -> CertificateRule:
    if "subject" in which:
        which["subject"] = parse_subject(which["subject"])
    return CertificateRule(principal="billing", scopes=(READ,), **which)


BILLING = {"CN": "billing", "O": "Example"}


@pytest.mark.parametrize(
    ("given", "which", "matches"),
    [
        (BILLING, {"subject": "CN=billing,O=Example"}, True),
        (BILLING, {"subject": "O=Example,CN=billing"}, True),
        (BILLING, {"subject": "CN=billing"}, False),
        (BILLING, {"subject": "CN=billing,O=Example,OU=x"}, False),
        (BILLING, {"subject": "CN=Billing,O=Example"}, False),
        (BILLING, {"subject": "O=billing,CN=Example"}, False),
        ({"CN": "billing,O=Example"}, {"subject": "CN=billing,O=Example"}, False),
        ({"CN": "billing,O=Example"}, {"subject": r"CN=billing\,O\=Example"}, True),
        ({"DC": "a", "UID": "b"}, {"subject": "UID=b,DC=a"}, True),
        ({"dns": "billing.example"}, {"san_dns": "billing.example"}, True),
        ({"dns": "Billing.example"}, {"san_dns": "billing.example"}, True),
        ({"dns": "*.example"}, {"san_dns": "billing.example"}, False),
        ({"dns": "x.billing.example"}, {"san_dns": "billing.example"}, False),
        ({"uri": "billing.example"}, {"san_dns": "billing.example"}, False),
        ({"CN": "billing.example"}, {"san_dns": "billing.example"}, False),
        ({"uri": "spiffe://example/a"}, {"san_uri": "spiffe://example/a"}, True),
        ({"uri": "spiffe://example/a/b"}, {"san_uri": "spiffe://example/a"}, False),
        ({"dns": "spiffe"}, {"san_uri": "spiffe"}, False),
        ({"CN": "127.0.0.1"}, {"san_dns": "127.0.0.1"}, False),
    ],
)
def test_a_certificate_matches_by_its_subject_or_a_name(
    tmp_path: Path, given: dict[str, str], which: dict[str, str], matches: bool
) -> None:
    peer = peer_of(tmp_path, **given)
    found = identity_of_certificate(peer, [rule_for(**which)])
    expires_ms = 1000 * ssl.cert_time_to_seconds(peer["notAfter"])
    assert found == (Identity("billing", (READ,), expires_ms) if matches else None)


def test_the_first_rule_that_matches_is_used(tmp_path: Path) -> None:
    peer = peer_of(tmp_path, dns="a.example", **BILLING)
    first = CertificateRule(san_dns="a.example", principal="first", scopes=(READ,))
    second = rule_for(subject="CN=billing,O=Example")
    assert [
        None if found is None else found.principal
        for rules in ([first, second], [second, first], [])
        for found in [identity_of_certificate(peer, rules)]
    ] == ["first", "billing", None]


@pytest.mark.parametrize("peer", [None, {}])
def test_nobody_is_known_without_a_verified_certificate(peer: dict[str, Any] | None) -> None:
    assert identity_of_certificate(peer, [rule_for(subject="CN=a")]) is None
