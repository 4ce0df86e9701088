"""Graphs run by the local engine in this process, against a real server."""

import itertools
import random
import socket
import socketserver
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest

import semel
from semel.client.local import LocalServer
from semel.client.sync.client import Client
from semel.client.sync_driver import Stop
from semel.client.values import KIND_STAGED, PinnedRange, PinnedStep
from semel.model.offsets import print_offset
from semel.pipeline import Delivery, Graph, GraphError, ProcessorStopped, Runner, run
from semel.pipeline import runner as runner_module
from semel.pipeline import trace as trace_module
from semel.pipeline.evaluate import evaluate
from semel.pipeline.executor import Committer, Loop, ProcessorRun, RunState, StepOutput, Work
from semel.pipeline.local.engine import LocalCommitter, LocalEngine, calls_of
from semel.pipeline.local.step import BOUNDARIES, COMMITTED, PINNED, PLANNED, RAN
from semel.pipeline.trace import trace_of
from tests.integration.place import Place
from tests.spec.process import PATIENCE_SECONDS

SEED = 5


class Killed(BaseException):
    """Ends a thread as if its process had been killed."""


def dies_at(processor: str, boundary: str, times: int = 1) -> Callable[[str, str], None]:
    """Return a hook that kills a processor when it reaches a boundary `times` times."""
    left = itertools.count(1)

    def at(here: str, point: str) -> None:
        if (here, point) == (processor, boundary) and next(left) == times:
            raise Killed

    return at


def run_to_death(graph: Graph, at: Callable[[str, str], None]) -> bool:
    """Run the graph; return whether a processor was killed."""
    with Runner(graph, available_now=True, at=at) as runner:
        assert runner.wait(PATIENCE_SECONDS)
        assert set(runner.stopped.values()) <= {"Killed: "}
        return bool(runner.stopped)


def same(message: Any) -> Any:
    return message


# ---- outputs -------------------------------------------------------------------------------------


# rows: C01, C24
def test_a_graph_forks_and_joins(place: Place) -> None:
    place.fill("n", *range(10))
    graph = place.graph()
    legs = {"low": place.path("low"), "high": place.path("high")}

    @graph.stream("fork", in_=place.path("n"), out=legs)
    def fork(n: int) -> dict[str, int]:
        return {"low": n, "high": n + 100}

    @graph.stream("pair", in_=legs, out=place.path("pairs"))
    def pair(low: int, high: int) -> list[int]:
        return [low, high]

    figures = run(graph)
    assert place.read("pairs") == [[n, n + 100] for n in range(10)]
    assert {one.state for one in figures.values()} == {RunState.ENDED}
    assert figures["pair"].read == 20
    assert run(graph)["fork"].read == 0, "everything was processed before"


# rows: C22
def test_a_join_takes_the_same_count_of_each_input_and_waits_for_the_rest(place: Place) -> None:
    graph = place.graph()
    inputs = {"a": place.fill("a", 1, 2, 3), "b": place.fill("b", 10)}
    graph.stream("pair", in_=inputs, out=place.path("out"))(lambda a, b: [a, b])
    run(graph)
    assert place.read("out") == [[1, 10]]
    assert place.offsets("pair") == {inputs["a"]: 1, inputs["b"]: 1}
    place.fill("b", 20, 30, 40)
    run(graph)
    assert place.read("out") == [[1, 10], [2, 20], [3, 30]]


def test_a_join_counts_visible_messages_only(place: Place) -> None:
    inputs = {"a": place.fill("a"), "b": place.fill("b", 10, 20)}
    with pytest.raises(RuntimeError), place.server.transaction() as txn:
        txn.append(inputs["a"], "aborted")
        raise RuntimeError
    place.fill("a", 1)
    with place.server.transaction() as txn:
        txn.append(inputs["a"], 2)
    graph = place.graph()
    graph.stream("pair", in_=inputs, out=place.path("out"))(lambda a, b: [a, b])
    run(graph)
    assert place.read("out") == [[1, 10], [2, 20]]


# rows: C22
def test_alternatives_take_each_message_of_every_input_once(place: Place) -> None:
    graph = place.graph()
    inputs = {"x": place.fill("x", 1, 2), "y": place.fill("y", 3), "z": place.fill("z")}

    @graph.stream("any", alts=inputs, out=place.path("out"))
    def tell(message: int, binding: str) -> list[Any]:
        return [binding, message]

    run(graph)
    assert place.read("out") == [["x", 1], ["x", 2], ["y", 3]], "in the order of the bindings"
    place.fill("z", 4)
    run(graph)
    assert place.read("out")[3:] == [["z", 4]]


