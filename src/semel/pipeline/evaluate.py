"""Calls of a processor's function: messages in, `(stream, message)` pairs out. Pure.

Every engine uses this module. All outputs for a message come from one call of the function, and so
does the message for the error stream. So even if a function fails only sometimes, a message leads
either to its outputs or to an error message: never to both, and never to neither.
"""

import json
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import Raw, Struct

from semel.client.values import PREENCODED, decode, encode_json
from semel.model.limits import BODY_BYTES_MAX, KIB
from semel.model.messages import JSON_MEDIA_TYPE
from semel.model.offsets import print_offset
from semel.pipeline.graph.graph import Graph
from semel.pipeline.graph.processors import FunctionKind, Processor, kind_of, takes_binding
from semel.wire.json_mode import JSON_DEPTH_MAX, is_too_deep

if TYPE_CHECKING:
    import pyarrow as pa


class InputMessage(NamedTuple):
    """A message of an input: the encoded JSON value, its binding, its stream and its ordinal."""

    binding: str
    stream: str
    offset: int
    raw: bytes


# The messages for one call of a function: one message of every input for a join, otherwise one.
Call = Sequence[InputMessage]
# A stream, and the encoded JSON value to append to it.
Output = tuple[str, bytes]


class MessageFailed(Exception):
    """Raised if a call fails and the processor has no error stream.

    `__cause__` is the error of the call.
    """

    def __init__(self, inputs: Call) -> None:
        self.inputs = tuple(inputs)
        super().__init__(
            ", ".join(f"{message.stream} at {print_offset(message.offset)}" for message in inputs)
        )


class Evaluation(Struct, frozen=True, kw_only=True):
    """A processor's function, and everything needed to call it in any process."""

    graph: str
    processor: str
    strategy: str
    hash: str
    function: Callable[..., Any]
    kind: FunctionKind
    inputs: Mapping[str, str]
    is_join: bool
    takes_binding: bool
    outputs: Mapping[str, str]
    has_one_output: bool
    types: Mapping[str, frozenset[str]]
    topics: Mapping[str, frozenset[str]]
    errors: str | None


def evaluation_of(graph: Graph, processor: Processor, hash: str) -> Evaluation:
    """Return the function of a processor with all that calling it needs, for the step `hash`."""
    return Evaluation(
        graph=graph.id,
        processor=processor.id,
        strategy=graph.strategy_of(processor),
        hash=hash,
        function=processor.function,
        kind=kind_of(processor),
        inputs=processor.inputs,
        is_join=processor.is_join,
        takes_binding=processor.is_alternatives and takes_binding(processor.function),
        outputs=processor.outputs,
        has_one_output=processor.out.is_one,
        types=processor.types,
        topics=processor.topics,
        errors=graph.errors_of(processor),
    )


def calls_from(inputs: Iterable[Sequence[InputMessage]], *, is_join: bool) -> list[Call]:
    """Group the messages of inputs into calls.

    A call of a join has the i-th message of every input. Any other call has one message.
    """
    if is_join:
        return list(zip(*inputs, strict=True))
    return [(message,) for messages in inputs for message in messages]


def evaluate(evaluation: Evaluation, calls: Sequence[Call]) -> Iterator[Output]:
    """Call the function for each of `calls`, and yield the outputs, in order.

    An error of the function becomes a message of the error stream. If the processor has no error
    stream, MessageFailed is raised. The same applies to a message that is valid JSON but that
    Python cannot decode, such as an integer of 5,000 digits. MemoryError, and exceptions that are
    not an Exception, are not caused by the message. They are raised unchanged.
    """
    if evaluation.kind is FunctionKind.ARROW:
        yield from _evaluate_all(evaluation, calls)
        return
    for call in calls:
        yield from _evaluate_one(evaluation, call)


def passing(evaluation: Evaluation, call: Call) -> dict[str, Any] | None:
    """Return the decoded messages of a call, by binding; None if no message passes the filters.

    In a join, a message that does not pass the filters is replaced with None.
    """
    values = {message.binding: decode(message.raw, JSON_MEDIA_TYPE) for message in call}
    if not (evaluation.types or evaluation.topics):
        return values
    accepted = {name for name, value in values.items() if _passes(evaluation, name, value)}
    if not accepted:
        return None
    return {name: value if name in accepted else None for name, value in values.items()}


