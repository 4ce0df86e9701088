"""`client.access` of both kinds of clients: tokens and owners, against a real server."""

import pprint
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.pretty import pretty_repr

from semel import errors
from semel.client import token_calls
from semel.client.token_calls import NewToken
from tests.integration.both import client_of
from tests.integration.recorder import Recorder
from tests.integration.token_server import TokenServer, id_of, secret_of, token_server
from tests.spec.process import Server
from tests.spec.txn_calls import fresh


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenServer]:
    with token_server(tmp_path_factory.mktemp("tokens") / "data") as it:
        yield it


@pytest.fixture
def admin(kind: str, served: TokenServer) -> Iterator[Any]:
    with client_of(kind, served.url, token=served.admin) as it:
        yield it


def made(admin: Any, *scopes: str, **options: Any) -> NewToken:
    token: NewToken = admin.access.create_token(scopes, **options)
    return token


def test_a_token_is_created_used_and_revoked(kind: str, served: TokenServer, admin: Any) -> None:
    path = fresh("s")
    new = made(admin, f"stream:{path}:read,write,create", principal="app", description="for app")
    assert new.token.startswith(f"semel_{new.id}_")
    assert (new.principal, new.description, new.expires_at) == ("app", "for app", None)
    with client_of(kind, served.url, token=new.token) as client:
        client.stream(path).create("application/json").append(1)
        who = client.access.whoami()
        assert (who.access, who.principal, who.token) == ("on", "app", new.id)
        assert [token_calls.scope_text(scope) for scope in who.scopes] == [
            f"stream:{path}:create,read,write"
        ]
        with pytest.raises(errors.Forbidden) as refused:
            client.stream(path).delete()
        assert (refused.value.right, refused.value.kind) == ("delete", "stream")
        entry = admin.access.token(new.id)
        assert (entry.state, entry.principal, entry.issuer) == ("live", "app", id_of(served.admin))
        revoked = admin.access.revoke_token(new.id)
        assert revoked.count == 1
        assert admin.access.revoke_token(new.id).revoked_at == revoked.revoked_at
        with pytest.raises(errors.Unauthenticated):
            client.stream(path).append(2)
    assert admin.access.token(new.id).state == "revoked"
    assert [message.value for message in admin.stream(path).read()] == [1]


def test_scopes_are_texts_entries_or_one_text(admin: Any) -> None:
    first = admin.access.create_token("stream:a*:read")
    second = admin.access.create_token(first.scopes)
    third = admin.access.create_token(scope for scope in ("cluster:describe", first.scopes[0]))
    assert [token_calls.scope_text(scope) for scope in third.scopes] == [
        "cluster:describe",
        "stream:a*:read",
    ]
    assert second.scopes == first.scopes
    for scopes in ([], "stream:a", ["stream:a:fly"]):
        with pytest.raises(errors.BadRequest):
            admin.access.create_token(scopes)


def test_a_token_expires_at_a_time_or_after_one(admin: Any) -> None:
    moment = datetime(2999, 1, 31, 12, tzinfo=UTC)
    assert made(admin, "stream:a:read", expires=moment).expires_at == "2999-01-31T12:00:00.000Z"
    before = datetime.now(UTC)
    expires_at = made(admin, "stream:a:read", expires=timedelta(hours=1)).expires_at
    assert expires_at is not None
    late = datetime.fromisoformat(expires_at) - before - timedelta(hours=1)
    assert timedelta(seconds=-1) <= late
    for wrong in (timedelta(0), timedelta(seconds=-1), datetime(2999, 1, 1)):
        with pytest.raises(ValueError, match=r"expire|time zone"):
            made(admin, "stream:a:read", expires=wrong)
    with pytest.raises(errors.BadRequest, match="past"):
        made(admin, "stream:a:read", expires=datetime(2001, 1, 1, tzinfo=UTC))


def test_all_pages_of_tokens_are_listed(
    admin: Any, kind: str, served: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = made(admin, "stream:p/*:read", principal=fresh("lister"))
    with client_of(kind, served.url, token=parent.token) as client:
        children = [client.access.create_token("stream:p/a:read") for _ in range(4)]
        monkeypatch.setattr(token_calls, "_LISTING_COUNT", 2)
        listed = [entry.id for entry in client.access.tokens()]
        assert listed == sorted([parent.id, *(child.id for child in children)])
        assert client.access.revoke_token(parent.id, children=True).count == 5


def test_what_is_not_there_is_an_error(admin: Any) -> None:
    for call in (admin.access.token, admin.access.revoke_token):
        with pytest.raises(errors.Refused) as refused:
            call("aaaaaaaaaaaa")
        assert (refused.value.status, refused.value.code) == (404, "token_not_found")
    with pytest.raises(errors.Refused) as refused:
        admin.access.change_owner("sink", "nothing", "somebody")
    assert refused.value.code == "thing_not_found"


def test_the_owner_of_a_producer_is_changed(kind: str, served: TokenServer, admin: Any) -> None:
    path = fresh("s")
    first, second = (
        made(admin, f"stream:{path}:create,write", principal=name) for name in ("first", "second")
    )
    with (
        client_of(kind, served.url, token=first.token) as one,
        client_of(kind, served.url, token=second.token) as two,
    ):
        one.stream(path).create("application/json")
        with one.stream(path).producer("p") as producer:
            producer.append(1)
        with pytest.raises(errors.Forbidden), two.stream(path).producer("p") as producer:
            producer.append(2)
        assert admin.stream(path).producers("p")[0].owner == "first"
        changed = one.access.change_owner("producer", "p", "second", stream=path)
        assert (changed.owner, changed.previous) == ("second", "first")
        with two.stream(path).producer("p", auto_claim=True) as producer:
            producer.append(2)
        changed = admin.access.change_owner("producer", "p", None, stream=path)
        assert (changed.owner, changed.previous) == (None, "second")
        assert admin.stream(path).producers("p")[0].owner is None


def test_without_access_there_are_no_tokens(kind: str, server: Server) -> None:
    with client_of(kind, server.url) as client:
        assert client.access.whoami().access == "off"
        assert list(client.access.tokens()) == []
        with pytest.raises(errors.Refused) as refused:
            client.access.create_token("cluster:admin")
        assert (refused.value.status, refused.value.code) == (409, "access_off")


def test_a_new_token_is_not_made_twice_if_the_response_is_lost(kind: str) -> None:
    with Recorder(lambda request: b"") as lost, client_of(kind, lost.url, retries=2) as client:
        with pytest.raises(errors.Indeterminate) as unknown:
            client.access.create_token("cluster:admin", timeout=1.0)
        assert len(lost.requests) == 1
        assert unknown.value.applied == "unknown"
        assert "revoke it" in str(unknown.value)


def test_no_text_about_a_new_token_has_its_secret(
    kind: str, served: TokenServer, admin: Any
) -> None:
    new = made(admin, "stream:a:read", principal="quiet")
    secret = secret_of(new.token)
    shown = [repr(new), str(new), f"{new}", f"{[new]}", pprint.pformat({"new": new})]
    shown.append(pretty_repr(new))
    with client_of(kind, served.url, token=new.token) as client:
        shown += [repr(client), repr(client.access), repr(client.access.whoami())]
        with pytest.raises(errors.Forbidden) as refused:
            client.access.create_token("cluster:admin")
        shown.append("".join(traceback.format_exception(refused.value)))
        shown += map(repr, client.access.tokens())
    assert all("quiet" in text for text in shown[:6])
    assert not any(secret in text for text in shown)