# rows: C07, C25, C27
def test_what_is_filtered_or_none_is_written_nowhere_and_counts_as_read(place: Place) -> None:
    graph = place.graph()
    messages = [{"type": "a", "n": 0}, {"type": "b", "n": 1}, {"type": "a", "n": 2}]
    path = place.fill("in", *messages)

    @graph.stream("only", in_=path, out=place.path("out"), types="a")
    def only(message: dict[str, Any]) -> Any:
        return message if message["n"] else None

    figures = run(graph)
    assert place.read("out") == [messages[2]]
    assert place.offsets("only") == {path: 3}
    assert (figures["only"].read, figures["only"].written, figures["only"].lag) == (3, 1, 0)


def test_batches_of_arrow_run_in_process(place: Place) -> None:
    pa: Any = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.compute")
    graph = place.graph(errors=place.path("errors"))
    path = place.fill("in", {"n": 1}, {"n": "two"}, {"n": 3})
    counts = []

    def double(batch: Any) -> Any:
        total = pa.compute.multiply(batch.column("n"), 2)
        return pa.RecordBatch.from_arrays([total], names=["n"])

    def count(batch: Any, delivery: Delivery) -> None:
        counts.append((delivery.number, batch.num_rows))

    double.__annotations__["batch"] = count.__annotations__["batch"] = pa.RecordBatch
    graph.stream("double", in_=path, out=place.path("out"))(double)
    graph.sink("count", in_=place.path("out"))(count)

    run(graph)
    assert place.read("out") == [{"n": 2}, {"n": 6}]
    assert [error["inputs"][0]["value"] for error in place.read("errors")] == [{"n": "two"}]
    assert counts == [(1, 2)]


# ---- errors --------------------------------------------------------------------------------------


# rows: C14, C17
def test_one_poisoned_message_of_many_is_one_error_after_any_number_of_restarts(
    place: Place,
) -> None:
    count, bad = 10_000, 7_321
    path = place.fill("in", *range(count))
    graph = place.graph(errors=place.path("errors"))

    @graph.stream("p", in_=path, out=place.path("out"))
    def fail_once(n: int) -> int:
        if n == bad:
            raise ValueError("poison")
        return n

    deaths = [dies_at("p", boundary, times) for times in (1, 2) for boundary in BOUNDARIES]
    assert sum(run_to_death(graph, at) for at in deaths) >= len(BOUNDARIES)
    run(graph)
    assert place.read("out") == [n for n in range(count) if n != bad]
    (error,) = place.read("errors")
    assert error["inputs"][0]["value"] == bad
    assert error["inputs"][0]["stream"] == path
    assert (error["type"], error["processor"]) == ("q.type.err/processor", "p")


# rows: C14
def test_a_flaky_function_puts_each_message_on_exactly_one_leg(place: Place) -> None:
    chance = random.Random(SEED)
    count = 300
    path = place.fill("in", *range(count))
    graph = place.graph(errors=place.path("errors"))

    @graph.stream("p", in_=path, out={"a": place.path("a"), "b": place.path("b")})
    def flaky(n: int) -> dict[str, int]:
        if chance.random() < 0.3:
            raise ValueError
        return {"a": n, "b": n}

    for boundary in BOUNDARIES:
        run_to_death(graph, dies_at("p", boundary))
    run(graph)
    a, b = place.read("a"), place.read("b")
    failed = [error["inputs"][0]["value"] for error in place.read("errors")]
    assert a == b
    assert Counter(a + failed) == Counter(range(count))
    assert len(failed) > count // 10


# rows: C16
def test_without_an_error_stream_the_processor_stops_and_goes_on_when_mended(place: Place) -> None:
    path = place.fill("in", 1, 2, 3)
    graph = place.graph()
    bad = [2]

    @graph.stream("p", in_=path, out=place.path("out"))
    def fail(n: int) -> int:
        if n in bad:
            raise ValueError("not two")
        return n

    for _ in range(2):
        with pytest.raises(ProcessorStopped) as caught:
            run(graph)
        assert "ValueError: not two" in caught.value.reason
        assert f"{path} at 0000000000000000_0000000000000001" in caught.value.reason
        assert "errors=" in caught.value.reason
        assert place.read("out") == []
    bad.clear()
    run(graph)
    assert place.read("out") == [1, 2, 3]


def test_a_processor_may_have_an_error_stream_of_its_own(place: Place) -> None:
    path = place.fill("in", 1)
    graph = place.graph(errors=place.path("all"))

    @graph.stream("p", in_=path, out=place.path("out"), errors=place.path("mine"))
    def fail(n: int) -> int:
        raise ValueError

    figures = run(graph)
    assert len(place.read("mine")) == figures["p"].errors == 1


