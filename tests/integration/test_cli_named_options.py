"""Messages of the commands name only options that exist."""

import ast
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import semel
from semel.cli.main import cli
from semel.cli.options import error_report, options_named
from semel.cli.output import EXIT_UNAVAILABLE
from semel.client import errors
from semel.client.transport import TRUST_ADVICE
from semel.wire.refusal_table import BY_CODE

SOURCE = Path(semel.__file__).parent
# `semel doctor --verify --data DIR`, in a text.
QUOTED = re.compile(r"semel ((?:[a-z]+ )+)[^`;.()]*?--[a-z][^`;.()]*")


def commands(group: click.Group = cli, names: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield every command that can be run, with its full name."""
    with click.Context(group) as context:
        found = [(name, group.get_command(context, name)) for name in group.list_commands(context)]
    for name, command in found:
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{names}{name} ")
        else:
            yield f"{names}{name}", command


COMMANDS = {name: command for name, command in commands() if not name.startswith("bench")}
REMOTE = [
    name
    for name, command in COMMANDS.items()
    if any(parameter.name == "url" for parameter in command.params)
]


def options_of(command: click.Command) -> set[str]:
    names = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    return names | {"--help"}


@pytest.fixture(scope="module")
def closed_port() -> Iterator[int]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_without_a_server_a_command_names_only_options_of_its_own(closed_port: int) -> None:
    url = f"http://127.0.0.1:{closed_port}"
    for name, arguments in (("ls", []), ("append", ["x", "data"])):
        result = CliRunner().invoke(cli, [name, *arguments, "--url", url])
        assert result.exit_code == EXIT_UNAVAILABLE, result.output
        assert "check that `semel serve` is running at --url" in result.stderr
        assert options_named(result.stderr) <= options_of(COMMANDS[name])


def test_a_certificate_that_is_not_trusted_is_no_reason_to_name_an_argument_of_python() -> None:
    told = error_report(errors.Unavailable(f"not trusted (expired); {TRUST_ADVICE}")).message
    assert told == "not trusted (expired); set SSL_CERT_FILE to the name of the issuer's PEM file"


def test_the_commands_that_use_a_server_are_looked_at() -> None:
    assert {"run", "append", "delete", "groups set", "trace"} <= set(REMOTE)
    assert "--timeout" not in options_of(COMMANDS["run"])


@pytest.mark.parametrize("name", REMOTE)
def test_a_failed_command_names_only_options_of_its_own(name: str) -> None:
    command = COMMANDS[name]
    failures = [errors.Refused("no", code=code, status=409) for code in BY_CODE]
    others = [kind("no") for kind in (errors.Unavailable, errors.Indeterminate)]
    for failure in (*failures, *others, errors.ProtocolError("no"), errors.NotSupported("no")):
        with click.Context(command):
            refused = error_report(failure)
        assert options_named(refused.message) <= options_of(command), refused.message


def texts_in(file: Path) -> Iterator[str]:
    """Yield the strings of a module, each f-string as a whole; `{}` replaces its values."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    parts = {
        id(value)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for value in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
            )
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts
        ):
            yield node.value


def test_a_quoted_command_exists_and_has_its_options() -> None:
    seen = 0
    for file in SOURCE.rglob("*.py"):
        for text in texts_in(file):
            for match in QUOTED.finditer(text):
                words = match[1].split()
                name = next(
                    (
                        " ".join(words[:count])
                        for count in (2, 1)
                        if " ".join(words[:count]) in COMMANDS
                    ),
                    None,
                )
                assert name is not None, (file, match[0])
                found = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", match[0]))
                assert found <= options_of(COMMANDS[name]), (file, match[0])
                seen += 1
    assert seen > 10


def test_the_commands_of_a_module_name_options_that_one_of_them_has() -> None:
    by_module: dict[str, set[str]] = {}
    for command in COMMANDS.values():
        assert command.callback is not None
        module = command.callback.__module__
        by_module.setdefault(module, set()).update(options_of(command))
    assert len(by_module) >= 8
    for module, known in by_module.items():
        file = SOURCE.parent.joinpath(*module.split(".")).with_suffix(".py")
        for text in texts_in(file):
            named = options_named(QUOTED.sub("", text)) - {
                "--dedup"
            }  # create: "the server's --dedup"
            assert named <= known, (module, text)
