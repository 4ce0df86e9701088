"""`semel dead`: dead letters, which are messages that a group has rejected."""

import shlex
from typing import Any, Final

import click
import msgspec

from semel.cli.options import Name, Number, Offset, Path, remote
from semel.cli.output import (
    EXIT_REFUSED,
    ChangingCommand,
    CommandRefused,
    confirm,
    json_line,
    print_facts,
    print_list,
    printable,
    render_messages,
    report,
    style_of,
    write_stdout,
)
from semel.client.dead_letters import DeadLetter
from semel.client.errors import CannotReplay, GroupNotFound, OffsetBeyondTail, StreamNotFound
from semel.client.sync.client import Client
from semel.model.offsets import parse_offset
from semel.model.rights import dead_letters_of, retries_of

_TITLES: Final = ("number", "message", "attempts", "rejected at", "cause")
_FACTS: Final = ("offset", "stream", "stream_offset", "attempts", "rejected_at", "cause")

group_argument = click.argument("group", type=Name())
stream_option = click.option(
    "--stream",
    type=Path(),
    help="Stream with the dead letters, such as the error stream of a processor. By default, the"
    " group's own one.",
)
limit_option = click.option("--limit", type=Number(1), help="Maximum number of dead letters.")
until_option = click.option(
    "--until", type=Offset(), help="Only the dead letters before this offset."
)


@click.group("dead")
def dead_command() -> None:
    """List, show, replay and drop dead letters.

    A dead letter is a message that a group has rejected, with the reason. It is in the stream
    __semel/dead/GROUP, and the group has passed the message. The offsets of these commands are
    those in that stream.
    """


@dead_command.command("ls")
@group_argument
@click.option(
    "--all", "is_all", is_flag=True, help="Also list those that were replayed or dropped."
)
@limit_option
@stream_option
@remote
def list_command(
    client: Client,
    *,
    group: str,
    is_all: bool,
    limit: int | None,
    stream: str | None,
    is_json: bool,
) -> None:
    """List the dead letters of a group, the oldest first.

    Prints a table on a terminal, with numbers that can be used as offsets. Otherwise prints lines
    with tabs: the offset of the dead letter, the stream and the offset of the message, how often it
    was tried, when it was rejected, and the reason.
    """
    letters = list(client.dead_letters(group, stream=stream).list(all=is_all, limit=limit))
    if not letters:
        _hint_at_error_streams(group, stream)
    rows = [_cells(letter) for letter in letters]
    lines = [_facts(letter) for letter in letters]
    whole = {"number", "attempts", "rejected at"}
    print_list(map(_document, letters), _TITLES, rows, is_json=is_json, whole=whole, lines=lines)


def _hint_at_error_streams(group: str, stream: str | None) -> None:
    """Say where else the dead letters are, if the group can be a processor of a pipeline."""
    if stream is None and "/" in group:
        _hint(
            f"the stream {dead_letters_of(group)} has no dead letters to show; those of a processor"
            " of a pipeline are in its error stream: use --stream"
        )


def _hint(text: str) -> None:
    click.echo(f"semel: {printable(text)}", err=True)


def _cells(letter: DeadLetter) -> tuple[object, ...]:
    """Return a row of the table. It has the numbers of messages, which are shorter than offsets."""
    stream, offset = letter.origin
    ordinal = parse_offset(offset or "")
    place = stream or "" if ordinal is None else f"{stream} at {ordinal}"
    moment = letter.rejected_at
    rejected = "" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S")
    number = parse_offset(letter.offset or "")
    return "" if number is None else number, place, letter.attempts, rejected, letter.cause


def _facts(letter: DeadLetter) -> tuple[object, ...]:
    stream, offset = letter.origin
    moment = letter.rejected_at
    rejected = "" if moment is None else moment.isoformat(timespec="milliseconds")
    return letter.offset, stream or "", offset or "", letter.attempts, rejected, letter.cause