def test_one_stopped_processor_stops_a_run_that_would_go_on(place: Place) -> None:
    graph = place.graph()
    graph.stream("idle", in_=place.fill("quiet"), out=place.path("x"))(same)

    @graph.stream("bad", in_=place.fill("in", 1), out=place.path("y"))
    def fail(n: int) -> int:
        raise ValueError

    with Runner(graph) as runner:
        assert runner.wait(PATIENCE_SECONDS)
        assert list(runner.stopped) == ["bad"]
        assert runner.gauges["idle"].state is RunState.ENDED


# ---- repeated steps ------------------------------------------------------------------------------


# rows: C03, C08, C09, C10, C11, C12
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_step_that_was_begun_is_done_again_as_it_was_pinned(place: Place, boundary: str) -> None:
    path = place.fill("in", 1, 2)
    graph = place.graph()
    told: list[tuple[list[int], Delivery]] = []

    @graph.sink("s", in_=path)
    def deliver(values: list[int], delivery: Delivery) -> None:
        told.append((values, delivery))

    assert run_to_death(graph, dies_at("s", boundary))
    is_pinned = boundary in (PINNED, RAN, COMMITTED)
    is_done = boundary == COMMITTED
    assert (place.server.group(f"{place.id}/s").snapshot() is not None) == is_pinned
    assert place.offsets("s") == ({path: 2} if is_done else {})
    place.fill("in", 3)
    run(graph)
    deliveries = [delivery for _, delivery in told]
    if not is_pinned:
        assert [values for values, _ in told] == [[1, 2, 3]]
        assert deliveries[0].number == 1
        return
    assert [values for values, _ in told if values != [1, 2]] == [[3]]
    assert len({delivery.hash for delivery in deliveries}) == 2
    assert deliveries[-1].number == 2
    assert len(told) == {PINNED: 2, RAN: 3, COMMITTED: 2}[boundary]


# rows: C13
def test_a_sink_that_stores_the_hash_with_its_effect_is_exactly_once(place: Place) -> None:
    path = place.fill("in", *range(20))
    graph = place.graph()
    database = sqlite3.connect(":memory:", check_same_thread=False)
    database.execute("create table done (hash text primary key)")
    database.execute("create table rows (n integer)")

    @graph.sink("store", in_=path)
    def store(values: list[int], delivery: Delivery) -> None:
        with database:
            try:
                database.execute("insert into done values (?)", [delivery.hash])
            except sqlite3.IntegrityError:
                return
            database.executemany("insert into rows values (?)", [[n] for n in values])

    for boundary in BOUNDARIES:
        run_to_death(graph, dies_at("store", boundary))
        place.fill("in", *range(20))
    run(graph)
    stored = Counter(n for (n,) in database.execute("select n from rows"))
    assert stored == dict.fromkeys(range(20), len(BOUNDARIES) + 1)


# rows: C23
def test_alternatives_are_done_again_with_the_same_inputs(place: Place) -> None:
    x, y = place.fill("x", 1), place.fill("y")
    graph = place.graph()
    seen: list[tuple[dict[str, list[int]], str]] = []

    @graph.sink("s", alts={"x": x, "y": y})
    def deliver(values: dict[str, list[int]], delivery: Delivery) -> None:
        seen.append((values, delivery.hash))

    assert run_to_death(graph, dies_at("s", RAN))
    place.fill("y", 2)
    place.fill("x", 3)
    run(graph)
    assert seen[0] == seen[1] == ({"x": [1], "y": []}, seen[0][1])
    assert [values for values, _ in seen[2:]] == [{"x": [3], "y": [2]}]


# rows: C18
def test_at_most_once_never_repeats_and_may_lose(place: Place) -> None:
    path = place.fill("in", 1)
    graph = place.graph(strategy="at-most-once")
    seen: list[int] = []

    @graph.stream("p", in_=path, out=place.path("out"))
    def note(n: int) -> int:
        seen.append(n)
        return n

    for value, boundary in enumerate(BOUNDARIES, start=2):
        run_to_death(graph, dies_at("p", boundary))
        place.fill("in", value)
    run(graph)
    assert all(count == 1 for count in Counter(seen).values())
    assert all(count == 1 for count in Counter(place.read("out")).values())
    lost = set(seen) - set(place.read("out"))
    assert lost == {1, 2, 3}, "the step killed between the commit of its positions and its outputs"


def test_at_most_once_tells_that_a_failed_step_is_lost(place: Place) -> None:
    path = place.fill("in", 1, 2)
    graph = place.graph(strategy="at-most-once")
    graph.stream("p", in_=path, out=place.path("out"))(lambda n: n / 0)
    graph.sink("s", in_=path)(lambda df, delivery: df / 0)
    with Runner(graph, available_now=True) as runner:
        assert runner.wait(PATIENCE_SECONDS)
        stopped = runner.stopped
    assert set(stopped) == {"p", "s"}
    assert all("this step is lost" in reason for reason in stopped.values())
    run(graph)
    assert place.read("out") == []


