"""Error messages of graphs that are replayed, by the local engine, against a real server."""

from pathlib import Path
from typing import Any

import pytest

from semel import Client
from semel.client.errors import CannotReplay
from semel.pipeline import Graph, Runner, run
from semel.pipeline.error_stream import MESSAGE_BYTES_MAX, retry_stream
from semel.pipeline.local.step import BOUNDARIES
from tests.integration.place import Place
from tests.integration.test_pipeline_local import dies_at, run_to_death
from tests.integration.token_server import TokenServer
from tests.spec.process import PATIENCE_SECONDS


def replay(place: Place, processor: str, **options: Any) -> int:
    """Replay the dead letters of a processor, and return their number."""
    group, stream = f"{place.id}/{processor}", place.path("errors")
    return place.server.dead_letters(group, stream=stream).replay(**options)


class Mending:
    """A function that fails for some messages until it is mended."""

    def __init__(self, *bad: int) -> None:
        self.bad = set(bad)

    def __call__(self, n: int) -> int:
        if n in self.bad:
            raise ValueError("poison")
        return n


def graph_of(place: Place, function: Any, **options: Any) -> Graph:
    graph = place.graph(errors=place.path("errors"))
    graph.stream("p", **{"in_": place.path("in"), "out": place.path("out"), **options})(function)
    return graph


def test_a_replayed_message_is_processed_once_whatever_dies(place: Place) -> None:
    place.fill("in", *range(100))
    mending = Mending(3, 40, 77)
    graph = graph_of(place, mending)
    run(graph)
    assert len(place.read("errors")) == 3
    mending.bad = {40}
    assert (replay(place, "p", limit=1), replay(place, "p")) == (1, 2)
    place.fill("in", *range(100, 110))
    for boundary in BOUNDARIES:
        run_to_death(graph, dies_at("p", boundary))
    figures = run(graph)
    assert figures["p"].lag == 0
    assert sorted(place.read("out")) == [n for n in range(110) if n != 40]
    first, last = place.read("errors")[1], place.read("errors")[-1]
    assert len(place.read("errors")) == 4
    assert (last["attempts"], last["value"], last["offset"]) == (2, 40, first["offset"])
    assert last["inputs"] == first["inputs"]
    mending.bad = set()
    assert (replay(place, "p"), replay(place, "p")) == (1, 0)
    run(graph)
    run(graph)
    assert sorted(place.read("out")) == list(range(110))
    assert len(place.read("errors")) == 4
    assert [m.value for m in place.server.stream(place.path("in")).read()] == list(range(110))


def test_a_processor_that_runs_already_takes_a_replay_with_its_next_messages(place: Place) -> None:
    mending = Mending(1)
    graph = graph_of(place, mending)
    place.fill("in", 0, 1)
    with Runner(graph) as runner:
        (error,) = take(place, "errors", 1)
        assert error.value["value"] == 1
        mending.bad = set()
        assert replay(place, "p") == 1
        place.fill("in", 2)
        assert sorted(m.value for m in take(place, "out", 3)) == [0, 1, 2]
        mending.bad = {3}
        place.fill("in", 3)
        take(place, "errors", 2)
        mending.bad = set()
        place.server.stream(retry_stream(place.id, "p")).delete()
        assert replay(place, "p") == 1
        place.fill("in", 4)
        assert sorted(m.value for m in take(place, "out", 5)) == [0, 1, 2, 3, 4]
        assert not runner.stopped


def take(place: Place, name: str, count: int) -> list[Any]:
    """Wait for the first messages of a stream."""
    found = []
    for message in place.server.stream(place.path(name)).tail(timeout=PATIENCE_SECONDS):
        found.append(message)
        if len(found) == count:
            break
    return found


def test_a_join_takes_a_replay_beside_whole_rows(place: Place) -> None:
    bad = [20]

    def add(left: int, right: int) -> int:
        if right in bad:
            raise ValueError("poison")
        return left + right

    inputs = {"left": place.fill("left", 1, 2, 3), "right": place.fill("right", 10, 20, 30)}
    graph = graph_of(place, add, in_=inputs)
    run(graph)
    place.fill("left", 4)
    bad.clear()
    assert replay(place, "p") == 1
    run(graph)
    assert place.read("out") == [11, 33, 22]
    place.fill("right", 40)
    run(graph)
    assert place.read("out") == [11, 33, 22, 44]
    assert place.offsets("p") == {
        **dict.fromkeys(inputs.values(), 4),
        retry_stream(place.id, "p"): 1,
    }


def test_only_its_own_dead_letters_are_replayed_to_a_processor(place: Place) -> None:
    mending = Mending(1)
    graph = graph_of(place, mending)
    graph.stream("q", in_=place.path("in"), out=place.path("other"))(mending)
    place.fill("in", 0, 1, 2)
    run(graph)
    assert sorted(one["group"] for one in place.read("errors")) == [
        *(f"{place.id}/p", f"{place.id}/q")
    ]
    mending.bad = set()
    assert replay(place, "p") == 1
    run(graph)
    assert (place.read("out"), place.read("other")) == ([0, 2, 1], [0, 2])


def test_an_at_most_once_processor_takes_a_replay_too(place: Place) -> None:
    mending = Mending(1)
    graph = graph_of(place, mending, strategy="at-most-once")
    place.fill("in", 0, 1, 2)
    run(graph)
    mending.bad = set()
    assert replay(place, "p") == 1
    run(graph)
    assert place.read("out") == [0, 2, 1]


def test_a_message_without_its_value_is_not_replayed(place: Place) -> None:
    def fail(text: str) -> None:
        raise ValueError(text[:1])

    graph = graph_of(place, fail)
    place.fill("in", "y" * MESSAGE_BYTES_MAX)
    run(graph)
    with pytest.raises(CannotReplay, match="is too large for a dead letter"):
        replay(place, "p")


def test_the_rights_of_a_run_are_enough_to_replay(tmp_path: Path) -> None:
    """Nothing more is needed than for the streams and the groups of the graph."""
    server = TokenServer(tmp_path / "data")
    try:
        token = server.create(
            *("--principal", "runner", "--read", "shop*", "--write", "shop*"),
            *("--group", "shop/*"),
        )
        mending = Mending(1)
        graph = Graph("shop", url=server.url, errors="shop-errors")
        graph.stream("p", in_="shop-in", out="shop-out")(mending)
        with Client(server.url, token=token) as client:
            client.stream("shop-in").create("application/json").append_many([0, 1, 2])
            run(graph, token=token)
            mending.bad = set()
            assert client.dead_letters("shop/p", stream="shop-errors").replay() == 1
            run(graph, token=token)
            assert [m.value for m in client.stream("shop-out").read()] == [0, 2, 1]
    finally:
        server.kill()
