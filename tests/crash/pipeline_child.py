"""A zygote whose child processes run a graph, and kill themselves or the server at a boundary.

It reads jobs from stdin, one JSON object per line. For each job it writes lines of JSON: first the
reports of the child process, then its exit code.
"""

import json
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Final

from semel.pipeline import Delivery, Graph, Runner
from semel.pipeline.local.engine import LocalEngine

BAD_EVERY: Final = 17


class SmallSteps(LocalEngine):
    """Processes few messages per step, so that there are many boundaries."""

    step_messages_max = 5


def is_bad(n: int) -> bool:
    return n % BAD_EVERY == 3


def graph_of(url: str, limit: int, database: str) -> Graph:
    """Build a graph that forks, joins and marks the numbers below a limit, and stores them."""
    graph = Graph("crash", url=url, errors="errors")
    legs = {"low": "low", "high": "high"}

    @graph.source("numbers", out="numbers")
    def numbers(cursor: int | None) -> Iterator[tuple[int, int]]:
        for n in range(0 if cursor is None else cursor + 1, limit):
            yield n, n

    @graph.stream("fork", in_="numbers", out=legs)
    def fork(n: int) -> dict[str, int]:
        if is_bad(n):
            raise ValueError(n)
        return {"low": n, "high": -n}

    @graph.stream("pair", in_=legs, out="pairs")
    def pair(low: int, high: int) -> list[int]:
        return [low, high]

    @graph.stream("mark", alts=["pairs", "errors"], out="marked", errors=None)
    def mark(message: Any, binding: str) -> list[Any]:
        return [binding, message[0] if binding == "pairs" else message["inputs"][0]["value"]]

    @graph.sink("store", in_="pairs")
    def store(pairs: list[list[int]], delivery: Delivery) -> None:
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("create table if not exists done (hash text primary key)")
            connection.execute("create table if not exists pairs (n integer)")
            try:
                connection.execute("insert into done values (?)", [delivery.hash])
            except sqlite3.IntegrityError:
                return
            connection.executemany("insert into pairs values (?)", [[n] for n, _ in pairs])

    return graph


def at_boundary(job: dict[str, Any]) -> Callable[[str, str], None]:
    left = [job["times"]]
    lock = threading.Lock()

    def at(processor: str, boundary: str) -> None:
        if [processor, boundary] != job["where"]:
            return
        with lock:
            left[0] -= 1
            if left[0]:
                return
        if job["server"] is None:
            os.kill(os.getpid(), signal.SIGKILL)
        os.kill(job["server"], signal.SIGKILL)
        report({"killed": "server"})

    return at


def report(message: dict[str, Any]) -> None:
    os.write(sys.stdout.fileno(), json.dumps(message).encode() + b"\n")


def run_graph(job: dict[str, Any]) -> int:
    """Run the graph until all is processed; return 1 if a processor stopped."""
    graph = graph_of(job["url"], job["limit"], job["database"])
    with Runner(graph, available_now=True, executor=SmallSteps(), at=at_boundary(job)) as runner:
        runner.wait()
    for id, reason in runner.stopped.items():
        sys.stderr.write(f"{id}: {reason}\n")
    return 1 if runner.stopped else 0


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 2
            try:
                code = run_graph(json.loads(line))
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        report({"ended": os.waitstatus_to_exitcode(status)})


if __name__ == "__main__":
    main()
