"""Tokens in HTTP: their text, the header Authorization, and the bodies about them."""

from hashlib import sha256

import msgspec
import pytest
from rich.pretty import pretty_repr

from semel.model.access_commands import EXPIRES_MS_MAX, ChangeOwner, CreateToken, RevokeToken
from semel.model.rights import Caller, Scope, make_caller, parse_scope
from semel.wire.problems import Problem
from semel.wire.refusal_table_access import print_thing
from semel.wire.schema.tokens import ScopeEntry, WhoAmI
from semel.wire.tokens import (
    TokenText,
    bearer_of,
    make_token,
    new_token,
    parse_change_owner,
    parse_create_token,
    parse_revoke_token,
    parse_token_text,
    parse_tokens_query,
    print_optional_instant,
    read_scope,
    scope_entries,
    who_am_i,
)

JSON = {"content-type": "application/json"}
TOKEN = make_token(bytes(range(12)), bytes(range(32)))
NOTHING: frozenset[str] = frozenset()


# ---- the text ------------------------------------------------------------------------------------


def test_a_token_has_a_public_id_and_a_secret_of_256_bits() -> None:
    assert TOKEN.id == "ABCDEFGHIJKL"
    assert len(TOKEN.secret) == 43
    assert TOKEN.text == f"semel_{TOKEN.id}_{TOKEN.secret}"
    assert TOKEN.hash == sha256(TOKEN.secret.encode()).digest()
    assert parse_token_text(TOKEN.text) == TOKEN


def test_the_repr_of_a_token_does_not_show_the_secret() -> None:
    assert TOKEN.secret not in repr(TOKEN)
    command = parse_create_token(
        JSON, b'{"scopes": ["cluster:admin"]}', now_ms=1, token=TOKEN, caller=caller()
    )
    assert isinstance(command, CreateToken)
    assert TOKEN.secret not in repr(command)
    assert TOKEN.secret not in repr(new_token(command, TOKEN))
    assert msgspec.json.decode(msgspec.json.encode(new_token(command, TOKEN)))["token"] == (
        TOKEN.text
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "semel_",
        TOKEN.text[:-1],
        TOKEN.text + "x",
        TOKEN.text.replace("semel_", "Semel_"),
        TOKEN.text.replace("A", "-", 1),
        f" {TOKEN.text}",
        f"{TOKEN.text}\n",
    ],
)
def test_another_text_is_not_a_token(text: str) -> None:
    assert parse_token_text(text) is None


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("Bearer abc", "abc"),
        ("bearer abc", "abc"),
        ("BEARER   a.b-c_d~e+f/g=", "a.b-c_d~e+f/g="),
        ("Bearer", None),
        ("Bearer ", None),
        ("Bearerabc", None),
        ("Basic abc", None),
        ("Bearer a b", None),
        ("Bearer a, Bearer b", None),
        ("Bearer\tabc", None),
        ("Bearer \xe9", None),
        ("", None),
    ],
)
def test_the_header_authorization(value: str, found: str | None) -> None:
    assert bearer_of({"authorization": value}, NOTHING) == found


def test_a_repeated_or_missing_header_has_no_token() -> None:
    assert bearer_of({"authorization": "Bearer a"}, frozenset({"authorization"})) is None
    assert bearer_of({}, NOTHING) is None


# ---- scopes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("cluster:admin", ScopeEntry("cluster", ["admin"])),
        ("stream:a/*:read,write", ScopeEntry("stream", ["read", "write"], prefix="a/")),
        ("group:g:write", ScopeEntry("group", ["write"], name="g")),
    ],
)
def test_a_scope_is_a_text_or_an_object(text: str, entry: ScopeEntry) -> None:
    scope = parse_scope(text)
    assert read_scope(text) == read_scope(entry) == scope
    assert scope_entries([scope]) == [entry]


