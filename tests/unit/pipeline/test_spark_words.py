"""Spark's long error messages, reduced to one line."""

import pytest

pytest.importorskip("pyspark")

from semel.pipeline.spark.tasks import data_lost, error_text, job_failed
from semel.spark.errors import stream_trimmed

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


def test_lost_messages_are_told_without_the_advice_for_the_spark_source() -> None:
    text = str(data_lost(str(stream_trimmed("in", 5, 10))))
    assert "were trimmed before the query read them; set the group's position" in text
