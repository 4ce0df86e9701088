"""`semel context`, and which server and which token the other commands use."""

import json
import os
import pty
import select
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from semel.cli.main import cli
from semel.cli.server_choice import print_warning
from tests.integration.recorder import Recorder, forwarding
from tests.integration.test_cli_streams import PROGRAM, certificate, serving
from tests.integration.test_tokens_client import HIDDEN, TOKEN, UNAUTHENTICATED, tokens
from tests.spec.process import PATIENCE_SECONDS, Server

OTHER = "semel_othertoken01_another-secret-part-of-a-token-0123456789abcd"


class Shell:
    """Runs commands with a credentials file of their own."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "config/semel/credentials.toml"
        self.environment: dict[str, str | None] = {
            "SEMEL_CREDENTIALS": None,
            "XDG_CONFIG_HOME": str(folder / "config"),
            "HOME": str(folder),
            "SEMEL_URL": None,
        }

    def semel(self, *arguments: str, given: str | None = None, **variables: str) -> Result:
        print_warning.cache_clear()  # a new process would warn again
        environment = {**self.environment, **variables}
        result = CliRunner(env=environment).invoke(cli, [*arguments], input=given)
        assert HIDDEN not in result.output
        assert HIDDEN not in repr(result.exception)
        return result

    def ok(self, *arguments: str, given: str | None = None, **variables: str) -> str:
        result = self.semel(*arguments, given=given, **variables)
        assert result.exit_code == 0, result.output
        return result.stdout

    def refused(self, code: int, *arguments: str, given: str | None = None, **more: str) -> str:
        result = self.semel(*arguments, given=given, **more)
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result.stderr

    def listed(self) -> dict[str, dict[str, Any]]:
        lines = self.ok("context", "ls", "--json").splitlines()
        return {facts["name"]: facts for facts in map(json.loads, lines)}

    def add(self, name: str, url: str, token: str | None = TOKEN, *more: str) -> str:
        piped = [] if token is None else ["--token-stdin"]
        return self.ok("context", "add", name, "--url", url, *piped, *more, given=token)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture
def first(server: Server) -> Iterator[Recorder]:
    with Recorder(forwarding(server.port)) as it:
        yield it


@pytest.fixture
def second(server: Server) -> Iterator[Recorder]:
    with Recorder(forwarding(server.port)) as it:
        yield it


# ---- the commands --------------------------------------------------------------------------------


def test_contexts_are_added_listed_used_and_removed(shell: Shell) -> None:
    assert shell.ok("context", "ls") == ""
    text = shell.add("prod", "https://semel.example/base")
    assert text == (
        "stored the context prod: https://semel.example/base, token semel_abcDEF012345_...;"
        " it is the current context\n"
    )
    assert "current" not in shell.add("dev", "http://127.0.0.1:4437", None)
    assert stat.S_IMODE(shell.file.stat().st_mode) == 0o600
    assert stat.S_IMODE(shell.file.parent.stat().st_mode) == 0o700
    assert HIDDEN in shell.file.read_text()
    assert shell.listed() == {
        "prod": {
            "name": "prod",
            "url": "https://semel.example/base",
            "token": "semel_abcDEF012345_...",
            "ca": None,
            "current": True,
        },
        "dev": {
            "name": "dev",
            "url": "http://127.0.0.1:4437",
            "token": None,
            "ca": None,
            "current": False,
        },
    }
    rows = [line.split("\t") for line in shell.ok("context", "ls").splitlines()]
    assert [row[:2] for row in rows] == [["*", "prod"], [" ", "dev"]]
    assert "now dev" in shell.ok("context", "use", "dev")
    assert [facts["current"] for facts in shell.listed().values()] == [False, True]
    shell.ok("context", "rm", "dev")
    assert list(shell.listed()) == ["prod"]
    assert not shell.listed()["prod"]["current"]
    assert "there is no context 'dev'" in shell.refused(1, "context", "use", "dev")
    assert "there is no context 'dev'" in shell.refused(1, "context", "rm", "dev")


def test_a_context_is_replaced_only_on_demand(shell: Shell) -> None:
    shell.add("prod", "http://127.0.0.1:1")
    arguments = ("context", "add", "prod", "--url", "http://127.0.0.1:2", "--token-stdin")
    assert "use --replace" in shell.refused(1, *arguments, given=OTHER)
    assert shell.listed()["prod"]["url"] == "http://127.0.0.1:1"
    shell.ok(*arguments, "--replace", given=OTHER)
    assert shell.listed()["prod"]["token"] == "semel_othertoken01_..."


@pytest.mark.parametrize(
    ("arguments", "given", "reason"),
    [
        (["a b", "--url", "http://h"], None, "'a b' is not a name for a context"),
        (["a", "--url", "nonsense"], None, "--url: 'nonsense' is not the address"),
        (["a", "--url", f"http://u:{TOKEN}@h"], None, "must not contain credentials"),
        (["a", "--url", "http://h", "--token-stdin"], "", "the token on stdin is empty"),
        (["a", "--url", "http://h", "--token-stdin"], f"{TOKEN}\n{TOKEN}", "one token"),
        (["a", "--url", "http://h", "--token-file", "none"], None, "none cannot be read"),
        (["a", "--url", "http://h", "--token-stdin", "--token-file", "x"], TOKEN, "together"),
        (["a", "--url", "https://h", "--ca", "none"], None, "(ca of the context) cannot be read"),
        (["a", "--url", "https://h", "--ca", __file__], None, "(ca of the context) has no valid"),
        (["a"], None, "Missing option '--url'"),
    ],
)
def test_a_wrong_context_is_refused_and_nothing_is_stored(
    shell: Shell, arguments: list[str], given: str | None, reason: str
) -> None:
    assert reason in shell.refused(64, "context", "add", *arguments, given=given)
    assert not shell.file.exists()


def test_a_token_file_is_named_and_read_for_each_command(
    shell: Shell, tmp_path: Path, first: Recorder
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{OTHER}\n")
    shell.ok("context", "add", "prod", "--url", first.url, "--token-file", str(file))
    assert shell.listed()["prod"]["token"] == f"file {file}"
    assert OTHER not in shell.file.read_text()
    shell.ok("ls")
    file.write_text(TOKEN)
    shell.ok("ls")
    assert tokens(first.requests) == [OTHER, TOKEN]
    file.unlink()
    assert f"the token file {file} cannot be read" in shell.refused(64, "ls")


def test_an_unencrypted_address_of_another_machine_is_warned_about(shell: Shell) -> None:
    arguments = ("context", "add", "x", "--url", "http://semel.example", "--token-stdin")
    assert "without TLS" in shell.semel(*arguments, given=TOKEN).stderr
    for name, url in (("y", "http://[::1]:4437"), ("z", "https://semel.example")):
        more = ("context", "add", name, "--url", url, "--token-stdin")
        assert shell.semel(*more, given=TOKEN).stderr == ""


def test_a_token_is_typed_without_being_shown(shell: Shell) -> None:
    ours, theirs = pty.openpty()
    environment = {k: v for k, v in shell.environment.items() if v is not None}
    process = subprocess.Popen(
        [*PROGRAM, "context", "add", "prod", "--url", "http://127.0.0.1:4437"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith("SEMEL_")},
            **environment,
            "TERM": "dumb",
        },
    )
    os.close(theirs)
    output, is_typed = b"", False
    while select.select([ours], [], [], PATIENCE_SECONDS)[0]:
        try:
            output += os.read(ours, 65_536)
        except OSError:  # the command has ended
            break
        if b"Token (empty for none): " in output and not is_typed:
            command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            assert b"context\0add\0prod" in command
            os.write(ours, f"{TOKEN}\n".encode())
            is_typed = True
    os.close(ours)
    assert process.wait(PATIENCE_SECONDS) == 0, output
    assert is_typed
    assert HIDDEN.encode() not in output
    assert b"token semel_abcDEF012345_..." in output
    assert HIDDEN in shell.file.read_text()


def test_no_command_has_an_option_for_a_token(shell: Shell) -> None:
    for arguments in (("ls",), ("context", "add", "a", "--url", "http://h"), ("run", __file__)):
        assert "No such option" in shell.refused(64, *arguments, "--token", "x")


# ---- which server, which token -------------------------------------------------------------------


def test_the_server_is_that_of_an_option_a_context_or_the_default(
    shell: Shell, first: Recorder, second: Recorder
) -> None:
    shell.add("one", first.url)
    shell.add("two", second.url, OTHER)

    def used(*options: str, **variables: str) -> list[tuple[int, str | None]]:
        for recorder in (first, second):
            del recorder.requests[:]
        shell.ok("ls", *options, **variables)
        return [
            (number, token)
            for number, recorder in enumerate((first, second), 1)
            for token in tokens(recorder.requests)
        ]

    assert used() == [(1, TOKEN)]
    assert used("--context", "two") == [(2, OTHER)]
    assert used(SEMEL_CONTEXT="two") == [(2, OTHER)]
    assert used("--context", "one", SEMEL_CONTEXT="two") == [(1, TOKEN)]
    # The token of a context is sent only to the address of that context.
    assert used("--url", second.url) == [(2, None)]
    assert used(SEMEL_URL=second.url) == [(2, None)]
    assert used("--url", second.url, "--context", "one") == [(2, None)]
    assert used("--url", f"{first.url}/") == [(1, TOKEN)]
    assert used("--url", second.url, "--context", "two") == [(2, OTHER)]
    localhost = first.url.replace("127.0.0.1", "localhost")
    assert used("--url", localhost) == [(1, None)]
    # A token that is given explicitly is sent to any server.
    assert used("--url", second.url, SEMEL_TOKEN="t") == [(2, "t")]
    assert used("--context", "two", SEMEL_TOKEN="t") == [(2, "t")]
    assert used(SEMEL_TOKEN="t") == [(1, "t")]
    file = shell.file.parent / "token"
    file.write_text("f")
    assert used("--url", second.url, "--token-file", str(file)) == [(2, "f")]
    assert used("--token-file", str(file), SEMEL_TOKEN="t") == [(1, "f")]
    assert used(SEMEL_CREDENTIALS="/nonexistent", SEMEL_URL=first.url) == [(1, None)]


def test_without_anything_the_server_is_the_local_one(shell: Shell) -> None:
    result = shell.semel("ls", "--timeout", "1")
    assert "127.0.0.1:4437" in result.output or result.exit_code == 0


def test_another_path_of_the_same_machine_is_another_server(shell: Shell, first: Recorder) -> None:
    shell.add("prod", f"{first.url}/base")
    shell.semel("ls", "--url", first.url)
    shell.semel("ls")
    assert tokens(first.requests) == [None, TOKEN]


def test_a_refused_token_is_reported(shell: Shell) -> None:
    with Recorder(lambda request: UNAUTHENTICATED) as other:
        shell.add("prod", other.url)
        assert "unauthenticated: the server says no" in shell.refused(1, "ls")
        assert len(other.requests) == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("current = [", "is not valid TOML"),
        (f'[contexts.a]\nurl = "http://h"\ntoken = "{TOKEN}"\ntokn = 1', "unknown field `tokn`"),
        (f'[contexts.a]\nurl = "http://h"\ntoken = "{TOKEN}', "is not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name(
    shell: Shell, first: Recorder, text: str, reason: str
) -> None:
    shell.file.parent.mkdir(parents=True)
    shell.file.write_text(text)
    shell.file.chmod(0o600)
    for arguments in (("ls",), ("ls", "--url", first.url), ("context", "ls")):
        error = shell.refused(64, *arguments)
        assert reason in error
        assert str(shell.file) in error
    assert first.requests == []
    assert shell.file.read_text() == text


def test_an_unknown_context_is_refused(shell: Shell, first: Recorder) -> None:
    shell.add("one", first.url)
    error = shell.refused(64, "ls", "--context", "two")
    assert f"{shell.file}: there is no context 'two'; its contexts: one" in error
    assert first.requests == []


def test_a_file_that_cannot_be_read_matters_only_if_a_context_is_named(
    shell: Shell, tmp_path: Path, first: Recorder
) -> None:
    unreadable = {"SEMEL_CREDENTIALS": str(tmp_path)}  # a directory
    shell.ok("ls", "--url", first.url, **unreadable)
    assert "cannot be read" in shell.refused(64, "ls", "--context", "one", **unreadable)
    assert "cannot be read" in shell.refused(64, "context", "ls", **unreadable)


def test_a_file_that_others_may_read_is_used_with_one_warning(
    shell: Shell, first: Recorder
) -> None:
    shell.add("one", first.url)
    shell.file.chmod(0o644)
    result = shell.semel("ls")
    assert result.exit_code == 0
    assert result.stderr.count("other users may read the tokens") == 1
    assert tokens(first.requests) == [TOKEN]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl for a certificate")
def test_a_context_has_the_certificates_to_trust(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    cert, key = certificate(tmp_path)
    with serving(tmp_path / "data", "--tls-cert", cert, "--tls-key", key) as served:
        shell.add("prod", served.url, TOKEN, "--ca", cert)
        shell.ok("ls")
        shell.ok("ls", "--url", f"{served.url}/")  # the same server
        shell.add("bare", served.url, TOKEN)
        assert "is not trusted" in shell.refused(69, "ls", "--context", "bare")


def test_a_graph_runs_with_the_server_and_the_token_of_a_context(
    shell: Shell, tmp_path: Path, first: Recorder, second: Recorder
) -> None:
    shell.add("one", first.url)
    shell.ok("create", "in", "--content-type", "application/json")
    file = tmp_path / "graph_of_contexts.py"
    text = (
        "from semel.pipeline import Graph\n"
        "graph = Graph('contexts'{url})\n"
        "graph.stream('p', in_='in', out='out')(lambda value: value)\n"
    )
    del first.requests[:]
    file.write_text(text.format(url=""))
    shell.ok("run", str(file), "--available-now")
    assert set(tokens(first.requests)) == {TOKEN}
    # The address of the graph wins over the current context, which is not that of the server.
    del first.requests[:]
    file.write_text(text.format(url=f", url={second.url!r}"))
    shell.ok("run", str(file), "--available-now")
    assert (first.requests, set(tokens(second.requests))) == ([], {None})
    shell.ok("run", str(file), "--available-now", "--context", "one")
    assert set(tokens(first.requests)) == {TOKEN}
    assert "cannot be read" in shell.refused(
        64, "run", str(file), "--available-now", "--token-file", "/nonexistent/token"
    )
