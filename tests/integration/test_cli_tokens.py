"""`semel tokens`: with a real server, and in a data directory without one."""

import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.integration.test_cli_streams import PROGRAM
from tests.integration.test_cli_terminal import on_a_terminal
from tests.integration.token_server import (
    TokenServer,
    create_offline,
    id_of,
    secret_of,
    semel,
    token_server,
)
from tests.spec.process import PATIENCE_SECONDS

TOKEN = re.compile(r"semel_[A-Za-z0-9]{12}_[A-Za-z0-9_-]{43}\n")
ADMIN_SCOPE = [{"kind": "cluster", "rights": ["admin"]}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenServer]:
    with token_server(tmp_path_factory.mktemp("tokens") / "data") as it:
        yield it


def offline(data: Path, *arguments: str) -> tuple[int, str]:
    """Run `semel tokens create --data` in vain; return the exit code and the error output."""
    result = semel("tokens", "create", "--data", str(data), *arguments)
    assert result.exit_code != 0, result.output
    assert "semel_" not in result.output
    return result.exit_code, result.stderr


# ---- the first token, without a server -----------------------------------------------------------


def test_the_first_token_is_made_in_a_directory_and_turns_access_on(tmp_path: Path) -> None:
    with token_server(tmp_path / "data") as served:
        assert served.access_line == "access is on: requests need a token\n"
        (own,) = served.json("tokens", "show")
        assert own == {
            "access": "on",
            "principal": "admin",
            "token": id_of(served.admin),
            "scopes": ADMIN_SCOPE,
            "expires_at": None,
            "strict_rights": False,
        }
        record, started = served.json("audit")
        assert (started["action"], started["detail"]) == ("server_start", "access on")
        assert record["principal"] == "local"
        assert record["action"] == "token_create"
        assert record["target"] == f"token {id_of(served.admin)} of admin"
        assert record["detail"] == "cluster:admin"
        assert served.refused(1, "ls", token="semel_aaaaaaaaaaaa_" + "a" * 43).startswith(
            "semel: unauthenticated: "
        )
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
    for file in (tmp_path / "data").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_only_the_token_is_on_standard_output(tmp_path: Path) -> None:
    result = semel("tokens", "create", "--admin", "--data", str(tmp_path / "d"), "--create")
    assert TOKEN.fullmatch(result.stdout)
    assert secret_of(result.stdout.strip()) not in result.stderr
    assert result.stderr == (
        f"created token {id_of(result.stdout)} of principal admin, which never expires, with"
        " cluster:admin; the token is on standard output, and is shown only this once\n"
    )
    more = ("--principal", "p", "--read", "x", "--description", "for p", "--json")
    document = json.loads(create_offline(tmp_path / "d", *more))
    assert TOKEN.fullmatch(document.pop("token") + "\n")
    assert re.fullmatch("[A-Za-z0-9]{12}", document.pop("id"))
    assert document == {
        "principal": "p",
        "scopes": [{"kind": "stream", "rights": ["read"], "name": "x"}],
        "expires_at": None,
        "description": "for p",
    }


def test_a_directory_is_created_only_on_demand(tmp_path: Path) -> None:
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    empty.mkdir()
    for data, what in ((missing, "does not exist"), (empty, "is not a data directory")):
        code, error = offline(data, "--admin")
        assert code == 66
        assert f"{data} {what}" in error
        assert "--create" in error
    assert not missing.exists()
    assert list(empty.iterdir()) == []
    create_offline(empty, "--admin", "--create")
    create_offline(empty, "--admin")  # now it is one


def test_a_wish_that_cannot_be_met_creates_no_directory(tmp_path: Path) -> None:
    for arguments, word in (
        (("--read", "x"), "--principal"),
        (("--admin", "--expires", "2001-01-01T00:00:00Z"), "--expires"),
        (("--admin", "--expires", "999999w"), "--expires"),
        (("--admin", "--expires", "0d"), "--expires"),
        (("--admin", "--expires", "soon"), "30d"),
        (("--admin", "--principal", "p" * 257), "--principal"),
        (("--admin", "--principal", " p"), "--principal"),
        (("--admin", "--description", "d" * 257), "--description"),
        (("--scope", "stream:x:fly"), "fly"),
        (("--scope", "house:x:read"), "house"),
        (("--read", "a//b"), "a//b"),
        (("--read", "/a"), "/a"),
        (("--write", "/a/*"), "/a/*"),
        ((), "--scope"),
        (("--admin", "--url", "http://127.0.0.1:1"), "--url"),
        (("--admin", "--token-file", "f"), "--token-file"),
    ):
        code, error = offline(tmp_path / "d", "--create", *arguments)
        assert code == 64, arguments
        assert word in error, arguments
    assert not (tmp_path / "d").exists()


