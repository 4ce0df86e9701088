"""`semel subscriptions`: subscriptions, their streams, and what is pending in them."""

from itertools import islice
from typing import Any, Final

import click
import msgspec

from semel.cli.options import Name, Number, Path, Seconds, remote
from semel.cli.output import (
    ChangingCommand,
    CommandRefused,
    confirm,
    json_line,
    print_facts,
    print_list,
    report,
    write_lines,
    write_stdout,
)
from semel.cli.owners import give, owner_options
from semel.client.errors import SubscriptionExists
from semel.client.flows import Flow
from semel.client.subscription_calls import (
    SubscriptionConfig,
    create_subscription,
    delete_subscription,
    show_subscription,
)
from semel.client.subscription_values import SubscribedStream, SubscriptionState
from semel.client.sync.client import Client
from semel.client.values import START
from semel.model.limits import LEASE_MS_MAX, LEASE_MS_MIN
from semel.model.offsets import print_offset
from semel.model.rights import SUBSCRIPTION

_TITLES: Final = ("subscription", "type", "status", "streams", "pending", "target")
_OK: Final = 200  # the status of the response if the subscription exists already

id_argument: Final = click.argument("subscription", type=Name())
streams_argument: Final = click.argument("paths", type=Path(), nargs=-1, required=True)


@click.group("subscriptions")
def subscriptions_command() -> None:
    """Create, inspect, change and delete subscriptions.

    A subscription follows streams, and wakes a worker when there is something to process: by a
    webhook, or with a message in a wake stream (pull-wake). It stores how far each stream was
    processed.
    """


@subscriptions_command.command("create", cls=ChangingCommand)
@id_argument
@click.option(
    "--pattern",
    type=Name(),
    help="Follow all streams that match this pattern, such as 'orders/*' (one segment) or"
    " 'orders/**' (any number of segments), also those that are created later.",
)
@click.option(
    "--stream",
    "streams",
    type=Path(),
    multiple=True,
    help="Follow this stream; the option can be repeated. It need not exist yet.",
)
@click.option(
    "--webhook", "webhook_url", type=Name(), metavar="URL", help="Deliver wakes to this URL."
)
@click.option(
    "--wake-stream",
    type=Path(),
    help="Announce wakes in this JSON stream, for workers that claim them. It must exist.",
)
@click.option(
    "--lease",
    type=Seconds(LEASE_MS_MAX / 1000, LEASE_MS_MIN / 1000),
    help="How many seconds a wake belongs to a worker that does not ack, from 1 to 600. The default"
    " is 30.",
)
@click.option("--description", type=Name(), help="Text that is stored with the subscription.")
@remote
def create_subscription_command(
    client: Client, *, subscription: str, lease: float | None, is_json: bool, **options: Any
) -> None:
    """Create SUBSCRIPTION. It needs --pattern or --stream, and --webhook or --wake-stream.

    Streams that exist are followed from their present ends on, and later ones from their
    beginnings. Succeeds if the subscription already exists with the same configuration; it is
    resumed if it was suspended. The exit code is 1 if it exists with another configuration.
    """
    if (options["webhook_url"] is None) == (options["wake_stream"] is None):
        raise CommandRefused("pass either --webhook or --wake-stream")
    if options["pattern"] is None and not options["streams"]:
        raise CommandRefused("pass --pattern, --stream, or both")
    milliseconds = None if lease is None else round(lease * 1000)
    config = SubscriptionConfig(lease_ttl_ms=milliseconds, **options)
    is_new, info = client.run(_create(client, subscription, config))
    what = "created" if is_new else "the subscription already exists with this configuration:"
    sentence = f"{what} {subscription} ({info.type}), {_follows(info)}"
    report(sentence, {"created": is_new, **_document(info)}, is_json=is_json)


def _create(
    client: Client, subscription: str, config: SubscriptionConfig
) -> Flow[tuple[bool, SubscriptionState]]:
    """Create a subscription. Return whether it is new, and its state."""
    try:
        info = yield from create_subscription(client.site, subscription, config, exist_ok=False)
    except SubscriptionExists as error:
        if error.status != _OK:  # it has another configuration
            raise
        return False, (yield from show_subscription(client.site, subscription, streams_limit=1))
    return True, info


def _document(info: SubscriptionState) -> dict[str, Any]:
    """Return a subscription for --json, without what the server did not say."""
    found = msgspec.to_builtins(info)
    return {name: value for name, value in found.items() if value is not None}


# ---- showing -------------------------------------------------------------------------------------


@subscriptions_command.command("ls")
@click.option(
    "--prefix",
    type=Name(can_be_empty=True),
    default="",
    help="List only subscriptions with this prefix.",
)
@click.option("--limit", type=Number(1), help="Maximum number of subscriptions.")
@remote
def list_subscriptions_command(
    client: Client, *, prefix: str, limit: int | None, is_json: bool
) -> None:
    """List the subscriptions, sorted by id.

    Prints a table on a terminal. Otherwise prints one id per line. A pending stream has something
    to process.
    """
    found = list(islice(client.subscriptions.list(prefix), limit))
    rows = [
        (each.id, each.type, _status(each), each.stream_count, each.pending_count, _target(each))
        for each in found
    ]
    documents = [_document(each) for each in found]
    for document in documents:
        del document["streams"]  # a list has none
    right = {"streams", "pending"}
    print_list(documents, _TITLES, rows, is_json=is_json, right=right, whole={"subscription"})


