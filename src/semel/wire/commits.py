"""Requests and responses of `/v1/commits` and `/v1/sinks`.

A one-shot commit appends messages, moves positions and commits staged transactions. It is atomic.

In the request, the messages for a JSON stream are JSON values. They are stored without changes.
A message for any other stream is a string (stored as UTF-8) or an object `{"base64": "..."}`.
"""

import binascii
import re
import struct
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from semel.machine.txn.views import SinkView
from semel.model.checksum import digest_of
from semel.model.commands import Batch, Commit, CommitAppend, ListedTxn, PositionMove, SinkTag
from semel.model.limits import (
    BATCH_MESSAGES_MAX,
    MESSAGE_KEY_BYTES_MAX,
    TXN_ID_BYTES_MAX,
    TXN_LIST_MAX,
)
from semel.model.messages import JSON_MEDIA_TYPE, is_json
from semel.model.outcomes import Outcome
from semel.model.outcomes_txn import CommitDone, SinkChanged, UnknownSink
from semel.model.sink_commands import RebindSink
from semel.model.steps import STEP_BYTES, Steps
from semel.wire.documents import (
    check_epochs,
    check_name,
    check_producer,
    decode_document,
    read_document,
    read_offset,
    refuse_long_list,
    too_many_entries,
)
from semel.wire.groups import read_move
from semel.wire.headers import Headers, require_json
from semel.wire.json_mode import EMPTY_ARRAY, PARSED_BYTES, TOO_MANY, first_elements, split_steps
from semel.wire.message_keys import with_keys
from semel.wire.problems import MalformedRequest, bad_request, parser
from semel.wire.rendering import Response
from semel.wire.responses import json_response, outcome_response, responds_to
from semel.wire.schema.commits import (
    AppendKeys,
    Base64Message,
    CommitLists,
    CommitRequest,
    CommitResponse,
    CommittedSink,
    RebindRequest,
    SinkBinding,
    SinkEntry,
    SinksPage,
    SinkVersionResult,
    StreamAppend,
)
from semel.wire.transactions import results_of
from semel.wire.wake_acks import TokenReader, next_wakes, read_no_token, read_wakes

# A function that returns the media type of a stream, or None if there is no such stream.
TypeOf = Callable[[str], str | None]
# The owners of sinks, by app, as a response shows them; UNSET if it does not.
ShownOwners = Mapping[str, str | UnsetType | None]
_NO_OWNERS: Final[ShownOwners] = {}

_NO_ARRAY: Final = "the field 'messages' must be an array"
_NO_TEXT: Final = 'a message of this stream must be a string or {"base64": "..."}'
_UNCHECKED: Final = (
    "this version was already committed, so this request has no effect; the inputs could not be"
    " compared, because a digest is missing"
)
_MISMATCH: Final = (
    "this producer_seq was already used for a different commit; this request has no effect"
)
_messages: Final = msgspec.json.Decoder(list[str | Base64Message])
# Escapes of private characters. They are few, because a long body is searched for each of them.
_STAND_INS: Final = tuple(b"\\u%04x" % code for code in range(0xE000, 0xE010))
# The escapes of a JSON text. Group 1 is a lone surrogate. Every other backslash begins an escape
# too, and must be matched, so that the second character of an escape is not read as its first.
_ESCAPES: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.",
    re.DOTALL,
)

# ---- one-shot commits ----------------------------------------------------------------------------


