"""This module calls a processor's function and returns `(stream, message)` pairs.

Every engine uses this module. It does no I/O. If a call succeeds, all its outputs are returned. If
a call fails, none of its outputs are returned. Instead, one message for the error stream is
returned. If the processor has no error stream, MessageFailed is raised.
"""

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from semel.client.values import PREENCODED, decode, encode_json
from semel.model.messages import JSON_MEDIA_TYPE
from semel.model.offsets import print_offset
from semel.pipeline.error_stream import MESSAGE_BYTES_MAX, Call, InputMessage, error_message
from semel.pipeline.graph.graph import Graph
from semel.pipeline.graph.processors import FunctionKind, Processor, kind_of, takes_binding
from semel.wire.json_depth import JSON_DEPTH_MAX, is_too_deep

if TYPE_CHECKING:
    import pyarrow as pa

# A stream, and the encoded JSON value to append to it.
Output = tuple[str, bytes]


class MessageFailed(Exception):
    """Raised if a call fails and the processor has no error stream.

    `inputs` are the messages of the call. `__cause__` is the exception that the call raised.
    """

    def __init__(self, inputs: Call) -> None:
        self.inputs = tuple(inputs)
        super().__init__(
            ", ".join(f"{message.stream} at {print_offset(message.offset)}" for message in inputs)
        )


class Evaluation(Struct, frozen=True, kw_only=True):
    """A processor's function, with everything that is needed to call it.

    `config` describes the processor, for error messages. If `many` is True, the function returns
    an iterable of results instead of one result.
    """

    graph: str
    processor: str
    strategy: str
    hash: str
    config: Mapping[str, Any]
    function: Callable[..., Any]
    kind: FunctionKind
    many: bool
    inputs: Mapping[str, str]
    is_join: bool
    takes_binding: bool
    outputs: Mapping[str, str]
    has_one_output: bool
    types: Mapping[str, frozenset[str]]
    topics: Mapping[str, frozenset[str]]
    errors: str | None


