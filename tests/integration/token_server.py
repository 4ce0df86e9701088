"""A server with access on, and commands that are run with one of its tokens."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from semel.cli.main import cli
from tests.integration.test_cli_streams import LINE, PROGRAM, SMALL


def semel(*arguments: str, **variables: str | None) -> Result:
    """Run a command in this process."""
    result = CliRunner(env={"SEMEL_URL": None, **variables}).invoke(cli, [*arguments])
    assert "Traceback" not in result.output
    return result


def secret_of(token: str) -> str:
    """Return the secret part of a token."""
    assert token.startswith("semel_")
    secret = token.removeprefix("semel_")[13:]
    assert len(secret) == 43
    return secret


def id_of(token: str) -> str:
    return token.split("_")[1]


def create_offline(data: Path, *arguments: str) -> str:
    """Create a token in a directory; return the token."""
    result = semel("tokens", "create", "--data", str(data), *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


class TokenServer:
    """A server process on a directory that has a token for administrators.

    That is `bootstrap` or, by default, one that is made before the server starts. With
    `--access off` there is none.
    """

    def __init__(self, data: Path, *options: str, bootstrap: str = "") -> None:
        self.data = data
        self.admin = bootstrap
        if not (bootstrap or "off" in options):
            self.admin = create_offline(data, "--admin", "--create")
        environment = {**os.environ, "SEMEL_BOOTSTRAP_TOKEN": bootstrap}
        arguments = ["serve", "--data", str(data), "--port", "0", *SMALL, *options]
        self._errors = data.with_name(f"{data.name}.stderr")
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [*PROGRAM, *arguments],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self.process.stdout is not None
        self._line = self.process.stdout.readline()
        self.access_line = self._errors.read_text()
        if not self._line.startswith(LINE):
            self.kill()
            raise AssertionError(self._errors.read_text())
        self.url = self._line.removeprefix(LINE).strip()

    def semel(self, *arguments: str, token: str | None = None) -> Result:
        """Run a command with a token, by default that of the administrator."""
        chosen = self.admin if token is None else token
        return semel(*arguments, SEMEL_URL=self.url, SEMEL_TOKEN=chosen or None)

    def ok(self, *arguments: str, token: str | None = None) -> str:
        result = self.semel(*arguments, token=token)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *arguments: str, token: str | None = None) -> list[dict[str, Any]]:
        text = self.ok(*arguments, "--json", token=token)
        return [json.loads(line) for line in text.splitlines()]

    def refused(self, code: int, *arguments: str, token: str | None = None) -> str:
        """Run a command that must be refused; return its error output."""
        result = self.semel(*arguments, token=token)
        assert result.exit_code == code, result.output
        return result.stderr

    def create(self, *arguments: str, token: str | None = None) -> str:
        """Create a token with the server; return the token."""
        return self.ok("tokens", "create", *arguments, token=token).strip()

    def kill(self) -> None:
        """Send SIGKILL, unless the process has already ended."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(60)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def end(self) -> str:
        """Stop the server; return everything that it has printed."""
        self.process.terminate()
        output, _ = self.process.communicate(timeout=60)
        return "".join([self._line, output, self._errors.read_text()])


@contextmanager
def token_server(data: Path, *options: str, bootstrap: str = "") -> Iterator[TokenServer]:
    server = TokenServer(data, *options, bootstrap=bootstrap)
    try:
        yield server
    finally:
        server.kill()
