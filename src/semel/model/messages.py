"""Taking a payload apart again."""

import struct
from collections.abc import Iterator


def split_messages(
    payload: bytes, count: int, lengths: bytes, *, is_joined: bool
) -> Iterator[bytes]:
    """Split the payload of an append into its messages; joined ones have a comma between them."""
    if count == 1:
        yield payload
        return
    at = 0
    for length in struct.unpack(f"<{count}I", lengths):
        yield payload[at : at + length]
        at += length + is_joined