# rows: C33
def test_another_function_does_the_step_that_was_begun(place: Place) -> None:
    path, out = place.fill("in", 1, 2), place.path("out")
    before, after = place.graph(), place.graph()
    before.stream("p", in_=path, out=out)(lambda n: ["before", n])
    after.stream("p", in_=path, out=out)(lambda n: ["after", n])
    assert run_to_death(before, dies_at("p", RAN))
    run(after)
    assert place.read("out") == [["after", 1], ["after", 2]]


# rows: C33
def test_with_other_inputs_it_goes_on_where_it_stands(place: Place) -> None:
    a, b = place.fill("a", 1), place.fill("b", 2)
    before, after = place.graph(), place.graph()
    before.stream("p", in_=a, out=place.path("out"))(same)
    after.stream("p", alts=[a, b], out=place.path("out"))(same)
    assert run_to_death(before, dies_at("p", PINNED))
    run(after)
    assert place.read("out") == [1, 2]
    assert [one.number for one in trace_of(place.server, place.id)] == [2]


def test_a_stream_made_anew_is_read_from_its_beginning(place: Place) -> None:
    path = place.fill("in", 1, 2)
    graph = place.graph()
    graph.stream("p", in_=path, out=place.path("out"))(same)
    run(graph)
    place.server.stream(path).delete()
    place.fill("in", 3)
    run(graph)
    assert place.read("out") == [1, 2, 3]


def test_a_group_moved_by_hand_is_followed(place: Place) -> None:
    path = place.fill("in", 1, 2, 3)
    graph = place.graph()
    graph.stream("p", in_=path, out=place.path("out"))(same)
    run(graph)
    place.server.group(f"{place.id}/p").set({path: 1})
    run(graph)
    assert place.read("out") == [1, 2, 3, 2, 3]


def test_a_group_moved_under_a_running_step_stops_it(place: Place) -> None:
    path = place.fill("in", 1)
    graph = place.graph()

    @graph.stream("p", in_=path, out=place.path("out"))
    def move(n: int) -> int:
        place.server.group(f"{place.id}/p").set({path: 1})
        return n

    with pytest.raises(ProcessorStopped, match="another client changed the group's positions"):
        run(graph)
    assert place.read("out") == []


def pinning(place: Place, path: str, start: int, to: int) -> Callable[[str, str], None]:
    """Return a hook that lets another instance pin the first step just before this one."""
    incarnation = place.server.stream(path).head().incarnation or ""
    theirs = PinnedRange(incarnation, print_offset(start), print_offset(to))

    def at(processor: str, boundary: str) -> None:
        group = place.server.group(f"{place.id}/{processor}")
        if boundary == PLANNED and group.snapshot() is None:
            group.pin(PinnedStep(1, {path: theirs}, "theirs"))

    return at


# rows: C11
def test_the_first_pin_of_a_step_wins(place: Place) -> None:
    path = place.fill("in", 1, 2, 3)
    graph = place.graph()
    told: list[tuple[int, list[int], bool]] = []

    @graph.sink("s", in_=path)
    def deliver(values: list[int], delivery: Delivery) -> None:
        told.append((delivery.number, values, delivery.hash == "theirs"))

    with Runner(graph, available_now=True, at=pinning(place, path, 0, 2)) as runner:
        assert runner.wait(PATIENCE_SECONDS)
        assert runner.stopped == {}
    assert told == [(1, [1, 2], True), (2, [3], False)]


def test_a_pin_from_elsewhere_stops_the_processor(place: Place) -> None:
    path = place.fill("in", 1, 2, 3)
    graph = place.graph()
    graph.stream("p", in_=path, out=place.path("out"))(same)
    with Runner(graph, available_now=True, at=pinning(place, path, 1, 2)) as runner:
        assert runner.wait(PATIENCE_SECONDS)
        assert "which another instance has pinned, does not start" in runner.stopped["p"]
    run(graph)
    assert place.read("out") == [1, 2, 3]


def test_a_newer_instance_takes_the_work_over(place: Place) -> None:
    path = place.fill("in", 1)
    graph, rival = place.graph(), place.graph()
    rival.stream("p", in_=path, out=place.path("out"))(lambda n: ["rival", n])

    @graph.stream("p", in_=path, out=place.path("out"))
    def overtaken(n: int) -> Any:
        run(rival)
        return ["older", n]

    with pytest.raises(ProcessorStopped, match="a newer instance"):
        run(graph)
    assert place.read("out") == [["rival", 1]]


