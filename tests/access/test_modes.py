"""When access is on, the first token, reserved streams, and what is kept while access is off."""

import asyncio
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest

from semel.broker.engine import Engine
from semel.broker.settings import Settings
from semel.model.commands import Append, Batch, Create
from tests.access.rig import (
    AUDIT,
    BOOTSTRAP,
    AccessServer,
    access_server,
    environment,
    frames_in,
    id_of,
    make_token_text,
)
from tests.spec.process import PATIENCE_SECONDS, program

ON: Final = "access is on: requests need a token\n"
OFF: Final = "access is off: everybody who can connect may read and change everything\n"


@contextmanager
def running(
    data: Path, *options: str, admin: str | None = None, known: str = ""
) -> Iterator[AccessServer]:
    """Run a server. `known` is the token of an administrator, if `admin` does not make one."""
    server = AccessServer(data, *options, admin=admin)
    server.admin = server.admin or known
    try:
        assert server.greeting, server.stderr
        yield server
    finally:
        server.kill()


def refused_start(data: Path, *options: str, admin: str | None = None) -> str:
    """Start a server that must refuse to start; return what it prints to stderr."""
    command = [*program(), "serve", "--data", str(data), "--port", "0", "--reserve-bytes", "0"]
    with environment(**({} if admin is None else {BOOTSTRAP: admin})):
        done = subprocess.run(
            [*command, *options],
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
    assert done.returncode not in (0, -9), done
    assert "listening" not in done.stdout
    return done.stderr


def status(server: AccessServer, token: str | None) -> int:
    return server.call(token, "GET", "/v1/streams").status


def health(server: AccessServer) -> Any:
    return server.ask("GET", "/health").json["access"]


# ---- A1 to A4 ------------------------------------------------------------------------------------


def test_access_is_off_without_tokens_on_loopback(tmp_path: Path) -> None:
    with running(tmp_path / "data") as server:
        assert server.access_line == OFF
        assert health(server) == "off"
        assert status(server, None) == 200
        who = server.call(None, "GET", "/v1/whoami")
        assert (who.status, who.json["access"]) == (200, "off")
        made = server.call(None, "POST", "/v1/tokens", {"scopes": ["cluster:admin"]})
        assert (made.status, made.code) == (409, "access_off")
        revoked = server.call(None, "DELETE", "/v1/tokens/AbCdEfGhIjKl")
        assert (revoked.status, revoked.code) == (409, "access_off")
        assert server.call(None, "GET", AUDIT).status == 404, "nothing is audited"
    with running(tmp_path / "data") as server:
        assert server.access_line == OFF, "the mode did not change by itself"


def test_access_is_on_if_the_directory_has_a_token(tmp_path: Path) -> None:
    token = make_token_text()
    with running(tmp_path / "data", admin=token) as server:
        assert server.access_line == ON
        assert health(server) == "on"
        assert (status(server, None), status(server, token)) == (401, 200)
    with running(tmp_path / "data", "--host", "0.0.0.0") as server:
        assert server.access_line == ON
        assert (status(server, None), status(server, token)) == (401, 200)
        server.admin = token  # the next start has only a revoked token
        assert server.revoke(token).status == 200
        assert status(server, token) == 401
    with running(tmp_path / "data") as server:
        assert server.access_line == ON, "a revoked token counts, too"
        assert status(server, token) == 401


def test_access_on_without_any_token_refuses_everybody(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--access", "on", "--host", "0.0.0.0") as server:
        assert server.access_line == ON
        assert health(server) == "on"
        assert status(server, None) == 401
        assert status(server, make_token_text()) == 401
        made = server.call(None, "POST", "/v1/tokens", {"scopes": ["cluster:admin"]})
        assert made.status == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_other_machines_need_access_or_a_word(tmp_path: Path, host: str) -> None:
    said = refused_start(tmp_path / "data", "--host", host)
    assert "--insecure" in said
    assert "tokens create" in said
    assert "--insecure" in refused_start(tmp_path / "data", "--host", host, "--access", "off")
    with running(tmp_path / "data", "--host", "0.0.0.0", "--insecure") as server:
        assert server.access_line == OFF
        assert (health(server), status(server, None)) == ("off", 200)


def test_access_cannot_be_switched_off_by_mistake(tmp_path: Path) -> None:
    token = make_token_text()
    with running(tmp_path / "data", admin=token):
        pass
    said = refused_start(tmp_path / "data", "--access", "off")
    assert "has tokens" in said
    assert "--insecure" in said
    with running(tmp_path / "data", "--access", "off", "--insecure") as server:
        assert server.access_line == OFF
        assert (health(server), status(server, None)) == ("off", 200)
        made = server.call(None, "POST", "/v1/tokens", {"scopes": ["cluster:admin"]})
        assert (made.status, made.code) == (409, "access_off")
    with running(tmp_path / "data") as server:
        assert server.access_line == ON, "for one run only"
        assert status(server, None) == 401


def test_strict_rights_are_in_the_line(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--strict-rights", admin=make_token_text()) as server:
        assert server.access_line == "access is on: requests need a token; strict rights\n"


def answers_to(server: AccessServer, *lines: str) -> tuple[bytes, bytes]:
    """Return the status of `GET /v1/streams` for another host, without and with these lines."""
    found = []
    for more in ((), lines):
        head = ["GET /v1/streams HTTP/1.1", "Host: semel.example", "Connection: close", *more]
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE_SECONDS) as line:
            line.sendall("".join(f"{each}\r\n" for each in [*head, ""]).encode())
            found.append(line.recv(4096)[9:12])
    return found[0], found[1]


def test_the_name_of_the_server_matters_only_while_access_is_off(tmp_path: Path) -> None:
    with running(tmp_path / "off") as server:
        assert answers_to(server)[0] == b"421"
    with running(tmp_path / "on", admin=make_token_text()) as server:
        answers = answers_to(server, f"Authorization: Bearer {server.admin}")
        assert answers == (b"401", b"200")


# ---- T9 ------------------------------------------------------------------------------------------


def test_a_bootstrap_token_is_used_only_in_a_directory_without_tokens(tmp_path: Path) -> None:
    first, second = make_token_text(), make_token_text()
    with running(tmp_path / "data", admin=first) as server:
        who = server.call(first, "GET", "/v1/whoami").json
        assert (who["principal"], who["scopes"]) == (
            "admin",
            [{"kind": "cluster", "rights": ["admin"]}],
        )
        assert status(server, second) == 401
    with running(tmp_path / "data", admin=second) as server:
        assert (status(server, first), status(server, second)) == (200, 401)
        server.admin = first
        assert server.revoke(first).status == 200
    with running(tmp_path / "data", admin=first) as server:
        assert status(server, first) == 401, "a revoked bootstrap token stays revoked"
    with running(tmp_path / "data", admin=second) as server:
        assert status(server, second) == 401, "the directory has a token, although a revoked one"


def test_a_bootstrap_token_is_not_used_while_access_is_off(tmp_path: Path) -> None:
    token = make_token_text()
    with running(tmp_path / "data", "--access", "off", admin=token) as server:
        assert server.access_line == OFF
    with running(tmp_path / "data") as server:
        assert server.access_line == OFF, "no token was stored"


def test_a_bootstrap_token_that_is_no_token_is_refused(tmp_path: Path) -> None:
    wrong = make_token_text()[:-1] + "!"
    said = refused_start(tmp_path / "data", admin=wrong)
    assert BOOTSTRAP in said
    assert wrong not in said
    assert wrong[19:] not in said


def test_the_environment_of_the_process_is_as_it_was_started(tmp_path: Path) -> None:
    """A process cannot change what `/proc/PID/environ` shows: the kernel keeps its first state.

    So other processes of the same user can read the variable while the server runs. Its child
    processes do not get it. docs/how-to/run-it-for-others.md says so.
    """
    token = make_token_text()
    with running(tmp_path / "data", admin=token) as server:
        environ = Path(f"/proc/{server.process.pid}/environ").read_bytes()
        assert token.encode() in environ
        assert token.encode() not in Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
        mode = Path(f"/proc/{server.process.pid}/environ").stat().st_mode
        assert mode & 0o077 == 0, "only the same user can read it"


# ---- reserved streams ----------------------------------------------------------------------------


PATHS: Final = ("__semel/new", "__semel/mine", "__semel/audit")


def write_old_streams(data: Path, paths: list[str]) -> None:
    """Create streams below `__semel/`, as an earlier version would have let a user do."""

    async def write() -> None:
        engine = await Engine.open(str(data), Settings(reserve_bytes=0))
        now_ms = engine.clock.now_ms()
        for number, path in enumerate(paths):
            await engine.execute(Create(path, now_ms, f"{number:016x}", "text/plain", dedup=True))
            await engine.execute(Append(path, now_ms, "text/plain", Batch(b"old", 1, b"")))
        await engine.close()

    asyncio.run(write())


@pytest.mark.parametrize("mode", ["on", "off"])
def test_nobody_writes_below_the_reserved_prefix(tmp_path: Path, mode: str) -> None:
    write_old_streams(tmp_path / "data", ["__semel/mine"])
    token = make_token_text() if mode == "on" else None
    with running(tmp_path / "data", admin=token) as server:
        callers = [None] if token is None else [token, server.make("stream:*:admin")]
        for caller, path in product(callers, PATHS):
            target = f"/v1/stream/{path}"
            answers = [
                server.call(caller, "PUT", target, content_type="text/plain"),
                server.call(caller, "POST", target, b"x", content_type="text/plain"),
                server.call(caller, "PATCH", target, stream_dedup="off"),
                server.call(caller, "DELETE", target),
                server.call(caller, "DELETE", f"{target}?before=0"),
            ]
            assert {(each.status, each.code) for each in answers} == {(403, "reserved_stream")}
        by_body = [
            ("/v1/producers/claim", {"stream": "__semel/mine", "producer_id": "p", "session": "s"}),
            (
                "/v1/transactions",
                {
                    "transaction_id": "t",
                    "producer_id": "p",
                    "producer_epoch": 0,
                    "streams": ["__semel/mine"],
                },
            ),
            (
                "/v1/commits",
                {
                    "producer_id": "p",
                    "producer_epoch": 0,
                    "producer_seq": 0,
                    "appends": [{"stream": "__semel/mine", "messages": [{"base64": "eA=="}]}],
                },
            ),
        ]
        for target, document in by_body:
            answer = server.call(token, "POST", target, document)
            assert (answer.status, answer.code) == (403, "reserved_stream"), target
        assert server.call(token, "GET", "/v1/stream/__semel/mine?offset=-1").body == b"old"


def test_old_streams_below_the_reserved_prefix_are_only_for_administrators(tmp_path: Path) -> None:
    write_old_streams(tmp_path / "data", ["__semel/mine", "__semel/yours", "other"])
    with running(tmp_path / "data", admin=make_token_text()) as server:
        assert "__semel/mine, __semel/yours" in server.stderr
        assert "other" not in server.stderr.replace("others", "")
        assert server.read("__semel/mine") == b"old"
        reader = server.make("stream:*:admin", principal="reader")
        for path in ("__semel/mine", "__semel/audit"):
            for method in ("GET", "HEAD"):
                assert server.call(reader, method, f"/v1/stream/{path}").status == 404
        listed = server.call(reader, "GET", "/v1/streams").json["streams"]
        assert [each["path"] for each in listed] == ["other"]
        fork = server.call(
            reader, "PUT", "/v1/stream/copy", stream_forked_from="/v1/stream/__semel/mine"
        )
        assert fork.status == 404, "a fork of it would show its messages"
        move = {"offsets": {"__semel/mine": 0}}
        grouped = server.make("stream:*:admin", "group:*:admin", principal="grouped")
        assert server.call(grouped, "POST", "/v1/groups/g/offsets", move).status == 404


def test_a_start_is_refused_if_an_application_uses_the_path_of_the_audit(tmp_path: Path) -> None:
    write_old_streams(tmp_path / "data", ["__semel/audit"])
    said = refused_start(tmp_path / "data", "--access", "on")
    assert "__semel/audit" in said
    with running(tmp_path / "data") as server:
        assert server.access_line == OFF
        assert server.call(None, "GET", "/v1/stream/__semel/audit?offset=-1").body == b"old"


# ---- owners while access is off ------------------------------------------------------------------


def test_owners_are_kept_and_ignored_while_access_is_off(tmp_path: Path) -> None:
    headers = {"content_type": "text/plain", "producer_id": "p", "producer_epoch": 0}
    with running(tmp_path / "data", admin=make_token_text()) as server:
        admin = server.admin
        server.create("s")
        owner = server.make("stream:s:write", principal="first")
        other = server.make("stream:s:write", principal="second")
        first = server.call(owner, "POST", "/v1/stream/s", b"a", producer_seq=0, **headers)
        assert first.status == 200
        before = [each["action"] for each in server.audit()]
    with running(tmp_path / "data", "--access", "off", "--insecure") as server:
        used = server.call(None, "POST", "/v1/stream/s", b"b", producer_seq=1, **headers)
        assert used.status == 200, "everybody may do everything"
        new = {**headers, "producer_id": "q"}
        assert server.call(None, "POST", "/v1/stream/s", b"c", producer_seq=0, **new).status == 200
        assert server.call(other, "DELETE", "/v1/stream/s?before=0").status == 204
    with running(tmp_path / "data", known=admin) as server:
        refused = server.call(other, "POST", "/v1/stream/s", b"e", producer_seq=2, **headers)
        assert (refused.status, refused.json["kind"]) == (403, "producer")
        again = server.call(owner, "POST", "/v1/stream/s", b"e", producer_seq=2, **headers)
        assert again.status == 200
        taken = server.call(other, "POST", "/v1/stream/s", b"f", producer_seq=1, **new)
        assert taken.status == 200, "what was made while access was off has no owner"
        assert server.call(owner, "POST", "/v1/stream/s", b"g", producer_seq=2, **new).status == 403
        left_out = ("refused", "server_start")
        actions = [each["action"] for each in server.audit() if each["action"] not in left_out]
        wanted = [action for action in before if action not in left_out]
        assert actions == wanted, "commands are not audited while access is off"
        starts = [each for each in server.audit() if each["action"] == "server_start"]
        assert [each["detail"] for each in starts][-2:] == ["access off, insecure", "access on"]


def test_a_stopped_server_leaves_no_secret_of_the_first_token(tmp_path: Path) -> None:
    token = make_token_text()
    with access_server(tmp_path / "data") as server:
        token = server.admin
    (record,) = [
        frame.record
        for frame in frames_in(tmp_path / "data")
        if getattr(frame.record, "id", "") == id_of(token)
    ]
    assert token[19:] not in repr(record)
