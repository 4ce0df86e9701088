"""The calls on a stream. They build requests and interpret responses, but do no I/O."""

from collections.abc import Mapping, Sequence
from copy import copy
from datetime import datetime
from functools import partial
from typing import Any, Final, Self
from urllib.parse import unquote

from msgspec import Struct
from msgspec.structs import replace

from semel.client import errors
from semel.client.addresses import STREAM_PATH, Address, StreamPlace
from semel.client.extras import Extras
from semel.client.flows import Exchanged, Flow, RetrySafety, ask
from semel.client.grouping import Grouper
from semel.client.requests import CLOSING, AppendHeaders, CreateHeaders, Fields, Request, query
from semel.client.response_parser import Response
from semel.client.values import (
    Receipt,
    StreamInfo,
    encode,
)
from semel.model.messages import DEFAULT_MEDIA_TYPE, is_json, normalise
from semel.model.offsets import parse_offset
from semel.model.policies import BUILT_IN
from semel.wire.bodies import encode_batch
from semel.wire.headers import BATCH, read_flag, read_instant, to_datetime, to_number
from semel.wire.problems import MalformedRequest

NO_EXTRAS: Final = Extras()
SWITCHES: Final = {"on": True, "off": False}


class ServerConfig(Struct, frozen=True):
    """The server's address, and the client's options for requests to the server."""

    address: Address
    retries: int | None = None
    is_gzip: bool = False


class CreateResult(Struct, frozen=True):
    """The result of creating a stream. `is_new` is True if this call created the stream."""

    info: StreamInfo
    is_new: bool


class DedupKnowledge(Struct, frozen=True):
    """What was known about a stream before a request was sent.

    `end` is an offset that the stream had reached. The request is stored there or later. In a
    topic, which has no offsets, the number of messages appended to it takes their place.
    """

    incarnation: str | None = None
    dedup_from: str | None = None
    end: str | None = None
    is_topic: bool = False

    def doubt(self, info: StreamInfo) -> str | None:
        """Return why a repeat of the request would perhaps be stored twice, or None.

        `info` is what the stream is now. If the recognition of duplicates was switched on since
        then, the server does not recognise what was stored before. If a policy switches it on with
        the next append, this append can be the request itself, unless nothing was stored since
        then. In a stream with an open transaction, the switch waits for the end of it.
        """
        is_same = self.incarnation is None or self.incarnation == info.incarnation
        if not info.dedup:
            is_unchanged = is_same and info.next_offset == self.end
            has_transaction = info.stable_offset not in (None, info.next_offset)
            is_next = info.will_dedup and is_unchanged and not has_transaction
            return None if is_next else self._off
        offset = info.dedup_from
        if offset is None or (
            is_same and (offset == self.dedup_from or offset <= (self.end or ""))
        ):
            return None if info.will_dedup else self._off
        since = f"after {parse_offset(offset)} messages" if self.is_topic else f"at offset {offset}"
        return f"the {self._noun} did not always recognise duplicates: this was switched on {since}"

    @property
    def _noun(self) -> str:
        return "topic" if self.is_topic else "stream"

    @property
    def _off(self) -> str:
        return f"the {self._noun} does not recognise duplicates (Stream-Dedup: off)"


NO_KNOWLEDGE: Final = DedupKnowledge()


