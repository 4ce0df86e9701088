"""The evaluation of a step, which all engines share."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.model.limits import BODY_BYTES_MAX
from semel.pipeline.error_stream import MESSAGE_BYTES_MAX, Call, InputMessage
from semel.pipeline.evaluate import Evaluation, MessageFailed, evaluate, evaluation_of
from semel.pipeline.graph.graph import Graph
from tests.unit.pipeline.graphs import pair, same

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


def evaluation(
    function: Callable[..., Any], errors: str | None = "errors", **given: Any
) -> Evaluation:
    graph = Graph("g", errors=errors)
    graph.stream("p", **{"in_": "in", "out": "out", **given})(function)
    graph.check()
    (one,) = graph.processors
    return evaluation_of(graph, one, hash="h")


def seen(*values: Any, binding: str = "in") -> list[Call]:
    return [
        (InputMessage(binding, f"s-{binding}", offset, msgspec.json.encode(value)),)
        for offset, value in enumerate(values)
    ]


def joined(*rows: dict[str, Any]) -> list[Call]:
    return [
        tuple(
            InputMessage(binding, f"s-{binding}", offset, msgspec.json.encode(value))
            for binding, value in row.items()
        )
        for offset, row in enumerate(rows)
    ]


def made(found: Evaluation, calls: Sequence[Call]) -> list[tuple[str, Any]]:
    return [(stream, json.loads(raw)) for stream, raw in evaluate(found, calls)]


# rows: C04
@given(st.lists(json_values))
def test_every_message_is_given_to_the_function_once_and_in_order(values: list[Any]) -> None:
    calls = []

    def note(message: Any) -> Any:
        calls.append(message)
        return [message]

    assert made(evaluation(note), seen(*values)) == [("out", [value]) for value in values]
    assert calls == values


# rows: C07, C25
def test_none_is_written_nowhere() -> None:
    assert made(evaluation(lambda m: m or None), seen(1, 0, 2)) == [("out", 1), ("out", 2)]
    fork = evaluation(lambda m: {"a": m, "b": None} if m else None, out={"a": "x", "b": "y"})
    assert made(fork, seen(1, 0)) == [("x", 1)]


def test_legs_come_in_the_order_of_the_graph() -> None:
    fork = evaluation(lambda m: {"b": m, "a": -m}, out={"a": "x", "b": "y"})
    assert made(fork, seen(1, 2)) == [("x", -1), ("y", 1), ("x", -2), ("y", 2)]


# rows: C14, C26
@given(st.lists(st.integers(0, 4)), st.randoms(use_true_random=False))
def test_each_message_is_on_all_its_legs_or_on_the_error_stream(values, chance):  # type: ignore[no-untyped-def]
    def flaky(message: int) -> Any:
        if chance.random() < 0.5:
            raise ValueError(message)
        return {"a": message, "b": message}

    calls = seen(*enumerate(values))
    rows = made(evaluation(lambda m: flaky(m[0]), out={"a": "x", "b": "y"}), calls)
    found = {name: Counter[int]() for name in ("x", "y", "errors")}
    for stream, value in rows:
        found[stream][value if stream != "errors" else value["inputs"][0]["value"][0]] += 1
    assert found["x"] == found["y"]
    assert found["x"] + found["errors"] == Counter(range(len(values)))


# rows: C17
def test_an_error_message_tells_all_there_is() -> None:
    def fail(message: Any) -> Any:
        message["changed"] = True
        raise ValueError(f"no {message['n']}")

    ((stream, error),) = made(evaluation(fail), seen({"n": 1}))
    assert stream == "errors"
    trace = error.pop("trace")
    config = error.pop("config")
    assert error == {
        "type": "q.type.err/processor",
        "graph": "g",
        "processor": "p",
        "strategy": "exactly-once",
        "inputs": [
            {"stream": "s-in", "offset": "0000000000000000_0000000000000000", "value": {"n": 1}}
        ],
        "group": "g/p",
        "stream": "s-in",
        "offset": "0000000000000000_0000000000000000",
        "incarnation": None,
        "key": None,
        "headers": {},
        "timestamp_ms": None,
        "content_type": "application/json",
        "attempts": 1,
        "value": {"n": 1},
        "context": {},
        "cause": {"class": "ValueError", "message": "no 1"},
        "hash": "h",
    }
    assert config.pop("fn").endswith(":test_an_error_message_tells_all_there_is.<locals>.fail")
    assert config == {
        "id": "p",
        "role": "stream",
        "in": "in",
        "out": "out",
        "strategy": "exactly-once",
        "errors": "errors",
    }
    assert "in fail" in trace
    assert trace.endswith("ValueError: no 1\n")


def test_an_error_that_wraps_another_shows_both() -> None:
    def fail(message: Any) -> Any:
        try:
            return message["missing"]
        except KeyError as error:
            raise RuntimeError("wrapped") from error

    ((_, error),) = made(evaluation(fail), seen({}))
    assert error["cause"] == {"class": "RuntimeError", "message": "wrapped"}
    assert "KeyError: 'missing'" in error["trace"]


def test_an_error_message_stays_within_bounds() -> None:
    def fail(message: str) -> Any:
        raise ValueError("\ud800" + "x" * 10_000)

    big = "y" * MESSAGE_BYTES_MAX
    ((_, error),) = made(evaluation(fail), seen(big))
    assert error["inputs"][0]["value"] is None
    assert error["inputs"][0]["left_away_bytes"] == len(big) + 2
    assert error["cause"]["message"].startswith("\\ud800xxx")
    assert len(error["cause"]["message"]) == 2_000
    assert len(error["trace"]) == 8_000


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_an_error_that_cannot_be_printed_is_an_error_all_the_same() -> None:
    def fail(message: Any) -> Any:
        raise Unprintable

    ((stream, error),) = made(evaluation(fail), seen(1))
    assert (stream, error["cause"]["message"]) == (
        "errors",
        "the error has no text, because its __str__ raised RuntimeError",
    )


def test_an_input_nested_too_deep_for_an_error_message_is_left_away() -> None:
    def fail(message: Any) -> Any:
        raise ValueError

    deep = json.loads("[" * 62 + "]" * 62)
    ((_, error),) = made(evaluation(fail), seen(deep))
    assert error["inputs"][0]["value"] is None
    assert made(evaluation(same), seen(deep)) == [("out", deep)]


@pytest.mark.parametrize("raw", [b'"\\ud800"', b"123456789012345678901234567890"])
def test_whatever_is_json_passes_unharmed(raw: bytes) -> None:
    ((_, output),) = evaluate(evaluation(same), [(InputMessage("in", "s", 0, raw),)])
    assert json.loads(output) == json.loads(raw)


@pytest.mark.parametrize(
    ("function", "out", "cause"),
    [
        (lambda m: object(), "out", "TypeError"),
        (lambda m: b"[", "out", "TypeError"),
        (lambda m: [m], {"a": "x"}, "TypeError"),
        (lambda m: {"z": m}, {"a": "x"}, "KeyError"),
        (lambda m: "x" * BODY_BYTES_MAX, "out", "ValueError"),
        (lambda m: json.loads("[" * 65 + "]" * 65), "out", "ValueError"),
    ],
)
def test_what_cannot_be_written_is_an_error_of_its_message(
    function: Callable[..., Any], out: Any, cause: str
) -> None:
    ((stream, error),) = made(evaluation(function, out=out), seen(1))
    assert (stream, error["cause"]["class"]) == ("errors", cause)


def undecodable(offset: int) -> Call:
    """Return a call with an integer of more than 4,300 digits, which Python does not decode."""
    return (InputMessage("in", "s-in", offset, b"1" + b"0" * 5_000),)


def test_a_message_python_cannot_decode_is_an_error_message_that_it_can() -> None:
    calls = [*seen(1), undecodable(1), *seen(3)]
    (first, error, last) = made(evaluation(same), calls)
    assert (first, last) == (("out", 1), ("out", 3))
    assert error[0] == "errors"
    assert error[1]["cause"]["class"] == "ValueError"
    (told,) = error[1]["inputs"]
    assert (told["offset"], told["value"]) == ("0000000000000000_0000000000000001", None)
    assert told["left_away_bytes"] == 5_001
    with pytest.raises(MessageFailed):
        made(evaluation(same, errors=None), calls)


# rows: C16
def test_without_an_error_stream_the_message_is_named() -> None:
    def fail(message: Any) -> Any:
        if message == 2:
            raise ValueError("two")
        return message

    rows: list[tuple[str, bytes]] = []
    with pytest.raises(MessageFailed, match="s-in at 0000000000000000_0000000000000001") as caught:
        rows.extend(evaluate(evaluation(fail, errors=None), seen(1, 2, 3)))
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.inputs[0].offset == 1
    assert rows == [("out", b"1")]


# rows: C15
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_what_is_not_about_the_message_is_no_error_message(error: type[BaseException]) -> None:
    def fail(message: Any) -> Any:
        raise error

    with pytest.raises(error):
        list(evaluate(evaluation(fail), seen(1)))


# ---- filters -------------------------------------------------------------------------------------


# rows: C27
@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ({"types": "a"}, [0]),
        ({"types": ["a", "b"]}, [0, 1]),
        ({"topics": "t"}, [3, 4]),
        ({"topics": ["t", "u"]}, [3, 4, 5]),
        ({"types": "a", "topics": "t"}, [3, 4]),
        ({"types": {"in": "b"}}, [1]),
        ({}, [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_only_the_wanted_types_and_topics_pass(given: dict[str, Any], passed: list[int]) -> None:
    messages = [
        {"n": 0, "type": "a"},
        {"n": 1, "type": "b"},
        {"n": 2, "type": 5},
        {"n": 3, "topics": ["t", "x"]},
        {"n": 4, "topics": {"t": True, "u": False}},
        {"n": 5, "topics": {"t": 0, "u": 1}},
        {"n": 6, "topics": "t"},
        "no object",
    ]
    rows = made(evaluation(same, **given), seen(*messages))
    assert [value for _, value in rows] == [messages[n] for n in passed]


# ---- several inputs ------------------------------------------------------------------------------

BOTH = {"left": "s-left", "right": "s-right"}


# rows: C22
def test_a_join_is_called_by_binding() -> None:
    rows = made(
        evaluation(pair, in_=BOTH), joined({"left": 1, "right": 2}, {"left": 3, "right": 4})
    )
    assert rows == [("out", {"left": 1, "right": 2}), ("out", {"left": 3, "right": 4})]


# rows: C28
def test_a_join_is_called_if_one_of_its_messages_passes_and_without_the_others() -> None:
    a, b = {"type": "a"}, {"type": "b"}
    found = evaluation(pair, in_=BOTH, types="a")
    rows = made(found, joined({"left": a, "right": b}, {"left": b, "right": b}))
    assert rows == [("out", {"left": a, "right": None})]
    found = evaluation(pair, in_=BOTH, types={"right": "a"})
    assert made(found, joined({"left": b, "right": b})) == [("out", {"left": b, "right": None})]


def test_a_failed_join_names_all_its_inputs() -> None:
    def fail(left: Any, right: Any) -> Any:
        raise ValueError

    ((_, error),) = made(evaluation(fail, in_=BOTH), joined({"left": 1, "right": 2}))
    assert [one["stream"] for one in error["inputs"]] == ["s-left", "s-right"]
    assert [one["value"] for one in error["inputs"]] == [1, 2]


def test_alternatives_can_be_told_their_binding() -> None:
    def tell(message: Any, binding: str) -> Any:
        return [binding, message]

    found = evaluation(tell, in_=None, alts={"x": "s-x", "y": "s-y"})
    calls = [*seen(1, binding="x"), *seen(2, binding="y")]
    assert made(found, calls) == [("out", ["x", 1]), ("out", ["y", 2])]


# ---- Arrow batches -------------------------------------------------------------------------------


def arrow(function: Callable[..., Any], kinds: int = 1, **given: Any) -> Evaluation:
    pa = pytest.importorskip("pyarrow")
    names = list(function.__code__.co_varnames[: function.__code__.co_argcount])
    function.__annotations__ = dict.fromkeys(names, pa.RecordBatch)
    return evaluation(function, **given)


def test_a_batch_has_a_column_for_every_name() -> None:
    sizes = []

    def note(batch: Any) -> Any:
        sizes.append((batch.num_rows, batch.schema.names))
        return batch

    messages = [{"a": 1}, {"b": "x", "a": 2}]
    rows = made(arrow(note), seen(*messages))
    assert rows == [("out", {"a": 1, "b": None}), ("out", {"a": 2, "b": "x"})]
    assert sizes == [(2, ["a", "b"])]
    assert made(arrow(note), []) == []
    assert len(sizes) == 1


def test_a_batch_that_fails_is_done_again_row_by_row() -> None:
    sizes = []

    def fail(batch: Any) -> Any:
        sizes.append(batch.num_rows)
        if 13 in batch.column("n").to_pylist():
            raise ValueError("thirteen")
        return batch

    rows = made(arrow(fail), seen({"n": 12}, {"n": 13}, {"n": 14}, "no object"))
    assert [stream for stream, _ in rows] == ["out", "errors", "out", "errors"]
    assert [value["inputs"][0]["value"] for stream, value in rows if stream == "errors"] == [
        {"n": 13},
        "no object",
    ]
    assert sizes == [1, 1, 1], "an invalid batch never reaches the function"


def test_a_message_that_cannot_be_decoded_does_not_spoil_its_batch() -> None:
    sizes = []

    def note(batch: Any) -> Any:
        sizes.append(batch.num_rows)
        return batch

    rows = made(arrow(note), [*seen({"n": 1}), undecodable(1), *seen({"n": 2})])
    assert Counter(stream for stream, _ in rows) == {"out": 2, "errors": 1}
    assert sizes == [2]


def test_a_batch_may_have_several_outputs_and_inputs() -> None:
    def add(left: Any, right: Any) -> Any:
        import pyarrow.compute

        total = pyarrow.compute.add(left.column("n"), right.column("n"))
        return {"sum": left.set_column(0, "n", total), "right": right}

    found = arrow(add, in_=BOTH, out={"sum": "x", "right": "y"})
    calls = joined(*[{"left": {"n": n}, "right": {"n": 10 * n}} for n in range(2)])
    assert made(found, calls) == [
        ("x", {"n": 0}),
        ("x", {"n": 11}),
        ("y", {"n": 0}),
        ("y", {"n": 10}),
    ]


def test_a_batch_function_must_return_batches() -> None:
    rows = made(arrow(lambda batch: [batch]), seen({"n": 1}))
    assert [(stream, error["cause"]["class"]) for stream, error in rows] == [
        ("errors", "TypeError")
    ]


def test_a_batch_without_an_error_stream_names_the_row() -> None:
    def fail(batch: Any) -> Any:
        raise ValueError

    with pytest.raises(MessageFailed, match="0000000000000000_0000000000000000"):
        list(evaluate(arrow(fail, errors=None), seen({"n": 1}, {"n": 2})))


def test_running_out_of_memory_is_not_the_fault_of_a_batch() -> None:
    def fail(batch: Any) -> Any:
        raise MemoryError

    with pytest.raises(MemoryError):
        list(evaluate(arrow(fail), seen({"n": 1})))


def test_rows_are_pairs() -> None:
    assert next(evaluate(evaluation(same), seen(1))) == ("out", b"1")
