"""Workers of one group are killed again and again: each input is once on every output."""

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import Final

import pytest

from semel import Client, local
from semel.client.errors import ClientError
from semel.client.local import LocalServer
from semel.client.server_calls import end_transaction, list_transactions
from semel.model.offsets import parse_offset
from semel.testing import InProcessServer
from tests.crash.workers import (
    COMMITS,
    CONFLICTS,
    COUNTS,
    FAILURES,
    PREPARES,
    SharedFlag,
    Tally,
    Task,
    Work,
    copy_of,
    run_worker,
    work_client,
    work_raw,
)
from tests.transactions.mutants import commits_compare_no_guards

pytestmark = pytest.mark.crash

SEED: Final = time.time_ns() % 1_000_000_000
GROUP: Final = "copiers"
INPUTS: Final = ("left", "right")
OUTPUTS: Final = ("first", "second")
WORKERS: Final = 3
WORKER_KILLS: Final = 14
SERVER_KILLS: Final = 8
FED: Final = 10  # messages appended to each input before every kill
TAKEN: Final = 5  # how many of all these are copied before the kill
PATIENCE_SECONDS: Final = 60.0  # for a busy machine; nothing here should take as long
LEFT_SECONDS: Final = 0.5  # after this time a transaction counts as abandoned
DOWN_SECONDS_MAX: Final = 0.1
LOOK_SECONDS: Final = 0.01


class Operator:
    """Ends the transactions of killed workers: other workers would wait for them.

    An operator cannot know which workers were killed. So it ends all transactions that have been
    pending for some time; a worker that still runs begins again.
    """

    def __init__(self, client: Client, random: Random) -> None:
        self._client = client
        self._random = random
        self._seen: dict[tuple[str, int], float] = {}
        self.ended: dict[str, int] = {"commit": 0, "abort": 0}

    def look(self) -> bool:
        """End abandoned transactions; return whether none was pending."""
        now = time.monotonic()
        found = self._client.run(list_transactions(self._client.site, None, None))
        names = {(each["transaction_id"], each["transaction_epoch"]): each for each in found}
        self._seen = {name: self._seen.get(name, now) for name in names}
        for name, each in names.items():
            if now - self._seen[name] > LEFT_SECONDS:
                with suppress(ClientError):  # it has just ended, or the next look ends it
                    self._end(name, is_prepared=each["state"] == "prepared")
        return not found

    def _end(self, name: tuple[str, int], *, is_prepared: bool) -> None:
        action = "commit" if is_prepared and self._random.random() < 0.5 else "abort"
        self._client.run(end_transaction(self._client.site, *name, action))
        self.ended[action] += 1


