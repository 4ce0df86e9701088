"""Identities from outside: who the holders of JWTs and of client certificates are, by rules.

The rules are the table `[access]` of the configuration file. They map a signed token, or a client
certificate that the TLS handshake has verified, to a principal and its scopes.
"""

import re
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from semel.model.access_commands import is_principal
from semel.model.limits import PRINCIPAL_BYTES_MAX
from semel.model.rights import Scope, parse_scope
from semel.server.host_names import to_address

if TYPE_CHECKING:
    from semel.server.jwt_door import JwtDoor

ALGORITHMS: Final = ("RS256", "ES256", "EdDSA")
NO_ISSUERS: Final = "no_issuers"  # why a JWT is refused, if none is configured

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Identity(Struct, frozen=True):
    """A principal, its scopes, and the time until which this holds."""

    principal: str
    scopes: tuple[Scope, ...]
    expires_ms: int


class Grant(Struct, frozen=True):
    """Scopes of all tokens with a claim that has or contains a value; of all tokens without it."""

    scopes: tuple[Scope, ...]
    claim: str | None = None
    value: str | None = None


class JwtRule(Struct, frozen=True, kw_only=True):
    """An issuer of JWTs, where its keys are, and what its tokens grant.

    The principal of a token is `name`, a colon, and the value of the claim `principal`.
    """

    name: str
    issuer: str
    audience: str
    grants: tuple[Grant, ...]
    algorithms: tuple[str, ...] = ALGORITHMS
    jwks_file: str | None = None
    jwks_url: str | None = None
    principal: str = "sub"


class CertificateRule(Struct, frozen=True, kw_only=True):
    """The principal and the scopes of client certificates. One of the first three fields is set.

    `subject` has all attributes of the subject, sorted, with the names that OpenSSL uses.
    """

    subject: tuple[tuple[str, str], ...] | None = None
    san_dns: str | None = None
    san_uri: str | None = None
    principal: str
    scopes: tuple[Scope, ...]


class AccessRules(Struct, frozen=True):
    """The content of the table `[access]`."""

    jwt: tuple[JwtRule, ...] = ()
    certificates: tuple[CertificateRule, ...] = ()


class OutsideIdentities:
    """The rules in use. All methods must be called on the event loop's thread.

    `on_change` is called when an earlier result may be wrong: after new rules and after new keys.
    """

    def __init__(
        self, certificates: tuple[CertificateRule, ...] = (), jwt: "JwtDoor | None" = None
    ) -> None:
        self.on_change: Callable[[], None] | None = None
        self._certificates = certificates
        self._jwt = jwt
        self._is_started = False

    @property
    def is_used(self) -> bool:
        """True if access is on, so that these rules have an effect."""
        return self.on_change is not None

    def of_jwt(self, token: str, now_ms: int) -> Identity | str:
        """Return who the holder of a JWT is, or a short code for the reason why it is refused."""
        return NO_ISSUERS if self._jwt is None else self._jwt.verify(token, now_ms)

    def of_certificate(self, peercert: Mapping[str, Any] | None) -> Identity | None:
        """Return who the holder of a client certificate is. `peercert` is as `ssl` returns it."""
        return identity_of_certificate(peercert, self._certificates)

    def start(self) -> None:
        """Fetch the keys of issuers that have a URL, now and at regular intervals."""
        self._is_started = True
        if self._jwt is not None:
            self._jwt.start(self._changed)

    def replace(
        self, certificates: tuple[CertificateRule, ...], jwt: "JwtDoor | None" = None
    ) -> None:
        """Use other rules from now on. Keys that were fetched from the same URL are kept."""
        earlier, self._jwt, self._certificates = self._jwt, jwt, certificates
        if earlier is not None:
            earlier.close()
            if jwt is not None:
                jwt.take_keys(earlier)
        if self._is_started:
            self.start()
        self._changed()

    def close(self) -> None:
        """Fetch no keys from now on, because the server ends."""
        if self._jwt is not None:
            self._jwt.close()

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()


# ---- client certificates -------------------------------------------------------------------------


def identity_of_certificate(
    peercert: Mapping[str, Any] | None, rules: Iterable[CertificateRule]
) -> Identity | None:
    """Return who the holder of a verified client certificate is; None if no rule matches.

    `peercert` is what `ssl.SSLObject.getpeercert()` returns: None without a certificate, and empty
    if the certificate was not verified. The first rule that matches is used.
    """
    if not peercert:
        return None
    for rule in rules:
        if _matches(peercert, rule):
            expires_ms = 1000 * ssl.cert_time_to_seconds(peercert["notAfter"])
            return Identity(rule.principal, rule.scopes, expires_ms)
    return None