def _passes(evaluation: Evaluation, binding: str, value: Any) -> bool:
    """Return whether a message passes the filter of its input.

    If the input has a filter of topics, only the topics count, otherwise only the types.
    """
    topics = evaluation.topics.get(binding)
    if topics is not None:
        tagged = value.get("topics") if isinstance(value, dict) else None
        if isinstance(tagged, dict):
            return any(tagged.get(topic) for topic in topics)
        return isinstance(tagged, list) and any(topic in tagged for topic in topics)
    types = evaluation.types.get(binding)
    if types is None:
        return True
    kind = value.get("type") if isinstance(value, dict) else None
    return isinstance(kind, str) and kind in types


# ---- one message at a time -----------------------------------------------------------------------


def _evaluate_one(evaluation: Evaluation, call: Call) -> list[Output]:
    try:
        values = passing(evaluation, call)
        if values is None:
            return []
        result = _call_function(evaluation, values)
        return [_output(path, value) for path, value in _routed(evaluation, result)]
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - anything the user's function raises
        return [_failed(evaluation, call, error)]


def _call_function(evaluation: Evaluation, values: dict[str, Any]) -> Any:
    if evaluation.is_join:
        return evaluation.function(**values)
    ((binding, value),) = values.items()
    if evaluation.takes_binding:
        return evaluation.function(value, binding)
    return evaluation.function(value)


def _output(path: str, value: Any) -> Output:
    if isinstance(value, PREENCODED):
        raise TypeError("a function must return JSON values, not bytes; decode them")
    try:
        raw = encode_json(value)
    except OverflowError:  # an integer of more than 64 bits: valid JSON, but not for `encode_json`
        raw = json.dumps(value, separators=(",", ":")).encode("ascii")
    if len(raw) > MESSAGE_BYTES_MAX:
        raise ValueError(
            f"a message for {path} has {len(raw):,} bytes; the maximum is {MESSAGE_BYTES_MAX:,}"
        )
    if is_too_deep(raw):
        raise ValueError(f"a message for {path} is nested deeper than {JSON_DEPTH_MAX} levels")
    return path, raw


def _routed(evaluation: Evaluation, result: Any) -> Iterator[tuple[str, Any]]:
    """Yield each output of a function with its stream; None is not an output.

    Raises TypeError or KeyError if a function with several outputs does not return a dict by
    binding.
    """
    if result is None:
        return
    if evaluation.has_one_output:
        (path,) = evaluation.outputs.values()
        yield path, result
        return
    if not isinstance(result, Mapping):
        raise TypeError(
            f"a function with several outputs must return a dict by binding, or None, not"
            f" {type(result).__name__}"
        )
    for binding in result:
        if binding not in evaluation.outputs:
            expected = ", ".join(evaluation.outputs)
            raise KeyError(f"{binding!r} is not an output; expected {expected}")
    # In the order in which the graph declares the outputs, so that all engines yield the same.
    for binding, path in evaluation.outputs.items():
        if result.get(binding) is not None:
            yield path, result[binding]


def _failed(evaluation: Evaluation, call: Call, error: Exception) -> Output:
    if evaluation.errors is None:
        raise MessageFailed(call) from error
    return evaluation.errors, error_message(evaluation, call, error)


# ---- a batch at a time ---------------------------------------------------------------------------

DecodedCall = tuple[Call, dict[str, Any]]


def _evaluate_all(evaluation: Evaluation, calls: Sequence[Call]) -> Iterator[Output]:
    """Yield errors for the messages that cannot be decoded, then the outputs for the others."""
    decoded: list[DecodedCall] = []
    for call in calls:
        try:
            values = passing(evaluation, call)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - anything decoding raises
            yield _failed(evaluation, call, error)
            continue
        if values is not None:
            decoded.append((call, values))
    if decoded:
        yield from _evaluate_batch(evaluation, decoded)


