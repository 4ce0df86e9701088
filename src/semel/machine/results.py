"""Results of one-shot commits, packed: a producer keeps the newest, a sink one per version."""

from typing import Final

import msgspec

from semel.model.limits import RESULTS_BYTES_MAX, RESULTS_KEPT
from semel.model.remembered import Result

_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODE: Final = msgspec.msgpack.Decoder(Result).decode


def pack_result(result: Result) -> bytes:
    """Pack a result."""
    return _ENCODE(result)


def unpack_result(packed: bytes) -> Result:
    """Read it back."""
    return _DECODE(packed)


def push_result(kept: tuple[bytes, ...], packed: bytes) -> tuple[bytes, ...]:
    """Keep the newest; they are few, and small together. The last one always stays."""
    results = [*kept[1 - RESULTS_KEPT :], packed]
    size = sum(map(len, results))
    while size > RESULTS_BYTES_MAX and len(results) > 1:
        size -= len(results.pop(0))
    return tuple(results)
