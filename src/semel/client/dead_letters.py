"""Dead letters: messages that a group could not process, and how they are processed again.

A rejected message is stored in the group's stream of dead letters, in an envelope that says where
it was read, why it was rejected and how often it was tried. One commit stores the envelope and
moves the group past the message.

A replay copies envelopes to the group's retry stream. The members of the group read that stream
besides their other streams. One commit stores the copies and moves the position of the group's
replay group in the stream of dead letters, so that each dead letter is replayed once. A message is
never appended to its source again, because other groups read the source as well. This module uses
no sockets.
"""

from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from semel.client import errors
from semel.client.commit_calls import Parts
from semel.client.commit_sequence import CommitSequence
from semel.client.flows import Flow
from semel.client.group_calls import GroupCursor, end_offset_of, group_page, set_positions
from semel.client.member_calls import describe_group
from semel.client.positions import KnownPosition, MovePlanner, moves_by_member
from semel.client.reading import PageReader, StreamName
from semel.client.stream_calls import ServerConfig, StreamCalls
from semel.client.values import START, Header, Message, Origin, ordinal_of
from semel.model.limits import BODY_BYTES_MAX, KIB, MIB
from semel.model.messages import JSON_MEDIA_TYPE, is_json, is_text
from semel.model.offsets import print_offset
from semel.model.rights import dead_letters_of, replays_of, retries_of
from semel.wire.json_depth import is_too_deep

# Below the limit of a request, because the request also moves a position.
LETTER_BYTES_MAX: Final = BODY_BYTES_MAX - 64 * KIB
_CAUSE_CHARS_MAX: Final = 2_000
_REPLAY_BYTES_MAX: Final = MIB
_REPLAY_COUNT_MAX: Final = 1_000
_CONFLICTS_MAX: Final = 10

# ---- envelopes -----------------------------------------------------------------------------------


class Base64(Struct, frozen=True):
    """Bytes that are not text."""

    base64: str


Text = str | Base64


class Envelope(Struct, frozen=True, kw_only=True):
    """A dead letter as JSON: a message, where it was read, and why it was rejected.

    The message is in `value` if its stream has JSON or text, and otherwise in `base64`. It is in
    neither if it is too large: then it has `left_out_bytes`, and is only in its own stream.
    """

    stream: str
    offset: str
    incarnation: str | None = None
    key: Text | None = None
    headers: dict[str, Text | list[Text]] = {}
    timestamp_ms: int | None = None
    content_type: str = JSON_MEDIA_TYPE
    cause: Any = ""
    attempts: int = 1
    group: str = ""
    value: Raw | UnsetType = UNSET
    base64: str | UnsetType = UNSET
    left_out_bytes: int | UnsetType = UNSET


class DeadLetter(Struct, frozen=True, kw_only=True):
    """A message that a group has rejected.

    - `message`: the message as it was read, with its `value`, `key` and `headers`.
    - `origin`: the stream and the offset at which it was first read.
    - `cause`: why it was rejected.
    - `attempts`: how often it was tried.
    - `rejected_at`: when it was stored as a dead letter, or replayed.
    - `offset`, `next_offset`: its place in the stream of dead letters.
    - `raw`: the envelope, as JSON.
    """

    message: Message
    origin: Origin
    cause: str
    attempts: int
    group: str
    rejected_at: datetime | None
    offset: str | None
    next_offset: str | None
    raw: bytes
    is_whole: bool = True  # False if the message was too large to be stored with the envelope

    @property
    def value(self) -> Any:
        """The decoded value of the message."""
        return self.message.value

    @property
    def key(self) -> bytes | None:
        """The key of the message."""
        return self.message.key


def envelope_of(message: Message, group: str, cause: str, *, attempts: int) -> bytes:
    """Return the envelope of a rejected message, as JSON.

    A message from the retry stream keeps its origin. The value is left out if the envelope would be
    too large for a request.
    """
    own = message.letter if isinstance(message.letter, DeadLetter) else None
    origin, incarnation = message.origin, getattr(message.source, "incarnation", None)
    if own is not None:
        incarnation = _incarnation(own.raw)
    fields: dict[str, Any] = {
        "stream": origin.stream or "",
        "offset": origin.offset or "",
        "incarnation": incarnation,
        "key": None if message.key is None else text_or_base64(message.key),
        "headers": header_texts(message.headers),
        "timestamp_ms": message.written_ms if message.time_ms is None else message.time_ms,
        "content_type": message.content_type,
        "cause": escaped_surrogates(cause)[:_CAUSE_CHARS_MAX],
        "attempts": attempts,
        "group": group,
    }
    for value in _values_of(message):
        encoded = msgspec.json.encode(Envelope(**fields, **value))
        # A JSON text with half of a surrogate pair can be stored, but not be decoded.
        is_readable = not is_too_deep(encoded) and decode_envelope(encoded) is not None
        if len(encoded) <= LETTER_BYTES_MAX and is_readable:
            break
    return encoded


