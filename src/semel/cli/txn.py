"""`semel txn`: who holds what undecided, and decisions by hand."""

import sys
from collections.abc import Mapping
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from semel.cli.options import Path, remote
from semel.cli.shown import json_line, print_facts, tell, write
from semel.cli.text import printable
from semel.client import operator_calls as calls
from semel.client.client import Client

_MS: Final = 1000
epoch_option = click.option(
    "--epoch", type=click.IntRange(min=1), help="The transaction's epoch; else the newest."
)


@click.group("txn")
def command() -> None:
    """Look after transactions: what is undecided, by whom, and decide it by hand."""


# ---- ls, show ------------------------------------------------------------------------------------


@command.command("ls")
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


@command.command("show")
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


@command.command("commit")
@click.argument("name", metavar="ID")
@epoch_option
@remote
def commit_command(client: Client, **given: Any) -> None:
    """Commit a transaction by hand, whoever owns it. It is final."""
    _end(client, "commit", **given)


@command.command("abort")
@click.argument("name", metavar="ID")
@epoch_option
@remote
def abort_command(client: Client, **given: Any) -> None:
    """Abort a transaction by hand, whoever owns it. It is final."""
    _end(client, "abort", **given)


@command.command("fence")
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
    tell(f"{name} (epoch {epoch}) is {done['state']}", done, is_json=is_json)
