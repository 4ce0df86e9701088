"""`semel producers`: inspects, retires and removes the producers of a stream, and registers ids."""

from typing import Any

import click
import msgspec

from semel.cli.options import Name, Number, Path, TokenText, path_argument, remote
from semel.cli.output import (
    EXIT_REFUSED,
    ChangingCommand,
    CommandRefused,
    json_line,
    print_facts,
    print_list,
    report,
    write_lines,
    write_stdout,
)
from semel.cli.owners import give, owner_options
from semel.client.errors import ProducerRefused
from semel.client.server_calls import UNKNOWN_PRODUCER
from semel.client.sync.client import Client
from semel.client.values import ProducerState
from semel.model.commands import DENSE, SPARSE
from semel.model.limits import NUMBER_MAX
from semel.model.rights import PRODUCER
from semel.wire.headers import read_range
from semel.wire.problems import MalformedRequest


class SequenceRange(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.5
    """A sequence, such as `3`, or a range of sequences, such as `3-7`."""

    name = "sequence"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text. It is parsed with the function that the server uses."""
        text = str(value)
        try:
            read_range({"seq": text}, "seq")
        except MalformedRequest:
            expected = f"an integer from 0 to {NUMBER_MAX}, or a range such as 3-7"
            self.fail(f"{text!r} is not a sequence; expected {expected}", param, ctx)
        return text


@click.group("producers")
def producers_command() -> None:
    """Inspect, retire, remove and register producers."""


@producers_command.command("ls")
@path_argument
@remote
def list_producers_command(client: Client, *, path: str, is_json: bool) -> None:
    """List the producers of a stream.

    Prints a table on a terminal. Otherwise prints one id per line.
    """
    producers = client.stream(path).producers()
    names = ("producer_id", "mode", "epoch", "last_seq", "last_offset", "updated_at")
    titles = [*(name.replace("_", " ") for name in names), "state"]
    values = [
        [*(getattr(producer, name) for name in names), _state(producer)] for producer in producers
    ]
    rows = [["" if value is None else value for value in row] for row in values]
    print_list(map(_facts, producers), titles, rows, is_json=is_json)


def _state(producer: ProducerState) -> str:
    """Return the state of a producer, with the time that goes with it."""
    if producer.until is not None:
        return f"{producer.state} until {producer.until}"
    return producer.state if producer.expires is None else f"expiring ({producer.expires} s)"


def _facts(producer: ProducerState) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.to_builtins(producer)
    for name in ("owner", "receipts"):
        if facts[name] is None:
            del facts[name]
    return facts


def _missing(path: str, producer_id: str, code: str = "") -> CommandRefused:
    return CommandRefused(
        f"{code}{path} has no producer {producer_id}; to list all producers, run"
        f" `semel producers ls {path}`",
        EXIT_REFUSED,
    )


@producers_command.command("show")
@path_argument
@click.argument("producer_id", type=Name(), metavar="ID")
@remote
def show_producer_command(client: Client, *, path: str, producer_id: str, is_json: bool) -> None:
    """Show what a stream stores about a producer."""
    producers = client.stream(path).producers(producer_id)
    if not producers:
        raise _missing(path, producer_id)
    facts = _facts(producers[0])
    shown = {**facts, "receipts": len(facts.get("receipts", ()))}
    print_facts(shown, facts, is_json=is_json)


@producers_command.command("explain")
@path_argument
@click.argument("producer_id", type=Name(), metavar="ID")
@click.option(
    "--seq",
    type=SequenceRange(),
    required=True,
    help="Sequence of the append, or FIRST-LAST with --mode sparse.",
)
@click.option("--epoch", type=Number(), help="Producer epoch of the append.")
@click.option("--session", type=TokenText(), help="Producer session of the append.")
@click.option("--mode", type=click.Choice([DENSE, SPARSE]), default=DENSE, show_default=True)
@remote
def explain_command(
    client: Client, *, path: str, producer_id: str, seq: str, is_json: bool, **options: Any
) -> None:
    """Show how the server would respond to an append by a producer.

    Prints the status, the outcome and the reason. Nothing is appended.
    """
    explanation = client.stream(path).explain(producer_id, seq, **options)
    if is_json:
        write_stdout(json_line(explanation))
        return
    lines = [_sentence(explanation)]
    if explanation.get("other_payload") is not None:
        lines.append(f"for a different payload: {_sentence(explanation['other_payload'])}")
    write_lines(lines)


def _sentence(explanation: dict[str, Any]) -> str:
    status, outcome, reason = map(explanation.get, ("status", "outcome", "reason"))
    return f"{status} {outcome}: {reason}"


@producers_command.command("retire", cls=ChangingCommand)
@path_argument
@click.argument("producer_id", type=Name(), metavar="ID")
@click.option("--epoch", type=Number(), help="Producer epoch of its current instance.")
@click.option("--session", type=TokenText(), help="Producer session of its current instance.")
@remote
def retire_producer_command(
    client: Client,
    *,
    path: str,
    producer_id: str,
    epoch: int | None,
    session: str | None,
    is_json: bool,
) -> None:
    """Retire a producer that is no longer used.

    It no longer counts as a producer of the stream. For 10 minutes, late copies of its appends are
    refused. Without --epoch and --session, the current instance is retired, whichever it is.
    """
    stream = client.stream(path)
    if epoch is None and session is None:
        known = stream.producers(producer_id)
        epoch = known[0].epoch if known else 0
    result = stream.retire_producer(producer_id, epoch=epoch, session=session)
    if result.code == UNKNOWN_PRODUCER:
        raise _missing(path, producer_id, f"{result.code}: ")
    if not result.retired:
        raise CommandRefused(
            f"producer {producer_id} of {path} was not retired: {result.code}; `semel producers"
            f" show {path} {producer_id}` shows its current epoch and session",
            EXIT_REFUSED,
        )
    facts = {"stream": path, "producer_id": producer_id, "retired": True}
    report(f"retired producer {producer_id} of {path}", facts, is_json=is_json)


@producers_command.command("forget", cls=ChangingCommand)
@path_argument
@click.argument("producer_id", type=Name(), metavar="ID")
@remote
def forget_producer_command(client: Client, *, path: str, producer_id: str, is_json: bool) -> None:
    """Remove a producer from a stream.

    The producer's next append is accepted as new, even if the same append was stored before.
    """
    try:
        client.stream(path).forget_producer(producer_id)
    except ProducerRefused as error:
        if error.code != UNKNOWN_PRODUCER:
            raise
        raise _missing(path, producer_id, f"{error.code}: ") from error
    facts = {"stream": path, "producer_id": producer_id, "forgotten": True}
    report(f"removed producer {producer_id} from {path}", facts, is_json=is_json)


@producers_command.command("chown", cls=ChangingCommand)
@click.argument("producer_id", type=Name(), metavar="ID")
@click.option(
    "--stream",
    type=Path(),
    help="Stream in which the producer is. Without it, the registration of ID gets the owner.",
)
@owner_options
def change_producer_owner_command(client: Client, *, producer_id: str, **options: Any) -> None:
    """Give a producer another owner.

    Only its owner and administrators can use a producer. A producer has an owner in each stream,
    and its registration has one.
    """
    give(client, PRODUCER, producer_id, **options)


@producers_command.command("register", cls=ChangingCommand)
@click.argument("producer_id", type=Name(), metavar="[ID]", required=False)
@remote
def register_command(client: Client, *, producer_id: str | None, is_json: bool) -> None:
    """Register a new producer id, or the next epoch of ID.

    Without ID, the server chooses a new id. With ID, the server registers the next epoch of ID.
    This fences all instances that use an older epoch.
    """
    registered = client.register_producer(producer_id)
    sentence = f"producer {registered.producer_id} has epoch {registered.producer_epoch}"
    report(sentence, msgspec.to_builtins(registered), is_json=is_json)