def parse_commit(
    headers: Headers,
    body: bytes,
    *,
    now_ms: int,
    type_of: TypeOf,
    read_token: TokenReader = read_no_token,
) -> Steps[Commit]:
    """Parse the request of a one-shot commit, in steps. Raises MalformedRequest.

    `read_token` reads the tokens of wakes.
    """
    require_json(headers, body)
    request = yield from _read_request(body)
    if request.producer_id is not None:
        check_producer(request.producer_id)
    listed = [
        ListedTxn(check_name(each.id, "transactions", TXN_ID_BYTES_MAX), each.epoch)
        for each in request.transactions
    ]
    moves = [
        read_move(group, path, target, request)
        for group, targets in request.offsets.items()
        for path, target in targets.items()
    ]
    check_epochs(request, {move.path for move in moves})
    expects = [(path, read_offset(tail, "if")) for path, tail in request.expects.items()]
    appends = yield from _read_appends(request.appends, type_of)
    sink = request.sink
    return Commit(
        now_ms=now_ms,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        producer_seq=request.producer_seq,
        sink=None
        if sink is None
        else SinkTag(sink.app, sink.query_id, sink.version, sink.input, sink.previous),
        appends=tuple(appends),
        transactions=tuple(listed),
        positions=tuple(moves),
        expects=tuple(expects),
        digest=_digest_of(request, moves),
        wakes=read_wakes(request.subscriptions, read_token),
    )


def _read_request(body: bytes) -> Steps[CommitRequest]:
    """Decode the body of a commit, in steps. Raises MalformedRequest.

    A message for a JSON stream can contain an escaped lone surrogate, as in a plain append. The
    decoder refuses it, so the body is then decoded with a placeholder for each of them. The request
    contains the messages as they were sent. Anywhere else, a lone surrogate is refused.
    """
    try:
        return (yield from _decode_request(body))
    except MalformedRequest:
        placeholder = _unused_escape(body)
        if placeholder is None:
            raise
        text, surrogates = yield from _replace_lone_surrogates(body, placeholder)
        if not surrogates:
            raise
        request = yield from _decode_request(text)
        appends = _restored(request.appends, placeholder, surrogates)
        if appends is None:
            raise
        return msgspec.structs.replace(request, appends=appends)


def _decode_request(body: bytes) -> Steps[CommitRequest]:
    is_long = len(body) > PARSED_BYTES
    _refuse_long_lists(body)
    if is_long:
        yield
    request = decode_document(body, CommitRequest)
    if is_long:
        yield
    return request


def _refuse_long_lists(body: bytes) -> None:
    """Raise MalformedRequest if a list of the commit has too many entries. It is not parsed.

    The messages are left out. They are checked later, one append after another.
    """
    if len(body) <= STEP_BYTES:
        return  # parsed quickly, whatever it contains
    lists = decode_document(body, CommitLists)
    texts = (lists.offsets, lists.expects, lists.transactions, lists.epochs, lists.subscriptions)
    for text in texts:
        refuse_long_list(bytes(text))
    appends = bytes(lists.appends)
    if appends.startswith(b"[") and first_elements(appends, TXN_LIST_MAX) is None:
        raise too_many_entries()
    for each in _keys_of_appends(appends):
        keys = bytes(each.keys)
        if keys.startswith(b"[") and first_elements(keys, BATCH_MESSAGES_MAX) is None:
            raise bad_request(
                "bad_body", f"'keys' can have at most {BATCH_MESSAGES_MAX:,} elements"
            )


def _keys_of_appends(appends: bytes) -> list[AppendKeys]:
    return decode_document(appends, list[AppendKeys]) if b'"keys"' in appends else []


def _unused_escape(body: bytes) -> bytes | None:
    """Return an escape that does not occur in the body, or None if all of `_STAND_INS` occur."""
    return next((escape for escape in _STAND_INS if escape not in body), None)


def _replace_lone_surrogates(body: bytes, placeholder: bytes) -> Steps[tuple[bytes, list[bytes]]]:
    """Replace each escaped lone surrogate in a body by `placeholder`, in steps.

    Return the new body, and the replaced escapes in their order.
    """
    parts: list[bytes] = []
    surrogates: list[bytes] = []
    start = paused_at = 0
    for found in _ESCAPES.finditer(body):
        if found[1] is not None:
            parts += (body[start : found.start()], placeholder)
            surrogates.append(found[1])
            start = found.end()
        if found.end() - paused_at > STEP_BYTES:
            paused_at = found.end()
            yield
    parts.append(body[start:])
    return b"".join(parts), surrogates


