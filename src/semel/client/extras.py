"""The keys, headers and timestamps of messages that callers append."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from semel.model.limits import MESSAGE_KEY_BYTES_MAX
from semel.model.messages import Header, encode_extras, find_extras_fault
from semel.wire.headers import EPOCH, MILLISECOND

Key = bytes | str | int | None
Headers = Mapping[str, bytes | str] | Iterable[tuple[str, bytes | str]] | None


# The maximum number of bytes that one message's empty elements add to the columns of an append.
_COLUMNS_BYTES: Final = 32
_KEY_BYTES: Final = 8 + _COLUMNS_BYTES  # what a key adds to an append in addition to its own bytes


class Extras(Struct, frozen=True):
    """The keys, headers and timestamps of an append's messages, as three columns.

    Each column has one element per message. A column can be None if all its elements are empty.
    """

    keys: Sequence[bytes | None] | None = None
    headers: Sequence[Sequence[Header]] | None = None
    timestamps: Sequence[int | None] | None = None

    def __bool__(self) -> bool:
        return any(column is not None for column in (self.keys, self.headers, self.timestamps))


class Extra(Struct, frozen=True):
    """The key, headers and time of one message. They add at most `size` bytes to an append."""

    key: bytes | None
    headers: Sequence[Header]
    time_ms: int | None
    size: int


def extra_of(key: Key, headers: Headers, timestamp: datetime | None) -> Extra | None:
    """Return the extras of one message, or None if the message has no extras.

    Raises ValueError or TypeError for an invalid value.
    """
    if headers is None and timestamp is None:  # a short form for a message that has only a key
        return None if key is None else _key_only(key)
    name = None if key is None else key_bytes(key)
    pairs, time_ms = _pairs(headers), _milliseconds(timestamp)
    packed = encode_extras(1, keys=[name], headers=[pairs], timestamps=[time_ms])
    fault = find_extras_fault(packed, 1) if packed else None
    if fault is not None:
        raise ValueError(fault)
    return Extra(name, pairs, time_ms, len(packed) + _COLUMNS_BYTES) if packed else None


def _key_only(key: bytes | str | int) -> Extra:
    name = key if type(key) is bytes else key_bytes(key)
    if len(name) > MESSAGE_KEY_BYTES_MAX:
        raise ValueError(f"a message key can have at most {MESSAGE_KEY_BYTES_MAX} bytes")
    return Extra(name, (), None, len(name) + _KEY_BYTES)


def columns_of(count: int, extras: Mapping[int, Extra]) -> Extras:
    """Return the extras of `count` messages as columns.

    `extras` maps a message's index to its extras. A message without extras has no entry.
    """
    rows = [extras.get(index) for index in range(count)]
    return Extras(
        [None if extra is None else extra.key for extra in rows],
        [() if extra is None else extra.headers for extra in rows],
        [None if extra is None else extra.time_ms for extra in rows],
    )


def extras_of(
    keys: Iterable[Key] | None,
    headers: Iterable[Headers] | None,
    timestamps: Iterable[datetime | None] | None,
) -> Extras:
    """Return the extras of an append. Raises ValueError or TypeError for an invalid value."""
    return Extras(
        None if keys is None else [None if key is None else key_bytes(key) for key in keys],
        None if headers is None else [_pairs(each) for each in headers],
        None if timestamps is None else [_milliseconds(moment) for moment in timestamps],
    )


def milliseconds(moment: datetime) -> int:
    """Return a time as milliseconds since 1970.

    Raises TypeError if `moment` is not a datetime, and ValueError if it has no time zone.
    """
    if not isinstance(moment, datetime):
        raise TypeError(
            f"a time must be a datetime with a time zone, not {type(moment).__name__}; convert"
            " seconds with datetime.fromtimestamp(seconds, datetime.timezone.utc)"
        )
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone; pass one, such as datetime.timezone.utc")
    return (moment - EPOCH) // MILLISECOND


def _milliseconds(moment: datetime | None) -> int | None:
    return None if moment is None else milliseconds(moment)


def _pairs(headers: Headers) -> list[Header]:
    if headers is None:
        return []
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return [(name, _bytes(value)) for name, value in pairs]


def key_bytes(key: object) -> bytes:
    """Return the bytes of a key: a str as UTF-8, an int as decimal digits.

    Raises TypeError for any other type, because equal keys must have equal bytes in every program.
    """
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, bytes):
        return key
    if isinstance(key, int) and not isinstance(key, bool):
        return b"%d" % key
    raise TypeError(f"a key must be str, bytes or int, not {type(key).__name__}")


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise TypeError(f"the value of a header must be bytes or str, not {type(value).__name__}")
