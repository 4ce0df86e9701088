"""Errors that users see are short: semel's own frames are removed from the traceback."""

import pickle
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from semel.client.errors import BadRequest
from semel.spark.data_source import SemelDataSource
from semel.spark.errors import USER_ERRORS, hide_traceback, hide_traceback_of_rows
from semel.spark.options import SparkOptionError
from semel.spark.source.readers import RefusedReader

NOWHERE = {"url": "http://127.0.0.1:9", "stream": "orders", "retryTimeout": "50ms"}
PLAIN = StructType().add("value", "string")


def source(**options: str) -> SemelDataSource:
    return SemelDataSource({**NOWHERE, **options})


def frames_of_ours(error: BaseException) -> int:
    return sum(
        "semel/spark" in frame.filename for frame in traceback.extract_tb(error.__traceback__)
    )


def deep() -> None:
    def deeper() -> None:
        raise SparkOptionError("one line")

    deeper()


def test_of_our_own_way_to_an_error_one_frame_is_left() -> None:
    with pytest.raises(SparkOptionError, match="one line") as caught:
        hide_traceback(deep)()
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[1:] == ["calling"]
    assert caught.value.__suppress_context__


def test_another_error_keeps_its_way() -> None:
    def broken() -> None:
        raise KeyError("a bug")

    with pytest.raises(KeyError) as caught:
        hide_traceback(broken)()
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "broken"


def test_rows_that_fail_in_the_middle_are_told_as_well() -> None:
    def rows() -> Any:
        yield 1
        deep()

    found = hide_traceback_of_rows(rows())
    assert next(found) == 1
    with pytest.raises(SparkOptionError, match="one line") as caught:
        next(found)
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "hide_traceback_of_rows"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: source(startOffset="1").schema(), "did you mean startingOffsets?"),
        (lambda: source().reader(StructType().add("a", "binary")), "cannot be decoded"),
        (lambda: source().reader(PLAIN).partitions(), "correct the option 'url'"),
        (lambda: source().streamReader(PLAIN).initialOffset(), "correct the option 'url'"),
        (lambda: source().writer(PLAIN, overwrite=True), 'use mode("append")'),
        (lambda: source().streamWriter(PLAIN, overwrite=True), 'outputMode("append")'),
    ],
)
def test_every_door_of_the_format_is_short(make: Callable[[], object], words: str) -> None:
    with pytest.raises(USER_ERRORS) as caught:
        make()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert frames_of_ours(caught.value) <= 2


def test_a_stream_that_cannot_be_read_says_so_when_it_is_first_asked() -> None:
    reader = source().streamReader(StructType().add("a", "binary"))
    assert isinstance(reader, RefusedReader)
    pickle.loads(pickle.dumps(reader))
    asked: list[Callable[[], object]] = [
        reader.initialOffset,
        reader.getDefaultReadLimit,
        reader.prepareForTriggerAvailableNow,
        lambda: reader.latestOffset({}, ReadAllAvailable()),
        lambda: reader.read(InputPartition(0)),
    ]
    for ask in asked:
        with pytest.raises(SparkOptionError, match="cannot be decoded from JSON as binary"):
            ask()
    reader.stop()


def test_what_the_client_says_is_told() -> None:
    assert issubclass(BadRequest, USER_ERRORS)
