"""`semel policies`: settings that hold for every stream below a prefix, now and later."""

from typing import Any, Final

import click

from semel.cli.options import is_utf8, remote
from semel.cli.output import ChangingCommand, print_facts, print_list, report
from semel.client.requests import query
from semel.client.sync.client import Client
from semel.client.values import Policy
from semel.wire.policies import parse_policy_query
from semel.wire.problems import Problem

ROOT: Final = "/"  # how the prefix of the whole server is printed, because it is empty


class Prefix(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.5
    """The prefix of a policy. `/` and an empty text are the whole server."""

    name = "prefix"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the prefix. An invalid one fails with the message that the server would send."""
        text = str(value)
        if text == ROOT:
            return ""
        if not is_utf8(text):
            self.fail(f"{text!r} is not valid UTF-8; expected a prefix", param, ctx)
        parsed = parse_policy_query(query(prefix=text).removeprefix("?"))
        if isinstance(parsed, Problem):
            self.fail(f"{text!r}: {parsed.message}", param, ctx)
        return text


prefix_argument: Final = click.argument("prefix", type=Prefix(), metavar="PREFIX")


def _facts(policy: Policy) -> dict[str, Any]:
    dedup = ("off", "on")[policy.dedup]
    return {"prefix": policy.prefix, "dedup": dedup, "changed_at": policy.changed_at}


def _shown(prefix: str) -> str:
    return prefix or f"{ROOT} (the whole server)"


@click.group("policies")
def policies_command() -> None:
    """Set, show and delete policies.

    A policy holds for every stream below a prefix, now and later. PREFIX consists of whole
    segments: `orders` holds for the streams orders and orders/eu, but not for orders2. The prefix
    / (or "") is the whole server. The longest prefix wins, and a stream's own setting wins over
    all.
    """


@policies_command.command("set", cls=ChangingCommand)
@prefix_argument
@click.option(
    "--dedup",
    type=click.Choice(["on", "off"]),
    required=True,
    help="Whether the streams recognise repeated appends.",
)
@remote
def set_policy_command(client: Client, *, prefix: str, dedup: str, is_json: bool) -> None:
    """Set the policy of PREFIX.

    A stream that exists is switched by its next append outside transactions. Until then, `semel
    head` shows what is pending.
    """
    facts = _facts(client.set_policy(prefix, dedup=dedup == "on"))
    report(f"the policy of {_shown(prefix)} is now: dedup {dedup}", facts, is_json=is_json)


@policies_command.command("show")
@prefix_argument
@remote
def show_policy_command(client: Client, *, prefix: str, is_json: bool) -> None:
    """Show the policy of PREFIX."""
    facts = _facts(client.policy(prefix))
    print_facts({**facts, "prefix": prefix or ROOT}, facts, is_json=is_json)


@policies_command.command("ls")
@remote
def list_policies_command(client: Client, *, is_json: bool) -> None:
    """List the policies, sorted by prefix.

    Prints a table on a terminal. Otherwise prints one prefix per line. / is the whole server.
    """
    policies = [_facts(policy) for policy in client.policies()]
    titles = ("prefix", "dedup", "changed at")
    rows = [(facts["prefix"] or ROOT, *list(facts.values())[1:]) for facts in policies]
    print_list(policies, titles, rows, is_json=is_json)


@policies_command.command("delete", cls=ChangingCommand)
@prefix_argument
@remote
def delete_policy_command(client: Client, *, prefix: str, is_json: bool) -> None:
    """Delete the policy of PREFIX.

    The streams below PREFIX are then as the policy of a shorter prefix says, or recognise
    duplicates if there is none.
    """
    client.delete_policy(prefix)
    facts = {"prefix": prefix, "deleted": True}
    report(f"deleted the policy of {_shown(prefix)}", facts, is_json=is_json)
