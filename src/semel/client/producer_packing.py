"""From a value to the bytes of a message, and from messages to the body of an append."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from semel.client.errors import NotSupported, TooLarge
from semel.client.extras import Extra, Headers, Key, columns_of, extra_of
from semel.client.values import READY, encode, encode_json
from semel.model.commands import Batch
from semel.model.limits import BODY_BYTES_MAX
from semel.model.media import is_json
from semel.wire.bodies import encode_batch
from semel.wire.json_mode import JSON_DEPTH_MAX, split_json
from semel.wire.media import BATCH

_FRAME_BYTES: Final = 512  # around one message: brackets, or the head of a batch
_DEEP_BYTES_MIN: Final = 2 * (JSON_DEPTH_MAX + 1)


class Packing:
    """How messages travel to a stream of some media type.

    JSON goes as an array. Other messages keep their bounds in semel's batch format; a server that
    does not know it gets them one after the other, as all Durable Streams servers understand it.
    What messages carry beside their values goes in the batch format, too.
    """

    def __init__(self, content_type: str, *, is_semel: bool) -> None:
        self._content_type = content_type
        self._is_json = is_json(content_type)
        self._is_batching = is_semel and not self._is_json
        self._is_semel = is_semel
        self.to_raw: Callable[[Any], bytes] = self._to_json if self._is_json else self._to_bytes

    def content_type(self, count: int, extras: Mapping[int, Extra]) -> str:
        """Name the media type of a body of so many messages."""
        is_batch = extras or (self._is_batching and count > 1)
        return BATCH if is_batch else self._content_type

    def body(self, messages: Sequence[bytes], extras: Mapping[int, Extra]) -> bytes:
        """Make the body of an append."""
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

    def carried(
        self, raw: bytes, key: Key, headers: Headers, timestamp: datetime | None
    ) -> Extra | None:
        """Take what a message carries; refused if no semel is there to store it."""
        extra = extra_of(key, headers, timestamp)
        if extra is None:
            return None
        if not self._is_semel:
            raise NotSupported("this server does not know keys, headers and timestamps")
        self._check_size(len(raw) + extra.size)
        return extra

    def _to_json(self, value: Any) -> bytes:
        """Encode; what would spoil a whole batch is refused here."""
        raw = encode_json(value)
        if len(raw) >= _DEEP_BYTES_MIN or isinstance(value, READY):
            self._check_json(raw, is_ready=isinstance(value, READY))
        return raw

    def _check_json(self, raw: bytes, *, is_ready: bool) -> None:
        if is_ready or raw.count(b"[") + raw.count(b"{") > JSON_DEPTH_MAX:
            found = split_json(b"[" + raw + b"]")
            if not isinstance(found, Batch) or found.count != 1:
                reason = found if isinstance(found, str) else "not exactly one value"
                raise ValueError(f"the message is no JSON a stream can hold: {reason}")
        self._check_size(len(raw))

    def _to_bytes(self, value: Any) -> bytes:
        raw = encode(value, self._content_type)
        if not raw:
            raise ValueError("an empty message cannot be stored")
        self._check_size(len(raw))
        return raw

    def _check_size(self, size: int) -> None:
        if size > BODY_BYTES_MAX - _FRAME_BYTES and self._is_semel:
            raise TooLarge(f"a message may have {BODY_BYTES_MAX - _FRAME_BYTES} bytes")
