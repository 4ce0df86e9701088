"""Calls that list, replay and drop the dead letters of a group, as generators without sockets.

A replay copies envelopes to the group's retry stream. The members of the group read that stream
besides their other streams. One commit stores the copies and moves the position of the group's
replay group in the stream of dead letters, so that each dead letter is replayed once. A message is
never appended to its source again, because other groups read the source as well.

Only envelopes of the group are copied. The copy of an ordinary message would be processed a second
time.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Struct

from semel.client import errors
from semel.client.commit_calls import Parts
from semel.client.commit_sequence import CommitSequence
from semel.client.dead_letters import DeadLetter, letter_of
from semel.client.flows import Flow
from semel.client.group_calls import end_offset_of, group_page, set_positions
from semel.client.member_calls import delete_group, describe_group
from semel.client.positions import KnownPosition
from semel.client.reading import PageReader
from semel.client.stream_calls import ServerConfig, StreamCalls
from semel.client.values import START, Message, ordinal_of
from semel.model.limits import MIB
from semel.model.offsets import print_offset
from semel.model.rights import dead_letters_of, replays_of, retries_of

PROCESSOR_ERROR_TYPE: Final = "q.type.err/processor"
_REPLAY_BYTES_MAX: Final = MIB
_REPLAY_COUNT_MAX: Final = 1_000
_CONFLICTS_MAX: Final = 10


class _Typed(Struct, frozen=True):
    """The type of a message in the error stream of a pipeline."""

    type: str = ""


# What moves the position past one portion: from the position, with its letters, to its end.
_Mover = Callable[[KnownPosition, list[DeadLetter], int], Flow[None]]


def replay_group_of(group: str) -> str:
    """Return the group whose position says which dead letters of `group` are done with."""
    return replays_of(group)


class DeadLetterCalls:
    """The dead letters of a group, in the stream `path`.

    A stream can have the dead letters of several groups, such as the error stream of a pipeline.
    Only those of this group are returned and replayed.
    """

    def __init__(self, site: ServerConfig, group: str, path: str | None = None) -> None:
        self.site = site
        self.group = group
        self.path = dead_letters_of(group) if path is None else path
        self._calls = StreamCalls(site, self.path)
        self._replays = replay_group_of(group)

    # ---- reading ---------------------------------------------------------------------------------

    def position(self) -> Flow[KnownPosition]:
        """Return the position before the first dead letter that was not replayed or dropped."""
        return (yield from group_page(self.site, self._replays)).known(self.path)

    def reader(self, *, is_all: bool = False) -> Flow[PageReader | None]:
        """Return a reader of the dead letters, or None if none was ever stored.

        With `is_all`, it also reads those that were replayed or dropped. Raises GroupNotFound if
        there is no such group, and StreamNotFound if `path` is another stream and does not exist.
        """
        if not (yield from self._has_letters()):
            return None
        position = KnownPosition() if is_all else (yield from self.position())
        return self._reader_at(position.offset)

    def _has_letters(self) -> Flow[bool]:
        """Return whether the group's own stream of dead letters exists, or `path` does.

        The dead letters of a group stay when the group is deleted. So a group that has a stream of
        its own for them is not asked for.
        """
        is_own = self.path == dead_letters_of(self.group)
        if is_own and (yield from self._calls.exists()):
            return True
        yield from describe_group(self.site, self.group)
        if not is_own:
            yield from self._calls.head()
        return not is_own

    def _reader_at(self, ordinal: int) -> PageReader:
        offset = print_offset(ordinal) if ordinal else START
        return PageReader(self._calls, offset, is_live=False)

    def next_letters(self, reader: PageReader) -> Flow[list[DeadLetter] | None]:
        """Return the next dead letters of the group (perhaps none), or None at the end."""
        page = yield from reader.next_page()
        if page is None:
            return None
        return [each for each in map(letter_of, page) if each.group == self.group]

    def show(self, offset: str) -> Flow[DeadLetter]:
        """Return the group's dead letter at `offset`. Raises ValueError if there is none."""
        reader = PageReader(self._calls, offset, is_live=False)
        with suppress(errors.OffsetBeyondTail):
            for message in (yield from reader.next_page()) or ():
                letter = letter_of(message)
                if message.offset == offset and letter.group == self.group:
                    return letter
        raise ValueError(f"there is no dead letter of {self.group} at {offset} in {self.path}")

    # ---- replaying and dropping ------------------------------------------------------------------

    def replay(
        self, sequence: CommitSequence, limit: int | None = None, until: str | None = None
    ) -> Flow[int]:
        """Copy dead letters to the retry stream, the oldest first. Return their number.

        At most `limit` are copied, and only those before the offset `until`. Each is copied once,
        also if this call is repeated or made twice at the same time. Dead letters of other groups
        are passed over. Raises CannotReplay at a message that is not a dead letter, and at a dead
        letter without its value; those before it are copied.
        """

        def move(position: KnownPosition, own: list[DeadLetter], to: int) -> Flow[None]:
            values = [letter.raw for letter in own]
            appends = {retries_of(self.group): values} if values else {}
            source = (position.offset, to, position.incarnation, position.version)
            parts = Parts(appends, {self._replays: {self.path: source}})
            yield from sequence.append_letters(retries_of(self.group), parts)

        return (yield from self._move_past(move, limit, until, is_copy=True))

    def drop(self, limit: int | None = None, until: str | None = None) -> Flow[int]:
        """Pass over dead letters without replaying them, the oldest first. Return their number.

        They stay in the stream of dead letters. `limit` and `until` are as in `replay`. Messages
        that are not dead letters of the group are passed over and not counted.
        """

        def move(position: KnownPosition, own: list[DeadLetter], to: int) -> Flow[None]:
            del own
            source = (position.offset, to, position.incarnation, position.version)
            yield from set_positions(self.site, self._replays, {self.path: source})

        return (yield from self._move_past(move, limit, until, is_copy=False))

    def _move_past(
        self, move: _Mover, limit: int | None, until: str | None, *, is_copy: bool
    ) -> Flow[int]:
        """Call `move` for parts of the dead letters until all are done. Return their number.

        If another client moves the position at the same time, continue at the new position.
        """
        if limit is not None and limit < 0:
            raise ValueError(f"limit={limit} is invalid; expected 0 or more")
        end = None if until is None else ordinal_of(until)
        count = conflicts = 0
        reader: PageReader | None = None
        position = KnownPosition()
        ready: deque[Message] = deque()
        if not (yield from self._has_letters()):
            return 0
        while True:
            if reader is None:
                # Another client can move the position now, so the reader begins at this one.
                before, position = position, (yield from self.position())
                conflicts = 0 if position.offset > before.offset else conflicts
                reader = self._reader_at(position.offset)
            if not ready:
                page = yield from reader.next_page()
                if page is None:
                    return count
                position.incarnation = reader.incarnation
                ready.extend(page)
                continue
            rest = None if limit is None else limit - count
            own, to = self._portion(ready, rest, end, copied=count if is_copy else None)
            if to is None:
                return count
            try:
                yield from move(position, own, to)
            except errors.PositionConflict:
                conflicts += 1
                if conflicts == _CONFLICTS_MAX:
                    raise
                reader = None
                ready.clear()
                continue
            position.moved(to, None if position.version is None else position.version + 1)
            count += len(own)

    def _portion(
        self, ready: deque[Message], limit: int | None, end: int | None, *, copied: int | None
    ) -> tuple[list[DeadLetter], int | None]:
        """Take dead letters for one commit from `ready`. Return them and the offset after them.

        The offset is None if there is nothing before `end`, or if `limit` is 0. Dead letters of
        other groups are passed over. A replay has copied `copied` of them, and takes only those
        before a message that it cannot copy. Raises CannotReplay if this message is the first one.
        """
        letters: list[DeadLetter] = []
        size, to = 0, None
        count_max = _REPLAY_COUNT_MAX if limit is None else min(limit, _REPLAY_COUNT_MAX)
        while ready and len(letters) < count_max:
            message = ready[0]
            letter = letter_of(message)
            if end is not None and ordinal_of(message.ordinal) >= end:
                break
            if copied is not None and self._blocks(letter):
                if to is None:
                    raise self._cannot_replay(letter, copied)
                break
            if letter.group == self.group:
                size += len(message.raw)
                if letters and size > _REPLAY_BYTES_MAX:
                    break
                letters.append(letter)
            ready.popleft()
            to = end_offset_of(message)
        return letters, to

    def _blocks(self, letter: DeadLetter) -> bool:
        """Return whether a replay must stop before this message.

        The error messages that pipelines wrote before they were dead letters cannot be replayed,
        and are passed over.
        """
        if letter.origin.stream is None:
            return _type_of(letter.raw) != PROCESSOR_ERROR_TYPE
        return letter.group == self.group and not letter.is_whole

    def _cannot_replay(self, letter: DeadLetter, copied: int) -> errors.CannotReplay:
        stream, offset = letter.origin
        if stream is None:
            reason = f"the message at {letter.offset} in {self.path} is not a dead letter"
        else:
            reason = (
                f"the message of the dead letter at {letter.offset} in {self.path} is too large for"
                f" a dead letter; it is at {offset} in {stream}"
            )
        return errors.CannotReplay(
            reason,
            stream=self.path,
            offset=letter.offset or "",
            next_offset=letter.next_offset or "",
            copied=copied,
        )


def _type_of(raw: bytes) -> str:
    try:
        return msgspec.json.decode(raw, type=_Typed).type
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


# ---- deleting ------------------------------------------------------------------------------------


def delete_with_retries(site: ServerConfig, group: str) -> Flow[bool]:
    """Delete a group, and then its retry stream. Return whether it had a retry stream.

    The retry stream has copies only. A later group with this name would process them again. The
    dead letters stay. Raises GroupInUse if the group has members. Raises GroupNotFound if there is
    neither the group nor a retry stream, which an interrupted call can have left.
    """
    missing: errors.GroupNotFound | None = None
    try:
        yield from delete_group(site, group)
    except errors.GroupNotFound as error:
        missing = error
    try:
        yield from StreamCalls(site, retries_of(group)).delete()
    except (errors.StreamNotFound, errors.StreamGone):
        if missing is not None:
            raise missing from None
        return False
    return True
