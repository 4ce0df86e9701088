"""Messages of an error stream, and how the calls that failed are made again.

A message of an error stream is a dead letter of the group `<graph>/<processor>`: the envelope that
`semel.client.dead_letters` describes, with more members about the processor. A replay copies it to
the group's retry stream, which the processor reads besides its inputs. `call_again` makes the call
from it. This module does no I/O.
"""

import traceback
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from semel.client.dead_letter_calls import PROCESSOR_ERROR_TYPE
from semel.client.dead_letters import (
    Envelope,
    escaped_surrogates,
    header_texts,
    letter_of,
    text_or_base64,
)
from semel.client.values import Header, Message, decode
from semel.model.limits import BODY_BYTES_MAX, KIB
from semel.model.messages import JSON_MEDIA_TYPE
from semel.model.offsets import parse_offset, print_offset
from semel.model.rights import retries_of
from semel.pipeline import failures
from semel.wire.json_depth import is_too_deep

if TYPE_CHECKING:
    from semel.pipeline.evaluate import Evaluation

ERROR_TYPE: Final = PROCESSOR_ERROR_TYPE
RETRIES: Final = "__semel/retry"  # in place of a binding, for the messages of the retry stream
_MESSAGE_CHARS_MAX: Final = 2_000
_TRACE_CHARS_MAX: Final = 8_000
_CONTEXT_BYTES_MAX: Final = 64 * KIB
# This is below the limit for the body of an append, because a body also contains framing.
MESSAGE_BYTES_MAX: Final = BODY_BYTES_MAX - 64 * KIB


class InputMessage(NamedTuple):
    """A message from an input. `offset` is its ordinal in the stream, and `raw` is encoded JSON.

    For a message that is processed again, `stream` and `offset` are those of its input, not of the
    retry stream, and `attempts` is how often it has failed.
    """

    binding: str
    stream: str
    offset: int
    raw: bytes
    incarnation: str | None = None
    key: bytes | None = None
    headers: Sequence[Header] = ()
    time_ms: int | None = None
    attempts: int = 0


# The messages for one call of a function: for a join, one from every input; otherwise, one message.
Call = Sequence[InputMessage]


def retry_stream(graph: str, processor: str) -> str:
    """Return the path of the stream from which a processor reads its dead letters again."""
    return retries_of(f"{graph}/{processor}")


# ---- writing -------------------------------------------------------------------------------------


def error_message(
    evaluation: "Evaluation",
    call: Call,
    error: BaseException,
    original: InputMessage | UnsetType | None = UNSET,
) -> bytes:
    """Return the message to write to the error stream for one failed call.

    An input value that cannot be decoded is omitted from `inputs`. If the message is too large or
    too deeply nested, all input values are omitted there. If that is not enough, the message has
    no value, and then it cannot be replayed. The server would refuse a message that is too large,
    and the refusal would stop the processor.

    `original` is the message to process again, if it is not the message in `call`. None means that
    it does not exist any more.
    """
    kind = type(error)
    message: dict[str, Any] = {
        "type": ERROR_TYPE,
        "graph": evaluation.graph,
        "processor": evaluation.processor,
        "strategy": evaluation.strategy,
        "config": evaluation.config,
        **_envelope(evaluation, (original,) if isinstance(original, InputMessage) else call),
        "inputs": [_input(each, has_value=_is_readable(each)) for each in call],
        "context": _bounded(failures.take_context(error)),
        "cause": {
            "class": f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."),
            "message": escaped_surrogates(failures.text_of(error))[:_MESSAGE_CHARS_MAX],
        },
        "trace": escaped_surrogates("".join(traceback.format_exception(error)))[-_TRACE_CHARS_MAX:],
        "hash": evaluation.hash,
    }
    value = _left_out(call)
    if original is not None:
        value = _value_of(call if original is UNSET else (original,))
    shorter = {"inputs": [_input(each, has_value=False) for each in call]}
    for added in (value, {**shorter, **value}, {**shorter, **_left_out(call)}):
        encoded = msgspec.json.encode({**message, **added})
        if len(encoded) <= MESSAGE_BYTES_MAX and not is_too_deep(encoded):
            return encoded
    return encoded


