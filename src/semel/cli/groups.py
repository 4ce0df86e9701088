"""`semel groups`: where groups stand, and moving them by hand."""

from collections.abc import Mapping
from typing import Any

import click

from semel.cli.options import Offset, path_argument, remote
from semel.cli.shown import json_line, print_facts, tell, write
from semel.cli.text import printable
from semel.client import operator_calls as calls
from semel.client.client import Client
from semel.client.group_calls import set_positions
from semel.client.txn_values import Move, token_of


@click.group("groups")
def command() -> None:
    """Look after groups: where they stand, and where they shall go on."""


@command.command("show")
@click.argument("group")
@remote
def show_command(client: Client, *, group: str, is_json: bool) -> None:
    """Show where a group is in each stream, what is pending, and the step it has pinned."""
    found = client.run(calls.show_group(client.site, group))
    if is_json:
        write(json_line(found))
        return
    step = found["snapshot"]
    print_facts({"group": group, "pinned_step": None if step is None else step["number"]})
    lines = [f"{offset}  {printable(path)}\n" for path, offset in found["offsets"].items()]
    lines += [_pending_line(path, move) for path, move in found["pending"].items()]
    write("".join(lines).encode())


def _pending_line(path: str, move: Mapping[str, Any]) -> str:
    token = token_of(move["transaction_id"], move["transaction_epoch"])
    until = "" if move["deadline"] is None else f" until {move['deadline']}"
    words = f"{printable(path)}  by {printable(token)}, {move['state']}{until}"
    return f"pending {move['to']}  {words}\n"


@command.command("set")
@click.argument("group")
@path_argument
@click.argument("offset", type=Offset())
@click.option("--expect", type=Offset(), help="Only if it stands here now.")
@remote
def set_command(
    client: Client, *, group: str, path: str, offset: str, expect: str | None, is_json: bool
) -> None:
    """Let a group go on from an offset of a stream."""
    move: Move = offset if expect is None else (expect, offset)
    found = client.run(set_positions(client.site, group, {path: move}))
    done = {
        "group": group,
        "offsets": {path: found.offsets[path]},
        "versions": {path: found.versions.get(path)},
    }
    tell(f"{group} stands at {found.offsets[path]} in {path}", done, is_json=is_json)
