"""`semel groups`: groups of readers, their members, their positions, and their lag."""

from collections.abc import Mapping
from itertools import islice
from typing import Any

import click
import msgspec
from click.shell_completion import CompletionItem

from semel.cli.options import Name, Number, Offset, Path, path_argument, remote
from semel.cli.output import (
    EXIT_REFUSED,
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
from semel.client import server_calls as calls
from semel.client.dead_letter_calls import delete_with_retries
from semel.client.errors import GroupNotFound
from semel.client.flows import Flow
from semel.client.group_calls import set_positions
from semel.client.member_calls import GroupInfo, GroupMember, GroupStream, describe_group
from semel.client.sync.client import Client
from semel.client.values import Move, token_of
from semel.model.group_commands import EARLIEST, LATEST
from semel.model.offsets import print_offset
from semel.model.rights import retries_of


class ResetTarget(Offset):
    """Where to move a group: `earliest`, `latest`, or an offset as in `Offset`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if text in {EARLIEST, LATEST}:
            return text
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            expected = (
                f"{EARLIEST}, {LATEST}, an offset as semel prints it, or the number of a message"
            )
            self.fail(f"{text!r} is not a position; expected {expected}", param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the words that can be completed."""
        del ctx, param
        return [CompletionItem(each) for each in (EARLIEST, LATEST) if each.startswith(incomplete)]


force_option = click.option(
    "--force",
    is_flag=True,
    help="Move the position also in a stream that a member of the group owns. The member continues"
    " at the new position; what it has processed before can no longer be committed.",
)


@click.group("groups")
def groups_command() -> None:
    """Inspect, move and delete groups of readers.

    A group has a position in each stream that it reads. Its members share the streams: each stream
    belongs to at most one member at a time.
    """


# ---- showing -------------------------------------------------------------------------------------


@groups_command.command("ls")
@click.option(
    "--prefix",
    type=Name(can_be_empty=True),
    default="",
    help="List only groups with this prefix.",
)
@click.option("--limit", type=Number(1), help="Maximum number of groups.")
@remote
def list_groups_command(client: Client, *, prefix: str, limit: int | None, is_json: bool) -> None:
    """List the groups, sorted by name.

    Prints a table on a terminal. Otherwise prints one name per line.
    """
    groups = list(islice(client.groups(prefix), limit))
    titles = ("group", "members", "streams")
    rows = [(each.group, each.members, each.streams) for each in groups]
    documents = map(msgspec.to_builtins, groups)
    print_list(documents, titles, rows, is_json=is_json, right={"members", "streams"})


@groups_command.command("show")
@click.argument("group", type=Name())
@remote
def show_group_command(client: Client, *, group: str, is_json: bool) -> None:
    """Show the members of a group, its position and lag in each stream, and its pinned step.

    The lag is the number of messages that the group has not passed yet, and the age of the oldest
    of them. If it would take too long to count the messages, the command prints an upper bound.
    """
    info, positions = client.run(_show(client, group))
    if is_json:
        write_stdout(json_line({**msgspec.to_builtins(info), **positions}))
        return
    step = positions["snapshot"]
    facts = {
        "group": group,
        "members": len(info.members),
        "streams": len(info.streams),
        "lag": _lag(info),
        "pinned_step": None if step is None else step["number"],
    }
    print_facts(facts)
    metadata = positions.get("metadata", {})
    lines = [_member_line(member) for member in info.members]
    streams = sorted(info.streams, key=_place)
    lines += [_stream_line(stream, metadata.get(stream.stream)) for stream in streams]
    lines += [_pending_line(path, move) for path, move in positions["pending"].items()]
    write_lines(lines)


def _show(client: Client, group: str) -> Flow[tuple[GroupInfo, dict[str, Any]]]:
    """Return the members, streams and lag of a group, and the document with its positions.

    A group that only a pending transaction moves is not known to the server yet, and is shown.
    """
    try:
        info = yield from describe_group(client.site, group)
    except GroupNotFound:
        positions = yield from calls.show_group(client.site, group)
        if not positions["pending"]:
            raise
        return GroupInfo(group), positions
    return info, (yield from calls.show_group(client.site, group))


def _place(stream: GroupStream) -> tuple[str, int]:
    """Return a key that sorts streams by their paths, and partitions by their numbers."""
    name, _, number = stream.stream.rpartition("/")
    return (name, int(number)) if number.isascii() and number.isdecimal() else (stream.stream, -1)


def _lag(lagging: GroupInfo | GroupStream) -> str:
    """Return a lag as text: the messages, and the age of the oldest of them."""
    is_counted = lagging.lag is not None
    count = f"{lagging.lag:,}" if is_counted else f"at most {lagging.lag_bound:,}"
    seconds = lagging.lag_seconds
    return count if seconds is None or lagging.lag == 0 else f"{count}, {seconds:.1f} s"


def _member_line(member: GroupMember) -> str:
    name = "" if member.instance is None else f" ({member.instance})"
    heard = "" if member.heard_ms_ago is None else f", heard {member.heard_ms_ago / 1000:.1f} s ago"
    return f"member {member.member}{name}: {_count(len(member.streams), 'stream')}{heard}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _stream_line(stream: GroupStream, metadata: object) -> str:
    position = stream.position or print_offset(0)
    parts = [f"lag {_lag(stream)}"]
    if stream.owner is not None:
        leaving = ", to be released" if stream.phase == "revoking" else ""
        parts.append(f"owner {stream.owner}, epoch {stream.epoch}{leaving}")
    if stream.starts:
        parts.append(f"crashes at this position: {stream.starts}")
    note = "" if metadata is None else f"  {msgspec.json.encode(metadata).decode()}"
    return f"{position}  {stream.stream}  {'; '.join(parts)}{note}"


def _pending_line(path: str, move: Mapping[str, Any]) -> str:
    token = token_of(move["transaction_id"], move["transaction_epoch"])
    until = "" if move["deadline"] is None else f" until {move['deadline']}"
    return f"{move['to']}  {path}  if transaction {token} commits ({move['state']}{until})"


# ---- moving --------------------------------------------------------------------------------------


def _read_metadata(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> dict[str, str | int] | None:
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, str | int])
    except (msgspec.DecodeError, UnicodeError):
        raise click.BadParameter(
            """must be a JSON object with texts and integers, such as '{"batch": 7}'"""
        ) from None