def test_what_is_trimmed_under_a_processor_stops_it(place: Place) -> None:
    path = place.fill("in", 1, 2, 3)
    graph = place.graph()
    graph.stream("p", in_=path, out=place.path("out"))(same)
    place.server.group(f"{place.id}/p").set({path: 1})
    place.server.stream(path).trim("0000000000000000_0000000000000002")
    with pytest.raises(ProcessorStopped, match="semel groups set"):
        run(graph)
    other = place.graph()
    other.stream("fresh", in_=path, out=place.path("out"))(same)
    run(other)
    assert place.read("out") == [3], "a group without a position begins with the first message left"


def test_a_join_that_does_not_pair_any_more_says_so(place: Place) -> None:
    a, b = place.fill("a", 1, 2), place.fill("b", 3, 4)
    graph = place.graph(errors=place.path("errors"))
    graph.stream("p", in_={"a": a, "b": b}, out=place.path("out"))(lambda a, b: [a, b])
    assert run_to_death(graph, dies_at("p", PINNED))
    place.server.stream(a).trim(print_offset(1))
    with pytest.raises(ProcessorStopped, match=r"trimmed.*semel groups set"):
        run(graph)
    assert place.read("out") == []


def test_a_sink_that_raises_stops_and_is_given_the_same_again(place: Place) -> None:
    graph = place.graph(errors=place.path("errors"))
    path = place.fill("in", 1)
    hashes = []

    @graph.sink("s", in_=path)
    def deliver(values: list[int], delivery: Delivery) -> None:
        hashes.append(delivery.hash)
        if len(hashes) == 1:
            raise ConnectionError("away")

    with pytest.raises(ProcessorStopped, match="ConnectionError: away"):
        run(graph)
    run(graph)
    assert len(hashes) == 2
    assert len(set(hashes)) == 1


# ---- sources -------------------------------------------------------------------------------------


# rows: C02
def test_a_source_goes_on_behind_its_stored_cursor(place: Place) -> None:
    graph = place.graph()
    begun = []

    @graph.source("s", out=place.path("out"))
    def count(cursor: int | None) -> Iterator[tuple[int, int]]:
        begun.append(cursor)
        for n in range(0 if cursor is None else cursor + 1, 100):
            yield n, n

    assert run_to_death(graph, dies_at("s", "yielded", 50))
    run(graph)
    assert run(graph)["s"].written == 0
    assert place.read("out") == list(range(100))
    assert begun[0] is None
    assert begun[2] == 99


# rows: C02
def test_a_source_without_a_cursor_begins_anew(place: Place) -> None:
    graph = place.graph()
    graph.source("s", out=place.path("out"))(lambda: (n for n in range(2)))
    with pytest.raises(GraphError, match="generator"):
        run(graph)
    graph = place.graph()

    @graph.source("s", out=place.path("out"))
    def count() -> Iterator[int]:
        yield from range(2)

    for _ in range(2):
        run(graph)
    assert place.read("out") == [0, 1, 0, 1]


def test_a_source_that_raises_stops_and_keeps_what_it_gave(place: Place) -> None:
    graph = place.graph()

    @graph.source("s", out=place.path("out"))
    def count() -> Iterator[int]:
        yield 1
        raise OSError("no file")

    graph.stream("p", in_=place.path("out"), out=place.path("copy"))(same)
    with pytest.raises(ProcessorStopped, match="the source raised OSError: no file"):
        run(graph)
    assert place.read("copy") == [1], "existing messages are processed before the run ends"


def test_an_error_that_cannot_be_printed_stops_its_processor(place: Place) -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise self

    graph = place.graph()

    @graph.source("s", out=place.path("out"))
    def fail() -> Iterator[int]:
        yield 1
        raise Unprintable

    with Runner(graph, available_now=True) as runner:
        assert runner.wait(PATIENCE_SECONDS), "a run must end, whatever a function raises"
        assert "Unprintable" in runner.stopped["s"]
    assert place.read("out") == [1]


def test_a_source_whose_stream_is_closed_stops(place: Place) -> None:
    graph = place.graph()

    @graph.source("s", out=place.path("out"))
    def count() -> Iterator[int]:
        yield 1
        place.server.stream(place.path("out")).close()
        yield from range(100_000)

    with pytest.raises(ProcessorStopped, match=r"s stopped: .*closed"):
        run(graph)