def _values_of(message: Message) -> Iterable[dict[str, Any]]:
    """Yield how an envelope can contain a message. The last one leaves the message out."""
    raw = message.raw
    if is_json(message.content_type):
        yield {"value": Raw(raw)}
    elif is_text(message.content_type):
        value = text_or_base64(raw)
        if isinstance(value, str):
            yield {"value": Raw(msgspec.json.encode(value))}
    yield {"base64": b64encode(raw).decode("ascii")}
    yield {"left_out_bytes": len(raw)}


def text_or_base64(raw: bytes) -> Text:
    """Return bytes as text, or as base64 if they are not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return Base64(b64encode(raw).decode("ascii"))


def header_texts(headers: Sequence[Header]) -> dict[str, Text | list[Text]]:
    """Return the headers of a message as JSON. A name that occurs twice has a list of values."""
    values: dict[str, list[Text]] = {}
    for name, value in headers:
        values.setdefault(name, []).append(text_or_base64(value))
    return {name: each if len(each) > 1 else each[0] for name, each in values.items()}


def escaped_surrogates(text: str) -> str:
    """Return `text` with unpaired surrogates escaped, because UTF-8 cannot encode them."""
    return text.encode("utf-8", "backslashreplace").decode()


def letter_of(message: Message) -> DeadLetter:
    """Return the dead letter in a message of a stream of dead letters or retries.

    A message that is not an envelope is returned as a dead letter without an origin.
    """
    envelope = decode_envelope(message.raw)
    if envelope is None:
        return DeadLetter(
            message=message,
            origin=Origin(None, None),
            cause="this is not a dead letter",
            attempts=0,
            group="",
            rejected_at=message.timestamp,
            offset=message.offset,
            next_offset=message.next_offset,
            raw=message.raw,
        )
    return DeadLetter(
        message=_original(envelope),
        origin=Origin(envelope.stream, envelope.offset),
        cause=_cause_text(envelope.cause),
        attempts=envelope.attempts,
        group=envelope.group,
        rejected_at=message.timestamp,
        offset=message.offset,
        next_offset=message.next_offset,
        raw=message.raw,
        is_whole=envelope.left_out_bytes is UNSET,
    )


def decode_envelope(raw: bytes) -> Envelope | None:
    """Return the envelope in `raw`, or None if it is not an envelope."""
    try:
        return msgspec.json.decode(raw, type=Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def unwrap(message: Message) -> None:
    """Replace the envelope in a message of the retry stream with the message that was rejected.

    The message keeps its own offset, because a commit moves the group in the retry stream. A
    message that is not an envelope stays as it is.
    """
    letter = letter_of(message)
    if letter.origin.stream is None:
        return
    original = letter.message
    message.raw, message.content_type = original.raw, original.content_type
    message.key, message.headers = original.key, original.headers
    message.time_ms = original.time_ms
    message.letter = letter


def _original(envelope: Envelope) -> Message:
    value, encoded = envelope.value, envelope.base64
    raw = b""
    if encoded is not UNSET:
        raw = b64decode(encoded)
    elif value is not UNSET:
        raw = bytes(value)
        if not is_json(envelope.content_type):
            raw = msgspec.json.decode(raw, type=str).encode()
    return Message(
        raw,
        envelope.content_type,
        envelope.offset,
        written_ms=envelope.timestamp_ms,
        key=None if envelope.key is None else _bytes_of(envelope.key),
        headers=[
            (name, _bytes_of(each))
            for name, values in envelope.headers.items()
            for each in (values if isinstance(values, list) else [values])
        ],
        time_ms=envelope.timestamp_ms,
        source=StreamName(envelope.stream, envelope.incarnation),
    )


def _bytes_of(text: Text) -> bytes:
    return text.encode() if isinstance(text, str) else b64decode(text.base64)


def _cause_text(cause: Any) -> str:
    """Return a cause as text. The cause in an error message of a pipeline has two members."""
    if isinstance(cause, dict):
        return ": ".join(str(part) for part in (cause.get("class"), cause.get("message")) if part)
    return cause if isinstance(cause, str) else msgspec.json.encode(cause).decode()


def _incarnation(raw: bytes) -> str | None:
    envelope = decode_envelope(raw)
    return None if envelope is None else envelope.incarnation


# ---- rejecting -----------------------------------------------------------------------------------


def reject_message(
    sequence: CommitSequence,
    cursor: GroupCursor,
    message: Message,
    cause: str,
    *,
    attempts: int | None = None,
) -> Flow[None]:
    """Store a message as a dead letter, and move its group past it, in one commit.

    `attempts` is how often the message was tried. By default, this is one time more than its reader
    knows of. Raises IllegalGeneration or PositionConflict if the group is not at the expected
    position or the reader no longer owns the stream. Then nothing is stored.
    """
    count = message.attempts + 1 if attempts is None else attempts
    letter = envelope_of(message, cursor.group, cause, attempts=count)
    path, name = dead_letters_of(cursor.group), (cursor.group, cursor.path)
    planner = MovePlanner(cursor.positions)
    planned = planner.plan_from(name, cursor.position, end_offset_of(message))
    (part,) = moves_by_member(planned)
    planner.accepted(cursor.group, planned)
    parts = Parts(
        {path: [letter]},
        {cursor.group: part.moves},
        member=part.member,
        epochs=part.epochs,
    )
    try:
        result = yield from sequence.append_letters(path, parts)
    except errors.PositionRefused as error:
        cursor.note_refusal(error)
        raise
    planner.done(is_repeat=result.duplicate)


# ---- listing, replaying, dropping ----------------------------------------------------------------


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

    def position(self) -> Flow[KnownPosition]:
        """Return the position before the first dead letter that was not replayed or dropped."""
        return (yield from group_page(self.site, self._replays)).known(self.path)

    def reader(self, *, is_all: bool = False) -> Flow[PageReader | None]:
        """Return a reader of the dead letters, or None if none was ever stored.

        With `is_all`, it also reads those that were replayed or dropped. Raises GroupNotFound if
        there is no such group.
        """
        if not (yield from self._has_letters()):
            return None
        position = KnownPosition() if is_all else (yield from self.position())
        return self._reader_at(position.offset)

    def _has_letters(self) -> Flow[bool]:
        if (yield from self._calls.exists()):
            return True
        yield from describe_group(self.site, self.group)
        return False

    def _reader_at(self, ordinal: int) -> PageReader:
        offset = print_offset(ordinal) if ordinal else START
        return PageReader(self._calls, offset, is_live=False)

    def next_letters(self, reader: PageReader) -> Flow[list[DeadLetter] | None]:
        """Return the next dead letters of the group (perhaps none), or None at the end."""
        page = yield from reader.next_page()
        if page is None:
            return None
        return [each for each in map(letter_of, page) if each.group in ("", self.group)]

    def show(self, offset: str) -> Flow[DeadLetter]:
        """Return the dead letter at `offset`. Raises ValueError if there is none."""
        reader = PageReader(self._calls, offset, is_live=False)
        with suppress(errors.OffsetBeyondTail):
            for message in (yield from reader.next_page()) or ():
                if message.offset == offset:
                    return letter_of(message)
        raise ValueError(f"there is no dead letter at {offset} in {self.path}")

    def replay(
        self, sequence: CommitSequence, limit: int | None = None, until: str | None = None
    ) -> Flow[int]:
        """Copy dead letters to the retry stream, the oldest first. Return their number.

        At most `limit` are copied, and only those before the offset `until`. Each is copied once,
        also if this call is repeated or made twice at the same time. Raises TooLarge at a dead
        letter without its value, which cannot be replayed.
        """

        def move(position: KnownPosition, own: list[DeadLetter], to: int) -> Flow[None]:
            self._require_whole(own)
            values = [letter.raw for letter in own]
            appends = {retries_of(self.group): values} if values else {}
            source = (position.offset, to, position.incarnation, position.version)
            parts = Parts(appends, {self._replays: {self.path: source}})
            yield from sequence.append_letters(retries_of(self.group), parts)

        return (yield from self._move_past(move, limit, until))

    def _require_whole(self, letters: list[DeadLetter]) -> None:
        for letter in letters:
            if not letter.is_whole:
                raise errors.TooLarge(
                    f"the dead letter at {letter.offset} cannot be replayed, because its message"
                    f" is too large for a dead letter; it is at {letter.origin.offset} in"
                    f" {letter.origin.stream}. Replay the dead letters before it with"
                    f" until={letter.offset!r}, then drop this one"
                )

    def drop(self, limit: int | None = None, until: str | None = None) -> Flow[int]:
        """Pass over dead letters without replaying them, the oldest first. Return their number.

        They stay in the stream of dead letters. `limit` and `until` are as in `replay`.
        """

        def move(position: KnownPosition, own: list[DeadLetter], to: int) -> Flow[None]:
            del own
            source = (position.offset, to, position.incarnation, position.version)
            yield from set_positions(self.site, self._replays, {self.path: source})

        return (yield from self._move_past(move, limit, until))

    def _move_past(
        self,
        move: Callable[[KnownPosition, list[DeadLetter], int], Flow[None]],
        limit: int | None,
        until: str | None,
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
            own, to = self._portion(ready, None if limit is None else limit - count, end)
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
        self, ready: deque[Message], limit: int | None, end: int | None
    ) -> tuple[list[DeadLetter], int | None]:
        """Take dead letters for one commit from `ready`. Return them and the offset after them.

        The offset is None if there is nothing before `end`, or if `limit` is 0. Dead letters of
        other groups are passed over.
        """
        letters: list[DeadLetter] = []
        size, to = 0, None
        count_max = _REPLAY_COUNT_MAX if limit is None else min(limit, _REPLAY_COUNT_MAX)
        while ready and len(letters) < count_max:
            message = ready[0]
            letter = letter_of(message)
            if end is not None and ordinal_of(message.ordinal) >= end:
                break
            if letter.group in ("", self.group):
                size += len(message.raw)
                if letters and size > _REPLAY_BYTES_MAX:
                    break
                letters.append(letter)
            ready.popleft()
            to = end_offset_of(message)
        return letters, to
