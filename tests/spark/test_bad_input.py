"""The error of a query that cannot run: one line with the cause and what to do.

Other cases are tested elsewhere: a missing Java in tests/unit/spark/test_java.py, the wrong Python
in test_session.py, batch reads and recreated streams in test_source.py.
"""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from semel import Client, local
from semel.model.offsets import print_offset
from tests.spark.queries import Copy, fill, values
from tests.spec.process import Server

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def query(spark: SparkSession, server: Server, client: Client, tmp_path: Path) -> Copy:
    """A query from a stream of ten numbers to a stream that does not exist yet."""
    name = uuid4().hex
    fill(client, f"in-{name}", 0, 10)
    return Copy(spark, server.url, f"in-{name}", f"out-{name}", tmp_path / "checkpoint")


def failure(query: Copy) -> str:
    """Run the query; return the text of its error, which must be short."""
    with pytest.raises(PySparkException) as caught:
        query.run()
    said = str(caught.value)
    assert "\tat " not in said  # no stack trace of the JVM
    ours = [line for line in said.splitlines() if 'File "' in line and "semel/spark" in line]
    assert len(ours) <= 2, said
    assert "During handling of the above exception" not in said
    return said


def assert_line(said: str, *words: str) -> None:
    """Check that one line contains all the words."""
    assert any(all(word in line for word in words) for line in said.splitlines()), said


class Reading(Copy):
    """A query with other read options or a schema."""

    def __init__(self, query: Copy, schema: str | None = None, **options: str) -> None:
        super().__init__(query.spark, query.url, query.source, query.target, query.checkpoint)
        self.read = {"url": query.url, "stream": query.source, "retryTimeout": "500ms", **options}
        self.schema = schema

    def frame(self) -> Any:
        reader = self.spark.readStream.format("semel").options(**self.read)
        if self.schema is None:
            return reader.load()
        return reader.schema(self.schema).load().selectExpr("'1' AS value")


# ---- reading -------------------------------------------------------------------------------------


def test_a_server_that_is_down_at_the_start(query: Copy) -> None:
    said = failure(Reading(query, url=NOWHERE))
    assert_line(
        said, f"{NOWHERE} cannot be reached", "start the server", "correct the option 'url'"
    )


def test_an_address_that_is_none(query: Copy) -> None:
    said = failure(Reading(query, url="127.0.0.1:9"))
    assert_line(
        said, "'127.0.0.1:9' is not the address of a server", "such as http://127.0.0.1:4437"
    )


def test_a_stream_that_is_missing(query: Copy) -> None:
    wrong = query.source[:-1]
    said = failure(Reading(query, stream=wrong))
    assert_line(said, f"there is no stream {wrong}", f"did you mean {query.source}", "semel create")


def test_an_option_that_is_unknown(query: Copy) -> None:
    said = failure(Reading(query, startOffset="1"))
    assert_line(said, "unknown option 'startoffset'", "did you mean startingOffsets?")


def test_a_schema_that_cannot_be_filled(query: Copy) -> None:
    said = failure(Reading(query, schema="id binary"))
    assert_line(
        said, "the column 'id' cannot be decoded from JSON as binary", "read without a schema"
    )


def test_a_range_that_was_trimmed_before_it_was_read(query: Copy, client: Client) -> None:
    query.run()
    fill(client, query.source, 10, 20)
    client.stream(query.source).trim(before=print_offset(15))
    said = failure(query)
    assert_line(
        said,
        "offsets 10 to 14 were trimmed before the query read them",
        '"failOnDataLoss", "false"',
    )


def test_a_stream_that_was_made_anew(query: Copy, client: Client) -> None:
    query.run()
    client.stream(query.source).delete()
    fill(client, query.source, 0, 10)
    said = failure(query)
    assert_line(said, "was deleted and created again", "start with a new checkpointLocation")


# ---- writing -------------------------------------------------------------------------------------


def test_a_server_to_write_to_that_is_down_at_the_start(query: Copy) -> None:
    query.options = {"url": NOWHERE, "retryTimeout": "200ms"}
    assert_line(failure(query), f"{NOWHERE} cannot be reached", "correct the option 'url'")


def test_a_server_to_write_to_that_goes_away_in_the_middle(query: Copy, client: Client) -> None:
    with local() as other:
        query.options = {"url": other.url, "retryTimeout": "1s"}
        query.run()
        other.kill()
        fill(client, query.source, 10, 12)
        said = failure(query)
        assert_line(said, f"{other.url} cannot be reached", "start the server", "retryTimeout")
        other.restart()
        query.options["retryTimeout"] = "30s"
        query.run()
        assert values(other, query.target) == list(range(12))


def test_a_row_over_the_limit(query: Copy, client: Client) -> None:
    big = "if(offset = 7, concat('\"', repeat('x', 5000000), '\"'), '1') AS value"
    query.change = lambda frame: frame.selectExpr(big)
    said = failure(query)
    assert_line(
        said,
        "partition 0, row 7: ",
        "too large",
        "make the message smaller",
        "No row of this batch",
    )
    assert values(client, query.target) == []


def test_complete_mode(query: Copy) -> None:
    query.change = lambda frame: frame.groupBy("stream").count()
    query.mode = "complete"
    assert_line(failure(query), "cannot be overwritten", 'outputMode("append") with a watermark')


def test_update_mode_is_refused_by_spark_and_the_page_has_the_cure(query: Copy) -> None:
    query.mode = "update"
    assert_line(failure(query), "semel does not support Update mode")
    page = Path(__file__).resolve().parents[2] / "docs/reference/spark.md"
    (row,) = [line for line in page.read_text().splitlines() if "support Update mode" in line]
    assert 'outputMode("append")' in row


def test_a_checkpoint_that_is_missing(query: Copy) -> None:
    writer = query.frame().select("value").writeStream.format("semel")
    with pytest.raises(AnalysisException) as caught:
        writer.options(url=query.url, stream=query.target).start()
    assert_line(str(caught.value), "must be specified", 'option("checkpointLocation", ...)')
