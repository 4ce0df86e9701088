"""`semel create`: make a stream."""

from datetime import datetime
from typing import Any

import click

from semel.cli.exits import Refused
from semel.cli.options import Moment, Offset, Path, path_argument, remote
from semel.cli.shown import tell
from semel.client.client import Client
from semel.client.conditions import Configuration


@click.command("create")
@path_argument
@click.option("--content-type", metavar="TYPE", help="Such as application/json or text/plain.")
@click.option("--ttl", type=click.IntRange(min=0), help="Seconds it lives after its last use.")
@click.option("--expires-at", type=Moment(), help="When it ends: 2030-01-31T12:00:00Z.")
@click.option("--closed", is_flag=True, help="Make it closed.")
@click.option(
    "--dedup",
    type=click.Choice(["on", "off"]),
    help="Whether it recognises duplicates; the server's setting if not given.",
)
@click.option("--fork-from", type=Path(), help="The stream to go on from.")
@click.option("--fork-offset", type=Offset(), help="Where to leave it; its end if not given.")
@click.option("--fork-sub-offset", type=click.IntRange(min=0), help="So many units further.")
@remote
def command(client: Client, path: str, *, is_json: bool, **given: Any) -> None:
    """Create the stream PATH.

    Asking again for the same is fine. Exit code 1 if it is there with another configuration.
    """
    made = client.run(client.stream(path).calls.create(_configuration(**given), exist_ok=True))
    info = made.info
    facts = {
        "path": path,
        "created": made.is_new,
        "content_type": info.content_type,
        "next_offset": info.next_offset,
        "closed": info.closed,
    }
    what = "created" if made.is_new else "it was there already, just like that:"
    sentence = f"{what} {path} ({info.content_type}), next offset {info.next_offset}"
    tell(sentence, facts, is_json=is_json)


def _configuration(
    *,
    content_type: str | None,
    ttl: int | None,
    expires_at: datetime | None,
    closed: bool,
    dedup: str | None,
    fork_from: str | None,
    fork_offset: str | None,
    fork_sub_offset: int | None,
) -> Configuration:
    if fork_from is None and (fork_offset is not None or fork_sub_offset is not None):
        raise Refused("--fork-offset and --fork-sub-offset need --fork-from")
    return Configuration(
        content_type,
        ttl,
        expires_at,
        closed,
        fork_from,
        fork_offset,
        fork_sub_offset,
        None if dedup is None else dedup == "on",
    )
