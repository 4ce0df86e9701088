"""`semel sinks`: what apps have committed, and which query they belong to."""

import sys
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from semel.cli.options import remote
from semel.cli.shown import json_line, print_facts, tell, write
from semel.cli.text import printable
from semel.client import operator_calls as calls
from semel.client.client import Client


@click.group("sinks")
def command() -> None:
    """Look after sinks: the versions they committed, and whose they are."""


@command.command("ls")
@remote
def list_command(client: Client, *, is_json: bool) -> None:
    """List the sinks: a table on a terminal, else an app per line."""
    found = client.run(calls.list_sinks(client.site))
    if is_json:
        write(b"".join(map(json_line, found)))
    elif sys.stdout.isatty():
        Console(highlight=False).print(_table(found))
    else:
        write("".join([printable(sink["app"]) + "\n" for sink in found]).encode())


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    names = ("app", "query_id", "last_version", "open_transactions")
    for name in names:
        table.add_column(name.replace("_", " "), overflow="fold")
    for sink in found:
        table.add_row(*[Text(printable(str(sink[name]))) for name in names])
    return table


@command.command("show")
@click.argument("app")
@remote
def show_command(client: Client, *, app: str, is_json: bool) -> None:
    """Show a sink: its query, its last version, and how many versions are kept."""
    found = client.run(calls.show_sink(client.site, app))
    if is_json:
        write(json_line(found))
        return
    versions = found.pop("versions")
    print_facts({**found, "kept_versions": len(versions)})


@command.command("rebind")
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
    tell(f"{app} belongs to {query_id}, which {begin}", done, is_json=is_json)


@command.command("forget")
@click.argument("app")
@remote
def forget_command(client: Client, *, app: str, is_json: bool) -> None:
    """Forget a sink: whatever it commits next is taken as new, even if it was committed before."""
    client.run(calls.forget_sink(client.site, app))
    tell(f"{app} is forgotten", {"app": app, "forgotten": True}, is_json=is_json)