def test_a_newer_source_takes_the_work_over(place: Place) -> None:
    graph, rival = place.graph(), place.graph()

    @rival.source("s", out=place.path("out"))
    def newer(cursor: int | None) -> Iterator[tuple[int, Any]]:
        yield 2, ["newer", cursor]

    @graph.source("s", out=place.path("out"))
    def older(cursor: int | None) -> Iterator[tuple[int, Any]]:
        yield 1, ["older", cursor]
        run(rival)
        yield 2, ["older", 1]

    with pytest.raises(ProcessorStopped):
        run(graph)
    assert ["newer", place.read("out")[-1][1]] == place.read("out")[-1]
    assert ["older", 1] not in place.read("out")


# ---- running -------------------------------------------------------------------------------------


# rows: C30
def test_a_running_graph_follows_its_inputs_until_it_is_stopped(place: Place) -> None:
    path = place.fill("in")
    graph = place.graph()
    graph.stream("p", in_=path, out=place.path("mid"))(same)
    graph.stream("q", alts=[place.path("mid")], out=place.path("out"))(same)
    runner = Runner(graph)
    with runner:
        assert runner.start() is runner, "a second start has no effect"
        for n in range(3):
            place.fill("in", n)
            with place.server.stream(place.path("out")).tail(timeout=PATIENCE_SECONDS) as tail:
                assert [next(tail).value for _ in range(n + 1)] == list(range(n + 1))
        assert {one.state for one in runner.gauges.values()} <= {RunState.RUNNING, RunState.IDLE}
    assert runner.is_over
    assert runner.stopped == {}
    place.fill("in", 3)
    run(graph)
    assert place.read("out") == [0, 1, 2, 3]


def test_a_stop_lets_the_step_end_it_is_at(place: Place) -> None:
    path = place.fill("in", 1)
    graph = place.graph()
    told: list[list[int]] = []

    @graph.sink("s", in_=path)
    def deliver(values: list[int], delivery: Delivery) -> None:
        runner.stop()
        told.append(values)

    with Runner(graph) as runner:
        assert runner.wait(PATIENCE_SECONDS)
        assert runner.stopped == {}
    assert place.offsets("s") == {path: 1}
    run(graph)
    assert told == [[1]]


def test_a_stop_does_not_wait_for_ever_for_a_server_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner_module, "GRACE_SECONDS", 0.2)
    with semel.local() as server:
        place = Place(server, 0)
        graph = place.graph()
        gone = threading.Event()

        @graph.source("s", out=place.path("n"))
        def count() -> Iterator[int]:
            yield 1
            gone.wait(PATIENCE_SECONDS)
            yield 2

        @graph.stream("p", in_=place.path("n"), out=place.path("out"))
        def kill(n: int) -> int:
            server.kill()
            gone.set()
            return n

        with Runner(graph) as runner:
            assert gone.wait(PATIENCE_SECONDS)
            runner.stop()
            assert runner.wait(PATIENCE_SECONDS)
        server.restart()
        assert place.offsets("p") == {}


def test_a_large_step_waits_for_a_server_that_is_gone() -> None:
    with semel.local() as server:
        place = Place(server, 0)
        path, is_first = place.fill("in", 1), [True]
        graph = place.graph()

        @graph.stream("p", in_=path, out=place.path("out"))
        def grow(n: int) -> str:
            if is_first.pop():
                is_first.append(False)
                server.kill()
                threading.Timer(10 * short, server.restart).start()
            return "x" * 3_000_000  # more than one request takes

        short = 0.1
        runner = Runner(graph, available_now=True)
        runner._client.timeout = short
        with runner:
            assert runner.wait(PATIENCE_SECONDS)
        assert runner.stopped == {}
        assert [len(value) for value in place.read("out")] == [3_000_000]


def test_a_pin_whose_answer_never_comes_is_asked_for_again(place: Place) -> None:
    path = place.fill("in", 1)
    graph = place.graph()
    graph.stream("p", in_=path, out=place.path("out"))(same)
    with mute_once(place.url, b"POST /v1/groups/") as url:
        runner = Runner(graph, url=url, available_now=True)
        runner._client.timeout = 0.2
        with runner:
            assert runner.wait(PATIENCE_SECONDS)
        assert runner.stopped == {}
    assert place.read("out") == [1]


@contextmanager
def mute_once(url: str, request: bytes) -> Iterator[str]:
    """Run a proxy that drops the first request of a kind and keeps the connection open."""
    host, _, port = url.removeprefix("http://").partition(":")
    left = [request]

    class Proxy(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection((host, int(port))) as inner:
                threading.Thread(target=self.answer, args=(inner,), daemon=True).start()
                while sent := self.request.recv(1 << 16):
                    if left and sent.startswith(left[0]):
                        left.clear()
                        continue
                    inner.sendall(sent)

        def answer(self, inner: socket.socket) -> None:
            with suppress(OSError):
                while data := inner.recv(1 << 16):
                    self.request.sendall(data)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Proxy) as proxy:
        proxy.daemon_threads = True
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{proxy.server_address[1]}"
        assert not left, "no request of that kind was sent"
        proxy.shutdown()


