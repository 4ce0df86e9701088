"""Messages in, rows out: each row tagged with the stream it is for. Pure; used by every engine.

All legs of a message, the error stream included, come from one call of the function. So a function
that fails now and then puts each message on one leg or the other, never on both or on none.
"""

import json
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import Raw, Struct

from semel.client.values import PREENCODED, decode, encode_json
from semel.model.limits import BODY_BYTES_MAX, KIB
from semel.model.media import JSON_MEDIA_TYPE
from semel.model.offsets import print_offset
from semel.pipeline.graph import signatures
from semel.pipeline.graph.processors import FunctionKind, Processor
from semel.wire.json_mode import JSON_DEPTH_MAX, is_too_deep

if TYPE_CHECKING:
    import pyarrow as pa


class InputMessage(NamedTuple):
    """A message as it stands in an input: a JSON value in bytes, and its place."""

    binding: str
    stream: str
    offset: int
    raw: bytes


# What one call of a function is for: one message of every input for a join, else one message.
Call = Sequence[InputMessage]


class OutputRow(NamedTuple):
    """A message for a stream."""

    stream: str
    raw: bytes


class MessageFailed(Exception):
    """A call failed, and there is no error stream to put it into. Its cause is the failure."""

    def __init__(self, inputs: Call) -> None:
        self.inputs = tuple(inputs)
        places = ", ".join(f"{one.stream} at {print_offset(one.offset)}" for one in inputs)
        super().__init__(places)


class Evaluation(Struct, frozen=True):
    """A processor's function, and all that is needed to call it anywhere."""

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


def evaluation_of(
    graph: str, processor: Processor, *, strategy: str, errors: str | None, hash: str
) -> Evaluation:
    """Gather what it takes to call a processor's function in the step of this hash."""
    return Evaluation(
        graph,
        processor.id,
        strategy,
        hash,
        processor.function,
        signatures.kind_of(processor),
        processor.inputs,
        processor.is_join,
        processor.is_alternatives and signatures.takes_binding(processor.function),
        processor.outputs,
        processor.out.is_one,
        processor.types,
        processor.topics,
        errors,
    )


def evaluate(evaluation: Evaluation, calls: Sequence[Call]) -> Iterator[OutputRow]:
    """Call the function for each, and give what it makes, in order.

    What it raises becomes a row of the error stream; without one, Poisoned. So does a message that
    Python cannot decode, though it is JSON: an integer of 5,000 digits, say. MemoryError and
    whatever is no Exception are not about the message and are raised as they are.
    """
    if evaluation.kind is FunctionKind.ARROW:
        yield from _evaluate_all(evaluation, calls)
        return
    for call in calls:
        yield from _evaluate_one(evaluation, call)


def passing(evaluation: Evaluation, call: Call) -> dict[str, Any] | None:
    """Decode the messages that pass the filters, by binding; None if none does.

    In a join the others are None.
    """
    values = {one.binding: decode(one.raw, JSON_MEDIA_TYPE) for one in call}
    if not (evaluation.types or evaluation.topics):
        return values
    passed = {
        binding: value if _passes(evaluation, binding, value) else None
        for binding, value in values.items()
    }
    is_any = any(_passes(evaluation, binding, value) for binding, value in values.items())
    return passed if is_any else None


def _passes(evaluation: Evaluation, binding: str, value: Any) -> bool:
    """Compare a message with the filters of its input; if there are topics, types do not count."""
    topics = evaluation.topics.get(binding)
    if topics is not None:
        found = value.get("topics") if isinstance(value, dict) else None
        if isinstance(found, dict):
            return any(found.get(topic) for topic in topics)
        return isinstance(found, list) and any(topic in found for topic in topics)
    types = evaluation.types.get(binding)
    if types is None:
        return True
    kind = value.get("type") if isinstance(value, dict) else None
    return isinstance(kind, str) and kind in types


# ---- one message at a time -----------------------------------------------------------------------


def _evaluate_one(evaluation: Evaluation, call: Call) -> Iterator[OutputRow]:
    try:
        values = passing(evaluation, call)
        made = [] if values is None else _rows(evaluation, _called(evaluation, values))
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the user's function raises
        made = [_failed(evaluation, call, error)]
    yield from made


def _called(evaluation: Evaluation, values: dict[str, Any]) -> Any:
    if evaluation.is_join:
        return evaluation.function(**values)
    ((binding, value),) = values.items()
    if evaluation.takes_binding:
        return evaluation.function(value, binding)
    return evaluation.function(value)


def _rows(evaluation: Evaluation, result: Any) -> list[OutputRow]:
    return [_row(path, value) for path, value in _legs(evaluation, result)]


def _row(path: str, value: Any) -> OutputRow:
    if isinstance(value, PREENCODED):
        raise TypeError("a function returns JSON values, and bytes are none; decode them")
    raw = _encoded(value)
    if len(raw) > MESSAGE_BYTES_MAX:
        raise ValueError(f"a message of {len(raw):,} bytes for {path} does not fit into an append")
    if is_too_deep(raw):
        raise ValueError(f"a message for {path} is nested deeper than {JSON_DEPTH_MAX}")
    return OutputRow(path, raw)