@pytest.mark.parametrize(
    "entry",
    [
        ScopeEntry("stream", ["read"], name="a", prefix="b"),
        ScopeEntry("stream", ["read"]),
        ScopeEntry("stream", [], name="a"),
        ScopeEntry("planet", ["read"], name="a"),
        ScopeEntry("cluster", ["admin"], name="a"),
        ScopeEntry("stream", ["read"], name="a*"),
    ],
)
def test_a_scope_that_is_not_valid_is_refused(entry: ScopeEntry) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        read_scope(entry)


def test_a_prefix_that_ends_with_a_star_is_read_back() -> None:
    scope = Scope("stream", "a*", is_prefix=True, rights=("read",))
    assert read_scope(scope_entries([scope])[0]) == read_scope("stream:a**:read") == scope


# ---- requests ------------------------------------------------------------------------------------


def caller(**more: object) -> Caller:
    scopes = (parse_scope("cluster:admin"),)
    return make_caller("root", scopes, token="MakerOfTokens"[:12], **more)  # type: ignore[arg-type]


def create(body: bytes, maker: Caller | None = None, now_ms: int = 1_000) -> CreateToken | Problem:
    maker = caller() if maker is None else maker
    return parse_create_token(JSON, body, now_ms=now_ms, token=TOKEN, caller=maker)


def test_a_token_is_for_its_makers_principal_unless_another_is_named() -> None:
    command = create(b'{"scopes": ["stream:a:read"]}')
    assert isinstance(command, CreateToken)
    assert (command.principal, command.issuer, command.expires_ms) == ("root", "MakerOfToken", None)
    other = create(b'{"scopes": ["stream:a:read"], "principal": "app", "description": "d"}')
    assert isinstance(other, CreateToken)
    assert (other.principal, other.description) == ("app", "d")


def test_without_a_maker_a_principal_is_required() -> None:
    body = b'{"scopes": ["stream:a:read"]}'
    problem = parse_create_token(JSON, body, now_ms=1, token=TOKEN, caller=None)
    assert isinstance(problem, Problem)
    assert problem.facts == {"field": "principal"}
    named = b'{"scopes": ["stream:a:read"], "principal": "p"}'
    command = parse_create_token(JSON, named, now_ms=1, token=TOKEN, caller=None)
    assert isinstance(command, CreateToken)
    assert (command.issuer, command.expires_ms) == ("", None)


def test_the_expiry_of_a_token() -> None:
    at = create(b'{"scopes": ["stream:a:read"], "expires_at": "1970-01-01T00:00:02Z"}')
    assert isinstance(at, CreateToken)
    assert at.expires_ms == 2_000
    later = create(b'{"scopes": ["stream:a:read"], "expires_in_seconds": 7}')
    assert isinstance(later, CreateToken)
    assert later.expires_ms == 8_000
    inherited = create(b'{"scopes": ["stream:a:read"]}', caller(expires_ms=5_000))
    assert isinstance(inherited, CreateToken)
    assert inherited.expires_ms == 5_000


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"scopes": ["nonsense"]}', "scopes"),
        (b'{"scopes": ["stream:a:read"], "principal": " x"}', "principal"),
        (
            b'{"scopes": ["stream:a:read"], "expires_at": "1970-01-01T00:00:00Z"}',
            "expires_at",
        ),
        (
            b'{"scopes": ["stream:a:read"], "expires_at": "2030-01-01T00:00:00Z",'
            b' "expires_in_seconds": 1}',
            "expires_at",
        ),
        (b'{"scopes": ["stream:a:read"], "expires_in_seconds": 0}', "expires_in_seconds"),
    ],
)
def test_a_bad_request_for_a_token_names_the_field(body: bytes, field: str) -> None:
    problem = create(body)
    assert isinstance(problem, Problem)
    assert (problem.status, problem.facts) == (400, {"field": field})


def test_an_expiry_that_is_no_time_is_refused() -> None:
    problem = create(b'{"scopes": ["stream:a:read"], "expires_at": "tomorrow"}')
    assert isinstance(problem, Problem)
    assert problem.status == 400


