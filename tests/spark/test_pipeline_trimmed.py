"""Reads of a trimmed stream as in a task of Spark, without a JVM."""

import pytest

import semel
from semel.model.offsets import print_offset
from semel.pipeline.spark.reading import ServerAccess, read_parts, split_parts
from semel.pipeline.values import Range
from semel.spark.errors import DataLossError


def test_every_task_of_a_step_from_the_beginning_takes_what_is_left() -> None:
    with semel.local() as server:
        stream = server.stream("in").create("application/json")
        stream.append_many(range(20))
        stream.trim(print_offset(11))
        incarnation = stream.head().incarnation
        assert incarnation is not None

        access = ServerAccess(server.url, None)

        def read(start: int) -> list[int]:
            parts = split_parts({"in": "in"}, [Range("in", incarnation, start, 20)], 4, 1)
            return [
                offset
                for part in parts
                for page in read_parts(access, part.ranges["in"], is_open=part.is_open)
                for offset in page.column("offset").to_pylist()
            ]

        assert read(0) == list(range(11, 20))
        with pytest.raises(DataLossError):
            read(5)  # a group with a position lost the trimmed messages
