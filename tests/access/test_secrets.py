"""The secret of a token is nowhere: not on the disk, in messages, in metrics or in the audit."""

import base64
import signal
from hashlib import sha256
from pathlib import Path
from typing import Final

import pytest

from semel.wire.schema.tokens import NewToken
from semel.wire.tokens import TokenText, make_token, parse_token_text
from tests.access.rig import AccessServer, frames_in, id_of, make_token_text
from tests.spec.process import Answer

# Requests with which a server could show a token in a response or in its log.
TARGETS: Final = (
    ("GET", "/v1/whoami"),
    ("GET", "/v1/tokens"),
    ("GET", "/metrics"),
    ("GET", "/health"),
    ("GET", "/v1/streams"),
    ("GET", "/v1/stream/__semel/audit?offset=-1"),
    ("GET", "/v1/stream/missing"),
    ("GET", "/nothing/{token}"),
    ("GET", "/v1/stream/{token}"),
    ("GET", "/v1/transactions/{token}"),
    ("DELETE", "/v1/tokens/{token}"),
    ("GET", "/v1/streams?token={token}"),
    ("POST", "/v1/tokens"),
    ("PATCH", "/health"),
)


def secret_of(token: str) -> str:
    return token[19:]


def forms_of(token: str) -> list[bytes]:
    """Return the secret of a token in the forms in which it could be stored."""
    secret = secret_of(token).encode()
    return [secret, secret[:20], secret[-20:], base64.b64encode(secret), secret.hex().encode()]


def is_clean(answer: Answer, token: str) -> bool:
    text = answer.body + str(answer.headers).encode()
    return not any(form in text for form in forms_of(token))


def test_the_secret_is_nowhere(tmp_path: Path) -> None:
    data = tmp_path / "data"
    admin = make_token_text()
    server = AccessServer(data, "--checkpoint-seconds", "0.05", admin=admin)
    tokens = [admin]
    try:
        server.create("s")
        tokens.append(server.make("stream:s:read,write", description="a description"))
        tokens.append(server.make("stream:s:read", maker=tokens[1]))
        assert server.revoke(tokens[2]).status == 200
        wrong = f"{admin[:19]}{secret_of(make_token_text())}"
        tokens.append(wrong)  # a secret that somebody guesses is not stored either
        for token in tokens:
            for method, target in TARGETS:
                if "{token}" in target and token is not wrong:
                    continue  # the request itself would show it, and the response may repeat it
                answer = server.call(token, method, target.replace("{token}", token))
                is_echo = "{token}" in target and answer.status != 401
                assert is_echo or is_clean(answer, token), answer
        posted = server.call(tokens[1], "POST", "/v1/stream/s", b"m", content_type="text/plain")
        assert posted.status in (200, 204)
        for entry in server.call(admin, "GET", "/v1/tokens").json["tokens"]:
            assert not {"token", "secret", "hash"} & set(entry)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        logged = server.stderr.encode() + server.access_line.encode() + server.greeting.encode()
    finally:
        server.kill()
    files = [file for file in data.rglob("*") if file.is_file()]
    assert len(files) >= 3
    contents = {file.name: file.read_bytes() for file in files}
    for token in tokens:
        for form in forms_of(token):
            assert form not in logged
            assert [name for name, content in contents.items() if form in content] == []
    stored = b"".join(contents.values())
    assert sha256(secret_of(tokens[1]).encode()).digest() in stored, "the search can find something"
    assert id_of(tokens[1]).encode() in stored


def test_files_of_the_data_directory_are_private(tmp_path: Path) -> None:
    server = AccessServer(tmp_path / "data", admin=make_token_text())
    server.kill()
    modes = {file.stat().st_mode & 0o777 for file in (tmp_path / "data").rglob("*")}
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    assert modes == {0o600}


def test_a_new_token_is_shown_once(server: AccessServer) -> None:
    made = server.call(server.admin, "POST", "/v1/tokens", {"scopes": ["stream:x:read"]})
    assert made.headers["cache-control"] == "no-store"
    token = made.json["token"]
    shown = server.call(server.admin, "GET", f"/v1/tokens/{made.json['id']}")
    assert is_clean(shown, token)
    assert shown.headers["cache-control"] == "no-store"
    own = server.call(token, "GET", f"/v1/tokens/{made.json['id']}")
    assert (own.status, is_clean(own, token)) == (200, True)


def test_the_audit_names_tokens_by_their_public_id(server: AccessServer) -> None:
    token = server.make("stream:x:read", principal="audited")
    assert server.revoke(token).status == 200
    mine = [each for each in server.audit() if id_of(token) in each.get("target", "")]
    assert [each["action"] for each in mine] == ["token_create", "token_revoke"]
    assert secret_of(token) not in str(server.audit())


@pytest.mark.parametrize("secret_bytes", [b"\0" * 32, bytes(range(32))])
def test_no_repr_shows_a_secret(secret_bytes: bytes) -> None:
    token = make_token(bytes(range(12)), secret_bytes)
    new = NewToken(token.id, token.text, "p", [])
    for each in (token, new, [token], (new, token), parse_token_text(token.text)):
        assert token.secret not in repr(each)
        assert token.secret not in str(each)
        assert token.secret not in f"{each}"
    assert isinstance(parse_token_text(token.text), TokenText)


def test_no_event_of_the_journal_shows_a_secret(tmp_path: Path) -> None:
    server = AccessServer(tmp_path / "data", admin=make_token_text())
    try:
        token = server.make("stream:x:read")
        records = [repr(frame.record) for frame in frames_in(server.data)]
    finally:
        server.kill()
    assert any(id_of(token) in record for record in records)
    assert not any(secret_of(token) in record for record in records)
