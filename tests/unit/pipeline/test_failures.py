"""The context of errors, and the bounds of an error message."""

from typing import Any

import msgspec
import pytest

from semel.pipeline import wrap_error
from semel.pipeline.failures import explained, take_context
from tests.unit.pipeline.test_evaluate import evaluation, made, seen


class BadRepr:
    def __repr__(self) -> str:
        raise RuntimeError


def raised(*contexts: dict[str, Any]) -> ValueError:
    """Return an exception that has left blocks with these contexts, the outermost first."""

    def enter(depth: int) -> None:
        if depth == len(contexts):
            raise ValueError("no")
        with wrap_error(**contexts[depth]):
            enter(depth + 1)

    with pytest.raises(ValueError, match="no") as caught:
        enter(0)
    return caught.value


# rows: C17
def test_inner_values_win() -> None:
    error = raised({"a": 1, "b": 1, "c": 1}, {"b": 2, "c": 2}, {"c": 3})
    assert explained(error) == 'no (context: {"a":1,"b":2,"c":3})'
    assert explained(error) == "no"  # the context is taken once


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"x": [1, None]}, {"x": [1, None]}),
        ("\ud800", "'\\ud800'"),
        (2**70, 2**70),
        (BadRepr(), "a BadRepr whose __repr__ raised RuntimeError"),
        (float("nan"), None),
    ],
)
def test_a_context_is_always_json(value: Any, expected: Any) -> None:
    context = take_context(raised({"value": value}))
    assert context == {"value": expected}
    msgspec.json.encode(context)


def test_an_exception_that_causes_itself_is_read_once() -> None:
    error = raised({"a": 1})
    error.__cause__ = error
    assert take_context(error) == {"a": 1}


def test_a_context_that_is_too_large_or_too_deep_is_left_out() -> None:
    def fail(message: Any) -> Any:
        nested: Any = 1
        for _ in range(message):
            nested = [nested]
        with wrap_error(nested=nested, text="x" * (10 if message else 70_000)):
            raise ValueError("no")

    (large, deep) = [error for _, error in made(evaluation(fail), seen(0, 70))]
    assert large["context"] == {"left_away_bytes": 70_022}
    assert large["inputs"][0]["value"] == 0
    assert list(deep["context"]) == ["left_away_bytes"]


def test_interrupts_have_no_context() -> None:
    with pytest.raises(KeyboardInterrupt) as caught, wrap_error(a=1):
        raise KeyboardInterrupt
    assert take_context(caught.value) == {}
