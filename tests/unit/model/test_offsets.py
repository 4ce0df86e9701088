"""Offsets: printing and parsing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.model.limits import NUMBER_MAX
from semel.model.offsets import OFFSET_CHARS, parse_offset, print_offset

ordinals = st.integers(0, NUMBER_MAX)


@given(ordinals)
def test_an_offset_reads_back_as_it_was_printed(ordinal: int) -> None:
    text = print_offset(ordinal)
    assert len(text) == OFFSET_CHARS
    assert parse_offset(text) == ordinal


@given(ordinals, ordinals)
def test_printed_offsets_sort_as_their_ordinals(one: int, other: int) -> None:
    assert (one < other) == (print_offset(one) < print_offset(other))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-1",
        "now",
        "0" * 33,
        "0" * 16 + "_",
        "0" * 15 + "_" + "0" * 17,
        "0" * 16 + "_" + "0" * 15,
        "0" * 16 + "_" + "0" * 15 + "x",
        "x" + "0" * 15 + "_" + "0" * 16,
        "0" * 16 + "_" + "0" * 15 + "\u0661",
        "0" * 16 + "_" + "0" * 15 + "\u00b2",
        "0" * 16 + "_+" + "0" * 15,
        " " + "0" * 15 + "_" + "0" * 16,
        "0" * 16 + "-" + "0" * 16,
    ],
)
def test_anything_else_is_no_offset(text: str) -> None:
    assert parse_offset(text) is None


def test_a_foreign_offset_lies_beyond_every_tail() -> None:
    assert parse_offset("0" * 15 + "1_" + "0" * 16) == NUMBER_MAX
    assert parse_offset("0" * 16 + "_" + "9" * 16) == NUMBER_MAX


@given(st.text(max_size=40))
def test_no_text_breaks_the_reader(text: str) -> None:
    assert parse_offset(text) is None or len(text) == OFFSET_CHARS
