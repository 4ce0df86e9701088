"""`semel delete`: remove a stream."""

import sys

import click

from semel.cli.exits import Refused
from semel.cli.options import path_argument, remote
from semel.cli.shown import tell
from semel.cli.text import printable
from semel.client.client import Client


@click.command("delete")
@path_argument
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask.")
@remote
def command(client: Client, path: str, *, is_sure: bool, is_json: bool) -> None:
    """Delete the stream PATH and all it holds. What its forks have of it stays with them."""
    if not is_sure:
        if not sys.stdin.isatty():
            raise Refused("a deletion cannot be undone; add --yes if it is meant")
        url = client.transport.address.url
        question = f"Delete {printable(path)} on {printable(url)}, and all it holds?"
        click.confirm(question, abort=True, err=True)
    client.stream(path).delete()
    tell(f"deleted {path}", {"path": path, "deleted": True}, is_json=is_json)