def _envelope(evaluation: "Evaluation", call: Call) -> dict[str, Any]:
    """Return what an error message has in common with all dead letters, except for the value.

    For a join, the origin is that of its first input.
    """
    first = call[0]
    is_one = len(call) == 1
    return {
        "group": f"{evaluation.graph}/{evaluation.processor}",
        "stream": first.stream,
        "offset": print_offset(first.offset),
        "incarnation": first.incarnation,
        "key": text_or_base64(first.key) if is_one and first.key is not None else None,
        "headers": header_texts(first.headers) if is_one else {},
        "timestamp_ms": first.time_ms if is_one else None,
        "content_type": JSON_MEDIA_TYPE,
        "attempts": max(each.attempts for each in call) + 1,
    }


def _value_of(call: Call) -> dict[str, Any]:
    """Return the value of a dead letter. For a join, it is an object with a value of each input."""
    if all(map(_is_readable, call)):
        if len(call) == 1:
            return {"value": Raw(call[0].raw)}
        return {"value": {each.binding: Raw(each.raw) for each in call}}
    if len(call) == 1:
        return {"base64": call[0].raw}
    return _left_out(call)


def _left_out(call: Call) -> dict[str, Any]:
    return {"left_out_bytes": sum(len(each.raw) for each in call)}


def _bounded(context: dict[str, Any]) -> dict[str, Any]:
    encoded = msgspec.json.encode({"context": context})
    size = len(encoded) - len(b'{"context":}')
    if size > _CONTEXT_BYTES_MAX or is_too_deep(encoded):
        return {"left_away_bytes": size}
    return context


def _input(message: InputMessage, *, has_value: bool) -> dict[str, Any]:
    origin = {"stream": message.stream, "offset": print_offset(message.offset)}
    if has_value:
        return {**origin, "value": Raw(message.raw)}
    return {**origin, "value": None, "left_away_bytes": len(message.raw)}


def _is_readable(message: InputMessage) -> bool:
    try:
        decode(message.raw, JSON_MEDIA_TYPE)
    except ValueError:
        return False
    return True


# ---- reading again -------------------------------------------------------------------------------


class _Origin(Struct, frozen=True):
    stream: str
    offset: str


class _Failed(Struct, frozen=True):
    """The part of an error message that dead letters of other groups do not have."""

    inputs: list[_Origin] = []


_failed: Final = msgspec.json.Decoder(_Failed)
_values: Final = msgspec.json.Decoder(dict[str, Raw])


def call_again(inputs: Mapping[str, str], message: InputMessage) -> Call:
    """Return the call for a message of the retry stream.

    `inputs` maps the bindings of the processor to streams. A message that is not a dead letter is
    returned as a message of the processor's first input. If the inputs have changed since the call
    failed, the call does not suit the function, and fails again.
    """
    try:
        call = _call_in(inputs, message)
    except (ValueError, msgspec.DecodeError):
        call = None
    return call or (message._replace(binding=next(iter(inputs))),)


def _call_in(inputs: Mapping[str, str], message: InputMessage) -> Call | None:
    """Return the call of a dead letter, or None if the message is not a dead letter."""
    letter = letter_of(Message(message.raw, JSON_MEDIA_TYPE, message.offset))
    if letter.origin.stream is None:
        return None
    original, envelope = letter.message, msgspec.json.decode(message.raw, type=Envelope)
    single = InputMessage(
        _binding_of(inputs, letter.origin.stream),
        letter.origin.stream,
        parse_offset(letter.origin.offset or "") or 0,
        original.raw,
        incarnation=envelope.incarnation,
        key=original.key,
        headers=original.headers,
        time_ms=envelope.timestamp_ms,
        attempts=letter.attempts,
    )
    origins = _failed.decode(message.raw).inputs
    if len(origins) < 2 or envelope.value is UNSET:
        return (single,)
    # The value of a join is an object, and the origins are in its order.
    values = _values.decode(original.raw).items()
    return [
        InputMessage(
            binding,
            origin.stream,
            parse_offset(origin.offset) or 0,
            bytes(raw),
            attempts=letter.attempts,
        )
        for origin, (binding, raw) in zip(origins, values, strict=True)
    ]


def _binding_of(inputs: Mapping[str, str], stream: str) -> str:
    """Return the binding of a stream. With a single input, it may have had another stream."""
    if len(inputs) == 1:
        return next(iter(inputs))
    return next((binding for binding, path in inputs.items() if path == stream), stream)
