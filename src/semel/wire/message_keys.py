"""The keys of messages in requests: the headers `Message-Key` and `Message-Key-Pointer`.

A key is stored in the extras of its message. In a topic, it selects the partition of the message.
"""

import json
import re
import struct
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from semel.model.commands import Batch
from semel.model.limits import BODY_BYTES_MAX, KIB, MESSAGE_KEY_BYTES_MAX
from semel.model.messages import HAS_KEYS, encode_extras, pack_columns, split_messages
from semel.model.steps import STEP_BYTES, Steps
from semel.wire.append_headers import decode_extended
from semel.wire.headers import Headers, check_text
from semel.wire.problems import MalformedRequest, Problem, bad_header, bad_request

KEY: Final = "message-key"
KEY_EXTENDED: Final = "message-key*"
KEY_POINTER: Final = "message-key-pointer"

_POINTER_BYTES_MAX: Final = KIB
_HEADER_BYTES_MAX: Final = 8 * KIB  # of a whole line, so that a key in a header is shorter
_BAD_ESCAPE: Final = re.compile("~(?![01])")
_INDEX: Final = re.compile(b"0|[1-9][0-9]*")
_INTEGER: Final = re.compile(b"-?(?:0|[1-9][0-9]*)")
_ONE_KEY: Final = struct.Struct("<II")  # the columns of the extras, and the length of the key
_U32: Final = struct.Struct("<I")

_members: Final = msgspec.json.Decoder(dict[str, Raw])
_elements: Final = msgspec.json.Decoder(list[Raw])
_text: Final = msgspec.json.Decoder(str)
# Unlike the decoders above, this one accepts escaped lone surrogates. An integer becomes bytes.
_any: Final = json.JSONDecoder(parse_int=str.encode)

_OTHER_VALUE: Final = "the key must be a string or an integer"
_SURROGATE: Final = "it has an escaped lone surrogate, so its key cannot be read"

Pointer = tuple[str, ...]


def read_message_key(headers: Headers) -> bytes | None:
    """Return the key in `Message-Key` or `Message-Key*`; None if both are absent.

    `Message-Key*` has any text, encoded as RFC 8187 says.
    """
    value, encoded = headers.get(KEY), headers.get(KEY_EXTENDED)
    if value is not None:
        if encoded is not None:
            raise bad_request("invalid_header", "send Message-Key or Message-Key*, not both")
        if not value.isascii():
            raise bad_header(KEY, "must be printable ASCII; send any other key as Message-Key*")
        return check_text(value, KEY, _HEADER_BYTES_MAX).encode()
    return None if encoded is None else decode_extended(encoded, KEY_EXTENDED).encode()


def read_pointer(headers: Headers) -> Pointer | None:
    """Return the names in `Message-Key-Pointer`, a JSON pointer (RFC 6901); None if it is absent.

    The value is a pointer to a member, such as `/customer/id`.
    """
    value = headers.get(KEY_POINTER)
    if value is None:
        return None
    check_text(value, KEY_POINTER, _POINTER_BYTES_MAX)
    if not value.startswith("/") or _BAD_ESCAPE.search(value):
        raise bad_header(KEY_POINTER, "must be a JSON pointer such as /customer/id (RFC 6901)")
    names = value[1:].split("/")
    return tuple(name.replace("~1", "/").replace("~0", "~") for name in names)


def extras_of_key(key: bytes) -> bytes:
    """Return the extras of one message that has a key, and neither a timestamp nor headers."""
    return _ONE_KEY.pack(HAS_KEYS, len(key)) + key


def with_key(batch: Batch, key: bytes) -> Batch:
    """Return the batch with the same key for all its messages. The batch must have no extras."""
    count = batch.count
    if count == 1:
        extras = extras_of_key(key)
    elif len(key) * count > BODY_BYTES_MAX:
        message = f"the keys of all messages can have at most {BODY_BYTES_MAX} bytes"
        facts = {"bytes_max": BODY_BYTES_MAX}
        raise MalformedRequest(Problem(413, "body_too_large", message, facts))
    else:
        extras = pack_columns(key_lengths=_U32.pack(len(key)) * count, keys=key * count)
    return Batch(batch.payload, count, batch.lengths, extras, is_checked=True)


def with_keys(batch: Batch, keys: Sequence[bytes | None]) -> Batch:
    """Return the batch with these keys, one for each message. The batch must have no extras."""
    extras = encode_extras(batch.count, keys=keys)
    return Batch(batch.payload, batch.count, batch.lengths, extras, is_checked=True)


def keyed_steps(batch: Batch, pointer: Pointer) -> Steps[Batch | str]:
    """Return a batch of JSON messages with the keys to which the pointer points, in steps.

    If a message has no such key, return the reason.
    """
    keys: list[bytes | None] = []
    unpaused_bytes = 0
    messages = split_messages(batch.payload, batch.count, batch.lengths, is_joined=True)
    for index, message in enumerate(messages):
        key = find_key(message, pointer)
        if isinstance(key, str):
            return f"message {index} (counted from 0): {key}"
        keys.append(key)
        unpaused_bytes += len(message)
        if unpaused_bytes > STEP_BYTES:
            unpaused_bytes = 0
            yield
    return with_keys(batch, keys)


def find_key(message: bytes, pointer: Pointer) -> bytes | str:
    """Return the key of a JSON message, or the reason why there is none."""
    value: bytes | Raw = message
    try:
        for name in pointer:
            found = _step(value, name)
            if found is None:
                return _missing(name)
            value = found
        text = bytes(value)
        if text.startswith(b'"'):
            text = _text.decode(text).encode()
        elif _INTEGER.fullmatch(text) is None:
            return _OTHER_VALUE
    except msgspec.DecodeError:
        key = _find_leniently(message, pointer)
        if isinstance(key, str):
            return key
        text = key
    if len(text) > MESSAGE_KEY_BYTES_MAX:
        return f"a message key can have at most {MESSAGE_KEY_BYTES_MAX} bytes"
    return b"0" if text == b"-0" else text


def _find_leniently(message: bytes, pointer: Pointer) -> bytes | str:
    """Do the same as `find_key` for a message that has escaped lone surrogates anywhere.

    This decodes the whole message, and is slower. So it is not done for a very large message.
    """
    if len(message) > STEP_BYTES:
        return _SURROGATE
    value: Any = _any.decode(message.decode())
    for name in pointer:
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and _is_index(name, len(value)):
            value = value[int(name)]
        else:
            return _missing(name)
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        return _OTHER_VALUE
    try:
        return value.encode()
    except UnicodeEncodeError:
        return _SURROGATE


def _missing(name: str) -> str:
    return f"Message-Key-Pointer points to nothing: {name!r} is missing"


def _is_index(name: str, count: int) -> bool:
    return len(name) < 9 and _INDEX.fullmatch(name.encode()) is not None and int(name) < count


def _step(value: bytes | Raw, name: str) -> Raw | None:
    """Return a member of an object, or an element of an array; None if there is none."""
    text = bytes(value).lstrip()
    if text.startswith(b"{"):
        return _members.decode(text).get(name)
    if not text.startswith(b"["):
        return None
    elements = _elements.decode(text)
    return elements[int(name)] if _is_index(name, len(elements)) else None