class Run:
    """A server, its workers and its operator."""

    def __init__(self, server: LocalServer, work: Work, random: Random) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.crash.workers"])
        self._context = context
        self._server = server
        self._work = work
        self._random = random
        self._task = Task(server.url, GROUP, INPUTS, OUTPUTS)
        self._over = SharedFlag(context.Value("b", 0, lock=False))
        self._counts = context.Array("q", COUNTS * WORKERS, lock=False)
        self._workers: list[BaseProcess] = []
        self.operator = Operator(server, random)
        self.fed = 0
        self.killed_workers = 0
        self.killed_servers = 0

    def count(self, what: int) -> int:
        return sum(self._counts[what::COUNTS])

    def start(self) -> None:
        for stream in (*INPUTS, *OUTPUTS):
            self._server.stream(stream).create("application/json")
        self._workers = [self._started(slot) for slot in range(WORKERS)]

    def _started(self, slot: int) -> BaseProcess:
        arguments = (self._work, self._task, self._counts, slot, self._over)
        worker = self._context.Process(target=run_worker, args=arguments, daemon=True)
        worker.start()
        return worker

    def feed(self) -> None:
        """Append more messages to the inputs, and wait until some are copied."""
        numbers = range(self.fed, self.fed + FED)
        for stream in INPUTS:
            self._server.stream(stream).append_many(numbers, idempotency_key=f"{self.fed}")
        self.fed += FED
        taken = len(INPUTS) * (self.fed - FED) + TAKEN
        self._wait(lambda: sum(self.positions()) >= taken)
        assert all(worker.is_alive() for worker in self._workers), "a worker has exited"

    def positions(self) -> list[int]:
        found = self._server.group(GROUP).offsets()
        return [parse_offset(found.get(stream, "")) or 0 for stream in INPUTS]

    def kill_a_worker(self) -> None:
        slot = self._random.randrange(WORKERS)
        self._workers[slot].kill()
        self._workers[slot].join()
        self._workers[slot] = self._started(slot)
        self.killed_workers += 1

    def kill_the_server(self) -> None:
        self._server.kill()
        time.sleep(self._random.uniform(0, DOWN_SECONDS_MAX))
        self._server.restart()
        self.killed_servers += 1

    def finish(self) -> None:
        """Close the inputs; wait until all is copied, the workers exited and nothing is pending."""
        for stream in INPUTS:
            self._server.stream(stream).close()
        self._wait(lambda: sum(self.positions()) == len(INPUTS) * self.fed)
        self._over.set()
        self._wait(lambda: not any(worker.is_alive() for worker in self._workers))
        assert [worker.exitcode for worker in self._workers] == [0] * WORKERS
        self._wait(self.operator.look)

    def _wait(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_so():
            assert time.monotonic() < deadline, f"the group is at {self.positions()}: seed {SEED}"
            self.operator.look()
            time.sleep(LOOK_SECONDS)

    def close(self) -> None:
        self._over.set()
        for worker in self._workers:
            worker.kill()
            worker.join()


@contextmanager
def started(server: LocalServer, work: Work, random: Random) -> Iterator[Run]:
    run = Run(server, work, random)
    try:
        run.start()
        yield run
    finally:
        run.close()


def copied(client: Client, output: str, of: str) -> list[str]:
    """Return the copies of one input in an output, in the order of the output."""
    values = [message.value for message in client.stream(output).read()]
    return [value for value in values if value.startswith(f"{of}:")]


@pytest.mark.timeout(240)  # half a minute on an idle machine
@pytest.mark.parametrize("work", [work_raw, work_client])
def test_every_input_is_once_on_every_output_however_often_workers_and_servers_are_killed(
    work: Work, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    random = Random(SEED)
    kills = ["worker"] * WORKER_KILLS + ["server"] * SERVER_KILLS
    random.shuffle(kills)
    with local(tmp_path / "data", long_poll_timeout=2) as server:
        with started(server, work, random) as run:
            for what in kills:
                run.feed()
                time.sleep(random.uniform(0, 0.05))
                if what == "worker":
                    run.kill_a_worker()
                else:
                    run.kill_the_server()
            run.finish()
        for output in OUTPUTS:
            for stream in INPUTS:
                expected = [copy_of(stream, number) for number in range(run.fed)]
                assert copied(server, output, stream) == expected, (output, stream, SEED)
        assert run.positions() == [run.fed] * len(INPUTS)
        assert server.stderr == ""
    assert run.killed_workers + run.killed_servers >= 20
    assert min(run.killed_workers, run.killed_servers) >= 6
    assert run.count(CONFLICTS) > 0, "no two workers were in conflict"
    assert run.count(PREPARES) > 0
    assert run.count(COMMITS) > 0
    ended = run.operator.ended
    figure(
        f"workers of one group by {work.__name__}: {run.killed_workers} workers and"
        f" {run.killed_servers} servers killed, {run.count(COMMITS):,} commits,"
        f" {run.count(PREPARES):,} of them prepared, {run.count(CONFLICTS):,} conflicts and"
        f" {run.count(FAILURES):,} other failures; an operator committed {ended['commit']} and"
        f" aborted {ended['abort']}; {len(INPUTS) * run.fed:,} inputs, each once on every output"
    )


# ---- the test can fail ---------------------------------------------------------------------------


class Meeting:
    """Makes two workers of one input wait for each other in their first steps."""

    def __init__(self, steps: int) -> None:
        self._barrier = threading.Barrier(2, timeout=PATIENCE_SECONDS)
        self._steps = steps
        self._done = threading.local()

    def __call__(self) -> None:
        done = getattr(self._done, "count", 0)
        if done < self._steps:
            self._done.count = done + 1
            self._barrier.wait()


@pytest.mark.parametrize("work", [work_raw, work_client])
@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_server_that_does_not_compare_positions_lets_two_workers_copy_the_same(
    work: Work, is_guarded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_guarded:
        commits_compare_no_guards(monkeypatch)
    count = 20
    with InProcessServer(tmp_path, long_poll_seconds=1) as server, Client(server.url) as client:
        for stream in ("left", *OUTPUTS):
            client.stream(stream).create("application/json")
        client.stream("left").append_many(range(count), close=True)
        counts, over = [0] * 2 * COUNTS, threading.Event()
        task = Task(server.url, GROUP, ("left",), OUTPUTS)
        meeting = Meeting(2)  # after both have read, and after both have named the position
        threads = [
            threading.Thread(target=work, args=(task, Tally(counts, slot), over, meeting))
            for slot in range(2)
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (parse_offset(client.group(GROUP).offsets().get("left", "")) or 0) < count:
            assert time.monotonic() < deadline, "the workers did not reach the end"
            time.sleep(LOOK_SECONDS)
        over.set()
        for thread in threads:
            thread.join()
        found = [copied(client, output, "left") for output in OUTPUTS]
    expected = [copy_of("left", number) for number in range(count)]
    if is_guarded:
        assert found == [expected] * len(OUTPUTS)
        assert sum(counts[CONFLICTS::COUNTS]) > 0
    else:
        assert all(len(values) > len(set(values)) for values in found)
