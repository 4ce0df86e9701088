"""What messages carry beside their values: keys, headers and times of their own."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from msgspec import Struct

from semel.model.extras import Header, encode_extras, fault_in_extras

Key = bytes | str | None
Headers = Mapping[str, bytes | str] | Iterable[tuple[str, bytes | str]] | None

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_COLUMNS_BYTES: Final = 32  # a message of which others have what it has not: a place in each column


class Extras(Struct, frozen=True):
    """One element for each message of an append, or None for none at all."""

    keys: Sequence[bytes | None] | None = None
    headers: Sequence[Sequence[Header]] | None = None
    timestamps: Sequence[int | None] | None = None

    def __bool__(self) -> bool:
        return any(column is not None for column in (self.keys, self.headers, self.timestamps))


class Extra(Struct, frozen=True):
    """What one message carries; `size` is what it adds to the body of an append, at most."""

    key: bytes | None
    headers: Sequence[Header]
    time_ms: int | None
    size: int


def extra_of(key: Key, headers: Headers, timestamp: datetime | None) -> Extra | None:
    """Read what one message is given; ValueError or TypeError if it cannot be stored."""
    if key is None and headers is None and timestamp is None:
        return None
    name = None if key is None else _bytes(key)
    pairs, time_ms = _pairs(headers), _milliseconds(timestamp)
    packed = encode_extras(1, keys=[name], headers=[pairs], timestamps=[time_ms])
    fault = fault_in_extras(packed, 1) if packed else None
    if fault is not None:
        raise ValueError(fault)
    return Extra(name, pairs, time_ms, len(packed) + _COLUMNS_BYTES) if packed else None


def columns_of(count: int, extras: Mapping[int, Extra]) -> Extras:
    """Spread what some of `count` messages carry over columns with an element for each."""
    found = [extras.get(index) for index in range(count)]
    return Extras(
        [None if extra is None else extra.key for extra in found],
        [() if extra is None else extra.headers for extra in found],
        [None if extra is None else extra.time_ms for extra in found],
    )


def extras_of(
    keys: Iterable[Key] | None,
    headers: Iterable[Headers] | None,
    timestamps: Iterable[datetime | None] | None,
) -> Extras:
    """Read what an append is given; ValueError or TypeError if it cannot be sent."""
    return Extras(
        None if keys is None else [None if key is None else _bytes(key) for key in keys],
        None if headers is None else [_pairs(each) for each in headers],
        None if timestamps is None else [_milliseconds(moment) for moment in timestamps],
    )


def milliseconds(moment: datetime) -> int:
    """Count from 1970; ValueError without a time zone."""
    if moment.tzinfo is None:
        raise ValueError("a time needs a time zone, such as datetime.timezone.utc")
    return (moment - _EPOCH) // _MILLISECOND


def _milliseconds(moment: datetime | None) -> int | None:
    return None if moment is None else milliseconds(moment)


def _pairs(headers: Headers) -> list[Header]:
    if headers is None:
        return []
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return [(name, _bytes(value)) for name, value in pairs]


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise TypeError(f"keys and headers are bytes or str, not {type(value).__name__}")