def test_a_directory_that_a_server_uses_is_refused(served: TokenServer) -> None:
    code, error = offline(served.data, "--admin")
    assert code == 73
    assert str(served.data) in error
    assert "--url" in error
    assert served.json("tokens", "show")[0]["principal"] == "admin"


def test_the_reserve_of_a_directory_stays_as_it_is(tmp_path: Path) -> None:
    with token_server(tmp_path / "data") as served:  # it reserves 64 KiB
        served.end()
    reserve = tmp_path / "data/reserve.tmp"
    before = reserve.stat()
    assert before.st_size == 65_536
    create_offline(tmp_path / "data", "--admin")
    assert (reserve.stat().st_ino, reserve.stat().st_size) == (before.st_ino, 65_536)


def test_a_token_that_is_made_offline_works_for_the_next_server(tmp_path: Path) -> None:
    with token_server(tmp_path / "data") as served:
        served.end()
    until = "2999-01-31T12:00:00Z"
    wish = ("--principal", "till", "--write", "shop/*", "--expires", until)
    token = create_offline(tmp_path / "data", *wish)
    with token_server(tmp_path / "data") as served:
        (own,) = served.json("tokens", "show", token=token)
        assert own["expires_at"] == "2999-01-31T12:00:00.000Z"
        served.ok("create", "shop/orders", token=token)
        assert "stream_not_found" in served.refused(1, "delete", "other", "--yes", token=token)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a directory")
def test_root_leaves_files_that_the_owner_of_the_directory_can_use(tmp_path: Path) -> None:
    data = tmp_path / "d"
    create_offline(data, "--admin", "--create")
    for path in (data, *data.iterdir()):
        shutil.chown(path, 65_534, 65_534)
    create_offline(data, "--admin")
    assert {path.stat().st_uid for path in (data, *data.iterdir())} == {65_534}


# ---- create, with a server -----------------------------------------------------------------------


def test_the_short_options_give_what_readers_and_writers_need(served: TokenServer) -> None:
    writer = served.create("--principal", "w", "--write", "short/*", "--write", "exact")
    (own,) = served.json("tokens", "show", token=writer)
    assert own["scopes"] == [
        {"kind": "stream", "rights": ["create", "write"], "prefix": "short/"},
        {"kind": "stream", "rights": ["create", "write"], "name": "exact"},
    ]
    served.ok("create", "short/a", "--content-type", "text/plain", token=writer)
    served.ok(
        "append", "short/a", "x", "--producer", "p", "--epoch", "0", "--seq", "0", token=writer
    )
    assert "'read' on stream 'short/a'" in served.refused(1, "read", "short/a", token=writer)
    assert "'delete'" in served.refused(1, "delete", "short/a", "--yes", token=writer)

    reader = served.create("--principal", "r", "--read", "short/*", "--group", "g*")
    (own,) = served.json("tokens", "show", token=reader)
    assert own["scopes"] == [
        {"kind": "stream", "rights": ["read"], "prefix": "short/"},
        {"kind": "group", "rights": ["read", "write"], "prefix": "g"},
    ]
    assert served.ok("read", "short/a", token=reader) == "x\n"
    served.ok("groups", "set", "g1", "short/a", "1", token=reader)
    assert "'write' on stream 'short/a'" in served.refused(
        1, "append", "short/a", "y", token=reader
    )
    assert "'read' on group 'other'" in served.refused(
        1, "groups", "set", "other", "short/a", "1", token=reader
    )


def test_equal_scopes_are_sent_once(served: TokenServer) -> None:
    wish = ("--read", "x", "--read", "x", "--scope", "stream:x:read")
    (own,) = served.json("tokens", "show", token=served.create(*wish))
    assert own["principal"] == "admin"  # that of the token which made it
    assert own["scopes"] == [{"kind": "stream", "rights": ["read"], "name": "x"}]


def test_a_token_is_made_only_within_the_rights_of_its_maker(served: TokenServer) -> None:
    narrow = served.create("--principal", "n", "--read", "n/*", "--expires", "1h")
    child = served.create("--principal", "n/child", "--read", "n/a", token=narrow)
    (own,) = served.json("tokens", "show", token=child)
    assert own["expires_at"] == served.json("tokens", "show", token=narrow)[0]["expires_at"]
    for wish in (
        ("--admin",),
        ("--write", "n/a"),
        ("--read", "n/a", "--principal", "other"),
        ("--read", "n/a", "--expires", "2h"),
    ):
        assert served.refused(1, "tokens", "create", *wish, token=narrow).startswith(
            "semel: forbidden: "
        )


