"""`semel producers`: who writes, what is remembered of it, and what would happen."""

import sys
from collections.abc import Iterator
from typing import Any, Final

import click
import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table
from rich.text import Text

from semel.cli.exits import EXIT_REFUSED, Refused
from semel.cli.options import path_argument, remote
from semel.cli.remote import NotUnderstood, Server
from semel.cli.shown import json_line, print_facts, tell, write
from semel.cli.text import printable

_ADDRESS: Final = "/v1/producers"
_PAGE_MAX: Final = 1_000


class _Page(Struct):
    """What the server lists at once; `next` is where to go on."""

    producers: list[dict[str, Any]]
    next: str | None = None


@click.group("producers")
def command() -> None:
    """Look after the producers of streams, and register ids."""


def _page(server: Server, query: dict[str, str]) -> _Page:
    body = server.ask("GET", _ADDRESS, query=query).body
    try:
        return msgspec.json.decode(body, type=_Page)
    except msgspec.DecodeError as error:
        raise NotUnderstood(f"the list of producers cannot be read: {error}") from error


# ---- ls, show ------------------------------------------------------------------------------------


@command.command("ls")
@path_argument
@remote
def list_command(server: Server, *, path: str, is_json: bool) -> None:
    """List the producers of a stream: a table on a terminal, else an id per line."""
    for producers in _pages(server, path):
        if is_json:
            write(b"".join(map(json_line, producers)))
        elif sys.stdout.isatty():
            Console(highlight=False).print(_table(producers))
        else:
            lines = [printable(str(one.get("producer_id"))) + "\n" for one in producers]
            write("".join(lines).encode())


def _pages(server: Server, path: str) -> Iterator[list[dict[str, Any]]]:
    after = ""
    while True:
        page = _page(server, {"stream": path, "after": after, "limit": str(_PAGE_MAX)})
        if page.producers:
            yield page.producers
        if page.next is None:
            return
        if page.next <= after:
            raise NotUnderstood("the list of producers does not go on")
        after = page.next


def _table(producers: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    names = ("producer_id", "mode", "epoch", "last_seq", "last_offset", "updated_at")
    for name in names:
        table.add_column(name.replace("_", " "), overflow="fold")
    for producer in producers:
        shown = [producer.get(name) for name in names]
        words = ["" if value is None else printable(str(value)) for value in shown]
        table.add_row(*map(Text, words))
    return table


@command.command("show")
@path_argument
@click.argument("producer_id", metavar="ID")
@remote
def show_command(server: Server, *, path: str, producer_id: str, is_json: bool) -> None:
    """Show all a stream remembers of a producer."""
    page = _page(server, {"stream": path, "id": producer_id})
    if not page.producers:
        raise Refused(f"{path} remembers nothing of {producer_id}", EXIT_REFUSED)
    found = page.producers[0]
    if is_json:
        write(json_line(found))
        return
    held = found.pop("receipts", None) or []
    print_facts({**found, "receipts": len(held)})


# ---- explain, forget, register -------------------------------------------------------------------


@command.command("explain")
@path_argument
@click.argument("producer_id", metavar="ID")
@click.option("--seq", required=True, help="The sequence; of a sparse producer also FIRST-LAST.")
@click.option("--epoch", type=click.IntRange(min=0), help="The epoch it would name.")
@click.option("--session", help="The session it would name.")
@click.option("--mode", type=click.Choice(["dense", "sparse"]), default="dense", show_default=True)
@remote
def explain_command(
    server: Server, *, path: str, producer_id: str, is_json: bool, **given: Any
) -> None:
    """Tell what an append would be answered, and why, without making it."""
    query = {"stream": path, "id": producer_id}
    query |= {name: str(value) for name, value in given.items() if value is not None}
    body = server.ask("GET", f"{_ADDRESS}/explain", query=query).body
    try:
        found = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise NotUnderstood(f"the explanation cannot be read: {error}") from error
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
def forget_command(server: Server, *, path: str, producer_id: str, is_json: bool) -> None:
    """Let a stream forget a producer: what it sends next is new, even if it was stored before."""
    server.ask("DELETE", _ADDRESS, query={"stream": path, "id": producer_id}).expect(204)
    facts = {"stream": path, "producer_id": producer_id, "forgotten": True}
    tell(f"{path} has forgotten {producer_id}", facts, is_json=is_json)


@command.command("register")
@click.argument("producer_id", metavar="[ID]", required=False)
@remote
def register_command(server: Server, *, producer_id: str | None, is_json: bool) -> None:
    """Get an id, or the next epoch of ID, which fences off whoever writes under an older one."""
    wanted = {} if producer_id is None else {"producer_id": producer_id}
    answer = server.ask("POST", _ADDRESS, body=msgspec.json.encode(wanted))
    try:
        found = msgspec.json.decode(answer.body, type=dict[str, Any])
        words = f"producer {found['producer_id']} has epoch {found['producer_epoch']}"
    except (msgspec.DecodeError, KeyError) as error:
        raise NotUnderstood(f"the registration cannot be read: {error}") from error
    tell(words, found, is_json=is_json)
