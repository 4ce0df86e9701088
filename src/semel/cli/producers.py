"""`semel producers`: who writes, what is remembered of it, and what would happen."""

import sys
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from semel.cli.exit_codes import EXIT_REFUSED, CommandRefused
from semel.cli.options import path_argument, remote
from semel.cli.output import json_line, print_facts, printable, report, write
from semel.client.sync.client import Client
from semel.client.values import ProducerState
from semel.model.commands import DENSE, SPARSE


@click.group("producers")
def command() -> None:
    """Look after the producers of streams, and register ids."""


# ---- ls, show ------------------------------------------------------------------------------------


@command.command("ls")
@path_argument
@remote
def list_command(client: Client, *, path: str, is_json: bool) -> None:
    """List the producers of a stream: a table on a terminal, else an id per line."""
    producers = client.stream(path).producers()
    if is_json:
        write(b"".join(json_line(_facts(producer)) for producer in producers))
    elif sys.stdout.isatty():
        Console(highlight=False).print(_table(producers))
    else:
        lines = [printable(producer.producer_id) + "\n" for producer in producers]
        write("".join(lines).encode())


def _facts(producer: ProducerState) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.to_builtins(producer)
    if producer.receipts is None:
        del facts["receipts"]
    return facts


def _table(producers: list[ProducerState]) -> Table:
    table = Table(box=None, pad_edge=False)
    names = ("producer_id", "mode", "epoch", "last_seq", "last_offset", "updated_at")
    for name in names:
        table.add_column(name.replace("_", " "), overflow="fold")
    for producer in producers:
        shown = [getattr(producer, name) for name in names]
        words = ["" if value is None else printable(str(value)) for value in shown]
        table.add_row(*map(Text, words))
    return table


@command.command("show")
@path_argument
@click.argument("producer_id", metavar="ID")
@remote
def show_command(client: Client, *, path: str, producer_id: str, is_json: bool) -> None:
    """Show all a stream remembers of a producer."""
    producers = client.stream(path).producers(producer_id)
    if not producers:
        raise CommandRefused(f"{path} remembers nothing of {producer_id}", EXIT_REFUSED)
    found = _facts(producers[0])
    if is_json:
        write(json_line(found))
        return
    print_facts({**found, "receipts": len(found.get("receipts", ()))})


# ---- explain, forget, register -------------------------------------------------------------------


@command.command("explain")
@path_argument
@click.argument("producer_id", metavar="ID")
@click.option("--seq", required=True, help="The sequence; of a sparse producer also FIRST-LAST.")
@click.option("--epoch", type=click.IntRange(min=0), help="The epoch it would name.")
@click.option("--session", help="The session it would name.")
@click.option("--mode", type=click.Choice([DENSE, SPARSE]), default=DENSE, show_default=True)
@remote
def explain_command(
    client: Client, *, path: str, producer_id: str, seq: str, is_json: bool, **given: Any
) -> None:
    """Tell what an append would be answered, and why, without making it."""
    found = client.stream(path).explain(producer_id, seq, **given)
    if is_json:
        write(json_line(found))
        return
    lines = [_sentence(found)]
    if found.get("other_payload") is not None:
        lines.append(f"with another payload: {_sentence(found['other_payload'])}")
    write("".join(f"{printable(line)}\n" for line in lines).encode())


def _sentence(found: dict[str, Any]) -> str:
    return f"{found.get('status')} {found.get('outcome')}: {found.get('reason')}"


@command.command("forget")
@path_argument
@click.argument("producer_id", metavar="ID")
@remote
def forget_command(client: Client, *, path: str, producer_id: str, is_json: bool) -> None:
    """Let a stream forget a producer: what it sends next is new, even if it was stored before."""
    client.stream(path).forget_producer(producer_id)
    facts = {"stream": path, "producer_id": producer_id, "forgotten": True}
    report(f"{path} has forgotten {producer_id}", facts, is_json=is_json)


@command.command("register")
@click.argument("producer_id", metavar="[ID]", required=False)
@remote
def register_command(client: Client, *, producer_id: str | None, is_json: bool) -> None:
    """Get an id, or the next epoch of ID, which fences off whoever writes under an older one."""
    found = client.register_producer(producer_id)
    words = f"producer {found.producer_id} has epoch {found.producer_epoch}"
    report(words, msgspec.to_builtins(found), is_json=is_json)
