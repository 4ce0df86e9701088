"""Outcomes: one type each, with a code, and either a refusal or not."""

import pytest

from semel.model import outcomes as out
from semel.model.outcomes import Outcome, Refusal

KINDS = [
    kind
    for kind in vars(out).values()
    if isinstance(kind, type) and issubclass(kind, Outcome) and kind not in (Outcome, Refusal)
]
REFUSALS = [kind for kind in KINDS if issubclass(kind, Refusal)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_outcome_is_frozen(kind: type[Outcome]) -> None:
    assert kind.__struct_config__.frozen


def test_every_refusal_has_a_code_of_its_own() -> None:
    codes = [kind.code for kind in REFUSALS]
    assert len(set(codes)) == len(codes)
    assert Outcome.code not in codes


def test_a_duplicate_and_a_closed_stream_are_not_taken_for_each_other() -> None:
    assert not issubclass(out.Duplicate, Refusal)
    assert issubclass(out.StreamClosed, Refusal)


def test_an_outcome_does_not_change() -> None:
    with pytest.raises(AttributeError):
        out.Trimmed(1).head = 2  # type: ignore[misc]
