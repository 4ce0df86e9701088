"""`semel head`: what a stream is."""

import click

from semel.cli.options import path_argument, remote
from semel.cli.shown import json_line, print_facts, write
from semel.client.client import Client
from semel.client.extras import milliseconds
from semel.client.values import StreamInfo
from semel.wire.headers import print_instant


@click.command("head")
@path_argument
@remote
def command(client: Client, path: str, *, is_json: bool) -> None:
    """Show the type, the end and the state of the stream PATH."""
    facts = _facts(path, client.stream(path).head())
    if is_json:
        write(json_line(facts))
    else:
        print_facts(facts)


def _facts(path: str, info: StreamInfo) -> dict[str, object]:
    ends = info.expires_at
    return {
        "path": path,
        "content_type": info.content_type,
        "next_offset": info.next_offset,
        "closed": info.closed,
        "incarnation": info.incarnation,
        "ttl_seconds": info.ttl,
        "expires_at": None if ends is None else print_instant(milliseconds(ends)),
        "dedup": None if info.dedup else "off",
        "dedup_from": info.dedup_from,
    }