def _restored(
    appends: Sequence[StreamAppend], placeholder: bytes, surrogates: Sequence[bytes]
) -> list[StreamAppend] | None:
    """Put the surrogates back into the messages, in their order.

    Return None if a surrogate was not in a message, so that its place is unknown.
    """
    pieces = [bytes(append.messages).split(placeholder) for append in appends]
    if sum(len(each) - 1 for each in pieces) != len(surrogates):
        return None
    rest = iter(surrogates)
    restored = []
    for append, (first, *others) in zip(appends, pieces, strict=True):
        text = first + b"".join([next(rest) + each for each in others])
        restored.append(StreamAppend(append.stream, msgspec.Raw(text), append.keys))
    return restored


def _digest_of(request: CommitRequest, moves: list[PositionMove]) -> int:
    """Return the digest of a commit's appends and moves.

    Preconditions are left out: a repeat has the same digest even if its preconditions differ. Acks
    of wakes are left out, because a repeat can come when the wake has ended.
    """
    # Without keys and metadata, the digest is the same as that of earlier versions.
    parts: list[object] = [
        (append.stream, bytes(append.messages), *_keys_in_digest(append))
        for append in request.appends
    ]
    parts += sorted(
        (move.group, move.path, move.to, *((move.metadata,) if move.metadata else ()))
        for move in moves
    )
    return digest_of(msgspec.msgpack.encode(parts))


def _keys_in_digest(append: StreamAppend) -> tuple[bytes, ...]:
    return () if append.keys is UNSET else (msgspec.msgpack.encode(append.keys),)


def _read_appends(appends: Sequence[StreamAppend], type_of: TypeOf) -> Steps[list[CommitAppend]]:
    found, unpaused_bytes = [], 0
    for append in appends:
        read = yield from _read_append(append, type_of)
        found.append(read)
        unpaused_bytes += len(bytes(append.messages))
        if unpaused_bytes > STEP_BYTES:
            unpaused_bytes = 0
            yield
    return found


def _read_append(append: StreamAppend, type_of: TypeOf) -> Steps[CommitAppend]:
    """Parse one append of a commit. Return the append with its batch.

    If the messages are invalid, the result contains the reason instead of the batch. In that
    case, the engine refuses the commit, and reports this reason unless an earlier check fails.
    """
    # If the stream does not exist, the messages are parsed as JSON, and the engine normally refuses
    # the append. If the stream is created before the commit is decided, the engine accepts the
    # append only if the new stream is a JSON stream.
    content_type = type_of(append.stream) or JSON_MEDIA_TYPE
    raw = bytes(append.messages)
    if not raw.startswith(b"["):
        batch: Batch | str = _NO_ARRAY
    elif is_json(content_type):
        batch = (yield from split_steps(raw)) or EMPTY_ARRAY
    else:
        batch = _read_texts(raw)
    if isinstance(batch, Batch) and append.keys is not UNSET:
        batch = _with_keys(batch, append.keys)
    if isinstance(batch, str):
        return CommitAppend(append.stream, content_type, None, batch)
    return CommitAppend(append.stream, content_type, batch)


def _with_keys(batch: Batch, keys: Sequence[str | Base64Message | None]) -> Batch | str:
    """Return a batch with the keys of its messages, or the reason if they are invalid."""
    if len(keys) != batch.count:
        return "'keys' must have one element for each message"
    try:
        found = [None if key is None else _to_bytes(key) for key in keys]
    except binascii.Error:
        return "a key is not valid base64"
    if any(key is not None and len(key) > MESSAGE_KEY_BYTES_MAX for key in found):
        return f"a message key can have at most {MESSAGE_KEY_BYTES_MAX} bytes"
    return with_keys(batch, found)


