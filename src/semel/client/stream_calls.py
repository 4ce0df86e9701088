"""What each call of a stream sends, and what its answer means. Pure: flows, no sockets."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from semel.client import errors
from semel.client.errors import ClientError, Indeterminate, ProtocolError, Refused
from semel.client.flows import Exchanged, Flow, RetrySafety, ask
from semel.client.requests import CLOSING, Address, AppendHeaders, CreateHeaders, Request, query
from semel.client.response_parser import Response
from semel.client.values import Extras, Receipt, StreamInfo, encode
from semel.model.media import DEFAULT_MEDIA_TYPE, is_json, normalise
from semel.wire.bodies import encode_batch
from semel.wire.headers import BATCH, read_flag, read_instant, to_number
from semel.wire.problems import MalformedRequest

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
NO_EXTRAS: Final = Extras()


class ServerConfig(Struct, frozen=True):
    """A server, and how calls to it are made."""

    address: Address
    retries: int | None = None
    is_gzip: bool = False


class CreateResult(Struct, frozen=True):
    """A stream that is there now. `is_new`: it was not before."""

    info: StreamInfo
    is_new: bool


class StreamCalls:
    """The calls of one stream; it remembers the stream's media type once it has seen it."""

    def __init__(self, site: ServerConfig, path: str) -> None:
        self.site = site
        self.path = path
        self.target = site.address.stream_target(path)
        self.content_type: str | None = None
        self.is_semel = False  # as far as is known
        self.is_foreign = False  # the same

    def retrying_forever(self) -> "StreamCalls":
        """Give the same calls, made again for as long as the time allows."""
        calls = StreamCalls(replace(self.site, retries=None), self.path)
        calls.content_type, calls.is_semel = self.content_type, self.is_semel
        return calls

    # ---- the stream as a whole -------------------------------------------------------------------

    def create(
        self, configuration: CreateHeaders, value: Any = None, *, exist_ok: bool = False
    ) -> Flow[CreateResult]:
        """Make the stream; raises StreamExists or ConfigConflict."""
        body = None
        if value is not None:
            body = _single_batch(value, configuration.content_type or DEFAULT_MEDIA_TYPE)
        request = Request("PUT", self.target, configuration.headers, body)
        asked = yield from self._ask(request, RetrySafety.REPEATABLE)
        answer = asked.answer
        if answer.status == 409:
            raise _conflict(asked)
        asked.expect(200, 201)
        # After a lost answer, 200 says that the first try made it.
        is_new = answer.status == 201 or asked.was_lost
        if not is_new and not exist_ok:
            raise errors.StreamExists(f"{self.path} is there already", status=200)
        info = _info(answer)
        self.content_type = info.content_type
        return CreateResult(info, is_new)

    def head(self) -> Flow[StreamInfo]:
        """Look at the stream."""
        asked = yield from self._ask(Request("HEAD", self.target), RetrySafety.READ)
        if asked.answer.status >= 400:
            raise _bodiless(asked, self.path)
        info = _info(asked.expect(200))
        self.content_type = info.content_type
        self.is_semel = info.incarnation is not None
        self.is_foreign = not self.is_semel
        return info

    def exists(self) -> Flow[bool]:
        """Tell whether the stream is there."""
        try:
            yield from self.head()
        except (errors.StreamNotFound, errors.StreamGone):
            return False
        return True

    def delete(self) -> Flow[None]:
        """Delete the stream."""
        asked = yield from self._ask(Request("DELETE", self.target), RetrySafety.REPEATABLE)
        self.content_type = None
        if asked.was_lost and asked.answer.status in (404, 410):
            return  # the try whose answer was lost did it
        asked.expect(204)

    def trim(self, before: str) -> Flow[None]:
        """Give up what lies before an offset."""
        # Another server would not look at `before`, and delete the stream.
        yield from self._require_semel("trim")
        target = self.target + query(before=before)
        asked = yield from self._ask(Request("DELETE", target), RetrySafety.REPEATABLE)
        asked.expect(204)

    # ---- appending -------------------------------------------------------------------------------

    def append(
        self, values: Sequence[Any], conditions: AppendHeaders, extras: Extras = NO_EXTRAS
    ) -> Flow[Receipt]:
        """Append messages, all or none."""
        if not values:
            raise ValueError("there is nothing to append")
        if extras:
            yield from self._require_semel("keys, headers and timestamps")
        if conditions.idempotency_key is not None:
            yield from self._require_semel("idempotency_key")
        if conditions.if_match is not None:
            yield from self._require_semel("if_match")
        content_type = yield from self.known_type()
        if len(values) > 1 and not is_json(content_type):
            yield from self._require_semel(f"append_many of {content_type}")
        try:
            return (yield from self._append(values, content_type, conditions, extras))
        except Refused as error:
            if not _is_about_type(error):
                raise
            fresh = yield from self._changed_type(content_type)
            if fresh is None:
                raise _without_type(error, conditions) from None
        return (yield from self._append(values, fresh, conditions, extras))

    def close(self, conditions: AppendHeaders = CLOSING) -> Flow[Receipt]:
        """Close the stream; again if it is closed already."""
        request = Request("POST", self.target, conditions.headers, b"")
        asked = yield from self._ask(request, RetrySafety.REPEATABLE)
        return _receipt(asked.expect(200, 204), conditions)

    def known_type(self) -> Flow[str]:
        """Give the stream's media type; asks for it the first time."""
        if self.content_type is None:
            yield from self.head()
        assert self.content_type is not None
        return self.content_type

    def _require_semel(self, call: str) -> Flow[None]:
        """Refuse a call that another server would take for something else."""
        if not self.is_semel:
            yield from self.head()
        if not self.is_semel:
            raise errors.NotSupported(f"this server does not know {call}")

    def _changed_type(self, content_type: str) -> Flow[str | None]:
        """Ask for the media type again; None if it is what we thought."""
        info = yield from self.head()
        is_same = normalise(info.content_type) == normalise(content_type)
        return None if is_same else info.content_type

    def _append(
        self, values: Sequence[Any], content_type: str, conditions: AppendHeaders, extras: Extras
    ) -> Flow[Receipt]:
        return (yield from self.post(*_pack(values, content_type, extras), conditions))

    def post(self, body_type: str, body: bytes, conditions: AppendHeaders) -> Flow[Receipt]:
        """Append a body that is ready."""
        headers = (("Content-Type", body_type), *conditions.headers)
        is_safe = conditions.is_tagged or conditions.is_guarded
        kind = RetrySafety.REPEATABLE if is_safe else RetrySafety.ONCE
        asked = yield from self._ask(Request("POST", self.target, headers, body), kind)
        if asked.answer.status < 400:
            return _receipt(asked.expect(200, 204), conditions)
        error = asked.error()
        if asked.was_lost and conditions.is_guarded and isinstance(error, _SELF_INFLICTED):
            raise Indeterminate(
                "an earlier try got no answer, and this refusal may be its own doing:"
                f" {error.message}",
                status=asked.answer.status,
            )
        raise error

    def _ask(self, request: Request, kind: RetrySafety) -> Flow[Exchanged]:
        return ask(request, kind, retries=self.site.retries)


