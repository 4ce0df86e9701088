"""Steps committed as versions of a sink, as engines with tasks do, without Spark."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import semel
from semel.client.errors import AppBound, PositionConflict
from semel.client.local import LocalServer
from semel.client.sync.client import Client
from semel.client.sync_driver import Stop
from semel.pipeline import Graph, Runner
from semel.pipeline.executor import StepOutput, Work
from semel.pipeline.local.engine import LocalEngine
from semel.pipeline.local.step import BOUNDARIES, COMMITTED, RAN
from semel.pipeline.spark.engine import SinkCommitter
from semel.pipeline.values import step_of
from tests.spec.process import PATIENCE_SECONDS

STEP = step_of("g", "p", 1, [])


class Killed(BaseException):
    """Ends a thread as if its process had been killed."""


class Staging(LocalEngine):
    """Stages each output in its own task, like Spark."""

    step_messages_max = 3

    def commits(self, client: Client, name: str, stop: Stop) -> SinkCommitter:
        self.client = client
        return SinkCommitter(client, name, stop)

    def run(self, work: Work) -> StepOutput:
        made = super().run(work)
        tokens: list[str] = []
        for path, raw in [(path, raw) for path, rows in made.appends.items() for raw in rows]:
            with self.client.sink(work.producer_id).task(work.version, len(tokens)) as task:
                task.append_many(path, [raw])
                tokens.append(task.prepare())
        return StepOutput(transactions=tokens, read=made.read, written=made.written)


def dies_at(boundary: str) -> Callable[[str, str], None]:
    def at(processor: str, reached: str) -> None:
        if reached == boundary:
            raise Killed(processor)

    return at


def run_graph(graph: Graph, at: Callable[[str, str], None] | None = None) -> dict[str, str]:
    more = {} if at is None else {"at": at}
    with Runner(graph, available_now=True, executor=Staging(), **more) as runner:  # type: ignore[arg-type]
        assert runner.wait(PATIENCE_SECONDS)
        return runner.stopped


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with semel.local() as found:
        yield found


names = itertools.count()


@pytest.fixture
def name(server: LocalServer) -> str:
    found = f"s{next(names)}"
    server.stream(f"{found}-in").create("application/json").append_many(list(range(8)))
    return found


def copy(server: LocalServer, name: str, **options: Any) -> Graph:
    graph = Graph(name, url=server.url)

    @graph.stream("p", in_=f"{name}-in", out=f"{name}-out", **options)
    def p(message: Any) -> Any:
        return message

    return graph


def values(server: LocalServer, path: str) -> list[Any]:
    return [message.value for message in server.stream(path).read()]


def test_a_step_that_dies_anywhere_is_done_once(server: LocalServer, name: str) -> None:
    graph = copy(server, name)
    for boundary in BOUNDARIES:
        run_graph(graph, dies_at(boundary))
    assert run_graph(graph) == {}
    assert values(server, f"{name}-out") == list(range(8))
    assert server.sink(f"{name}/p").info().open_transactions == 0


def test_an_at_most_once_step_is_two_commits_and_never_done_twice(
    server: LocalServer, name: str
) -> None:
    graph = copy(server, name, strategy="at-most-once")
    run_graph(graph, dies_at(RAN))
    run_graph(graph, dies_at(COMMITTED))
    assert run_graph(graph) == {}
    assert values(server, f"{name}-out") == list(range(3, 8))


def test_a_group_that_is_set_back_by_hand_does_its_messages_again(
    server: LocalServer, name: str
) -> None:
    graph = copy(server, name)
    run_graph(graph)
    for offset in (6, 0):  # the start of the last step, and another offset
        server.group(f"{name}/p").set({f"{name}-in": offset})
        assert run_graph(graph) == {}
    assert values(server, f"{name}-out") == [*range(8), 6, 7, *range(8)]


def test_a_newer_instance_refuses_the_older_one(server: LocalServer, name: str) -> None:
    with Client(server.url) as client:
        older, newer = [SinkCommitter(client, f"{name}/p", Stop()) for _ in range(2)]
        older.begin()
        older.commit(STEP, {f"{name}-in": [b"8"]}, {})
        newer.begin()
        with pytest.raises(AppBound):
            older.commit(STEP, {f"{name}-in": [b"9"]}, {})
        newer.commit(STEP, {f"{name}-in": [b"10"]}, {})
        assert older.epoch < newer.epoch
    assert values(server, f"{name}-in") == [*range(8), 8, 10]


def test_of_two_instances_that_never_committed_the_newer_one_wins(
    server: LocalServer, name: str
) -> None:
    with Client(server.url) as client:
        older, newer = [SinkCommitter(client, f"{name}/p", Stop()) for _ in range(2)]
        older.begin()
        newer.begin()
        with pytest.raises(AppBound):
            older.commit(STEP, {}, {})
        newer.commit(STEP, {}, {})


def test_a_position_that_somebody_moved_refuses_the_step(server: LocalServer, name: str) -> None:
    path = f"{name}-in"
    with Client(server.url) as client:
        committer = SinkCommitter(client, f"{name}/p", Stop())
        committer.begin()
        server.group(f"{name}/p").set({path: 4})
        moves = {f"{name}/p": {path: (0, 8)}}
        with pytest.raises(PositionConflict):
            committer.commit(STEP, {path: [b"9"]}, moves)
    assert values(server, path) == list(range(8))


def test_a_stream_that_is_made_anew_within_a_step_is_read_from_its_beginning(
    server: LocalServer, name: str
) -> None:
    graph, stream = copy(server, name), server.stream(f"{name}-in")

    def at(processor: str, boundary: str) -> None:
        if boundary == RAN:
            assert processor == "p"
            stream.delete()
            stream.create("application/json").append_many([8, 9, 10, 11])

    (reason,) = run_graph(graph, at).values()
    assert "start the run again" in reason
    assert run_graph(graph) == {}
    assert values(server, f"{name}-out") == [8, 9, 10, 11]
