"""`semel delete`: remove a stream."""

import sys

import click

from semel.cli.exits import Refused
from semel.cli.options import path_argument, remote, target_of
from semel.cli.remote import Server
from semel.cli.shown import tell
from semel.cli.text import printable


@click.command("delete")
@path_argument
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask.")
@remote
def command(server: Server, path: str, *, is_sure: bool, is_json: bool) -> None:
    """Delete the stream PATH and all it holds. What its forks have of it stays with them."""
    if not is_sure:
        if not sys.stdin.isatty():
            raise Refused("a deletion cannot be undone; add --yes if it is meant")
        question = f"Delete {printable(path)} on {printable(server.url)}, and all it holds?"
        click.confirm(question, abort=True, err=True)
    server.ask("DELETE", target_of(path)).expect(204)
    tell(f"deleted {path}", {"path": path, "deleted": True}, is_json=is_json)