_SELF_INFLICTED: Final = (errors.PreconditionFailed, errors.StreamSeqConflict, errors.StreamClosed)


# ---- bodies --------------------------------------------------------------------------------------


def _single_batch(value: Any, content_type: str) -> bytes:
    """Make the body of one message; a JSON list stays one message."""
    raw = encode(value, content_type)
    return b"[" + raw + b"]" if is_json(content_type) else raw


def _pack(values: Sequence[Any], content_type: str, extras: Extras) -> tuple[str, bytes]:
    """Make the body of an append, and its media type."""
    messages = [encode(value, content_type) for value in values]
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


# ---- answers -------------------------------------------------------------------------------------


def _receipt(answer: Response, conditions: AppendHeaders) -> Receipt:
    headers = answer.headers
    next_offset = headers.get("stream-next-offset")
    # A new batch of a producer or a transaction is 200, its repeat 204.
    is_repeat = conditions.is_numbered and answer.status == 204
    is_duplicate = is_repeat or read_flag(headers, "idempotent-replayed")
    proof = "Transaction-Next-Seq" if conditions.is_staged else "Stream-Next-Offset"
    if proof.lower() not in headers and not is_duplicate:
        # Something on the way said yes: no server of streams forgets to say where they end.
        raise ProtocolError(f"the answer has no {proof}")
    return Receipt(
        next_offset,
        is_duplicate,
        read_flag(headers, "stream-closed"),
        read_flag(headers, "producer-payload-mismatch"),
    )


def _info(answer: Response) -> StreamInfo:
    headers = answer.headers
    next_offset = headers.get("stream-next-offset")
    if next_offset is None:
        raise ProtocolError("the answer has no Stream-Next-Offset")
    return StreamInfo(
        headers.get("content-type", DEFAULT_MEDIA_TYPE),
        next_offset,
        read_flag(headers, "stream-closed"),
        to_number(headers.get("stream-ttl", "")),
        _read_at(headers),
        headers.get("stream-incarnation"),
        headers.get("stream-dedup") != "off",
        headers.get("stream-dedup-from"),
        headers.get("stream-stable-offset"),
    )


def _read_at(headers: Mapping[str, str]) -> datetime | None:
    try:
        instant_ms = read_instant(headers, "stream-expires-at")
    except MalformedRequest:
        return None
    return None if instant_ms is None else _EPOCH + timedelta(milliseconds=instant_ms)


def _is_bare(error: ClientError) -> bool:
    """Tell whether a 409 is that of another server, which says no more than that."""
    return type(error) is Refused and error.status == 409 and error.code == Refused.code


def _conflict(asked: Exchanged) -> ClientError:
    """Read the 409 of a creation."""
    error = asked.error()
    return errors.ConfigConflict(error.message, status=409) if _is_bare(error) else error


def _is_about_type(error: Refused) -> bool:
    return isinstance(error, errors.ContentTypeConflict) or _is_bare(error)


def _without_type(error: Refused, conditions: AppendHeaders) -> Refused:
    """Name the refusal of an append whose media type is right."""
    if _is_bare(error) and conditions.seq is not None:
        return errors.StreamSeqConflict(error.message, status=409)
    return error


def _bodiless(asked: Exchanged, path: str) -> ClientError:
    """Read the refusal of a HEAD, which has no words."""
    error = asked.error()
    if isinstance(error, errors.StreamNotFound):
        return errors.StreamNotFound(f"there is no stream {path}", status=404)
    if isinstance(error, errors.StreamGone):
        return errors.StreamGone(f"the stream {path} is deleted", status=410)
    return error
