"""`semel close`: let nothing follow."""

import click

from semel.cli.options import path_argument, remote
from semel.cli.shown import tell
from semel.client.client import Client


@click.command("close")
@path_argument
@remote
def command(client: Client, path: str, *, is_json: bool) -> None:
    """Close the stream PATH: it can be read, but takes no more appends. Closing again is fine."""
    receipt = client.stream(path).close()
    facts = {"path": path, "next_offset": receipt.next_offset, "closed": receipt.closed}
    tell(f"closed {path} at {receipt.next_offset}", facts, is_json=is_json)