@subscriptions_command.command("show")
@id_argument
@click.option(
    "--limit", type=Number(1), default=1_000, show_default=True, help="Maximum number of streams."
)
@remote
def show_subscription_command(
    client: Client, *, subscription: str, limit: int, is_json: bool
) -> None:
    """Show a subscription, its streams, and how far each was processed."""
    info = client.run(show_subscription(client.site, subscription, streams_limit=1))
    streams = list(islice(client.subscriptions.streams(subscription), limit))
    if is_json:
        document = {**_document(info), "streams": msgspec.to_builtins(streams)}
        document.pop("streams_next", None)
        write_stdout(json_line(document))
        return
    facts = {
        "subscription": info.id,
        "type": info.type,
        "description": info.description,
        "status": _status(info),
        "pattern": info.pattern,
        "target": _target(info),
        "signed with": None if info.webhook is None else info.webhook.signing.get("kid"),
        "lease": f"{info.lease_ttl_ms / 1000:g} s",
        "created": info.created_at,
        "wakes": info.generation,
        "claimed by": info.worker,
        "failed deliveries": info.attempts or None,
        "last error": info.last_error,
        "streams": info.stream_count,
        "pending": info.pending_count,
    }
    print_facts(facts)
    lines = [_stream_line(each) for each in streams]
    more = (info.stream_count or 0) - len(streams)
    if more > 0:
        lines.append(f"and {_count(more, 'stream')} more; --limit {limit} was reached")
    write_lines(lines)


def _status(info: SubscriptionState) -> str:
    """Return the status, and how often the delivery of the present wake has failed."""
    if not info.attempts:
        return info.status
    return f"{info.status} ({_count(info.attempts, 'attempt')})"


def _target(info: SubscriptionState) -> str:
    return info.webhook.url if info.webhook is not None else f"wake stream {info.wake_stream}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _follows(info: SubscriptionState) -> str:
    """Return how many streams are followed. If there are none yet, say that this can be right."""
    count = info.stream_count or 0
    if count:
        return f"which follows {_count(count, 'stream')} now"
    missing = "matches" if info.pattern is not None else "of them exists"
    return f"which follows 0 streams now: none {missing} yet"


def _stream_line(stream: SubscribedStream) -> str:
    acked = print_offset(0) if stream.acked_offset == START else stream.acked_offset
    state = f"pending up to {stream.tail_offset}" if stream.has_pending else "nothing pending"
    if stream.tail_offset == START:
        state = "it does not exist"
    return f"{acked}  {stream.path}  {stream.link_type}; {state}"


# ---- changing ------------------------------------------------------------------------------------


@subscriptions_command.command("link", cls=ChangingCommand)
@id_argument
@streams_argument
@remote
def link_command(
    client: Client, *, subscription: str, paths: tuple[str, ...], is_json: bool
) -> None:
    """Let SUBSCRIPTION follow more streams, from their present ends on.

    A stream that does not exist yet is followed from its beginning when it is created.
    """
    client.subscriptions.link(subscription, *paths)
    sentence = f"{subscription} names {_count(len(paths), 'stream')} more: {', '.join(paths)}"
    report(sentence, {"subscription": subscription, "linked": list(paths)}, is_json=is_json)


@subscriptions_command.command("unlink", cls=ChangingCommand)
@id_argument
@streams_argument
@remote
def unlink_command(
    client: Client, *, subscription: str, paths: tuple[str, ...], is_json: bool
) -> None:
    """Let SUBSCRIPTION no longer name streams. Those that match its pattern are still followed."""
    client.subscriptions.unlink(subscription, *paths)
    sentence = f"{subscription} no longer names {', '.join(paths)}"
    report(sentence, {"subscription": subscription, "unlinked": list(paths)}, is_json=is_json)


@subscriptions_command.command("chown", cls=ChangingCommand)
@id_argument
@owner_options
def change_subscription_owner_command(client: Client, *, subscription: str, **options: Any) -> None:
    """Give a subscription another owner.

    With access on, whoever creates a subscription owns it. Only its owner and administrators can
    claim its wakes, link streams, resume and delete it. If nobody owns it, everybody with the other
    rights can.
    """
    give(client, SUBSCRIPTION, subscription, **options)


@subscriptions_command.command("resume", cls=ChangingCommand)
@id_argument
@remote
def resume_command(client: Client, *, subscription: str, is_json: bool) -> None:
    """Deliver the wakes of a suspended subscription again, at once.

    A webhook is suspended after too many failed deliveries in a row. Nothing that is pending was
    lost.
    """
    client.subscriptions.resume(subscription)
    facts = {"subscription": subscription, "resumed": True}
    report(f"{subscription} is active", facts, is_json=is_json)


@subscriptions_command.command("delete", cls=ChangingCommand)
@id_argument
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@remote
def delete_subscription_command(
    client: Client, *, subscription: str, yes: bool, is_json: bool
) -> None:
    """Delete a subscription, and what it stores about its streams.

    The streams are not changed. A wake that is being processed ends: its worker can no longer
    commit.
    """
    client.run(show_subscription(client.site, subscription, streams_limit=1))  # there is one
    if not yes:
        confirm(
            f"Delete the subscription {subscription}?",
            f"the subscription {subscription} was not deleted",
        )
    client.run(delete_subscription(client.site, subscription))
    facts = {"subscription": subscription, "deleted": True}
    report(f"deleted the subscription {subscription}", facts, is_json=is_json)