class StreamCalls:
    """The calls on one stream, and what the last responses have shown about the stream.

    `path` is the stream's path, or its URL if the stream has no path.

    Another client can change the stream at any time. So every append names the media type for which
    its messages are encoded, and the server refuses another one. `is_stale` is set after anything
    that shows that the stream has perhaps changed: a refusal, a value that cannot be encoded, or a
    read of another incarnation. The client then asks the server before it uses the cached media
    type again.
    """

    def __init__(self, site: ServerConfig, path: str, place: StreamPlace | None = None) -> None:
        self.site = site
        self.path = path
        self.place = place or StreamPlace(site.address, site.address.stream_target(path), path)
        self.target = self.place.target
        self.content_type: str | None = None
        self.incarnation: str | None = None  # of the stream that has this media type
        self.is_stale = False
        # These two flags are False until a response shows whether the server is semel.
        self.is_semel = False
        self.is_foreign = False
        # What the last response has shown about the recognition of duplicates.
        self.is_unguarded = False
        self.dedup_from: str | None = None
        self.end: str | None = None  # an offset that the stream has reached
        self.grouper: Grouper | None = None  # only for a topic that is known

    def retrying_forever(self) -> Self:
        """Return a copy that does not limit the number of retries. The timeout still applies."""
        calls = copy(self)
        calls.site = replace(self.site, retries=None)
        return calls

    def known(self) -> DedupKnowledge:
        """Return what is known about the stream. Call this before a request is sent."""
        return DedupKnowledge(self.incarnation, self.dedup_from, self.end)

    @property
    def has_dedup(self) -> bool:
        """True if the server is semel, and no response has shown that duplicates are not found."""
        return self.is_semel and not self.is_unguarded

    @property
    def reference(self) -> str:
        """How a request to the same server names this stream, to fork it."""
        is_usual = self.place.path is not None and self.site.address.stream_path == STREAM_PATH
        return self.path if is_usual else self.target

    def require_path(self, call: str) -> str:
        """Return the stream's path. Raises NotSupported if it has none, because `call` needs it."""
        if self.place.path is None:
            address = self.site.address
            raise errors.NotSupported(
                f"{call} needs the path of a stream, but {self.path} is not below"
                f" {address.url}{address.stream_path}/",
                status=404,
            )
        return self.place.path

    def create(
        self, configuration: CreateHeaders, value: Any = None, *, exist_ok: bool = False
    ) -> Flow[CreateResult]:
        """Create the stream. If `value` is not None, it becomes the first message.

        If the stream already exists with the same configuration, StreamExists is raised, unless
        `exist_ok` is True. If it exists with a different configuration, ConfigConflict is raised.
        """
        body = None
        if value is not None:
            content_type = configuration.content_type or DEFAULT_MEDIA_TYPE
            body = _encode_append([value], content_type, NO_EXTRAS)[1]
        request = Request("PUT", self.target, configuration.headers, body)
        exchange = yield from self._ask(request, RetrySafety.REPEATABLE)
        if exchange.response.status == 409:
            error = exchange.error()
            raise errors.ConfigConflict(error.message, status=409) if _is_bare(error) else error
        response = exchange.expect(200, 201)
        # If the status is 200 after an attempt without a response, that attempt has created the
        # stream.
        is_new = response.status == 201 or exchange.was_lost
        if not is_new and not exist_ok:
            raise errors.StreamExists(f"{self.path} already exists", status=200)
        info = _info(response)
        if info.incarnation is None:  # another server, or semel before it sent this header
            self.content_type, self.is_stale = info.content_type, False
        else:
            self._learn(info)
        return CreateResult(info, is_new)

    def head(self) -> Flow[StreamInfo]:
        """Return the stream's metadata.

        Raises StreamNotFound if there is no such stream. Raises StreamGone if the stream was
        deleted, but its data is still kept for its forks.
        """
        exchange = yield from self._ask(Request("HEAD", self.target), RetrySafety.READ)
        if exchange.response.status >= 400:
            self.is_stale = True
            raise _bodiless(exchange, self.path)
        info = _info(exchange.expect(200))
        self._learn(info)
        return info

    def _learn(self, info: StreamInfo) -> None:
        self.content_type, self.incarnation = info.content_type, info.incarnation
        self.is_semel = info.incarnation is not None
        self.is_foreign = not self.is_semel
        self.is_unguarded, self.dedup_from = not info.will_dedup, info.dedup_from
        self.end = info.next_offset
        self.is_stale = False

    def note_incarnation(self, incarnation: str | None) -> None:
        """Record that a response has shown the stream's incarnation."""
        if incarnation is not None and self.incarnation not in (None, incarnation):
            self.is_stale = True

    def exists(self) -> Flow[bool]:
        """Return True if the stream exists."""
        try:
            yield from self.head()
        except (errors.StreamNotFound, errors.StreamGone):
            return False
        return True

    def set_dedup(self, dedup: bool | None) -> Flow[StreamInfo]:
        """Set whether the stream recognises duplicates. None removes the stream's own setting."""
        yield from self._require_semel("set_dedup")
        value = "inherit" if dedup is None else ("off", "on")[dedup]
        request = Request("PATCH", self.target, (("Stream-Dedup", value),))
        (yield from self._ask(request, RetrySafety.REPEATABLE)).expect(204)
        return (yield from self.head())

    def delete(self) -> Flow[None]:
        """Delete the stream."""
        exchange = yield from self._ask(Request("DELETE", self.target), RetrySafety.REPEATABLE)
        self.content_type = None
        if exchange.was_lost and exchange.response.status in (404, 410):
            return  # the attempt that got no response has deleted the stream
        exchange.expect(204)

    def trim(self, before: str) -> Flow[None]:
        """Drop the messages before an offset. Raises NotSupported if the server is not semel."""
        # A server that does not know `before` would ignore it and delete the whole stream.
        yield from self._require_semel("trim")
        request = Request("DELETE", self.target + query(before=before))
        (yield from self._ask(request, RetrySafety.REPEATABLE)).expect(204)

    def append(
        self, values: Sequence[Any], conditions: AppendHeaders, extras: Extras = NO_EXTRAS
    ) -> Flow[Receipt]:
        """Append messages. Either all of the messages are stored, or none of them.

        Raises NotSupported if the call uses a feature of semel that this server does not have.
        """
        if not values:
            raise ValueError("there is nothing to append; pass at least one message")
        for feature, is_used in (
            ("keys, headers and timestamps", extras),
            ("idempotency_key", conditions.idempotency_key is not None),
            ("if_match", conditions.if_match is not None),
        ):
            if is_used:
                yield from self._require_semel(feature)
        content_type = yield from self.known_type()
        if len(values) > 1 and not is_json(content_type):
            yield from self._require_semel(f"append_many of {content_type}")
        try:
            encoded = _encode_append(values, content_type, extras)
        except (TypeError, ValueError):
            self.is_stale = True
            raise
        try:
            return (yield from self.post(*encoded, conditions))
        except errors.Refused as error:
            if not (isinstance(error, errors.ContentTypeConflict) or _is_bare(error)):
                raise
            info = yield from self.head()
            if normalise(info.content_type) == normalise(content_type):
                raise _without_type(error, conditions) from None
        body = _encode_append(values, info.content_type, extras)
        return (yield from self.post(*body, conditions))

    def close(self, conditions: AppendHeaders = CLOSING) -> Flow[Receipt]:
        """Close the stream and return the receipt. A closed stream stays closed."""
        request = Request("POST", self.target, conditions.headers, b"")
        exchange = yield from self._ask(request, RetrySafety.REPEATABLE)
        return receipt_of(exchange.expect(200, 204), conditions)

    def receipt(self, response: Response, conditions: AppendHeaders) -> Receipt:
        """Return the receipt for a successful append. Raises ProtocolError if it is invalid."""
        return receipt_of(response, conditions)

    def known_type(self, given: str | None = None) -> Flow[str]:
        """Return `given`, or the stream's media type. If that is not known, ask the server."""
        if given is not None:
            return given
        content_type = self.content_type
        if content_type is None or self.is_stale:
            content_type = (yield from self.head()).content_type
        return content_type

    def _require_semel(self, call: str) -> Flow[None]:
        """Raise NotSupported if the server is not semel. Other servers could misread the call."""
        if not self.is_semel:
            yield from self.head()
        if not self.is_semel:
            raise errors.NotSupported(f"this server does not support {call}")

    def post(
        self, body_type: str, body: bytes, conditions: AppendHeaders, fields: Fields = ()
    ) -> Flow[Receipt]:
        """Append an encoded body and return the receipt. `fields` are more headers of the request.

        Raises Indeterminate if an attempt got no response, and no later attempt showed whether the
        body was stored.
        """
        headers = (("Content-Type", body_type), *fields, *conditions.headers)
        is_recognised = conditions.is_tagged and (conditions.is_staged or not self.is_unguarded)
        is_safe = is_recognised or conditions.is_guarded
        kind = RetrySafety.REPEATABLE if is_safe else RetrySafety.ONCE
        request = Request("POST", self.target, headers, body)
        still_safe = None
        if conditions.is_tagged and not conditions.is_staged:
            still_safe = partial(self.is_still_recognised, conditions, self.known())
        exchange = yield from ask(
            request,
            kind,
            retries=self.site.retries,
            still_safe=still_safe,
            stream=self.path,
        )
        if exchange.response.status < 400:
            receipt = self.receipt(exchange.expect(200, 204), conditions)
            if conditions.is_tagged and not conditions.is_staged:
                self.is_unguarded = is_unguarded_append(exchange.response)
            self.end = receipt.next_offset or self.end
            return receipt
        error = exchange.error()
        if exchange.was_lost and conditions.is_guarded and isinstance(error, _CAUSED_BY_REPEAT):
            raise errors.Indeterminate(
                "it is unknown whether the append was stored. An earlier attempt got no response."
                f" The server refused the repeat: {error.message}",
                status=exchange.response.status,
            )
        raise error

    def is_still_recognised(self, conditions: AppendHeaders, known: DedupKnowledge) -> Flow[bool]:
        """Return True if the server would recognise a repeat of an append.

        `known` is what was known before the append was first sent.
        """
        if self.is_foreign:
            return True
        try:
            info = yield from self.head()
        except errors.Refused:
            return True  # there is no such stream, so the repeat is refused too
        except errors.ClientError:
            return False
        if conditions.transaction is not None:
            info = replace(info, dedup_pending=None)  # it goes on with what the stream has now
        return known.doubt(info) is None

    def _ask(self, request: Request, kind: RetrySafety) -> Flow[Exchanged]:
        return ask(request, kind, retries=self.site.retries, stream=self.path)


