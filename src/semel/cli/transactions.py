"""`semel txn`: who holds what undecided, and decisions by hand."""

import sys
from collections.abc import Mapping
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from semel.cli.options import Offset, Path, path_argument, remote
from semel.cli.output import json_line, print_facts, printable, report, write
from semel.client import server_calls as calls
from semel.client.group_calls import set_positions
from semel.client.sync.client import Client
from semel.client.txn_values import Move, token_of

_MS: Final = 1000
epoch_option = click.option(
    "--epoch", type=click.IntRange(min=1), help="The transaction's epoch; else the newest."
)


@click.group("txn")
def txn_command() -> None:
    """Look after transactions: what is undecided, by whom, and decide it by hand."""


# ---- ls, show ------------------------------------------------------------------------------------


@txn_command.command("ls")
@click.option("--state", type=click.Choice(["open", "prepared", "stuck"]), help="Only these.")
@click.option("--stream", type=Path(), help="Only those that may write this stream.")
@remote
def list_command(client: Client, *, state: str | None, stream: str | None, is_json: bool) -> None:
    """List transactions that are not decided, oldest first."""
    found = client.run(calls.list_transactions(client.site, state, stream))
    if is_json:
        write(b"".join(map(json_line, found)))
    elif sys.stdout.isatty():
        Console(highlight=False).print(_table(found))
    else:
        lines = [printable(txn["transaction_id"]) + "\n" for txn in found]
        write("".join(lines).encode())


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("transaction", "epoch", "kind", "state", "age", "owner", "holds"):
        table.add_column(name, overflow="fold")
    for txn in found:
        state = f"{txn['state']}, stuck" if txn["stuck"] else txn["state"]
        words = (txn["transaction_id"], txn["transaction_epoch"], txn["kind"], state)
        shown = (*words, f"{txn['age_ms'] / _MS:.0f} s", _owner(txn), _holds(txn))
        table.add_row(*[Text(printable(str(word))) for word in shown])
    return table


def _owner(txn: Mapping[str, Any]) -> str:
    sink = txn.get("sink")
    if sink is None:
        return f"{txn['producer_id']} (epoch {txn['producer_epoch']})"
    return f"sink {sink['app']}, version {sink['version']}, partition {sink['partition']}"


def _holds(txn: Mapping[str, Any]) -> str:
    """Name the streams whose readers wait, with the first offset they wait at."""
    held = {path: known["first_offset"] for path, known in txn["streams"].items()}
    return ", ".join(f"{path} from {first}" for path, first in held.items() if first is not None)


@txn_command.command("show")
@click.argument("name", metavar="ID")
@epoch_option
@remote
def show_command(client: Client, *, name: str, epoch: int | None, is_json: bool) -> None:
    """Show a transaction: what it holds, or how it ended."""
    found = client.run(calls.show_transaction(client.site, name, epoch))
    if is_json:
        write(json_line(found))
        return
    streams, offsets, deleted = (found.pop(name) for name in ("streams", "offsets", "deleted"))
    if "sink" in found:
        found["sink"] = _owner(found)
    print_facts(found)
    lines = [f"stream {path}: {_parts(known)}" for path, known in streams.items()]
    lines += [f"stream {path}: deleted" for path in deleted]
    lines += [
        f"group {group} in {path}: {to}"
        for group, moves in offsets.items()
        for path, to in moves.items()
    ]
    write("".join([f"{printable(line)}\n" for line in lines]).encode())


def _parts(known: Mapping[str, Any]) -> str:
    shown = {name: value for name, value in known.items() if value is not None}
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items())


# ---- by hand -------------------------------------------------------------------------------------


@txn_command.command("commit")
@click.argument("name", metavar="ID")
@epoch_option
@remote
def commit_command(client: Client, **given: Any) -> None:
    """Commit a transaction by hand, whoever owns it. It is final."""
    _end(client, "commit", **given)


