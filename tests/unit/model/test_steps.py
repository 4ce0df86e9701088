"""Computations in steps."""

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from semel.model import steps
from semel.model.steps import finish, sort_steps


@given(st.sets(st.text(max_size=3)), st.integers(1, 5))
def test_texts_are_sorted_in_steps(texts: set[str], rows: int) -> None:
    """Each step sorts or merges some rows, so the number of steps is a measure of each."""
    with patch.object(steps, "STEP_ROWS", rows):
        assert finish(sort_steps(texts)) == sorted(texts)
        parts = -(-len(texts) // rows)
        assert len(list(sort_steps(texts))) == (2 * parts if parts > 1 else 0)
