"""Outputs of `process` that can never be stored are failures of the function for their message."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from semel import errors
from tests.integration.test_client_workers import values
from tests.spec.txn_calls import fresh

COUNT: Final = 4
BAD: Final = 1
DEEP_LEVELS: Final = 100


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(DEEP_LEVELS):
        value = [value]
    return value


# The outputs for the bad message, the error, and what the cause says.
OUTPUTS: Final[dict[str, tuple[Callable[[str], Any], type[Exception], str]]] = {
    "not JSON": (lambda path: {path: [object()]}, TypeError, "cannot be encoded as JSON"),
    "too deep": (lambda path: {path: [deep()]}, errors.BadRequest, "nested deeper"),
    "too large": (lambda path: {path: ["x" * 5_000_000]}, errors.TooLarge, "at most 4194304"),
    "not a list": (lambda path: {path: 7}, TypeError, "pass a list of values"),
    "not a mapping": (lambda path: [path], TypeError, "expected None, or a mapping"),
    "not a stream": (lambda path: {7: [path]}, TypeError, "int"),
}
CASES: Final = pytest.mark.parametrize("case", sorted(OUTPUTS))


@pytest.fixture
def group() -> str:
    return fresh("g")


@pytest.fixture
def paths(client: Any) -> tuple[str, str]:
    """A stream with numbers, and a stream for outputs."""
    inputs, outputs = fresh("in"), fresh("out")
    for path in (inputs, outputs):
        client.stream(path).create("application/json")
    client.stream(inputs).append_many(range(COUNT))
    return inputs, outputs


def function(case: str, output: str) -> Any:
    def transform(batch: Any) -> Any:
        if any(message.value == BAD for message in batch):
            if len(batch) == 1:
                return OUTPUTS[case][0](output)
            return (
                {output: [object() for _ in batch]}
                if case != "too large"
                else {output: ["x" * 5_000_000]}
            )
        return {output: (message.value for message in batch)}

    return transform


@CASES
def test_a_message_whose_outputs_cannot_be_stored_becomes_a_dead_letter(
    client: Any, paths: tuple[str, str], group: str, case: str
) -> None:
    inputs, outputs = paths
    options = {"workers": 1, "live": False, "max_attempts": 2, "backoff": 0.01}
    done = client.process(group, [inputs], function(case, outputs), **options)
    assert done == COUNT
    assert values(client, outputs) == [each for each in range(COUNT) if each != BAD]
    (letter,) = list(client.dead_letters(group))
    _, error, text = OUTPUTS[case]
    assert (letter.value, letter.attempts) == (BAD, 2)
    assert letter.cause.startswith(f"{error.__name__}: ")
    assert text in letter.cause
    assert client.group(group).describe().lag == 0


@CASES
def test_without_dead_letters_the_error_names_the_message(
    client: Any, paths: tuple[str, str], group: str, case: str
) -> None:
    inputs, outputs = paths
    options = {"workers": 1, "live": False, "max_attempts": None}
    _, error, text = OUTPUTS[case]
    with pytest.raises(error, match=text) as caught:
        client.process(group, [inputs], function(case, outputs), **options)
    messages = list(client.stream(inputs).read())
    assert f"the message at {messages[BAD].offset} in {inputs} " in str(caught.value)
    assert values(client, outputs) == list(range(BAD))


def test_what_an_iterator_of_values_raises_is_an_exception_of_the_function(
    client: Any, paths: tuple[str, str], group: str
) -> None:
    inputs, outputs = paths

    def transform(batch: Any) -> Any:
        return {outputs: (1 // (message.value - BAD) for message in batch)}

    options = {"workers": 1, "live": False, "max_attempts": 1}
    assert client.process(group, [inputs], transform, **options) == COUNT
    (letter,) = list(client.dead_letters(group))
    assert letter.value == BAD
    assert letter.cause.startswith("ZeroDivisionError: ")


def test_an_output_stream_that_does_not_exist_ends_the_call(
    client: Any, paths: tuple[str, str], group: str
) -> None:
    inputs, _ = paths
    with pytest.raises(errors.StreamNotFound):
        client.process(group, [inputs], lambda batch: {fresh("no"): [1]}, workers=1, live=False)
    assert list(client.dead_letters(group)) == []
    assert client.group(group).describe().lag == COUNT
