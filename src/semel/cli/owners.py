"""The commands `chown` of `semel producers`, `txn`, `sinks` and `subscriptions`."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import click
import msgspec

from semel.cli.options import Name, remote
from semel.cli.output import CommandRefused, report
from semel.client.sync.client import Client
from semel.client.token_calls import change_owner


def owner_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --to, --nobody and the options about the server to a command.

    The command gets a `Client` as its first argument, and the new owner as `owner`: a principal, or
    None.
    """

    @click.option("--to", "principal", type=Name(), help="Principal that becomes the owner.")
    @click.option("--nobody", "is_free", is_flag=True, help="Remove the owner.")
    @remote
    @wraps(function)
    def run(client: Client, *, principal: str | None, is_free: bool, **options: Any) -> Any:
        if (principal is None) != is_free:
            raise CommandRefused("pass either --to with the new owner, or --nobody")
        return function(client, owner=principal, **options)

    return run


def give(
    client: Client,
    kind: str,
    name: str,
    owner: str | None,
    *,
    stream: str | None = None,
    is_json: bool,
) -> None:
    """Give a thing another owner, or none, and print the result."""
    changed = client.run(change_owner(client.site, kind, name, owner, stream=stream))
    where = "" if stream is None else f" in {stream}"
    sentence = f"{kind} {name}{where} belongs to {owner or 'nobody'}"
    if changed.previous != owner:
        sentence += f" now, and belonged to {changed.previous or 'nobody'} before"
    facts = msgspec.to_builtins(changed)
    report(sentence, facts if stream is None else {**facts, "stream": stream}, is_json=is_json)