def _matches(peercert: Mapping[str, Any], rule: CertificateRule) -> bool:
    if rule.subject is not None:
        # An attribute can occur more than once, and several can be at the same level.
        return rule.subject == tuple(
            sorted(each for level in peercert["subject"] for each in level)
        )
    names = peercert.get("subjectAltName", ())
    if rule.san_dns is not None:  # without wildcards: a certificate for *.example is no name below
        return any(kind == "DNS" and name.lower() == rule.san_dns for kind, name in names)
    return ("URI", rule.san_uri) in names


_ATTRIBUTES: Final = {
    "CN": "commonName",
    "O": "organizationName",
    "OU": "organizationalUnitName",
    "C": "countryName",
    "ST": "stateOrProvinceName",
    "L": "localityName",
    "STREET": "streetAddress",
    "DC": "domainComponent",
    "UID": "userId",
    "SERIALNUMBER": "serialNumber",
    "EMAILADDRESS": "emailAddress",
}
_ATTRIBUTE: Final = re.compile(
    r"\s*(?P<type>[A-Za-z]+)\s*=\s*"
    r'(?P<value>(?:[^,+"\\;<>]|\\[0-9A-Fa-f]{2}|\\[ "#+,;<=>\\])+?)\s*(?P<end>[,+]|$)'
)
_ESCAPE: Final = re.compile(rb"\\([0-9A-Fa-f]{2}|.)")


def parse_subject(text: str) -> tuple[tuple[str, str], ...]:
    r"""Return the attributes of a subject such as `CN=billing,O=Example`, sorted.

    The escapes are those of RFC 4514, such as `\,` and `\2C`. The order of the attributes has no
    meaning, because programs print subjects in both directions. Raises ValueError.
    """
    known = {name.lower(): long for name, long in _ATTRIBUTES.items()}
    known |= {long.lower(): long for long in _ATTRIBUTES.values()}
    found: list[tuple[str, str]] = []
    position, is_more = 0, True
    while is_more:
        match = _ATTRIBUTE.match(text, position)
        if match is None:
            raise ValueError(
                f"{text!r} is not a subject; write its attributes, such as CN=billing,O=Example"
            )
        attribute = known.get(match["type"].lower())
        if attribute is None:
            raise ValueError(
                f"{match['type']!r} is not an attribute of a subject; those are"
                f" {', '.join(_ATTRIBUTES)}"
            )
        found.append((attribute, _unescape(match["value"])))
        position, is_more = match.end(), bool(match["end"])
    return tuple(sorted(found))


def _unescape(value: str) -> str:
    def character(match: re.Match[bytes]) -> bytes:
        return bytes.fromhex(match[1].decode()) if len(match[1]) > 1 else match[1]

    try:
        return _ESCAPE.sub(character, value.encode()).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{value!r} is not a subject: its escapes are not UTF-8") from error


# ---- the table [access] --------------------------------------------------------------------------


def parse_access(table: object) -> AccessRules:
    """Return the rules in the table `[access]` of a configuration file.

    Raises ValueError with the names of the table and of the key that is wrong.
    """
    access = _Table("access", "[access]", table, ("jwt", "certificate"))
    rules = AccessRules(
        tuple(map(_jwt_rule, access.tables("jwt", _JWT_KEYS))),
        tuple(map(_certificate_rule, access.tables("certificate", _CERTIFICATE_KEYS))),
    )
    names = [rule.name for rule in rules.jwt]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"[[access.jwt]]: two issuers have the name {name!r}")
    return rules


_JWT_KEYS: Final = JwtRule.__struct_fields__
_GRANT_KEYS: Final = Grant.__struct_fields__
_CERTIFICATE_KEYS: Final = CertificateRule.__struct_fields__


def advise(name: str, known: Iterable[str]) -> str:
    """Return which known name is meant by an unknown one, or all known names."""
    near = get_close_matches(name.replace("-", "_").lower(), [*known], 1)
    return f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(sorted(known))}"