def test_a_revocation() -> None:
    assert parse_revoke_token("abc", "", now_ms=1) == RevokeToken(1, "abc", children=False)
    assert parse_revoke_token("abc", "children=true", now_ms=1) == RevokeToken(1, "abc", True)
    assert isinstance(parse_revoke_token("abc", "children=1", now_ms=1), Problem)


def test_a_page_of_tokens() -> None:
    assert parse_tokens_query("") == ("", 100)
    assert parse_tokens_query("after=x&limit=5") == ("x", 5)
    assert isinstance(parse_tokens_query("limit=0"), Problem)


def test_a_change_of_owner() -> None:
    body = b'{"kind": "producer", "name": "p", "stream": "s", "owner": "o"}'
    assert parse_change_owner(JSON, body, now_ms=1) == ChangeOwner(1, "producer", "p", "s", "o")
    body = b'{"kind": "sink", "name": "a", "owner": null}'
    assert parse_change_owner(JSON, body, now_ms=1) == ChangeOwner(1, "sink", "a", None, None)
    assert isinstance(parse_change_owner(JSON, b"{}", now_ms=1), Problem)
    wrong = parse_change_owner(JSON, b'{"kind": "stream", "name": "a", "owner": "o"}', now_ms=1)
    assert isinstance(wrong, Problem)
    assert wrong.message == "'kind' must be producer, transaction, sink or subscription"


# ---- responses -----------------------------------------------------------------------------------


def test_who_am_i() -> None:
    assert who_am_i(None) == WhoAmI("off")
    me = who_am_i(caller(expires_ms=1_000, is_strict=True))
    assert me == WhoAmI(
        "on",
        "root",
        "MakerOfToken",
        [ScopeEntry("cluster", ["admin"])],
        "1970-01-01T00:00:01.000Z",
        strict_rights=True,
    )
    assert who_am_i(caller()).expires_at is None


@pytest.mark.parametrize("expires_ms", [EXPIRES_MS_MAX, EXPIRES_MS_MAX + 1, 2**62])
def test_a_time_that_cannot_be_printed_is_no_error(expires_ms: int) -> None:
    """A JWT can have any expiry."""
    last = "9999-12-31T23:59:59.999Z"
    maker = caller(expires_ms=expires_ms)
    assert who_am_i(maker).expires_at == last
    child = parse_create_token(
        JSON, b'{"scopes": ["cluster:admin"]}', now_ms=1, token=TokenText("a", "b"), caller=maker
    )
    assert isinstance(child, CreateToken)
    assert child.expires_ms == EXPIRES_MS_MAX
    assert new_token(child, TokenText("a", "b")).expires_at == last


def test_a_token_cannot_expire_after_the_last_time_that_can_be_printed() -> None:
    for seconds, is_valid in ((EXPIRES_MS_MAX // 1000, True), (EXPIRES_MS_MAX // 1000 + 1, False)):
        body = msgspec.json.encode({"scopes": ["cluster:admin"], "expires_in_seconds": seconds})
        parsed = parse_create_token(
            JSON, body, now_ms=0, token=TokenText("a", "b"), caller=caller()
        )
        assert isinstance(parsed, CreateToken) is is_valid


def test_the_secret_is_not_printed() -> None:
    command = CreateToken(1, TOKEN.id, TOKEN.hash, "p", ())
    for value in (TOKEN, new_token(command, TOKEN)):
        for text in (repr(value), pretty_repr(value)):
            assert TOKEN.id in text
            assert TOKEN.secret not in text


def test_times_and_things_are_printed() -> None:
    assert print_optional_instant(None) is None
    assert print_thing("stream", "a") == "stream 'a'"
    assert print_thing("cluster", "") == "the cluster"
    assert print_thing("policy", "") == "policy ''"
    assert isinstance(TokenText("a", "b").text, str)
