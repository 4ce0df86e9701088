"""Encoding values as messages, and messages as request bodies, for a stream or a topic."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from zlib import crc32

from msgspec.structs import replace

from semel.client.errors import NotSupported, PartitionsChanged, TooLarge
from semel.client.extras import Extra, Headers, Key, columns_of, extra_of
from semel.client.grouping import Grouped, Grouper
from semel.client.producer.batches import ProducerBatch
from semel.client.requests import Fields
from semel.client.response_parser import Response
from semel.client.server_calls import decoded
from semel.client.stream_calls import NO_EXTRAS
from semel.client.topic_calls import AppendAnswer, stream_info
from semel.client.topic_values import TopicInfo
from semel.client.values import PREENCODED, encode, encode_json
from semel.model.commands import Batch as Payloads
from semel.model.limits import BODY_BYTES_MAX
from semel.model.messages import is_json
from semel.wire.bodies import encode_batch
from semel.wire.headers import BATCH, TOPIC_BATCH
from semel.wire.json_depth import JSON_DEPTH_MAX
from semel.wire.json_mode import split_json
from semel.wire.policies import print_switch

_OK: Final = 200
_DUPLICATE: Final = 204
_FRAME_BYTES: Final = 512  # for the brackets or the batch header that enclose a message
_DEEP_BYTES_MIN: Final = 2 * (JSON_DEPTH_MAX + 1)


def _ignore() -> None: ...


class BodyEncoder:
    """Encodes values as messages, and messages as request bodies, for one media type.

    `on_refusal` is called before an error is raised for a value that this media type does not have.

    - If a message has extras (a key, headers or a timestamp), the body has semel's batch format.
    - Otherwise, JSON messages are encoded as a JSON array.
    - A single message of another media type is sent as it is. Two or more are sent to semel in the
      batch format, and are concatenated for other servers.
    """

    def __init__(
        self, content_type: str, *, is_semel: bool, on_refusal: Callable[[], None] = _ignore
    ) -> None:
        self._content_type = content_type
        self._is_json = is_json(content_type)
        self._is_batching = is_semel and not self._is_json
        self._is_semel = is_semel
        self._on_refusal = on_refusal
        self.to_raw: Callable[[Any], bytes] = self._to_json if self._is_json else self._to_bytes

    check_method = "HEAD"  # of the request that shows whether the stream has dedup

    def fields(self, batch: ProducerBatch) -> Fields:
        """Return the headers that describe the body of a batch."""
        return (("Content-Type", self.content_type(batch.count, batch.extras)),)

    def content_type(self, count: int, extras: Mapping[int, Extra]) -> str:
        """Return the media type of a body that has `count` messages and these extras."""
        is_batch = extras or (self._is_batching and count > 1)
        return BATCH if is_batch else self._content_type

    def adapt(self, batch: ProducerBatch | None, response: Response) -> Response:
        """Return a response as a stream would send it. `batch` is None for that to a check."""
        del batch
        return response

    def regroup(self, error: PartitionsChanged, body: bytes) -> bool:
        """Return True if a body that was refused can be encoded again. A stream has no such."""
        del error, body
        return False

    def body(
        self, messages: Sequence[bytes], extras: Mapping[int, Extra], first_seq: int = 0
    ) -> bytes:
        """Return the request body for an append of these messages."""
        del first_seq  # of the batch; only a topic needs it
        if extras:
            columns = columns_of(len(messages), extras)
            return encode_batch(
                self._content_type,
                messages,
                keys=columns.keys,
                headers=columns.headers,
                timestamps=columns.timestamps,
            )
        if self._is_json:
            return b"[" + b",".join(messages) + b"]"
        if self._is_batching and len(messages) > 1:
            return encode_batch(self._content_type, messages)
        return b"".join(messages)

    def checked_extra(
        self, raw: bytes, key: Key, headers: Headers, timestamp: datetime | None
    ) -> Extra | None:
        """Return the extras of a message, or None if the message has no extras.

        Raises NotSupported if there are extras and the server is not semel. Raises TooLarge if the
        message and its extras together are too large.
        """
        extra = extra_of(key, headers, timestamp)
        if extra is None:
            return None
        if not self._is_semel:
            raise NotSupported("this server does not support message keys, headers and timestamps")
        self._check_size(len(raw) + extra.size)
        return extra

    def _to_json(self, value: Any) -> bytes:
        """Encode a value as JSON.

        Raises ValueError if the value is invalid, because the server would refuse its whole batch.
        """
        try:
            raw = encode_json(value)
            if len(raw) >= _DEEP_BYTES_MIN or isinstance(value, PREENCODED):
                self._check_json(raw, is_ready=isinstance(value, PREENCODED))
        except (TypeError, ValueError):
            self._on_refusal()
            raise
        return raw

    def _check_json(self, raw: bytes, *, is_ready: bool) -> None:
        if is_ready or raw.count(b"[") + raw.count(b"{") > JSON_DEPTH_MAX:
            payloads = split_json(b"[" + raw + b"]")
            if not isinstance(payloads, Payloads) or payloads.count != 1:
                reason = payloads if isinstance(payloads, str) else "expected exactly one value"
                raise ValueError(f"the stream cannot store this message as JSON: {reason}")
        self._check_size(len(raw))

    def _to_bytes(self, value: Any) -> bytes:
        try:
            raw = encode(value, self._content_type)
        except (TypeError, ValueError):
            self._on_refusal()
            raise
        if not raw:
            raise ValueError("an empty message cannot be stored; pass at least one byte")
        self._check_size(len(raw))
        return raw

    def _check_size(self, size: int) -> None:
        if size > BODY_BYTES_MAX - _FRAME_BYTES and self._is_semel:
            raise TooLarge(
                f"the message has {size} bytes; the maximum is {BODY_BYTES_MAX - _FRAME_BYTES}"
            )


# ---- topics --------------------------------------------------------------------------------------


class GroupedBody(bytes):
    """A body whose messages are grouped by partition. `grouped` says for which topic."""

    grouped: Grouped


class TopicEncoder(BodyEncoder):
    """Groups the messages of each batch by partition. See `Grouper`.

    A response of a topic has its facts in a JSON document. `adapt` translates it to the status and
    the headers that a stream sends, which are what the producer understands.
    """

    check_method = "GET"  # the state of a topic is a document

    def __init__(
        self,
        content_type: str,
        grouper: Grouper,
        *,
        on_refusal: Callable[[], None],
        producer_id: str = "",
        is_sparse: bool = False,
    ) -> None:
        super().__init__(content_type, is_semel=True, on_refusal=on_refusal)
        self._grouper = grouper
        self._first_turn = crc32(producer_id.encode(errors="replace"))
        self._is_sparse = is_sparse

    def body(
        self, messages: Sequence[bytes], extras: Mapping[int, Extra], first_seq: int = 0
    ) -> bytes:
        """Return the request body for an append of these messages.

        Producer and sequence select the partition of messages without a key. So an instance that
        sends a batch again, under the same epoch and sequence, sends the same body.
        """
        columns = columns_of(len(messages), extras) if extras else NO_EXTRAS
        if not any(columns.headers or ()):
            columns = replace(columns, headers=None)  # the common case
        turn = self._turn(first_seq)
        grouped = self._grouper.group(self._content_type, messages, columns, turn=turn)
        body = GroupedBody(grouped.body)
        body.grouped = grouped
        return body

    def _turn(self, first_seq: int) -> int:
        """Return a number that selects a partition: for dense batches, one after the other."""
        if self._is_sparse:  # sequences can have a stride that has a factor of the number
            return crc32(b"%d" % first_seq, self._first_turn)
        return self._first_turn + first_seq

    def fields(self, batch: ProducerBatch) -> Fields:
        """Return the headers that describe the body of a batch."""
        assert isinstance(batch.body, GroupedBody)
        return (("Content-Type", TOPIC_BATCH), *batch.body.grouped.fields)

    def adapt(self, batch: ProducerBatch | None, response: Response) -> Response:
        """Return a response as a stream would send it. Raises ProtocolError if it is invalid."""
        if response.status != _OK:
            return response
        if batch is None:
            info = stream_info(decoded(response, TopicInfo))
            facts = {
                "stream-dedup": print_switch(info.dedup),
                "stream-dedup-from": info.dedup_from,
                "stream-dedup-pending": None
                if info.dedup_pending is None
                else print_switch(info.dedup_pending),
                "stream-incarnation": info.incarnation,
                "stream-next-offset": info.next_offset,
                "stream-stable-offset": info.stable_offset,
            }
            shown = {name: value for name, value in facts.items() if value is not None}
            return replace(response, headers=shown)
        answer = decoded(response, AppendAnswer)
        batch.parts = answer.parts or ()
        return replace(response, status=_DUPLICATE) if answer.duplicate else response

    def regroup(self, error: PartitionsChanged, body: bytes) -> bool:
        """Learn from a refusal how the topic groups. Return False if it cannot be right."""
        assert isinstance(body, GroupedBody)
        if self._grouper.groups_as(body.grouped):
            try:
                self._grouper.note_refusal(error, body.grouped)
            except (PartitionsChanged, NotSupported):
                return False
        return True