def evaluation_of(graph: Graph, processor: Processor, hash: str) -> Evaluation:
    """Return the Evaluation of a processor for one step. `hash` is the hash of that step."""
    return Evaluation(
        graph=graph.id,
        processor=processor.id,
        strategy=graph.strategy_of(processor),
        hash=hash,
        config=graph.config_of(processor),
        function=processor.call,
        kind=kind_of(processor),
        many=processor.many,
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
    """Return the function calls to make. `inputs` has one sequence of messages per input.

    For a join, the i-th call has the i-th message of every input. Otherwise there is one call for
    each message.
    """
    if is_join:
        return list(zip(*inputs, strict=True))
    return [(message,) for messages in inputs for message in messages]


def evaluate(evaluation: Evaluation, calls: Sequence[Call]) -> Iterator[Output]:
    """Call the function with the messages of `calls`, and yield the outputs.

    A function that takes messages is called once for each of `calls`. A function that takes Arrow
    batches is called once for all of `calls` and, if that fails, separately for each.

    If a call fails or its input cannot be decoded, yield a message for the error stream. If the
    processor has no error stream, raise MessageFailed. MemoryError, SystemExit and
    KeyboardInterrupt are raised unchanged, because the message did not cause them.
    """
    if evaluation.kind is FunctionKind.ARROW:
        yield from _evaluate_all(evaluation, calls)
        return
    for call in calls:
        yield from _evaluate_one(evaluation, call)


def passing(evaluation: Evaluation, call: Call) -> dict[str, Any] | None:
    """Return the decoded messages of a call, keyed by binding.

    If no message passes the filters, return None instead of a dict. If only some messages of a join
    pass, return a dict in which the value of every other message is None.
    """
    values = {message.binding: decode(message.raw, JSON_MEDIA_TYPE) for message in call}
    if not (evaluation.types or evaluation.topics):
        return values
    accepted = {name for name, value in values.items() if _passes(evaluation, name, value)}
    if not accepted:
        return None
    return {name: value if name in accepted else None for name, value in values.items()}


def _passes(evaluation: Evaluation, binding: str, value: Any) -> bool:
    """Return True if a message passes the filter of its input.

    If the input has a filter for topics, only that filter is used. Otherwise only the filter for
    types is used. Without a filter, every message passes.
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
        return [
            _output(path, value)
            for result in _results(evaluation, _call_function(evaluation, values))
            for path, value in _routed(evaluation, result)
        ]
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - the user's function can raise anything
        return [_failed(evaluation, call, error)]


def _call_function(evaluation: Evaluation, values: dict[str, Any]) -> Any:
    if evaluation.is_join:
        return evaluation.function(**values)
    ((binding, value),) = values.items()
    if evaluation.takes_binding:
        return evaluation.function(value, binding)
    return evaluation.function(value)


def _results(evaluation: Evaluation, returned: Any) -> Iterator[Any]:
    """Yield the results of one call: each item of a generator, or the value as one result.

    With `many`, each item of any iterable is a result. Raises TypeError for a value that is not an
    iterable of results, such as a string or a dict.
    """
    if isinstance(returned, Generator):
        with closing(returned):
            yield from returned
    elif not evaluation.many:
        yield returned
    elif returned is not None:
        if isinstance(returned, str | bytes | bytearray | Mapping) or not isinstance(
            returned, Iterable
        ):
            raise TypeError(
                "a function with many=True must return a list or another iterable of messages, or"
                f" None, not {type(returned).__name__}"
            )
        yield from returned


def _output(path: str, value: Any) -> Output:
    if isinstance(value, PREENCODED):
        raise TypeError("a function must return JSON values, not bytes; decode the bytes first")
    try:
        raw = encode_json(value)
    except OverflowError:  # an integer with more than 64 bits: `encode_json` refuses it
        raw = json.dumps(value, separators=(",", ":")).encode("ascii")
    if len(raw) > MESSAGE_BYTES_MAX:
        raise ValueError(
            f"an output for the stream {path} has {len(raw):,} bytes;"
            f" the maximum is {MESSAGE_BYTES_MAX:,}"
        )
    if is_too_deep(raw):
        raise ValueError(f"an output for {path} has more than {JSON_DEPTH_MAX} levels of nesting")
    return path, raw


def _routed(evaluation: Evaluation, result: Any) -> Iterator[tuple[str, Any]]:
    """Yield (stream, output) for each output in a function's result. Skip outputs that are None.

    If `out` was declared as a single stream, the whole result is one output. Otherwise the result
    must be None or a dict {binding: output}. Raises TypeError for a result of any other type, and
    KeyError for an undeclared binding.
    """
    if result is None:
        return
    if evaluation.has_one_output:
        (path,) = evaluation.outputs.values()
        yield path, result
        return
    if not isinstance(result, Mapping):
        raise TypeError(
            f"a function with several outputs must return None or a dict {{binding: message}}, not"
            f" {type(result).__name__}"
        )
    for binding in result:
        if binding not in evaluation.outputs:
            expected = ", ".join(evaluation.outputs)
            raise KeyError(f"{binding!r} is not a declared output; the outputs are {expected}")
    # The order is that of the declaration, because all engines must yield the same order.
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
    """Yield an error message for each call with undecodable input, then all other outputs."""
    decoded: list[DecodedCall] = []
    for call in calls:
        try:
            values = passing(evaluation, call)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - decoding can raise anything
            yield _failed(evaluation, call, error)
            continue
        if values is not None:
            decoded.append((call, values))
    if decoded:
        yield from _evaluate_batch(evaluation, decoded)


def _evaluate_batch(evaluation: Evaluation, calls: Sequence[DecodedCall]) -> Iterator[Output]:
    """Call the function once with the messages of all `calls`, and yield the outputs.

    If that call fails, call the function again, separately for each of `calls`. Each of these calls
    that fails yields an error message, and the others yield their outputs.
    """
    outputs: list[Output] | None = None
    try:
        outputs = _batch_outputs(evaluation, [values for _, values in calls])
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - the user's function can raise anything
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


# ---- Arrow batches -------------------------------------------------------------------------------
# pyarrow is imported only where it is used, because it is an optional dependency.


def arrow_batch_of(messages: Sequence[Any]) -> "pa.RecordBatch":
    """Return an Arrow batch. Each message becomes a row, and each key becomes a column.

    Raises TypeError if a message is not a JSON object. Arrow raises an error if the values of a
    column have no common type.
    """
    import pyarrow as pa  # noqa: PLC0415

    for message in messages:
        if not isinstance(message, dict):
            raise TypeError(
                f"messages for an Arrow function must be JSON objects, not {type(message).__name__}"
            )
    names = list(dict.fromkeys(name for message in messages for name in message))
    columns = [pa.array([message.get(name) for message in messages]) for name in names]
    return pa.RecordBatch.from_arrays(columns, names=names)


def messages_in(batch: Any) -> list[Any]:
    """Return the rows of an Arrow batch as messages.

    Raises TypeError if `batch` is not a RecordBatch.
    """
    import pyarrow as pa  # noqa: PLC0415

    if not isinstance(batch, pa.RecordBatch):
        raise TypeError(f"an Arrow function must return a RecordBatch, not {type(batch).__name__}")
    return list(batch.to_pylist())