@pytest.mark.parametrize(
    ("text", "span"),
    [("90s", timedelta(seconds=90)), ("12h", timedelta(hours=12)), ("30d", timedelta(days=30))],
)
def test_a_token_expires_after_a_length_of_time(
    served: TokenServer, text: str, span: timedelta
) -> None:
    before = datetime.now(UTC)
    (created,) = served.json("tokens", "create", "--read", "x", "--expires", text)
    expires = datetime.fromisoformat(created["expires_at"])
    second = timedelta(seconds=1)  # the clocks can differ by the resolution of the printed time
    assert before + span - second <= expires <= datetime.now(UTC) + span + second


def test_a_time_that_cannot_be_is_refused(served: TokenServer) -> None:
    for text in ("999999w", "2001-01-01T00:00:00Z"):
        error = served.refused(1, "tokens", "create", "--read", "x", "--expires", text)
        assert "expires" in error
    assert served.json("tokens", "show")[0]["access"] == "on"  # the server still runs
    assert "--expires" in served.refused(64, "tokens", "create", "--read", "x", "--expires", "0s")
    assert "--data" in served.refused(64, "tokens", "create", "--read", "x", "--create")


# ---- ls, show, revoke ----------------------------------------------------------------------------


def test_tokens_are_listed(served: TokenServer) -> None:
    made = served.create("--principal", "listed", "--read", "l/*", "--description", "to list")
    served.ok("ls", token=made)
    assert id_of(made) in served.ok("tokens", "ls").splitlines()
    entry = next(each for each in served.json("tokens", "ls") if each["id"] == id_of(made))
    assert entry["principal"] == "listed"
    assert entry["description"] == "to list"
    assert entry["state"] == "live"
    assert entry["issuer"] == id_of(served.admin)
    assert entry["used_at"] is not None
    assert "token" not in entry
    assert served.ok("tokens", "ls", token=made).splitlines() == [id_of(made)]


def test_the_table_has_whole_ids(served: TokenServer, monkeypatch: pytest.MonkeyPatch) -> None:
    made = served.create("--principal", "p" * 100, "--read", f"{'x' * 150}/*", "--expires", "1d")
    monkeypatch.setenv("SEMEL_TOKEN", served.admin)
    code, output = on_a_terminal(served, "tokens", "ls")
    assert code == 0
    assert any(line.split()[:3] == ["id", "principal", "state"] for line in output.splitlines())
    assert any(line.startswith(f"{id_of(made)} ") for line in output.splitlines())
    assert "never" in output
    assert secret_of(made) not in output


def test_one_token_is_shown(served: TokenServer) -> None:
    made = served.create("--principal", "shown", "--read", "a b/*", "--scope", "cluster:describe")
    name = id_of(made)
    for spelled in (name, f"semel_{name}", f"semel_{name}_..."):
        (entry,) = served.json("tokens", "show", spelled)
        assert entry["id"] == name
    words = served.ok("tokens", "show", name)
    assert "cluster:describe stream:a b/*:read" in words
    assert "description" not in words  # it has none
    own = served.ok("tokens", "show", token=made)
    assert "shown" in own
    assert "strict rights  no" in own
    assert "token_not_found" in served.refused(1, "tokens", "show", "aaaaaaaaaaaa")
    other = served.create("--principal", "other", "--read", "x")
    assert "token_not_found" in served.refused(1, "tokens", "show", name, token=other)


@pytest.mark.parametrize("command", ["show", "revoke"])
def test_a_whole_token_is_no_id_and_is_not_repeated(served: TokenServer, command: str) -> None:
    made = served.create("--read", "x")
    error = served.refused(64, "tokens", command, made)
    assert "12 characters" in error
    assert secret_of(made) not in error
    assert served.json("tokens", "show", id_of(made))[0]["state"] == "live"


def test_a_revoked_token_is_refused(served: TokenServer) -> None:
    parent = served.create("--principal", "family", "--read", "f/*")
    child = served.create("--read", "f/a", token=parent)
    grandchild = served.create("--read", "f/a", token=child)
    lone = served.ok("tokens", "revoke", id_of(grandchild))
    assert re.fullmatch(rf"token {id_of(grandchild)} revoked at \S+Z\n", lone)
    again = served.ok("tokens", "revoke", id_of(grandchild))
    assert again == lone.replace(" revoked", " was already revoked")
    assert "unauthenticated" in served.refused(1, "ls", token=grandchild)
    served.ok("ls", token=child)
    (ended,) = served.json("tokens", "revoke", id_of(parent), "--children")
    assert (ended["id"], ended["count"]) == (id_of(parent), 2)
    for token in (parent, child):
        assert "unauthenticated" in served.refused(1, "ls", token=token)
        assert served.json("tokens", "show", id_of(token))[0]["state"] == "revoked"
    assert "token_not_found" in served.refused(1, "tokens", "revoke", "aaaaaaaaaaaa")


