"""The offsets that Spark stores for semel."""

import json

import pytest

from semel.spark.offsets import StartOffsets
from semel.spark.source.catalog import StreamPosition
from semel.spark.source.readers import PIN, from_document, is_pin, to_document


def test_an_offset_is_what_the_design_says_with_its_keys_in_order() -> None:
    document = to_document({"b": StreamPosition("i2", 7), "a": StreamPosition("i1", 5000)})
    assert json.dumps(document) == (
        '{"a": {"id": "i1", "next": 5000}, "b": {"id": "i2", "next": 7}}'
    )


def test_an_offset_is_read_back_as_it_was() -> None:
    positions = {"a": StreamPosition("i1", 5000), "pin": StreamPosition("latest", 1)}
    assert from_document(to_document(positions)) == positions


def test_the_pin_is_told_from_a_stream_of_that_name() -> None:
    assert is_pin(PIN)
    assert not is_pin(to_document({"pin": StreamPosition("latest", 1)}))
    assert not is_pin({})


@pytest.mark.parametrize("document", [{"orders": 5}, {"orders": {"0": 5}}, {"a": {"id": "i"}}])
def test_offsets_of_another_source_are_refused_with_a_cure(document: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="Use a new checkpointLocation"):
        from_document(document)


def test_starts_tell_whether_one_of_the_streams_begins_at_its_moving_end() -> None:
    assert StartOffsets(-1).has_latest([])
    assert StartOffsets(-2, {"a": -1}).has_latest(["a", "b"])
    assert not StartOffsets(-2, {"a": -1}).has_latest(["b"])
