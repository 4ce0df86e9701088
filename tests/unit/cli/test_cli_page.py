"""The documentation of the command line lists every command and every option."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from semel.cli import output
from semel.cli.main import cli

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/cli.md"
SHARED = "The server"
SHARED_OPTIONS = frozenset({"--url", "--context", "--token-file", "--timeout", "--json"})


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.*)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {name.strip("` "): text for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        yield name, command


def options(command: click.Command) -> set[str]:
    own = {
        word
        for param in command.params
        if isinstance(param, click.Option)
        for word in param.opts
        if word.startswith("--")
    }
    below = command.commands.values() if isinstance(command, click.Group) else ()
    return own.union(*map(options, below))


@pytest.mark.parametrize("name", cli.list_commands(click.Context(cli)))
def test_every_option_is_on_the_page(name: str) -> None:
    section = sections()[f"semel {name}"]
    wanted = options(dict(commands())[name])
    if "--url" in wanted:
        assert all(f"`{word}" in sections()[SHARED] for word in SHARED_OPTIONS)
        wanted -= SHARED_OPTIONS
    assert [word for word in sorted(wanted) if not re.search(rf"`{word}[ `]", section)] == []


def test_the_page_names_nothing_that_is_not_there() -> None:
    known = dict(commands())
    for title, text in sections().items():
        if title.startswith("semel "):
            there = options(known[title.removeprefix("semel ")]) | {"--help"}
            named = set(re.findall(r"^\| `(--[a-z-]+)", text, flags=re.MULTILINE))
            assert named <= there, title


def test_every_variable_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    named = {
        param.envvar
        for _, command in commands()
        for param in command.params
        if isinstance(param.envvar, str)
    }
    assert {"SEMEL_URL", "SEMEL_CONFIG", "SEMEL_PORT"} <= named
    assert [name for name in sorted(named) if name not in text] == []


def test_every_exit_code_is_on_the_page() -> None:
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", sections()["Exit codes"], re.M)}
    codes = {value for name, value in vars(output).items() if name.startswith("EXIT_")}
    assert listed == codes | {0, 73}