def test_a_graph_ends_with_its_inputs(place: Place) -> None:
    graph = place.graph()
    graph.stream("p", in_=place.fill("in", 1), out=place.path("out"))(same)
    inputs = {"a": place.fill("a", 1, 2), "b": place.fill("b", 1)}
    graph.stream("pair", in_=inputs, out=place.path("pairs"))(lambda a, b: [a, b])
    for name in ("in", "b"):
        place.server.stream(place.path(name)).close()
    with Runner(graph) as runner:
        assert runner.wait(PATIENCE_SECONDS)
    assert (place.read("out"), place.read("pairs")) == ([1], [[1, 1]])


def test_a_run_of_what_is_there_does_not_chase_a_writer(place: Place) -> None:
    path = place.fill("in", 0)
    graph = place.graph()

    @graph.stream("p", in_=path, out=place.path("out"))
    def chased(n: int) -> int:
        place.fill("in", n + 1)
        return n

    run(graph)
    assert place.read("out") == [0]


def test_bad_streams_are_refused_before_anything_starts(place: Place) -> None:
    place.server.stream(place.path("text")).create("text/plain")
    place.server.stream(place.path("closed")).create("application/json").close()
    graph = place.graph()
    graph.stream("p", in_=place.path("nowhere"), out=place.path("fresh"))(same)
    graph.stream("q", in_=place.path("text"), out=place.path("closed"))(same)
    with pytest.raises(GraphError) as caught:
        run(graph)
    unknown, text, closed = caught.value.complaints
    assert unknown.startswith(f"p: the stream {place.path('nowhere')} does not exist")
    assert "semel create" in unknown
    assert text.startswith(f"q: stream {place.path('text')} has the content type text/plain")
    assert closed.startswith(f"q: stream {place.path('closed')} is closed")
    assert not place.server.stream(place.path("fresh")).exists()


def test_outputs_too_large_for_one_request_are_staged_and_committed_with_the_rest(
    place: Place,
) -> None:
    path = place.fill("in", *range(8))
    graph = place.graph()
    outputs = {"small": place.path("small"), "large": place.path("large")}

    @graph.stream("p", in_=path, out=outputs)
    def grow(n: int) -> dict[str, Any]:
        return {"small": n, "large": f"{n}" * 700_000}

    assert run_to_death(graph, dies_at("p", RAN))
    run(graph)
    assert place.read("small") == list(range(8))
    assert [(value[0], len(value)) for value in place.read("large")] == [
        (str(n), 700_000) for n in range(8)
    ]


def test_odd_json_passes_and_fails_as_any_other(place: Place) -> None:
    path = place.fill("in")
    odd = [b'"\\ud800 half a pair"', b"123456789012345678901234567890", b"[" * 63 + b"]" * 63]
    place.server.stream(path).append_many(odd)
    graph = place.graph(errors=place.path("errors"))
    graph.stream("same", in_=path, out=place.path("out"))(same)

    @graph.stream("fail", in_=path, out=place.path("none"))
    def fail(message: Any) -> Any:
        raise ValueError(message)

    run(graph)
    assert place.read("out") == place.read("in")
    assert len(place.read("errors")) == len(odd)


# ---- the trace -----------------------------------------------------------------------------------


def test_a_trace_tells_ranges_hash_outcome_and_where_the_outputs_are(place: Place) -> None:
    path, out = place.fill("in", 1, 2), place.path("out")
    graph = place.graph()
    graph.stream("p", in_=path, out=out)(same)
    run(graph)
    place.fill("in", 3)
    assert run_to_death(graph, dies_at("p", COMMITTED))
    place.fill("in", 4)
    assert run_to_death(graph, dies_at("p", PINNED))
    first, second, third = trace_of(place.server, place.id, "p")
    offset = "0000000000000000_{:016d}".format
    assert first.outputs == {out: [offset(0), offset(2)]}
    assert [(one[0], *one[2:]) for one in first.ranges] == [(path, offset(0), offset(2))]
    assert (second.outcome, second.written, second.outputs) == ("done", {out: 1}, None)
    assert (third.number, third.outcome) == (3, "pinned")
    assert len({first.hash, second.hash, third.hash}) == 3
    run(graph)
    (*_, last) = trace_of(place.server, place.id)
    assert (last.hash, last.outcome) == (third.hash, "done")
    assert last.outputs == {out: [offset(3), offset(4)]}
    with pytest.raises(semel.errors.StreamNotFound):
        trace_of(place.server, "nobody")


