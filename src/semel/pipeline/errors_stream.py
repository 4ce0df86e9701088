"""What stands in an error stream: the inputs of a call that failed, and why it did. Pure."""

import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw

from semel.model.offsets import print_offset

if TYPE_CHECKING:
    from semel.pipeline.evaluate import Evaluation, Seen

ERROR_TYPE: Final = "q.type.err/processor"
_MESSAGE_CHARS_MAX: Final = 2_000
_TRACE_CHARS_MAX: Final = 8_000
# An append takes 4 MiB; an input that would not leave room for the rest is left away.
_INPUT_BYTES_MAX: Final = 1 << 20


def error_message(
    evaluation: "Evaluation", inputs: "Sequence[Seen]", error: BaseException
) -> bytes:
    """Word the failure of one call."""
    kind = type(error)
    message: dict[str, Any] = {
        "type": ERROR_TYPE,
        "graph": evaluation.graph,
        "processor": evaluation.processor,
        "strategy": evaluation.strategy,
        "inputs": [_input(one) for one in inputs],
        "cause": {
            "class": f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."),
            "message": _printable(str(error))[:_MESSAGE_CHARS_MAX],
        },
        "trace": _printable(_trace(error))[-_TRACE_CHARS_MAX:],
        "hash": evaluation.hash,
    }
    return msgspec.json.encode(message)


def _input(one: "Seen") -> dict[str, Any]:
    shown: dict[str, Any] = {"stream": one.stream, "offset": print_offset(one.offset)}
    if len(one.raw) > _INPUT_BYTES_MAX:
        return {**shown, "value": None, "left_away_bytes": len(one.raw)}
    return {**shown, "value": Raw(one.raw)}


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _printable(text: str) -> str:
    """Replace halves of surrogate pairs, which cannot be encoded."""
    return text.encode("utf-8", "backslashreplace").decode()