def test_the_own_token_is_revoked_only_after_confirmation(
    served: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = served.create("--principal", "self", "--read", "x")
    assert "--yes" in served.refused(64, "tokens", "revoke", id_of(own), token=own)
    monkeypatch.setenv("SEMEL_TOKEN", own)
    code, output = on_a_terminal(served, "tokens", "revoke", id_of(own), answer=b"n\n")
    assert code == 1
    assert "was not revoked" in output
    served.ok("ls", token=own)
    served.ok("tokens", "revoke", id_of(own), "--yes", token=own)
    assert "unauthenticated" in served.refused(1, "ls", token=own)


# ---- access is off, and the bootstrap token ------------------------------------------------------


def test_a_server_without_tokens_says_what_to_do(tmp_path: Path) -> None:
    with token_server(tmp_path / "data", "--access", "off") as served:
        assert served.access_line.startswith("access is off: ")
        error = served.refused(1, "tokens", "create", "--admin")
        assert error.startswith("semel: access_off: ")
        assert "semel tokens create --admin --data DIR" in error
        assert served.ok("tokens", "ls") == ""
        assert served.ok("tokens", "show").split() == ["access", "off"]


def test_a_generated_token_is_a_bootstrap_token(tmp_path: Path) -> None:
    generated, other = semel("tokens", "generate").stdout, semel("tokens", "generate").stdout
    assert TOKEN.fullmatch(generated)
    assert TOKEN.fullmatch(other)
    assert generated != other
    with token_server(tmp_path / "data", bootstrap=generated.strip()) as served:
        (entry,) = served.json("tokens", "ls")
        assert entry["id"] == id_of(generated)
        assert (entry["principal"], entry["scopes"]) == ("admin", ADMIN_SCOPE)
        assert secret_of(generated.strip()).encode() not in command_line(served.process)
        served.end()
    with token_server(tmp_path / "data", bootstrap=other.strip()) as served:
        # The directory has a token now, so the variable has no effect.
        assert "unauthenticated" in served.refused(1, "ls")
        served.ok("ls", token=generated.strip())


# ---- secrecy -------------------------------------------------------------------------------------


def command_line(process: "subprocess.Popen[str]") -> bytes:
    return Path(f"/proc/{process.pid}/cmdline").read_bytes()


def test_no_secret_is_in_a_process_list_a_log_or_a_file(tmp_path: Path) -> None:
    with token_server(tmp_path / "data") as served:
        made = served.create("--principal", "worker", "--read", "x", "--write", "x")
        served.ok("create", "x", token=made)
        served.refused(1, "delete", "x", "--yes", token=made)
        served.refused(1, "ls", token=f"{made[:-1]}!")
        follow = subprocess.Popen(
            [*PROGRAM, "audit", "--follow", "--json"],
            env={**os.environ, "SEMEL_URL": served.url, "SEMEL_TOKEN": served.admin},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert follow.stdout is not None
        seen = follow.stdout.readline()  # now it runs, and it has sent its token
        lines = [command_line(follow), command_line(served.process)]
        assert b"audit" in lines[0]
        assert b"serve" in lines[1]
        follow.terminate()
        seen += "".join(follow.communicate(timeout=PATIENCE_SECONDS))
        served.ok("tokens", "revoke", id_of(made))
        printed = served.end()
        secrets = [secret_of(served.admin), secret_of(made)]
    assert "token_create" in seen
    for secret in secrets:
        assert secret not in seen + printed
        assert not any(secret.encode() in line for line in lines)
        for file in (tmp_path / "data").iterdir():
            assert secret.encode() not in file.read_bytes(), file


def test_no_secret_is_in_the_arguments_of_the_command_that_makes_it(tmp_path: Path) -> None:
    maker = subprocess.Popen(
        [*PROGRAM, "tokens", "create", "--admin", "--create", "--data", str(tmp_path / "d")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    seen = b""
    while maker.poll() is None:
        seen += command_line(maker)
    out, error = maker.communicate(timeout=PATIENCE_SECONDS)
    assert TOKEN.fullmatch(out)
    assert b"tokens\0create" in seen
    assert secret_of(out.strip()).encode() not in seen
    assert secret_of(out.strip()) not in error