@groups_command.command("set", cls=ChangingCommand)
@click.argument("group", type=Name())
@path_argument
@click.argument("offset", type=Offset())
@click.option("--expect", type=Offset(), help="Set the position only if it now equals this offset.")
@click.option(
    "--metadata",
    callback=_read_metadata,
    help="JSON object to store with the position. Without it, stored metadata is removed.",
)
@force_option
@remote
def set_command(
    client: Client,
    *,
    group: str,
    path: str,
    offset: str,
    expect: str | None,
    metadata: dict[str, str | int] | None,
    force: bool,
    is_json: bool,
) -> None:
    """Set the position of a group in a stream."""
    move: Move = offset if expect is None else (expect, offset)
    flow = set_positions(client.site, group, {path: move}, {path: metadata}, by_operator=force)
    positions = client.run(flow)
    facts = {
        "group": group,
        "offsets": {path: positions.offsets[path]},
        "versions": {path: positions.versions.get(path)},
    }
    report(f"group {group} is at {positions.offsets[path]} in {path}", facts, is_json=is_json)


@groups_command.command("reset", cls=ChangingCommand)
@click.argument("group", type=Name())
@click.option(
    "--to",
    type=ResetTarget(),
    required=True,
    help="New position: earliest, latest, or an offset. With latest, the group skips everything"
    " that can be read now.",
)
@click.option(
    "--stream",
    "streams",
    type=Path(),
    multiple=True,
    help="Move the group only in this stream; the option can be repeated. By default, it is moved"
    " in all its streams.",
)
@force_option
@remote
def reset_command(
    client: Client, *, group: str, to: str, streams: tuple[str, ...], force: bool, is_json: bool
) -> None:
    """Move a group in all its streams, or in some of them.

    Without --stream, the stream with the group's own retries is left out: it has copies of dead
    letters that were replayed. Stored metadata is removed. In a group that has members, the command
    is refused unless --force is used, because members would process messages again or skip
    messages.
    """
    try:
        offsets = client.group(group).reset(to, streams=streams, force=force)
    except ValueError:  # the group has no such stream
        raise CommandRefused(
            f"the group {group} is not in all of these streams: {', '.join(streams)}; `semel groups"
            " show` lists its streams, and `semel groups set` sets the position in any stream",
            EXIT_REFUSED,
        ) from None
    sentence = f"group {group} is at {to} in {_count(len(offsets), 'stream')}"
    report(sentence, {"group": group, "offsets": offsets}, is_json=is_json)


@groups_command.command("delete", cls=ChangingCommand)
@click.argument("group", type=Name())
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@remote
def delete_group_command(client: Client, *, group: str, yes: bool, is_json: bool) -> None:
    """Delete a group: its positions and its pinned step.

    Refused while the group has members. Its retry stream __semel/retry/GROUP, which has copies of
    dead letters, is deleted after it. The other streams are not changed, and neither are the dead
    letters of the group.
    """
    if not yes:
        confirm(
            f"Delete the group {group} with its positions?", f"the group {group} was not deleted"
        )
    has_retries = client.run(delete_with_retries(client.site, group))
    retries = retries_of(group) if has_retries else None
    also = f" and its retry stream {retries}; its dead letters are kept" if has_retries else ""
    facts = {"group": group, "deleted": True, "retry_stream": retries}
    report(f"deleted the group {group}{also}", facts, is_json=is_json)
