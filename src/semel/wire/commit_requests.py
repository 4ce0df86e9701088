"""`POST /v1/commits`: one request for appends, positions, preconditions and staged transactions.

The messages of a JSON stream are JSON values and stay as they were sent, byte for byte. Those of
any other stream are texts, stored as UTF-8, or `{"base64": "..."}`.
"""

import binascii
import struct
from base64 import b64decode
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from semel.model.checksum import digest_of
from semel.model.commands import Batch
from semel.model.limits import BATCH_MESSAGES_MAX, PRODUCER_ID_BYTES_MAX, TXN_ID_BYTES_MAX
from semel.model.media import JSON_MEDIA_TYPE, is_json
from semel.model.transactions import Commit, CommitAppend, Listed, Position, SinkTag
from semel.wire.documents import Offset, read_document, read_name, read_offset
from semel.wire.headers import Headers
from semel.wire.json_mode import split_json
from semel.wire.problems import BadRequest, Problem

TypeOf = Callable[[str], str | None]

_NO_ARRAY: Final = "messages must be an array"
_NO_MESSAGE: Final = "an empty array holds no message"
_NO_TEXT: Final = 'a message of this stream is a text, or {"base64": "..."}'


class _Append(Struct, forbid_unknown_fields=True):
    stream: str
    messages: Raw


class _Listed(Struct, forbid_unknown_fields=True):
    id: str
    epoch: int


class Move(Struct, forbid_unknown_fields=True, kw_only=True, rename={"start": "from"}):
    """A position to set on conditions: where it is now, which stream the path has, its version."""

    start: Offset | UnsetType = UNSET
    to: Offset
    incarnation: str | UnsetType = UNSET
    version: int | UnsetType = UNSET


Target = int | str | Move


class _Sink(Struct, forbid_unknown_fields=True):
    app: str
    query_id: str
    version: int
    input: str | None = None
    previous: str | None = None


class _Commit(Struct, forbid_unknown_fields=True, rename={"expects": "if"}):
    producer_id: str | None = None
    producer_epoch: int | None = None
    producer_seq: int | None = None
    sink: _Sink | None = None
    appends: list[_Append] = []
    transactions: list[_Listed] = []
    offsets: dict[str, dict[str, Target]] = {}
    expects: dict[str, Offset] = {}


class _Packed(Struct, forbid_unknown_fields=True):
    base64: str


_messages: Final = msgspec.json.Decoder(list[str | _Packed])


def parse_commit(
    headers: Headers, body: bytes, *, now_ms: int, type_of: TypeOf
) -> Commit | Problem:
    """Read a one-shot commit; `type_of` tells the media type of a stream."""
    try:
        wanted = read_document(headers, body, _Commit)
        if wanted.producer_id is not None:
            read_name(wanted.producer_id, "producer_id", PRODUCER_ID_BYTES_MAX)
        listed = [
            Listed(read_name(named.id, "transactions", TXN_ID_BYTES_MAX), named.epoch)
            for named in wanted.transactions
        ]
        positions = [
            read_move(group, path, target)
            for group, moves in wanted.offsets.items()
            for path, target in moves.items()
        ]
        expects = [(path, read_offset(end, "if")) for path, end in wanted.expects.items()]
    except BadRequest as refusal:
        return refusal.problem
    sink = wanted.sink
    return Commit(
        now_ms,
        wanted.producer_id,
        wanted.producer_epoch,
        wanted.producer_seq,
        None
        if sink is None
        else SinkTag(sink.app, sink.query_id, sink.version, sink.input, sink.previous),
        tuple([_read_append(append, type_of) for append in wanted.appends]),
        tuple(listed),
        tuple(positions),
        tuple(expects),
        _digest_of(wanted, positions),
    )


def _digest_of(wanted: _Commit, positions: list[Position]) -> int:
    """Digest what is new in a commit. Preconditions may be others when it is sent again."""
    parts: list[object] = [(append.stream, bytes(append.messages)) for append in wanted.appends]
    parts += sorted((move.group, move.path, move.to) for move in positions)
    return digest_of(msgspec.msgpack.encode(parts))


def read_move(group: str, path: str, target: Target) -> Position:
    """Read where a group shall stand: an offset, or one to set under conditions."""
    if not isinstance(target, Move):
        return Position(group, path, read_offset(target, "offsets"))
    return Position(
        group,
        path,
        read_offset(target.to, "to"),
        None if target.start is UNSET else read_offset(target.start, "from"),
        None if target.incarnation is UNSET else target.incarnation,
        None if target.version is UNSET else target.version,
    )


def _read_append(append: _Append, type_of: TypeOf) -> CommitAppend:
    """Read messages as the stream's media type wants; what is wrong with them speaks later."""
    # A stream that is not there will be refused; should it appear before, it must be JSON.
    content_type = type_of(append.stream) or JSON_MEDIA_TYPE
    raw = bytes(append.messages)
    if not raw.startswith(b"["):
        found: Batch | str = _NO_ARRAY
    elif is_json(content_type):
        found = split_json(raw) or _NO_MESSAGE
    else:
        found = _read_texts(raw)
    if isinstance(found, str):
        return CommitAppend(append.stream, content_type, None, found)
    return CommitAppend(append.stream, content_type, found)


def _read_texts(raw: bytes) -> Batch | str:
    try:
        messages = [_to_bytes(message) for message in _messages.decode(raw)]
    except (msgspec.DecodeError, binascii.Error, ValueError):
        return _NO_TEXT
    count = len(messages)
    if not count:
        return _NO_MESSAGE
    if count > BATCH_MESSAGES_MAX:
        return f"more than {BATCH_MESSAGES_MAX} messages in one batch"
    if not all(messages):
        return "a message is empty"
    lengths = struct.pack(f"<{count}I", *map(len, messages)) if count > 1 else b""
    return Batch(b"".join(messages), count, lengths)


def _to_bytes(message: str | _Packed) -> bytes:
    if isinstance(message, str):
        return message.encode()
    return b64decode(message.base64, validate=True)