_CAUSED_BY_REPEAT: Final = (
    errors.PreconditionFailed,
    errors.StreamSeqConflict,
    errors.StreamClosed,
)


def _encode_append(values: Sequence[Any], content_type: str, extras: Extras) -> tuple[str, bytes]:
    """Return the media type and the body of an append.

    Each element of `values` is one message, even if the element is a list.
    """
    messages = [encode(value, content_type) for value in values]
    return encode_body(messages, content_type, extras)


def encode_body(messages: Sequence[bytes], content_type: str, extras: Extras) -> tuple[str, bytes]:
    """Return the media type and the body of an append of these encoded messages."""
    if extras:
        return BATCH, encode_batch(
            content_type,
            messages,
            keys=extras.keys,
            headers=extras.headers,
            timestamps=extras.timestamps,
        )
    if is_json(content_type):
        return content_type, b"[" + b",".join(messages) + b"]"
    if len(messages) == 1:
        return content_type, messages[0]
    return BATCH, encode_batch(content_type, messages)


def receipt_of(response: Response, conditions: AppendHeaders) -> Receipt:
    """Return the receipt for a successful append. Raises ProtocolError if it has no offset."""
    headers = response.headers
    # An append of a producer or a transaction has status 200 if it is new, and 204 if it is a
    # repeat.
    is_repeat = conditions.is_numbered and response.status == 204
    is_duplicate = is_repeat or read_flag(headers, "idempotent-replayed")
    proof = "Transaction-Next-Seq" if conditions.is_staged else "Stream-Next-Offset"
    if proof.lower() not in headers and not is_duplicate:
        # Every Durable Streams server sends this header. Without it, the response comes from
        # something else, such as a proxy.
        raise errors.ProtocolError(f"the response has no {proof} header")
    return Receipt(
        headers.get("stream-next-offset"),
        is_duplicate,
        read_flag(headers, "stream-closed"),
        read_flag(headers, "producer-payload-mismatch"),
    )