@txn_command.command("abort")
@click.argument("name", metavar="ID")
@epoch_option
@remote
def abort_command(client: Client, **given: Any) -> None:
    """Abort a transaction by hand, whoever owns it. It is final."""
    _end(client, "abort", **given)


@txn_command.command("fence")
@click.argument("name", metavar="ID")
@epoch_option
@remote
def fence_command(client: Client, **given: Any) -> None:
    """Abort a transaction and raise its producer's epoch: whoever owns it must begin anew."""
    _end(client, "fence", **given)


def _end(client: Client, action: str, *, name: str, epoch: int | None, is_json: bool) -> None:
    if epoch is None:
        found = client.run(calls.show_transaction(client.site, name, None))
        epoch = int(found["transaction_epoch"])
    done = client.run(calls.end_transaction(client.site, name, epoch, action))
    report(f"{name} (epoch {epoch}) is {done['state']}", done, is_json=is_json)


# ---- groups --------------------------------------------------------------------------------------
# `semel groups`: where groups stand, and moving them by hand.


@click.group("groups")
def groups_command() -> None:
    """Look after groups: where they stand, and where they shall go on."""


@groups_command.command("show")
@click.argument("group")
@remote
def show_group_command(client: Client, *, group: str, is_json: bool) -> None:
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


@groups_command.command("set")
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
    report(f"{group} stands at {found.offsets[path]} in {path}", done, is_json=is_json)


# ---- sinks ---------------------------------------------------------------------------------------
# `semel sinks`: what apps have committed, and which query they belong to.


@click.group("sinks")
def sinks_command() -> None:
    """Look after sinks: the versions they committed, and whose they are."""


@sinks_command.command("ls")
@remote
def list_sinks_command(client: Client, *, is_json: bool) -> None:
    """List the sinks: a table on a terminal, else an app per line."""
    found = client.run(calls.list_sinks(client.site))
    if is_json:
        write(b"".join(map(json_line, found)))
    elif sys.stdout.isatty():
        Console(highlight=False).print(_sink_table(found))
    else:
        write("".join([printable(sink["app"]) + "\n" for sink in found]).encode())


def _sink_table(found: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    names = ("app", "query_id", "last_version", "open_transactions")
    for name in names:
        table.add_column(name.replace("_", " "), overflow="fold")
    for sink in found:
        table.add_row(*[Text(printable(str(sink[name]))) for name in names])
    return table


@sinks_command.command("show")
@click.argument("app")
@remote
def show_sink_command(client: Client, *, app: str, is_json: bool) -> None:
    """Show a sink: its query, its last version, and how many versions are kept."""
    found = client.run(calls.show_sink(client.site, app))
    if is_json:
        write(json_line(found))
        return
    versions = found.pop("versions")
    print_facts({**found, "kept_versions": len(versions)})


@sinks_command.command("rebind")
@click.argument("app")
@click.option("--query-id", required=True, help="The query that may write from now on.")
@click.option(
    "--last-version",
    type=click.IntRange(min=-1),
    required=True,
    help="The version that counts as the last; the query goes on behind it. -1: it begins at 0.",
)
@remote
def rebind_command(
    client: Client, *, app: str, query_id: str, last_version: int, is_json: bool
) -> None:
    """Give a sink to another query, at a version."""
    done = client.run(calls.rebind_sink(client.site, app, query_id, last_version))
    is_anew = last_version < 0
    begin = "begins with version 0" if is_anew else f"goes on behind version {last_version}"
    report(f"{app} belongs to {query_id}, which {begin}", done, is_json=is_json)


@sinks_command.command("forget")
@click.argument("app")
@remote
def forget_command(client: Client, *, app: str, is_json: bool) -> None:
    """Forget a sink: whatever it commits next is taken as new, even if it was committed before."""
    client.run(calls.forget_sink(client.site, app))
    report(f"{app} is forgotten", {"app": app, "forgotten": True}, is_json=is_json)
