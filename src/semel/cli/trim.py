"""`semel trim`: forget the oldest messages."""

import click

from semel.cli.options import Offset, path_argument, remote, target_of
from semel.cli.remote import Server
from semel.cli.shown import tell


@click.command("trim")
@path_argument
@click.option("--before", type=Offset(), required=True, help="The first message to keep.")
@remote
def command(server: Server, path: str, *, before: str, is_json: bool) -> None:
    """Forget the messages of the stream PATH that lie before an offset."""
    server.ask("DELETE", target_of(path), query={"before": before}).expect(204)
    facts = {"path": path, "first_offset": before}
    tell(f"trimmed {path}: nothing before {before} is kept", facts, is_json=is_json)
