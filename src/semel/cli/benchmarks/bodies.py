"""Large bodies to append: bytes, and JSON arrays of small messages."""

from typing import Any, Final

import msgspec

from semel.model.limits import BATCH_MESSAGES_MAX, MIB

_MESSAGE_BYTES: Final = 100


def large_bytes() -> bytes:
    """Make 1 MiB."""
    return bytes(range(256)) * (MIB // 256)


def large_json() -> bytes:
    """Make about as much: an array of 100-byte messages, as many as one append may hold."""
    count = min(BATCH_MESSAGES_MAX, MIB // (_MESSAGE_BYTES + 1))
    return b"[" + b",".join(_message(number) for number in range(count)) + b"]"


def small_values(count: int) -> list[Any]:
    """Make values that are 100 bytes as JSON."""
    return [msgspec.json.decode(_message(number)) for number in range(count)]


def _message(number: int) -> bytes:
    text = b'{"number":%d,"name":"a message of a batch","tags":["a","b"],"pad":"' % number
    return text + b"x" * (_MESSAGE_BYTES - len(text) - 2) + b'"}'
