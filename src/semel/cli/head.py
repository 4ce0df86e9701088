"""`semel head`: what a stream is."""

import click

from semel.cli.options import path_argument, remote, target_of
from semel.cli.remote import Answer, Server
from semel.cli.shown import json_line, print_facts, write


@click.command("head")
@path_argument
@remote
def command(server: Server, path: str, *, is_json: bool) -> None:
    """Show the type, the end and the state of the stream PATH."""
    facts = _facts(path, server.ask("HEAD", target_of(path)))
    if is_json:
        write(json_line(facts))
    else:
        print_facts(facts)


def _facts(path: str, answer: Answer) -> dict[str, object]:
    ttl = answer.headers.get("stream-ttl")
    return {
        "path": path,
        "content_type": answer.header("content-type"),
        "next_offset": answer.header("stream-next-offset"),
        "closed": answer.is_closed,
        "incarnation": answer.headers.get("stream-incarnation"),
        "ttl_seconds": int(ttl) if ttl is not None and ttl.isdigit() else None,
        "expires_at": answer.headers.get("stream-expires-at"),
        "dedup": answer.headers.get("stream-dedup"),
        "dedup_from": answer.headers.get("stream-dedup-from"),
    }
