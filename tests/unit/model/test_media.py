"""Media types: stored as given, compared without case and parameters."""

import pytest

from semel.model.messages import is_json, is_text, normalise, same_media_type


@pytest.mark.parametrize("given", ["text/plain", " Text/PLAIN ", "text/plain;charset=utf-8"])
def test_case_space_and_parameters_do_not_count(given: str) -> None:
    assert normalise(given) == "text/plain"
    assert same_media_type(given, "TEXT/plain; v=1")


def test_an_omitted_type_is_the_default_one() -> None:
    assert same_media_type(None, "application/octet-stream")
    assert not same_media_type(None, "text/plain")


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ("application/json", True),
        ("Application/JSON;a=b", True),
        ("application/json-seq", False),
        ("text/json", False),
    ],
)
def test_json_is_one_type_in_any_spelling(given: str, answer: bool) -> None:
    assert is_json(given) is answer


@pytest.mark.parametrize("text", ["application/json", "APPLICATION/JSON", "application/json ; a=b"])
def test_json_is_json_in_any_spelling(text: str) -> None:
    assert is_json(text)
    assert not is_text(text)
    assert normalise(text) == "application/json"


def test_only_text_is_text() -> None:
    assert is_text("Text/Plain; charset=utf-8")
    assert not is_text("application/text")
    assert not is_json("application/problem+json")
