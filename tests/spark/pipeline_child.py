"""A driver that runs a graph on Spark, and kills itself or asks for a kill of the server.

The kills are at boundaries of steps. The argument is one JSON object; the output is JSON lines.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from semel.pipeline import Delivery, Graph, Runner, delta, postgres
from semel.pipeline.spark.engine import SparkEngine
from semel.spark.runtime.session import session
from tests.spark.programs import QUICK

BAD_EVERY: Final = 17
_lock: Final = threading.Lock()


class SmallSteps(SparkEngine):
    """Takes few messages in each step, so that there are many boundaries, and several tasks."""

    step_messages_max = 20
    task_messages_min = 5


def is_bad(n: int) -> bool:
    return n % BAD_EVERY == 3


def low_of(pairs: DataFrame) -> DataFrame:
    return pairs.select(f.from_json("value", "array<long>")[0].alias("n"))


def graph_of(job: dict[str, Any]) -> Graph:
    """Return a graph that forks numbers, joins and marks them, and writes them to two databases."""
    graph = Graph("crash", url=job["url"], errors="errors")
    legs = {"low": "low", "high": "high"}

    @graph.source("numbers", out="numbers")
    def numbers(cursor: int | None) -> Iterator[tuple[int, int]]:
        for n in range(0 if cursor is None else cursor + 1, job["limit"]):
            yield n, n

    @graph.stream("fork", in_="numbers", out=legs)
    def fork(n: int) -> dict[str, int]:
        if n % 17 == 3:
            raise ValueError(n)
        return {"low": n, "high": -n}

    @graph.stream("pair", in_=legs, out="pairs")
    def pair(low: int, high: int) -> list[int]:
        return [low, high]

    @graph.stream("mark", alts=["pairs", "errors"], out="marked", errors=None)
    def mark(message: Any, binding: str) -> list[Any]:
        return [binding, message[0] if binding == "pairs" else message["inputs"][0]["value"]]

    if job["database"] is not None:

        @graph.sink("rows", in_="pairs")
        def rows(pairs: DataFrame, delivery: Delivery) -> None:
            postgres.write(low_of(pairs), delivery, to=job["database"], table="numbers")

    @graph.sink("lake", in_="pairs")
    def lake(pairs: DataFrame, delivery: Delivery) -> None:
        delta.write(low_of(pairs), delivery, table=job["table"])

    return graph


def at_boundary(kills: list[list[str]]) -> Callable[[str, str], None]:
    """Return a hook that performs each kill once: [processor, boundary, `driver` or `server`]."""
    left = [list(one) for one in kills]

    def at(processor: str, boundary: str) -> None:
        with _lock:
            found = next((one for one in left if one[:2] == [processor, boundary]), None)
            if found is None:
                return
            left.remove(found)
            if found[2] == "driver":
                os.kill(os.getpid(), signal.SIGKILL)
            report({"kill": "server"})
            sys.stdin.readline()  # sent after the kill

    return at


def report(event: dict[str, Any]) -> None:
    os.write(sys.stdout.fileno(), json.dumps(event).encode() + b"\n")


def main() -> int:
    job = json.loads(sys.argv[1])
    conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.extraJavaOptions": QUICK}
    session("crash", "local[2,4]", **conf)
    runner = Runner(
        graph_of(job), available_now=True, executor=SmallSteps(), at=at_boundary(job["kills"])
    )
    with runner:
        runner.wait()
    report({"stopped": runner.stopped})
    return 1 if runner.stopped else 0


if __name__ == "__main__":
    sys.exit(main())