def test_a_trace_is_trimmed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_module, "TRIMMED_EVERY", 4)
    monkeypatch.setattr(trace_module, "RECORDS_KEPT", 6)
    graph = place.graph()
    graph.sink("s", in_=place.fill("in"))(lambda df, delivery: None)
    for n in range(15):
        place.fill("in", n)
        with Runner(graph, available_now=True) as runner:
            runner.wait(PATIENCE_SECONDS)
    left = trace_of(place.server, place.id)
    assert 6 <= len(left) <= 10
    assert left[-1].number == 15


# ---- other engines -------------------------------------------------------------------------------


class Distant:
    """An engine that reads its inputs and stages its outputs, like an engine on other machines."""

    reads_ahead = False
    step_messages_max = 3

    def __init__(self, server: LocalServer) -> None:
        self._server = server
        self.sizes: list[int] = []

    def complaints(self, graph: Graph) -> Sequence[str]:
        return LocalEngine().complaints(graph)

    def commits(self, client: Client, name: str, stop: Stop) -> Committer:
        return LocalCommitter(client, name, stop)

    def run(self, work: Work) -> StepOutput:
        if work.processor.is_join:
            return LocalEngine().run(work)
        messages = {}
        for binding, path in work.processor.inputs.items():
            (found,) = [one for one in work.step.ranges if one.stream == path]
            start = f"0000000000000000_{found.start:016d}" if found.start else "-1"
            messages[binding] = [
                one
                for one in self._server.stream(path).read(start)
                if isinstance(one.ordinal, int) and one.ordinal < found.to
            ]
        read = sum(map(len, messages.values()))
        self.sizes.append(read)
        txn = self._server.transaction(
            producer_id=work.producer_id, producer_epoch=work.producer_epoch, kind=KIND_STAGED
        )
        txn.begin()
        rows = list(evaluate(work.evaluation, calls_of(work.evaluation, messages)))
        for row in rows:
            txn.append(*row)
        written = Counter(stream for stream, _ in rows)
        return StepOutput(transactions=[txn.token], read=read, written=written)

    def query(self, running: ProcessorRun) -> Loop:
        raise NotImplementedError(running.processor.id)

    def close(self) -> None: ...


def test_an_engine_may_read_by_itself_and_stage(place: Place) -> None:
    engine = Distant(place.server)
    inputs = {"x": place.fill("x", *range(5)), "y": place.fill("y", 10, 11)}
    inputs |= {name: place.fill(name) for name in "abc"}  # more than a step takes
    graph = place.graph()
    graph.stream("any", alts=inputs, out=place.path("mid"))(same)
    graph.stream("one", in_=place.path("mid"), out=place.path("out"))(same)
    graph.stream("pair", in_={"a": place.path("mid"), "b": inputs["x"]}, out=place.path("pairs"))(
        lambda a, b: [a, b]
    )
    for _ in range(2):
        with Runner(graph, available_now=True, executor=engine) as runner:
            assert runner.wait(PATIENCE_SECONDS)
            assert runner.stopped == {}
    assert Counter(place.read("mid")) == Counter([*range(5), 10, 11])
    assert place.read("out") == place.read("mid")
    assert [b for _, b in place.read("pairs")] == list(range(5))
    assert max(engine.sizes) <= 3
    traced = trace_of(place.server, place.id, "one")
    assert sum(one.read for one in traced) == 7
    assert all(one.outputs for one in traced)


def test_an_engine_that_reads_by_itself_begins_with_what_is_left(place: Place) -> None:
    path, out = place.fill("in", *range(20)), place.path("out")
    place.server.stream(path).trim(print_offset(11))
    graph = place.graph()
    graph.stream("p", in_=path, out=out)(same)
    engine = Distant(place.server)
    with Runner(graph, available_now=True, executor=engine) as runner:
        assert runner.wait(PATIENCE_SECONDS)
        assert runner.stopped == {}
    assert place.read("out") == list(range(11, 20))
    assert engine.sizes == [3, 3, 3]


def test_an_engine_that_reads_by_itself_does_a_begun_step_again(place: Place) -> None:
    engine = Distant(place.server)
    graph = place.graph()
    graph.stream("p", in_=place.fill("in", *range(5)), out=place.path("out"))(same)
    for boundary in BOUNDARIES:
        with Runner(
            graph, available_now=True, executor=engine, at=dies_at("p", boundary)
        ) as runner:
            assert runner.wait(PATIENCE_SECONDS)
        place.fill("in", *range(5))
    with Runner(graph, available_now=True, executor=engine) as runner:
        assert runner.wait(PATIENCE_SECONDS)
    assert place.read("out") == [*range(5)] * (len(BOUNDARIES) + 1)
