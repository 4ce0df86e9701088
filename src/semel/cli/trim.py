"""`semel trim`: forget the oldest messages."""

import click

from semel.cli.options import Offset, path_argument, remote
from semel.cli.shown import tell
from semel.client.client import Client


@click.command("trim")
@path_argument
@click.option("--before", type=Offset(), required=True, help="The first message to keep.")
@remote
def command(client: Client, path: str, *, before: str, is_json: bool) -> None:
    """Forget the messages of the stream PATH that lie before an offset."""
    client.stream(path).trim(before)
    facts = {"path": path, "first_offset": before}
    tell(f"trimmed {path}: nothing before {before} is kept", facts, is_json=is_json)
