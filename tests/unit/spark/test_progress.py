"""The end offsets of a batch."""

import pytest

from semel.spark.errors import DataLossError
from semel.spark.source.catalog import StreamEnd, StreamPosition
from semel.spark.source.readers import limit_positions, next_positions

AT = {"a": StreamPosition("i", 5)}


def ahead(ends: dict[str, StreamEnd], *, is_loss_fatal: bool = True) -> dict[str, StreamPosition]:
    return next_positions(AT, ends, is_loss_fatal=is_loss_fatal)


def test_a_batch_goes_up_to_the_stable_offset() -> None:
    assert ahead({"a": StreamEnd("i", 8, 12)}) == {"a": StreamPosition("i", 8)}


def test_a_batch_never_goes_backwards() -> None:
    assert ahead({"a": StreamEnd("i", 3, 12)}) == AT


def test_a_stream_that_appears_is_read_as_well() -> None:
    ends = {"a": StreamEnd("i", 5, 5), "b": StreamEnd("j", 2, 2)}
    assert ahead(ends) == {**AT, "b": StreamPosition("j", 2)}


@pytest.mark.parametrize(
    ("ends", "words", "otherwise"),
    [
        ({}, "a was deleted while the query read it", AT),
        (
            {"a": StreamEnd("j", 2, 2)},
            "a was deleted and created again",
            {"a": StreamPosition("j", 2)},
        ),
        ({"a": StreamEnd("i", 4, 4)}, "a ends at offset 4, but the query has read up to 5", AT),
    ],
)
def test_a_loss_is_an_error_unless_it_may_be_passed_over(
    ends: dict[str, StreamEnd], words: str, otherwise: dict[str, StreamPosition]
) -> None:
    with pytest.raises(DataLossError, match=words) as caught:
        ahead(ends)
    assert 'set .option("failOnDataLoss", "false")' in str(caught.value)
    assert ahead(ends, is_loss_fatal=False) == otherwise


def test_a_limit_is_shared_in_proportion() -> None:
    found = {
        "a": StreamPosition("i", 900),
        "b": StreamPosition("j", 100),
        "c": StreamPosition("k", 7),
    }
    begins = {"a": 0, "b": 0, "c": 7}
    assert limit_positions(begins, found, 100) == {
        "a": StreamPosition("i", 90),
        "b": StreamPosition("j", 10),
        "c": StreamPosition("k", 7),
    }
    assert limit_positions(begins, found, 1000) == found


def test_a_limit_leaves_every_stream_something_so_that_none_starves() -> None:
    found = {"a": StreamPosition("i", 1000), "b": StreamPosition("j", 1)}
    assert limit_positions({"a": 0, "b": 0}, found, 10)["b"] == StreamPosition("j", 1)
