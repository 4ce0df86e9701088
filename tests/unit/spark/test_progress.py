"""How far a batch goes."""

import pytest

from semel.spark.errors import DataLossError
from semel.spark.source.catalog import End
from semel.spark.source.offsets import Position
from semel.spark.source.readers import limited, next_positions

AT = {"a": Position("i", 5)}


def ahead(ends: dict[str, End], *, is_loss_fatal: bool = True) -> dict[str, Position]:
    return next_positions(AT, ends, is_loss_fatal=is_loss_fatal)


def test_a_batch_goes_up_to_the_stable_offset() -> None:
    assert ahead({"a": End("i", 8, 12)}) == {"a": Position("i", 8)}


def test_a_batch_never_goes_backwards() -> None:
    assert ahead({"a": End("i", 3, 12)}) == AT


def test_a_stream_that_appears_is_read_as_well() -> None:
    ends = {"a": End("i", 5, 5), "b": End("j", 2, 2)}
    assert ahead(ends) == {**AT, "b": Position("j", 2)}


@pytest.mark.parametrize(
    ("ends", "words", "otherwise"),
    [
        ({}, "a was deleted while the query read it", AT),
        ({"a": End("j", 2, 2)}, "a was deleted and made anew", {"a": Position("j", 2)}),
        ({"a": End("i", 4, 4)}, "a ends at offset 4, but the query has read up to 5", AT),
    ],
)
def test_a_loss_is_an_error_unless_it_may_be_passed_over(
    ends: dict[str, End], words: str, otherwise: dict[str, Position]
) -> None:
    with pytest.raises(DataLossError, match=words) as caught:
        ahead(ends)
    assert 'set .option("failOnDataLoss", "false")' in str(caught.value)
    assert ahead(ends, is_loss_fatal=False) == otherwise


def test_a_limit_is_shared_in_proportion() -> None:
    found = {"a": Position("i", 900), "b": Position("j", 100), "c": Position("k", 7)}
    begins = {"a": 0, "b": 0, "c": 7}
    assert limited(begins, found, 100) == {
        "a": Position("i", 90),
        "b": Position("j", 10),
        "c": Position("k", 7),
    }
    assert limited(begins, found, 1000) == found


def test_a_limit_leaves_every_stream_something_so_that_none_starves() -> None:
    found = {"a": Position("i", 1000), "b": Position("j", 1)}
    assert limited({"a": 0, "b": 0}, found, 10)["b"] == Position("j", 1)