class _Table:
    """A table of the file. All methods raise ValueError if a key is missing or has a wrong type."""

    def __init__(self, name: str, where: str, values: object, known: Sequence[str]) -> None:
        if not isinstance(values, dict):
            raise ValueError(f"{where} is {values!r}; expected a table")  # noqa: TRY004 - as below
        for key in values:
            if key not in known:
                raise ValueError(f"{where}: {key!r} is not a key; {advise(key, known)}")
        self.name = name
        self.where = where
        self.values: dict[str, Any] = values

    def wrong(self, key: str, expected: str) -> ValueError:
        return ValueError(f"{self.where}: {key!r} is {self.values[key]!r}; expected {expected}")

    def optional(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is not None and (not isinstance(value, str) or not value):
            raise self.wrong(key, "a string")
        return value

    def text(self, key: str) -> str:
        value = self.optional(key)
        if value is None:
            raise ValueError(f"{self.where}: {key!r} is missing")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        if key not in self.values:
            raise ValueError(f"{self.where}: {key!r} is missing")
        value = self.values[key]
        if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
            raise self.wrong(key, "a list of strings")
        return tuple(value)

    def tables(self, key: str, known: Sequence[str]) -> list["_Table"]:
        values = self.values.get(key, [])
        name = f"{self.name}.{key}"
        if not isinstance(values, list):
            raise self.wrong(key, f"tables; write [[{name}]]")
        above = "" if self.where == "[access]" else f"{self.where}, "
        return [
            _Table(name, f"{above}[[{name}]] number {number}", each, known)
            for number, each in enumerate(values, 1)
        ]

    def one_of(self, *keys: str) -> str:
        given = [key for key in keys if key in self.values]
        if len(given) != 1:
            raise ValueError(f"{self.where}: set exactly one of {', '.join(keys)}")
        return given[0]

    def scopes(self) -> tuple[Scope, ...]:
        texts = self.texts("scopes")
        try:
            return tuple(map(parse_scope, texts))
        except ValueError as error:
            raise ValueError(f"{self.where}: 'scopes': {error}") from error

    def principal(self) -> str:
        value = self.text("principal")
        if not is_principal(value):
            limit = PRINCIPAL_BYTES_MAX
            raise self.wrong("principal", f"at most {limit} bytes, without control characters")
        return value


def _jwt_rule(table: _Table) -> JwtRule:
    name = table.text("name")
    if not _NAME.fullmatch(name):
        raise table.wrong("name", "up to 64 letters, digits, dots, hyphens and underscores")
    algorithms = table.texts("algorithms") if "algorithms" in table.values else ALGORITHMS
    for algorithm in algorithms:
        if algorithm not in ALGORITHMS:
            raise table.wrong("algorithms", f"some of {', '.join(ALGORITHMS)}")
    grants = table.tables("grants", _GRANT_KEYS)
    if not grants:
        raise ValueError(f"{table.where}: 'grants' is missing; add at least one table of scopes")
    source = table.one_of("jwks_file", "jwks_url")
    url = table.optional("jwks_url")
    if url is not None and not is_key_url(url):
        raise table.wrong("jwks_url", "an https URL (or http on 127.0.0.1, ::1 or localhost)")
    return JwtRule(
        name=name,
        issuer=table.text("issuer"),
        audience=table.text("audience"),
        grants=tuple(map(_grant, grants)),
        algorithms=algorithms,
        jwks_file=table.text(source) if source == "jwks_file" else None,
        jwks_url=url,
        principal=table.optional("principal") or "sub",
    )


def is_key_url(text: str) -> bool:
    """Return True if keys may be fetched from this URL.

    They must not be changed on their way, so the URL has `https`, or `http` and an address of this
    machine. It has no user name and no fragment.
    """
    try:
        parts = urlsplit(text)
        host, _port = parts.hostname, parts.port
    except ValueError:
        return False
    if not host or parts.username is not None or parts.fragment or not text.isascii():
        return False
    if any(not character.isprintable() or character == " " for character in text):
        return False
    address = to_address(host)
    is_local = host == "localhost" or (address is not None and address.is_loopback)
    return parts.scheme == "https" or (parts.scheme == "http" and is_local)


def _grant(table: _Table) -> Grant:
    claim, value = table.optional("claim"), table.optional("value")
    if (claim is None) != (value is None):
        raise ValueError(f"{table.where}: set both 'claim' and 'value', or none of them")
    return Grant(table.scopes(), claim, value)


def _certificate_rule(table: _Table) -> CertificateRule:
    table.one_of("subject", "san_dns", "san_uri")
    subject, dns = table.optional("subject"), table.optional("san_dns")
    try:
        attributes = None if subject is None else parse_subject(subject)
    except ValueError as error:
        raise ValueError(f"{table.where}: 'subject': {error}") from error
    return CertificateRule(
        subject=attributes,
        san_dns=None if dns is None else dns.lower(),
        san_uri=table.optional("san_uri"),
        principal=table.principal(),
        scopes=table.scopes(),
    )
