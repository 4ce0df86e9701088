"""Spark's long error messages, reduced to one line."""

import pickle

import pytest

pytest.importorskip("pyspark")

from semel.pipeline.spark.tasks import data_lost, error_text, job_failed
from semel.spark.errors import (
    DataLossError,
    stream_deleted,
    stream_recreated,
    stream_trimmed,
    stream_truncated,
)

WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "x.py", line 1, in f
    raise ValueError
ValueError

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "x.py", line 8, in boom
    raise Odd("it is: bad")
shop.Odd: it is: bad
second line

== Progress ==
"""
JAVA = """An error occurred while calling o103.collectToPython.
: org.apache.spark.SparkException: Job aborted: no room
\tat org.apache.spark.Somewhere
"""
DIED = JAVA.replace("no room", "Python worker exited unexpectedly (crashed). Consider")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (WORKER, "shop.Odd: it is: bad"),
        (JAVA, "org.apache.spark.SparkException: Job aborted: no room"),
        ("[CAST] no number\n== SQL ==\n", "[CAST] no number"),
        ("", "RuntimeError"),
    ],
)
def test_the_line_that_matters_is_found(text: str, wanted: str) -> None:
    assert error_text(RuntimeError(text)) == wanted
    assert str(job_failed(RuntimeError(text))) == f"the Spark job failed: {wanted}"


def test_a_worker_that_died_is_told_as_such() -> None:
    assert "a Spark worker process ended" in str(job_failed(RuntimeError(DIED)))


def test_trimmed_messages_are_reported_with_the_command_that_continues() -> None:
    text = str(data_lost(stream_trimmed("in", 5, 10).reason))
    assert "were trimmed before the query read them; set the group's position" in text


@pytest.mark.parametrize(
    "error",
    [
        stream_trimmed("in", 5, 10),
        stream_recreated("in"),
        stream_deleted("in"),
        stream_truncated("in", 9, 4),
    ],
)
def test_lost_messages_are_reported_without_the_advice_for_the_spark_source(
    error: DataLossError,
) -> None:
    text = str(data_lost(error.reason))
    assert text.startswith("in ")
    assert "; set the group's position to a valid offset with `semel groups set`" in text
    assert not any(word in text for word in ("failOnDataLoss", "checkpointLocation"))
    assert "failOnDataLoss" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # Spark's workers pickle errors
