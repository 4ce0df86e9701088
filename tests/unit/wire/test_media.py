"""Media types, whatever their case and parameters."""

import pytest

from semel.machine import media as machine
from semel.wire.media import is_json, is_text, normalise


@pytest.mark.parametrize("text", ["application/json", "APPLICATION/JSON", "application/json ; a=b"])
def test_json_is_json_in_any_spelling(text: str) -> None:
    assert is_json(text)
    assert not is_text(text)
    assert normalise(text) == machine.normalise(text) == "application/json"


def test_only_text_is_text() -> None:
    assert is_text("Text/Plain; charset=utf-8")
    assert not is_text("application/text")
    assert not is_json("application/problem+json")
