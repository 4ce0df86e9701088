"""Failed calls of a processor's function: what is known about the error, and the error message.

`wrap_error` lets a function add data of its own to the exceptions that leave a block. This module
does no I/O.
"""

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw

from semel.client.values import decode
from semel.model.limits import BODY_BYTES_MAX, KIB
from semel.model.messages import JSON_MEDIA_TYPE
from semel.model.offsets import print_offset
from semel.wire.json_depth import is_too_deep

if TYPE_CHECKING:
    from semel.pipeline.evaluate import Call, Evaluation, InputMessage

# ---- context -------------------------------------------------------------------------------------


_CONTEXT: Final = "__semel_context__"  # the attribute of an exception that keeps its context


@contextmanager
def wrap_error(**context: Any) -> Iterator[None]:
    """Add `context` to every exception that leaves the block. The exception is raised unchanged.

    The context is a member of the message in the error stream. If the processor has no error
    stream, the reason why it stopped contains the context. In nested blocks, the values of the
    inner block win. A value that JSON cannot represent is replaced with its `repr`.
    """
    try:
        yield
    except Exception as error:
        add_context(error, context)
        raise


def add_context(error: BaseException, context: Mapping[str, Any]) -> None:
    """Add `context` to an exception. The exception keeps the values that it already has."""
    setattr(error, _CONTEXT, {**context, **getattr(error, _CONTEXT, {})})


def take_context(error: BaseException) -> dict[str, Any]:
    """Return the context of an exception and of the exceptions that caused it, as JSON values.

    The values of a cause win, because it was raised further inside. The context is removed from
    the exceptions: a function can raise the same object again, for another message.
    """
    context: dict[str, Any] = {}
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        context |= vars(link).pop(_CONTEXT, {})
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return {name: _as_json(value) for name, value in context.items()}


def _as_json(value: Any) -> Any:
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except Exception:  # noqa: BLE001 - the user's objects can raise anything
        return _printed(value)


def _printed(value: Any) -> str:
    try:
        return _printable(repr(value))
    except Exception as error:  # noqa: BLE001 - the user's `__repr__` can raise anything
        return f"a {type(value).__name__} whose __repr__ raised {type(error).__name__}"


def explained(error: BaseException) -> str:
    """Return the text of an exception, followed by its context if it has one."""
    text, context = text_of(error), take_context(error)
    return f"{text} (context: {msgspec.json.encode(context).decode()})" if context else text


def text_of(error: BaseException) -> str:
    """Return `str(error)`, or a replacement text if the error's `__str__` fails."""
    try:
        return str(error)
    except Exception as another:  # noqa: BLE001 - the user's `__str__` can raise anything
        return f"the error has no text, because its __str__ raised {type(another).__name__}"


def _printable(text: str) -> str:
    """Return `text` with unpaired surrogates escaped, because UTF-8 cannot encode them."""
    return text.encode("utf-8", "backslashreplace").decode()


# ---- error stream --------------------------------------------------------------------------------
# A message in the error stream contains the inputs of a failed call and the error.


ERROR_TYPE: Final = "q.type.err/processor"
_MESSAGE_CHARS_MAX: Final = 2_000
_TRACE_CHARS_MAX: Final = 8_000
_CONTEXT_BYTES_MAX: Final = 64 * KIB
# This is below the limit for the body of an append, because a body also contains framing.
MESSAGE_BYTES_MAX: Final = BODY_BYTES_MAX - 64 * KIB


def error_message(evaluation: "Evaluation", inputs: "Call", error: BaseException) -> bytes:
    """Return the message to write to the error stream for one failed call.

    An input value that cannot be decoded is omitted. If the message is too large or too deeply
    nested, all input values are omitted, and then the context: the server would refuse such a
    message, and the refusal would stop the processor.
    """
    kind = type(error)
    message: dict[str, Any] = {
        "type": ERROR_TYPE,
        "graph": evaluation.graph,
        "processor": evaluation.processor,
        "strategy": evaluation.strategy,
        "config": evaluation.config,
        "inputs": [_input(each, has_value=_is_readable(each)) for each in inputs],
        "context": _bounded(take_context(error)),
        "cause": {
            "class": f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."),
            "message": _printable(text_of(error))[:_MESSAGE_CHARS_MAX],
        },
        "trace": _printable("".join(traceback.format_exception(error)))[-_TRACE_CHARS_MAX:],
        "hash": evaluation.hash,
    }
    shorter = {"inputs": [_input(each, has_value=False) for each in inputs]}
    for replaced in ({}, shorter):
        encoded = msgspec.json.encode({**message, **replaced})
        if len(encoded) <= MESSAGE_BYTES_MAX and not is_too_deep(encoded):
            return encoded
    left_away = {"left_away_bytes": len(msgspec.json.encode(message["context"]))}
    return msgspec.json.encode({**message, **shorter, "context": left_away})


def _bounded(context: dict[str, Any]) -> dict[str, Any]:
    size = len(msgspec.json.encode(context))
    return context if size <= _CONTEXT_BYTES_MAX else {"left_away_bytes": size}


def _input(message: "InputMessage", *, has_value: bool) -> dict[str, Any]:
    origin = {"stream": message.stream, "offset": print_offset(message.offset)}
    if has_value:
        return {**origin, "value": Raw(message.raw)}
    return {**origin, "value": None, "left_away_bytes": len(message.raw)}


def _is_readable(message: "InputMessage") -> bool:
    try:
        decode(message.raw, JSON_MEDIA_TYPE)
    except ValueError:
        return False
    return True
