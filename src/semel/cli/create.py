"""`semel create`: make a stream."""

from typing import Any

import click

from semel.cli.exits import Refused
from semel.cli.options import Offset, Path, path_argument, remote, target_of
from semel.cli.remote import Server
from semel.cli.shown import tell


@click.command("create")
@path_argument
@click.option("--content-type", metavar="TYPE", help="Such as application/json or text/plain.")
@click.option("--ttl", type=click.IntRange(min=0), help="Seconds it lives after its last use.")
@click.option("--expires-at", metavar="TIME", help="When it ends: 2030-01-31T12:00:00Z.")
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
def command(server: Server, path: str, *, is_json: bool, **given: Any) -> None:
    """Create the stream PATH.

    Asking again for the same is fine. Exit code 1 if it is there with another configuration.
    """
    answer = server.ask("PUT", target_of(path), headers=_headers(**given))
    is_new = answer.status == 201
    facts = {
        "path": path,
        "created": is_new,
        "content_type": answer.header("content-type"),
        "next_offset": answer.header("stream-next-offset"),
        "closed": answer.is_closed,
    }
    what = "created" if is_new else "it was there already, just like that:"
    sentence = f"{what} {path} ({facts['content_type']}), next offset {facts['next_offset']}"
    tell(sentence, facts, is_json=is_json)


def _headers(
    *,
    content_type: str | None,
    ttl: int | None,
    expires_at: str | None,
    closed: bool,
    dedup: str | None,
    fork_from: str | None,
    fork_offset: str | None,
    fork_sub_offset: int | None,
) -> dict[str, str]:
    if fork_from is None and (fork_offset is not None or fork_sub_offset is not None):
        raise Refused("--fork-offset and --fork-sub-offset need --fork-from")
    fields = {
        "Content-Type": content_type,
        "Stream-TTL": None if ttl is None else str(ttl),
        "Stream-Expires-At": expires_at,
        "Stream-Closed": "true" if closed else None,
        "Stream-Dedup": dedup,
        "Stream-Forked-From": None if fork_from is None else target_of(fork_from),
        "Stream-Fork-Offset": fork_offset,
        "Stream-Fork-Sub-Offset": None if fork_sub_offset is None else str(fork_sub_offset),
    }
    return {name: value for name, value in fields.items() if value is not None}