def _evaluate_batch(evaluation: Evaluation, calls: Sequence[DecodedCall]) -> Iterator[Output]:
    """Call the function with all messages and yield the outputs.

    If that fails, call it again for each call separately, to find out which messages cause errors.
    """
    outputs: list[Output] | None = None
    try:
        outputs = _batch_outputs(evaluation, [values for _, values in calls])
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - anything the user's function raises
        if len(calls) == 1:
            outputs = [_failed(evaluation, calls[0][0], error)]
    if outputs is not None:
        yield from outputs
        return
    for call in calls:
        yield from _evaluate_batch(evaluation, [call])


def _batch_outputs(evaluation: Evaluation, calls: Sequence[dict[str, Any]]) -> list[Output]:
    if evaluation.is_join:
        result = evaluation.function(
            **{
                binding: arrow_batch_of([values[binding] for values in calls])
                for binding in evaluation.inputs
            }
        )
    else:
        messages = [value for values in calls for value in values.values()]
        result = evaluation.function(arrow_batch_of(messages))
    return [
        _output(path, value)
        for path, batch in _routed(evaluation, result)
        for value in messages_in(batch)
    ]


# ---- error stream --------------------------------------------------------------------------------
# A message of the error stream contains the inputs of a failed call, and the error.


ERROR_TYPE: Final = "q.type.err/processor"
_MESSAGE_CHARS_MAX: Final = 2_000
_TRACE_CHARS_MAX: Final = 8_000
# Below the limit of an append, because that limit includes the framing of the message.
MESSAGE_BYTES_MAX: Final = BODY_BYTES_MAX - 64 * KIB


def error_message(evaluation: Evaluation, inputs: Call, error: BaseException) -> bytes:
    """Return the message of the error stream for one failed call.

    Values of inputs that are too large, nested too deeply, or cannot be decoded are omitted, for
    two reasons. The server must accept every error message, otherwise one message could stop a
    processor permanently. And the readers of the error stream must be able to decode it.
    """
    kind = type(error)
    message: dict[str, Any] = {
        "type": ERROR_TYPE,
        "graph": evaluation.graph,
        "processor": evaluation.processor,
        "strategy": evaluation.strategy,
        "inputs": [_input(each, has_value=_is_readable(each)) for each in inputs],
        "cause": {
            "class": f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."),
            "message": _printable(text_of(error))[:_MESSAGE_CHARS_MAX],
        },
        "trace": _printable("".join(traceback.format_exception(error)))[-_TRACE_CHARS_MAX:],
        "hash": evaluation.hash,
    }
    encoded = msgspec.json.encode(message)
    if len(encoded) <= MESSAGE_BYTES_MAX and not is_too_deep(encoded):
        return encoded
    message["inputs"] = [_input(each, has_value=False) for each in inputs]
    return msgspec.json.encode(message)


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


def text_of(error: BaseException) -> str:
    """Return the text of an error; a replacement text if its `__str__` fails."""
    try:
        return str(error)
    except Exception as another:  # noqa: BLE001 - a user's class can have a bug
        return f"its text cannot be printed: {type(another).__name__}"


def _printable(text: str) -> str:
    """Return the text with single surrogates escaped, because UTF-8 cannot encode them."""
    return text.encode("utf-8", "backslashreplace").decode()


# ---- Arrow batches -------------------------------------------------------------------------------
# pyarrow is an optional dependency, so it is imported only where it is used.


def arrow_batch_of(messages: Sequence[Any]) -> "pa.RecordBatch":
    """Return messages as a batch, with a column for every name that occurs in a message.

    Raises TypeError if a message is not a JSON object, and an error of Arrow if the values of a
    column have no common type.
    """
    import pyarrow as pa  # noqa: PLC0415

    for message in messages:
        if not isinstance(message, dict):
            raise TypeError(
                f"an Arrow function needs JSON objects as messages, not {type(message).__name__}"
            )
    names = list(dict.fromkeys(name for message in messages for name in message))
    columns = [pa.array([message.get(name) for message in messages]) for name in names]
    return pa.RecordBatch.from_arrays(columns, names=names)


def messages_in(batch: Any) -> list[Any]:
    """Return the rows of a batch as messages; raise TypeError if it is not a RecordBatch."""
    import pyarrow as pa  # noqa: PLC0415

    if not isinstance(batch, pa.RecordBatch):
        raise TypeError(f"an Arrow function must return a RecordBatch, not {type(batch).__name__}")
    return list(batch.to_pylist())