def _encoded(value: Any) -> bytes:
    try:
        return encode_json(value)
    except OverflowError:  # an integer of more than 64 bits, which is JSON all the same
        return json.dumps(value, separators=(",", ":")).encode("ascii")


def _legs(evaluation: Evaluation, result: Any) -> Iterator[tuple[str, Any]]:
    """Tell which stream gets what; None is nothing."""
    if result is None:
        return
    if evaluation.has_one_output:
        (path,) = evaluation.outputs.values()
        yield path, result
        return
    if not isinstance(result, Mapping):
        raise TypeError(
            f"a function with several outputs returns a dict by binding, or None, not"
            f" {type(result).__name__}"
        )
    for binding in result:
        if binding not in evaluation.outputs:
            known = ", ".join(evaluation.outputs)
            raise KeyError(f"{binding!r} is no output; those are {known}")
    # In the order of the graph, so that every engine makes the same.
    for binding, path in evaluation.outputs.items():
        if result.get(binding) is not None:
            yield path, result[binding]


def _failed(evaluation: Evaluation, call: Call, error: Exception) -> OutputRow:
    if evaluation.errors is None:
        raise MessageFailed(call) from error
    return OutputRow(evaluation.errors, error_message(evaluation, call, error))


# ---- a batch at a time ---------------------------------------------------------------------------

PendingCalls = Sequence[tuple[Call, dict[str, Any]]]


def _evaluate_all(evaluation: Evaluation, calls: Sequence[Call]) -> Iterator[OutputRow]:
    """Decode all; those that cannot be come first, as errors."""
    wanted: list[tuple[Call, dict[str, Any]]] = []
    for call in calls:
        try:
            values = passing(evaluation, call)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever decoding raises
            yield _failed(evaluation, call, error)
            continue
        if values is not None:
            wanted.append((call, values))
    yield from _evaluate_batch(evaluation, wanted)


def _evaluate_batch(evaluation: Evaluation, wanted: PendingCalls) -> Iterator[OutputRow]:
    """Call the function for all; if that fails, for each by itself, to find which ones fail."""
    if not wanted:
        return
    try:
        made = _batch_rows(evaluation, wanted)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the user's function raises
        made = None
        cause = error
    if made is not None:
        yield from made
    elif len(wanted) == 1:
        yield _failed(evaluation, wanted[0][0], cause)
    else:
        for one in wanted:
            yield from _evaluate_batch(evaluation, [one])


def _batch_rows(evaluation: Evaluation, wanted: PendingCalls) -> list[OutputRow]:
    if evaluation.is_join:
        values = {
            binding: arrow_batch_of([found[binding] for _, found in wanted])
            for binding in evaluation.inputs
        }
        result = evaluation.function(**values)
    else:
        messages = [value for _, found in wanted for value in found.values()]
        result = evaluation.function(arrow_batch_of(messages))
    return [
        _row(path, value)
        for path, batch in _legs(evaluation, result)
        for value in messages_in(batch)
    ]


# ---- errors stream -------------------------------------------------------------------------------
# What stands in an error stream: the inputs of a call that failed, and why it did. Pure.


ERROR_TYPE: Final = "q.type.err/processor"
_MESSAGE_CHARS_MAX: Final = 2_000
_TRACE_CHARS_MAX: Final = 8_000
# An append takes 4 MiB, what is around the message included.
MESSAGE_BYTES_MAX: Final = BODY_BYTES_MAX - 64 * KIB


def error_message(
    evaluation: "Evaluation", inputs: "Sequence[InputMessage]", error: BaseException
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


def _input(one: "InputMessage", *, is_whole: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {"stream": one.stream, "offset": print_offset(one.offset)}
    if not is_whole:
        return {**shown, "value": None, "left_away_bytes": len(one.raw)}
    return {**shown, "value": Raw(one.raw)}


def _is_readable(one: "InputMessage") -> bool:
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


# ---- arrow batches -------------------------------------------------------------------------------
# Messages as a batch of Arrow, and back. pyarrow is an extra, so it is imported where it is used.


def arrow_batch_of(messages: Sequence[Any]) -> "pa.RecordBatch":
    """Make a batch with a column for every name in any of the messages; TypeError if one has none.

    Arrow finds the types of the columns; what does not fit one type is refused by it.
    """
    import pyarrow as pa  # noqa: PLC0415

    for message in messages:
        if not isinstance(message, dict):
            raise TypeError(f"a batch takes JSON objects, not {type(message).__name__}")
    names = list(dict.fromkeys(name for message in messages for name in message))
    columns = [pa.array([message.get(name) for message in messages]) for name in names]
    return pa.RecordBatch.from_arrays(columns, names=names)


def messages_in(batch: Any) -> list[Any]:
    """Make a message of every row."""
    import pyarrow as pa  # noqa: PLC0415

    if not isinstance(batch, pa.RecordBatch):
        raise TypeError(f"an Arrow function returns a RecordBatch, not {type(batch).__name__}")
    return list(batch.to_pylist())
