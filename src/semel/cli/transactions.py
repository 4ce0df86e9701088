"""`semel txn` and `semel sinks`.

These commands inspect and change transactions and sinks by hand.
"""

from collections.abc import Mapping
from typing import Any

import click

from semel.cli.options import Name, Number, Path, remote
from semel.cli.output import (
    ChangingCommand,
    json_line,
    print_facts,
    print_list,
    report,
    write_lines,
    write_stdout,
)
from semel.cli.owners import give, owner_options
from semel.client import server_calls as calls
from semel.client.sync.client import Client
from semel.model.rights import SINK, TRANSACTION

epoch_option = click.option(
    "--epoch",
    type=Number(1),
    help="The transaction's epoch. The default is the newest epoch.",
)


@click.group("txn")
def txn_command() -> None:
    """Inspect transactions, and commit or abort them by hand."""


@txn_command.command("ls")
@click.option(
    "--state",
    type=click.Choice(["open", "prepared", "stuck"]),
    help="List only transactions in this state.",
)
@click.option(
    "--stream",
    type=Path(),
    help="List only transactions that can write to this stream or move a group's position in it.",
)
@remote
def list_txns_command(
    client: Client, *, state: str | None, stream: str | None, is_json: bool
) -> None:
    """List the pending transactions, oldest first."""
    txns = client.run(calls.list_transactions(client.site, state, stream))
    titles = ("transaction", "epoch", "kind", "state", "age", "owner", "holds")
    print_list(txns, titles, [_txn_cells(txn) for txn in txns], is_json=is_json)


def _txn_cells(txn: Mapping[str, Any]) -> tuple[object, ...]:
    state = f"{txn['state']}, stuck" if txn["stuck"] else txn["state"]
    age = f"{txn['age_ms'] / 1000:.0f} s"
    identity = (txn["transaction_id"], txn["transaction_epoch"], txn["kind"])
    return (*identity, state, age, _owner(txn), _holds(txn))


def _owner(txn: Mapping[str, Any]) -> str:
    sink = txn.get("sink")
    if sink is None:
        return f"{txn['producer_id']} (epoch {txn['producer_epoch']})"
    return f"sink {sink['app']}, version {sink['version']}, partition {sink['partition']}"


def _holds(txn: Mapping[str, Any]) -> str:
    """Return the streams in which the transaction blocks readers, and from which offset."""
    return ", ".join(
        f"{path} from {part['first_offset']}"
        for path, part in txn["streams"].items()
        if part["first_offset"] is not None
    )


@txn_command.command("show")
@click.argument("name", type=Name(), metavar="ID")
@epoch_option
@remote
def show_txn_command(client: Client, *, name: str, epoch: int | None, is_json: bool) -> None:
    """Show a pending transaction, or the outcome of an ended transaction."""
    txn = client.run(calls.show_transaction(client.site, name, epoch))
    if is_json:
        write_stdout(json_line(txn))
        return
    streams, offsets, deleted = (txn.pop(name) for name in ("streams", "offsets", "deleted"))
    if "sink" in txn:
        txn["sink"] = _owner(txn)
    print_facts(txn)
    lines = [f"stream {path}: {_parts(part)}" for path, part in streams.items()]
    lines += [f"stream {path}: deleted" for path in deleted]
    lines += [
        f"group {group} in {path}: new position {to}"
        for group, moves in offsets.items()
        for path, to in moves.items()
    ]
    write_lines(lines)


def _parts(part: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {value}" for name, value in part.items() if value is not None
    )


@txn_command.command("commit", cls=ChangingCommand)
@click.argument("name", type=Name(), metavar="ID")
@epoch_option
@remote
def commit_command(client: Client, **options: Any) -> None:
    """Commit a transaction by hand, in place of its owner. This is final."""
    _end(client, "commit", **options)


@txn_command.command("abort", cls=ChangingCommand)
@click.argument("name", type=Name(), metavar="ID")
@epoch_option
@remote
def abort_command(client: Client, **options: Any) -> None:
    """Abort a transaction by hand, in place of its owner. This is final."""
    _end(client, "abort", **options)


