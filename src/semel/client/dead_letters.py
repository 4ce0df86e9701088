"""Dead letters: messages that a group could not process, and how they are processed again.

A rejected message is stored in the group's stream of dead letters, in an envelope that says where
it was read, why it was rejected and how often it was tried. One commit stores the envelope and
moves the group past the message. `dead_letter_calls.py` lists and replays them. This module uses no
sockets.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from semel.client import errors
from semel.client.commit_calls import Parts
from semel.client.commit_sequence import CommitSequence
from semel.client.flows import Flow
from semel.client.group_calls import GroupCursor, end_offset_of
from semel.client.positions import MovePlanner, moves_by_member
from semel.client.reading import StreamName
from semel.client.values import Header, Message, Origin
from semel.model.limits import BODY_BYTES_MAX, KIB
from semel.model.messages import JSON_MEDIA_TYPE, is_json, is_text
from semel.model.rights import dead_letters_of
from semel.wire.json_depth import is_too_deep

# Below the limit of a request, because the request also moves a position.
LETTER_BYTES_MAX: Final = BODY_BYTES_MAX - 64 * KIB
_CAUSE_CHARS_MAX: Final = 2_000

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
    group: str
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


def cause_of(reason: object) -> str:
    """Return why a message is rejected as text: for an exception, its class and its text.

    Raises TypeError if `reason` is neither a text nor an exception.
    """
    if isinstance(reason, str):
        return reason
    if not isinstance(reason, BaseException):
        kind = type(reason).__name__
        raise TypeError(f"the reason of a rejection must be a text or an exception, not {kind}")
    try:
        text = str(reason)
    except Exception as error:  # noqa: BLE001 - the application's `__str__` can raise anything
        text = f"the error has no text, because its __str__ raised {type(error).__name__}"
    return f"{type(reason).__name__}: {text}" if text else type(reason).__name__


def escaped_surrogates(text: str) -> str:
    """Return `text` with unpaired surrogates escaped, because UTF-8 cannot encode them."""
    return text.encode("utf-8", "backslashreplace").decode()


def letter_of(message: Message) -> DeadLetter:
    """Return the dead letter in a message of a stream of dead letters or retries.

    A message that is not an envelope is returned as a dead letter without an origin.
    """
    envelope, original = decode_envelope(message.raw), None
    if envelope is not None:
        with suppress(ValueError, msgspec.DecodeError):  # base64 or text that is damaged
            original = _original(envelope)
    if envelope is None or original is None:
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
        message=original,
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
        cursor.advise(error)
        raise
    planner.done(is_repeat=result.duplicate)