def _document(letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter for --json: its offset, and the envelope as it is stored."""
    return {"offset": letter.offset, "letter": msgspec.Raw(letter.raw)}


@dead_command.command("show")
@group_argument
@click.argument("offset", type=Offset())
@click.option("--raw", "is_raw", is_flag=True, help="Print only the bytes of the message.")
@stream_option
@remote
def show_command(
    client: Client, *, group: str, offset: str, is_raw: bool, stream: str | None, is_json: bool
) -> None:
    """Show the dead letter at OFFSET: where it was read, why it was rejected, and the message."""
    try:
        letter = client.dead_letters(group, stream=stream).show(offset)
    except (OffsetBeyondTail, StreamNotFound, ValueError):
        raise CommandRefused(
            f"the group {group} has no dead letter at {offset}; `semel dead ls` lists them",
            EXIT_REFUSED,
        ) from None
    if is_json:
        write_stdout(json_line(_document(letter)))
        return
    if is_raw:
        write_stdout(letter.message.raw)
        return
    print_facts(dict(zip(_FACTS, _facts(letter), strict=True)) | _extras(letter))
    if letter.is_whole:
        style = style_of(is_raw=False, is_json=False)
        write_stdout(b"".join(render_messages([letter.message], style)))


def _extras(letter: DeadLetter) -> dict[str, object]:
    key, headers = letter.key, letter.message.headers
    return {
        "key": None if key is None else _text(key),
        "headers": ", ".join(f"{name}={_text(value)}" for name, value in headers) or None,
        "message": None if letter.is_whole else "left out, because it is too large",
    }


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")


@dead_command.command("replay", cls=ChangingCommand)
@group_argument
@limit_option
@until_option
@stream_option
@remote
def replay_command(
    client: Client,
    *,
    group: str,
    limit: int | None,
    until: str | None,
    stream: str | None,
    is_json: bool,
) -> None:
    """Let a group process its dead letters again, the oldest first.

    Each dead letter is copied once to the stream __semel/retry/GROUP, which the members of the
    group read in addition to their streams. It is never appended to the stream from which it came.
    The messages are no longer in order with the others of their keys. The command ends with an
    error before a message that is not a dead letter, or has no value.
    """
    try:
        count = client.dead_letters(group, stream=stream).replay(limit=limit, until=until)
    except CannotReplay as error:
        options = [] if stream is None else ["--stream", stream]
        drop = shlex.join(["semel", "dead", "drop", group, *options, "--until", error.next_offset])
        raise CommandRefused(f"{error.message}; `{drop}` passes over it", EXIT_REFUSED) from None
    to = retries_of(group)
    facts = {"group": group, "replayed": count, "stream": to}
    report(f"copied {_letters(count)} to {to}", facts, is_json=is_json)
    if count == 0:
        _hint_at_error_streams(group, stream)
    elif stream is None and not _has_members(client, group):
        _hint(
            f"the group {group} has no members now; only members read these copies: consume(...),"
            " and process(...) with workers"
        )


def _has_members(client: Client, group: str) -> bool:
    try:
        return bool(client.group(group).describe().members)
    except GroupNotFound:  # it was deleted, and its dead letters were kept
        return False


def _letters(count: int) -> str:
    return f"{count:,} dead letter" if count == 1 else f"{count:,} dead letters"


@dead_command.command("drop", cls=ChangingCommand)
@group_argument
@limit_option
@until_option
@stream_option
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@remote
def drop_command(
    client: Client,
    *,
    group: str,
    limit: int | None,
    until: str | None,
    stream: str | None,
    yes: bool,
    is_json: bool,
) -> None:
    """Pass over dead letters without processing them again, the oldest first.

    They are no longer listed and replayed. They stay in their stream: --all of `semel dead ls`
    lists them.
    """
    if not yes:
        which = "all dead letters" if limit is None and until is None else "these dead letters"
        confirm(f"Drop {which} of the group {group}?", "nothing was dropped")
    count = client.dead_letters(group, stream=stream).drop(limit=limit, until=until)
    report(f"dropped {_letters(count)}", {"group": group, "dropped": count}, is_json=is_json)