@txn_command.command("fence", cls=ChangingCommand)
@click.argument("name", type=Name(), metavar="ID")
@epoch_option
@remote
def fence_command(client: Client, **options: Any) -> None:
    """Abort a transaction and fence its producer. This is final.

    The producer gets a higher epoch. Instances that have the old epoch can no longer begin
    transactions.
    """
    _end(client, "fence", **options)


def _end(client: Client, action: str, *, name: str, epoch: int | None, is_json: bool) -> None:
    if epoch is None:
        txn = client.run(calls.show_transaction(client.site, name, None))
        epoch = int(txn["transaction_epoch"])
    ended = client.run(calls.end_transaction(client.site, name, epoch, action))
    report(f"transaction {name} (epoch {epoch}) is {ended['state']}", ended, is_json=is_json)


@txn_command.command("chown", cls=ChangingCommand)
@click.argument("name", type=Name(), metavar="ID")
@owner_options
def change_txn_owner_command(client: Client, *, name: str, **options: Any) -> None:
    """Give the id of a pending transaction another owner.

    Only its owner and administrators can use a transaction id.
    """
    give(client, TRANSACTION, name, **options)


# ---- sinks ---------------------------------------------------------------------------------------


@click.group("sinks")
def sinks_command() -> None:
    """Inspect sinks, assign them to a different query, or remove them."""


@sinks_command.command("ls")
@remote
def list_sinks_command(client: Client, *, is_json: bool) -> None:
    """List the sinks.

    Prints a table on a terminal. Otherwise prints the id of each sink, one per line.
    """
    sinks = client.run(calls.list_sinks(client.site))
    names = ("app", "query_id", "last_version", "open_transactions")
    titles = [name.replace("_", " ") for name in names]
    rows = [[sink[name] for name in names] for sink in sinks]
    print_list(sinks, titles, rows, is_json=is_json)


@sinks_command.command("show")
@click.argument("app", type=Name())
@remote
def show_sink_command(client: Client, *, app: str, is_json: bool) -> None:
    """Show the query and the versions of a sink.

    Prints the last version and the number of retained versions. With --json, also prints the
    retained versions.
    """
    sink = client.run(calls.show_sink(client.site, app))
    facts = {**sink, "versions": None, "retained_versions": len(sink["versions"])}
    print_facts(facts, sink, is_json=is_json)


@sinks_command.command("rebind", cls=ChangingCommand)
@click.argument("app", type=Name())
@click.option(
    "--query-id", type=Name(), required=True, help="The query that the sink will belong to."
)
@click.option(
    "--last-version",
    type=Number(-1),
    required=True,
    help="Version to store as the sink's last version. With -1, the query starts with version 0.",
)
@remote
def rebind_command(
    client: Client, *, app: str, query_id: str, last_version: int, is_json: bool
) -> None:
    """Assign a sink to a different query.

    The query continues with the version after --last-version.
    """
    sink = client.run(calls.rebind_sink(client.site, app, query_id, last_version))
    sentence = f"sink {app} belongs to query {query_id}; the next version is {last_version + 1}"
    report(sentence, sink, is_json=is_json)


@sinks_command.command("chown", cls=ChangingCommand)
@click.argument("app", type=Name())
@owner_options
def change_sink_owner_command(client: Client, *, app: str, **options: Any) -> None:
    """Give a sink another owner.

    Only its owner and administrators can use a sink.
    """
    give(client, SINK, app, **options)


@sinks_command.command("forget", cls=ChangingCommand)
@click.argument("app", type=Name())
@remote
def forget_sink_command(client: Client, *, app: str, is_json: bool) -> None:
    """Remove a sink.

    The server then accepts any version from the sink, even a version that was committed before.
    """
    client.run(calls.forget_sink(client.site, app))
    report(f"removed sink {app}", {"app": app, "forgotten": True}, is_json=is_json)
