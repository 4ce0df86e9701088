"""One-shot commits: appends, positions and preconditions, all or nothing. Pure: no sockets."""

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from semel.client.calls import Site, StreamCalls
from semel.client.documents import decoded, post
from semel.client.errors import Indeterminate, PayloadMismatch
from semel.client.flows import Flow
from semel.client.positions import KnownPositions, Moving, moves_of
from semel.client.txn_values import (
    CommitResult,
    Moves,
    Offset,
    moves_document,
    offset_of,
    parse_token,
)
from semel.client.values import READY, encode
from semel.model.limits import BATCH_MESSAGES_MAX
from semel.model.media import is_json
from semel.wire.headers import read_flag

COMMITS: Final = "/v1/commits"
_AGAIN: Final = (
    "commit the same again, with the same producer_id, epoch and seq: it is done once, and"
    " `duplicate` tells whether it was done before"
)
_KNOWN_STREAMS_MAX: Final = 10_000


class KnownStreams:
    """The streams a client has written to by other ways than their own calls: their media types."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._calls: dict[str, StreamCalls] = {}

    def calls(self, path: str) -> StreamCalls:
        """Give the calls of a stream; ValueError if no stream can have that path."""
        found = self._calls.get(path)
        if found is None:
            if len(self._calls) >= _KNOWN_STREAMS_MAX:
                self._calls.clear()
            found = self._calls[path] = StreamCalls(self.site, path)
        return found


class Mark(Struct, frozen=True):
    """The number a commit has, by which it is done once."""

    producer_id: str
    epoch: int
    seq: int


class Parts(Struct, frozen=True):
    """What a commit does: `appends` by stream, `offsets` by group, `expects` by stream.

    `transactions` are tokens of staged ones.
    """

    appends: Mapping[str, Iterable[Any]] = {}
    offsets: Mapping[str, Moves] = {}
    expects: Mapping[str, Offset] = {}
    transactions: Sequence[str] = ()


def commit(
    known: KnownStreams, mark: Mark, parts: Parts, *, silence_seconds: float = inf
) -> Flow[CommitResult]:
    """Commit all of it or nothing; sent again under the same number."""
    document: dict[str, Any] = {
        "producer_id": mark.producer_id,
        "producer_epoch": mark.epoch,
        "producer_seq": mark.seq,
        **(yield from parts_document(known, parts)),
    }
    site = known.site
    target = site.address.target(COMMITS)
    try:
        asked = yield from post(site, target, document, silence_seconds=silence_seconds)
    except Indeterminate as error:
        error.advice = _AGAIN
        raise
    answer = asked.expect(200)
    if read_flag(answer.headers, "producer-payload-mismatch"):
        told = f"{mark.producer_id} has committed something else as number {mark.seq}"
        raise PayloadMismatch(told, status=answer.status, facts={"producer_seq": mark.seq})
    return decoded(answer, CommitResult)


def commit_known(
    known: KnownStreams, mark: Mark, parts: Parts, positions: KnownPositions
) -> Flow[CommitResult]:
    """Commit; groups are moved from where this client was told they are."""
    moving = Moving(positions)
    offsets = {}
    for group, moves in parts.offsets.items():
        planned = moving.plan(group, moves)
        moving.accepted(group, planned)
        offsets[group] = moves_of(planned)
    result = yield from commit(known, mark, replace(parts, offsets=offsets))
    moving.done(is_repeat=result.duplicate)
    return result


def parts_document(known: KnownStreams, parts: Parts) -> Flow[dict[str, Any]]:
    """Word what a commit does, whoever commits."""
    document: dict[str, Any] = {}
    appends: list[dict[str, Any]] = []
    for path, values in parts.appends.items():
        content_type = yield from known.calls(path).known_type()
        messages = [_message(value, content_type) for value in _listed(path, values)]
        appends += [
            {"stream": path, "messages": messages[at : at + BATCH_MESSAGES_MAX]}
            for at in range(0, len(messages), BATCH_MESSAGES_MAX)
        ]
    if appends:
        document["appends"] = appends
    if parts.offsets:
        document["offsets"] = {
            group: moves_document(moves) for group, moves in parts.offsets.items()
        }
    if parts.expects:
        document["if"] = {path: offset_of(end) for path, end in parts.expects.items()}
    if parts.transactions:
        listed = map(parse_token, parts.transactions)
        document["transactions"] = [{"id": name, "epoch": epoch} for name, epoch in listed]
    return document


def _listed(path: str, values: Iterable[Any]) -> Iterable[Any]:
    if isinstance(values, str | bytes | Mapping):
        kind = type(values).__name__
        raise TypeError(f"{path} takes a list of values, not a {kind}")
    return values


def _message(value: Any, content_type: str) -> Any:
    """Word a message as the stream's media type wants it."""
    raw = encode(value, content_type)
    if is_json(content_type):
        if isinstance(value, READY):
            _require_json(raw)
        return Raw(raw)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(raw).decode("ascii")}


def _require_json(raw: bytes) -> None:
    """Refuse what would tear the document it is put into."""
    try:
        msgspec.json.decode(raw, type=Raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"the bytes of a message are no JSON: {error}") from None