def is_unguarded_append(response: Response) -> bool:
    """Return True if a stored append was not checked for duplicates, although it had an id."""
    headers = response.headers
    if headers.get("producer-dedup") == "off":
        return True
    return headers.get("idempotency-window", "").startswith("0;")


def _info(response: Response) -> StreamInfo:
    if "stream-next-offset" not in response.headers:
        raise errors.ProtocolError("the response has no Stream-Next-Offset header")
    return info_of(response.headers)


def info_of(headers: Mapping[str, str]) -> StreamInfo:
    """Return what the headers of a response say about a stream."""
    return StreamInfo(
        headers.get("content-type", DEFAULT_MEDIA_TYPE),
        headers.get("stream-next-offset", ""),
        read_flag(headers, "stream-closed"),
        to_number(headers.get("stream-ttl", "")),
        _read_at(headers),
        headers.get("stream-incarnation"),
        headers.get("stream-dedup", "").lower() != "off",
        headers.get("stream-dedup-from"),
        headers.get("stream-stable-offset"),
        to_number(headers.get("stream-generation", "")),
        headers.get("stream-dedup-source", BUILT_IN if "stream-incarnation" in headers else None),
        _read_policy(headers),
        SWITCHES.get(headers.get("stream-dedup-pending", "").lower()),
    )


def _read_policy(headers: Mapping[str, str]) -> str | None:
    quoted = headers.get("stream-dedup-policy")
    return None if quoted is None else unquote(quoted.strip('"'))


def _read_at(headers: Mapping[str, str]) -> datetime | None:
    try:
        instant_ms = read_instant(headers, "stream-expires-at")
    except MalformedRequest:
        return None
    return None if instant_ms is None else to_datetime(instant_ms)


def _is_bare(error: errors.ClientError) -> bool:
    """Return True if the response was a 409 without an error code. Semel never sends this."""
    return (
        type(error) is errors.Refused and error.status == 409 and error.code == errors.Refused.code
    )


def _without_type(error: errors.Refused, conditions: AppendHeaders) -> errors.Refused:
    """Return the error to raise if an append was refused although its media type is correct.

    If the append has a Stream-Seq and the response was a 409 without an error code, return
    StreamSeqConflict. Otherwise return `error`.
    """
    if _is_bare(error) and conditions.seq is not None:
        return errors.StreamSeqConflict(
            f"the sequence {conditions.seq} is not greater than the stream's last sequence"
            f" ({error.message})",
            status=409,
        )
    return error


def _bodiless(exchange: Exchanged, path: str) -> errors.ClientError:
    """Return the error for a refused HEAD request.

    A response to HEAD has no body. Therefore this function adds the error message.
    """
    error = exchange.error()
    if isinstance(error, errors.StreamNotFound):
        return errors.StreamNotFound(f"there is no stream {path}", status=404)
    if isinstance(error, errors.StreamGone):
        return errors.StreamGone(f"the stream {path} was deleted", status=410)
    if isinstance(error, errors.Refused) and error.status == 409:  # there is no other 409 to HEAD
        return errors.IsTopic(f"{path} is a topic, not a stream", status=409)
    return error