def _read_texts(raw: bytes) -> Batch | str:
    try:
        if first_elements(raw, BATCH_MESSAGES_MAX) is None:
            return TOO_MANY
        messages = [_to_bytes(message) for message in _messages.decode(raw)]
    except (msgspec.DecodeError, binascii.Error, ValueError, RecursionError):
        return _NO_TEXT
    count = len(messages)
    if not count:
        return EMPTY_ARRAY
    if not all(messages):
        return "a message is empty"
    lengths = struct.pack(f"<{count}I", *map(len, messages)) if count > 1 else b""
    return Batch(b"".join(messages), count, lengths)


def _to_bytes(message: str | Base64Message) -> bytes:
    if isinstance(message, str):
        return message.encode()
    return b64decode(message.base64, validate=True)


def commit_response(
    outcome: Outcome, command: Commit, wakes: Iterable[tuple[str, bool]] = ()
) -> Response:
    """Return the response to a one-shot commit. `wakes` is as in `next_wakes`."""
    if not isinstance(outcome, CommitDone):
        return outcome_response(outcome, is_strict_order=True)
    sink = command.sink
    warning = _MISMATCH if outcome.is_mismatch else _UNCHECKED if outcome.is_unchecked else UNSET
    response = CommitResponse(
        outcome.is_duplicate,
        *results_of(outcome.result),
        sink=UNSET if sink is None else CommittedSink(sink.app, sink.version),
        producer_id=command.producer_id if sink is None else UNSET,
        producer_epoch=command.producer_epoch if sink is None else UNSET,
        producer_seq=command.producer_seq if sink is None else UNSET,
        warning=warning,
        subscriptions=next_wakes(wakes) or UNSET,
    )
    headers = [("Producer-Payload-Mismatch", "true")] if outcome.is_mismatch else []
    return json_response(200, response, headers)


# ---- sinks ---------------------------------------------------------------------------------------


@parser
def parse_rebind(app: str, headers: Headers, body: bytes, *, now_ms: int) -> RebindSink:
    """Parse a request that binds a sink to a different query."""
    request = read_document(headers, body, RebindRequest)
    return RebindSink(now_ms, app, request.query_id, request.last_version)


@responds_to(SinkChanged)
def rebound_response(outcome: SinkChanged, command: RebindSink) -> Response:
    """Return the response with the new binding of a sink."""
    return json_response(200, SinkBinding(command.app, command.query_id, command.last_version))


def sinks_response(views: Sequence[SinkView], owners: ShownOwners = _NO_OWNERS) -> Response:
    """Return the response that lists all sinks. `owners` has the owners that it shows."""
    return json_response(200, SinksPage([_sink_entry(view, owners) for view in views]))


def _sink_entry(view: SinkView, owners: ShownOwners) -> SinkEntry:
    owner = owners.get(view.app, UNSET)
    return SinkEntry(view.app, view.query_id, view.last_version, view.open_transactions, owner)


def sink_steps(view: SinkView | None, owners: ShownOwners = _NO_OWNERS) -> Steps[Response]:
    """Return the response with one sink and its retained versions (committed batches), in steps.

    If `view` is None, the sink does not exist, and the status is 404. `owners` has the owner of the
    sink, if the response shows it.
    """
    if view is None:
        return outcome_response(UnknownSink())
    versions: list[bytes] = []
    unpaused_bytes = 0
    for row in view.versions:
        shown = SinkVersionResult(row.version, row.input, *results_of(row.result))
        versions.append((b"," if versions else b"") + msgspec.json.encode(shown))
        unpaused_bytes += len(versions[-1])
        if unpaused_bytes > STEP_BYTES:
            unpaused_bytes = 0
            yield
    entry = _sink_entry(view, owners)
    # The parts are joined only once, because there can be 50 MiB of them.
    body = (msgspec.json.encode(entry)[:-1], b',"versions":[', *versions, b"]}")
    return msgspec.structs.replace(json_response(200, None), body=b"".join(body))
