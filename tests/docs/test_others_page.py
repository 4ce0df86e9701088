"""Runs docs/how-to/run-it-for-others.md from its first command to the last, in one directory.

A `text` fence that begins with `# name` is a file with this name. A `text` fence that begins with
`$ ` is a transcript: its commands are run in one shell, with one server at a time. `semel serve`
starts a server on a free port, and `^C` ends it. `...` in the output means any text. The output of
curl may have more lines than the page.
"""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest

from semel.cli.main import cli
from semel.cli.serve_config import read_access, read_settings
from tests.docs.test_docs import README, ROOT, RUN_SECONDS_MAX, Fence, fences
from tests.docs.test_transcripts import OTHERS, PROGRESS, SHOWN_PORT, Line, transcript
from tests.spec.process import SEMEL

TEXT: Final = OTHERS.read_text(encoding="utf-8")
STOP: Final = "^C"
FILE: Final = re.compile(r"# ([\w.-]+\.(?:py|toml|conf|yml|service)|Caddyfile)\n")
SERVE: Final = "semel serve"
END_SECONDS_MAX: Final = 60


class Shell:
    """A directory with the files of the page, the variables of its shell, and its server."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._state = directory / ".state"
        self._state.write_text("")
        self._server: subprocess.Popen[str] | None = None
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = str(free.getsockname()[1])
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SEMEL_")},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "HOME": str(directory),
            "XDG_CONFIG_HOME": str(directory / "config"),
            "NO_PROXY": "*",
            "SEMEL_RESERVE_BYTES": "0",
        }

    def run(self, command: str) -> str:
        """Run a command. Return what it prints."""
        if command == STOP:
            self.stop()
            return ""
        if SERVE in command:
            return self._serve(command)
        script = f". {self._state}; {command}\nunset SEMEL_URL; declare -px > {self._state}"
        run = subprocess.run(
            ["bash", "-c", script.replace(SHOWN_PORT, self._port)],
            cwd=self.directory,
            env=self._environment | self._default_server(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if command.startswith("openssl") else subprocess.STDOUT,
            text=True,
            timeout=RUN_SECONDS_MAX,
            check=False,
        )
        return PROGRESS.sub("", run.stdout).replace(self._port, SHOWN_PORT)

    def write(self, name: str, body: str) -> None:
        text = body.replace(SHOWN_PORT, self._port)
        (self.directory / name).write_text(text, encoding="utf-8")

    def _default_server(self) -> dict[str, str]:
        """Return the variable for the default address, which is used until there is a context."""
        has_context = (self.directory / "config/semel/credentials.toml").exists()
        return {} if has_context else {"SEMEL_URL": f"http://127.0.0.1:{self._port}"}

    def _serve(self, command: str) -> str:
        assert self._server is None, f"{command}: the page does not end the server before"
        real = f"{command.replace(SERVE, f'exec {SEMEL} serve')} --port {self._port}"
        log_path = self.directory / "server.log"
        with log_path.open("a") as log:
            logged = log.tell()
            self._server = subprocess.Popen(
                ["bash", "-c", f". {self._state}; {real}"],
                cwd=self.directory,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._server.stdout is not None
        greeting = self._server.stdout.readline()
        shown = log_path.read_text()[logged:] + greeting
        with self._state.open("a") as state:
            state.write(f"export SERVER={self._server.pid}\n")
        return shown.replace(self._port, SHOWN_PORT)

    def stop(self) -> None:
        if self._server is not None:
            assert self._server.stdout is not None
            self._server.send_signal(signal.SIGINT)
            self._server.wait(END_SECONDS_MAX)
            self._server.stdout.close()
            self._server = None


def files_in(page: list[Fence]) -> dict[str, str]:
    found = ((FILE.match(fence.body), fence.body) for fence in page if fence.info == "text")
    return {match[1]: body for match, body in found if match is not None}


def lines_in(text: str) -> list[Line]:
    """Return the commands of the transcripts. `^C` is a command."""
    return transcript(re.sub(r"^\^C$", r"$ ^C", text, flags=re.MULTILINE))


def is_shown(line: Line, printed: str) -> bool:
    """Return True if a command has printed what the page shows."""
    patterns = [re.escape(shown).replace(r"\.\.\.", ".*") for shown in line.shown]
    printed_lines = [each.rstrip() for each in printed.splitlines()]
    if line.command.startswith("curl"):
        rest = iter(printed_lines)
        return all(any(re.fullmatch(each, one) for one in rest) for each in patterns)
    if len(patterns) != len(printed_lines):
        return False
    return all(map(re.fullmatch, patterns, printed_lines))


def complaints(text: str, directory: Path) -> Iterator[str]:
    shell = Shell(directory)
    for name, body in files_in(fences(text)).items():
        shell.write(name, body)
    try:
        for line in lines_in(text):
            printed = shell.run(line.command)
            if not is_shown(line, printed):
                yield f"{line.command}\nprinted {printed!r}, not {line.shown}"
    finally:
        shell.stop()


@pytest.mark.skipif(
    shutil.which("curl") is None or shutil.which("openssl") is None,
    reason="curl or openssl is not installed",
)
def test_every_command_of_the_page_prints_what_it_shows(tmp_path: Path) -> None:
    assert list(complaints(TEXT, tmp_path)) == []
    log = (tmp_path / "server.log").read_text()
    assert "SIGHUP: the certificate is loaded again from cert.pem" in log
    assert "Traceback" not in log


def test_the_commands_of_the_readme_are_on_the_page() -> None:
    section = README.read_text(encoding="utf-8").partition("\n## Access\n")[2]
    block = next(fence for fence in fences(section) if fence.info == "text")
    commands = [line.command for line in lines_in(TEXT)]
    assert [line for line in block.body.splitlines() if line not in commands] == []


def test_every_option_of_semel_in_the_prose_exists() -> None:
    """`semel serve` and `semel tokens` have the options that the page names in backticks."""
    known = {
        name
        for path in (("serve",), ("tokens", "create"), ("tokens", "revoke"), ("context", "add"))
        for parameter in _command(path).params
        for name in parameter.opts
    }
    named = set(re.findall(r"`(--[a-z-]+)", TEXT)) - {"--deploy-hook"}  # of certbot
    assert len(named) > 8
    assert named - known == set()


def _command(path: tuple[str, ...]) -> click.Command:
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None, path
        command = found
    return command


def test_the_proxies_pass_on_paths_and_events_unchanged() -> None:
    files = files_in(fences(TEXT))
    nginx, caddy = files["nginx.conf"], files["Caddyfile"]
    # With a path after the address, nginx would decode and normalise the path of the request.
    assert re.search(r"proxy_pass http://127\.0\.0\.1:4437;", nginx)
    assert "proxy_buffering off;" in nginx
    assert "reverse_proxy 127.0.0.1:4437" in caddy
    assert "flush_interval -1" in caddy
    assert "uri" not in caddy


def test_every_configuration_of_the_page_is_valid(tmp_path: Path) -> None:
    files = {name: body for name, body in files_in(fences(TEXT)).items() if name.endswith(".toml")}
    assert len(files) == 2
    for name, body in files.items():
        (tmp_path / name).write_text(body, encoding="utf-8")
        assert read_settings(str(tmp_path / name), _command(("serve",)))["data"]
        read_access(str(tmp_path / name))


def test_a_command_that_prints_something_else_is_noticed(tmp_path: Path) -> None:
    page = "```text\n# a.toml\nx = 1\n```\n```text\n$ cat a.toml\n# a.toml\nx = ...\n```\n"
    assert list(complaints(page, tmp_path)) == []
    assert len(list(complaints(page.replace("x = ...", "y = ..."), tmp_path))) == 1
    assert len(list(complaints(page.replace("x = ...\n", ""), tmp_path))) == 1
    kept = "```text\n$ export A=1\n$ echo $A\n1\n```\n"
    assert list(complaints(kept, tmp_path)) == []
    assert shlex.split(lines_in("```text\n$ a \\\n  b\n^C\n$ c\n```\n")[1].command) == [STOP]
