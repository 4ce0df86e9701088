"""`semel close`: let nothing follow."""

import click

from semel.cli.options import path_argument, remote, target_of
from semel.cli.remote import Server
from semel.cli.shown import tell


@click.command("close")
@path_argument
@remote
def command(server: Server, path: str, *, is_json: bool) -> None:
    """Close the stream PATH: it can be read, but takes no more appends. Closing again is fine."""
    answer = server.ask("POST", target_of(path), headers={"Stream-Closed": "true"})
    offset = answer.header("stream-next-offset")
    facts = {"path": path, "next_offset": offset, "closed": answer.is_closed}
    tell(f"closed {path} at {offset}", facts, is_json=is_json)
