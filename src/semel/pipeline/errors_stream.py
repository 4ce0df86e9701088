"""What stands in an error stream: the inputs of a call that failed, and why it did. Pure."""

import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw

from semel.client.values import decode
from semel.model.limits import BODY_BYTES_MAX, KIB
from semel.model.media import JSON_MEDIA_TYPE
from semel.model.offsets import print_offset
from semel.wire.json_mode import is_too_deep

if TYPE_CHECKING:
    from semel.pipeline.evaluate import Evaluation, Seen

ERROR_TYPE: Final = "q.type.err/processor"
_MESSAGE_CHARS_MAX: Final = 2_000
_TRACE_CHARS_MAX: Final = 8_000
# An append takes 4 MiB, what is around the message included.
MESSAGE_BYTES_MAX: Final = BODY_BYTES_MAX - 64 * KIB


def error_message(
    evaluation: "Evaluation", inputs: "Sequence[Seen]", error: BaseException
) -> bytes:
    """Word the failure of one call; inputs that leave no room, or are nested too deep, are named.

    An error message must always fit its stream, or one message could stop a processor for good.
    Nor may it hold what its readers could not decode.
    """
    kind = type(error)
    message: dict[str, Any] = {
        "type": ERROR_TYPE,
        "graph": evaluation.graph,
        "processor": evaluation.processor,
        "strategy": evaluation.strategy,
        "inputs": [_input(one, is_whole=_is_readable(one)) for one in inputs],
        "cause": {
            "class": f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."),
            "message": _printable(text_of(error))[:_MESSAGE_CHARS_MAX],
        },
        "trace": _printable(_trace(error))[-_TRACE_CHARS_MAX:],
        "hash": evaluation.hash,
    }
    encoded = msgspec.json.encode(message)
    if len(encoded) <= MESSAGE_BYTES_MAX and not is_too_deep(encoded):
        return encoded
    message["inputs"] = [_input(one, is_whole=False) for one in inputs]
    return msgspec.json.encode(message)


def _input(one: "Seen", *, is_whole: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {"stream": one.stream, "offset": print_offset(one.offset)}
    if not is_whole:
        return {**shown, "value": None, "left_away_bytes": len(one.raw)}
    return {**shown, "value": Raw(one.raw)}


def _is_readable(one: "Seen") -> bool:
    try:
        decode(one.raw, JSON_MEDIA_TYPE)
    except ValueError:
        return False
    return True


def text_of(error: BaseException) -> str:
    """Print an error, also one that fails to."""
    try:
        return str(error)
    except Exception as another:  # noqa: BLE001 - a user's class may have a bug of its own
        return f"it cannot be printed: {type(another).__name__}"


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _printable(text: str) -> str:
    """Replace halves of surrogate pairs, which cannot be encoded."""
    return text.encode("utf-8", "backslashreplace").decode()
