"""The run: workers of both kinds that are killed, on a bad network, with a server that is killed.

A feeder appends messages to some streams. Several subscriptions follow all of them. Each has its
own workers, and its own output, to which they write one effect for each message. Between portions
of the messages a worker, a receiver of webhooks or the server is killed. The requests of the
workers, and the deliveries to the receivers, go through fault proxies. At the end each output is
compared with the streams.
"""

import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any, Final, NamedTuple

from semel.client.server_calls import list_transactions
from semel.testing import FaultPlan, FaultProxy, LocalServer, local
from tests.sharing.checker import (
    DOUBLED,
    LOST,
    OUT_OF_ORDER,
    Effect,
    Failed,
    Findings,
    Input,
    check_effects,
    check_inputs,
)
from tests.sharing.crews import COMMITS, FAILURES, JOINS, REFUSED, Crew, Work, Worker
from tests.wakes.calls import Calls, offset, ordinal
from tests.wakes.feeder import Feeder
from tests.wakes.task import INPUT, LEASE_SECONDS, PATTERN, Task

KILL_WORKER: Final = "workers killed"
KILL_RECEIVER: Final = "receivers killed"
KILL_SERVER: Final = "server kills"
LEFT: Final = "left"

_PATIENCE_SECONDS: Final = 120.0  # without any progress
_LOOK_SECONDS: Final = 0.02
_DOWN_SECONDS_MAX: Final = 0.2
_PORTION: Final = 5  # messages; a small one, so that there are many wakes
_BACKLOG: Final = 40  # messages that need not be processed before the next portion
_PORTS: Final = (20_000, 32_000)  # the system gives none of these to connections

_WORKER_FAULTS: Final = {
    "drop_request": 0.01,
    "drop_answer": 0.015,
    "duplicate_before": 0.01,
    "duplicate_after": 0.01,
    "cut_answer": 0.005,
    "bad_gateway_after": 0.005,
    "delay": 0.02,
}
# Of each kind there is at least one, because the first deliveries of a proxy get these actions.
DELIVERY_FAULTS: Final = {
    "duplicate_before": 0.1,
    "drop_answer": 0.02,
    "duplicate_after": 0.1,
    "drop_request": 0.01,
}


class Kind(NamedTuple):
    """A subscription of the run, and its workers. A subscription has one receiver of webhooks."""

    id: str
    work: Work
    workers: int = 2
    is_webhook: bool = False
    is_named: bool = False  # it names its streams, which do not exist, and has no pattern


class Size(NamedTuple):
    """The size and the seed of a run."""

    messages: int
    streams: int
    kills: int
    seed: int


def events_of(size: Size, kinds: Sequence[Kind], random: Random) -> list[str]:
    """Return what is killed between the portions of the messages, in order."""
    choices = [KILL_SERVER]
    if any(kind.is_webhook for kind in kinds):
        choices.append(KILL_RECEIVER)
    if not all(kind.is_webhook for kind in kinds):
        choices.append(KILL_WORKER)
    events = [choices[number % len(choices)] for number in range(size.kills)]
    random.shuffle(events)
    return events


class Run:
    """A server, the workers of some subscriptions, and the feeder of their streams."""

    def __init__(self, server: LocalServer, size: Size, kinds: Sequence[Kind]) -> None:
        self._server = server
        self._size = size
        self._kinds = kinds
        self._random = Random(size.seed)
        self._calls = Calls(server.url)
        self._streams = [f"{INPUT}{number}" for number in range(size.streams)]
        self._proxies: dict[str, FaultProxy] = {}  # those before receivers
        self._receivers = {kind.work for kind in kinds if kind.is_webhook}
        self.crew = Crew(None, sum(kind.workers for kind in kinds))
        self.feeder = Feeder(server.url, self._streams, Random(size.seed + 1))
        self.counts: Counter[str] = Counter()

    def start(self, stack: ExitStack) -> None:
        """Create the subscriptions and the outputs, and start all processes and threads."""
        plan = FaultPlan(_WORKER_FAULTS, seed=self._size.seed + 2)
        self._proxy = stack.enter_context(FaultProxy(self._server.url, plan))
        for kind in self._kinds:
            self._calls.create(output_of(kind))
            task = Task(self._proxy.url, self._server.url, kind.id, output_of(kind))
            config: dict[str, Any] = {"lease_ttl_ms": round(1000 * LEASE_SECONDS)}
            config |= {"streams": self._streams} if kind.is_named else {"pattern": PATTERN}
            if kind.is_webhook:
                task = task._replace(port=_free_port(self._random))
                url = self._proxied(kind, task, stack)
                config |= {"type": "webhook", "webhook": {"url": f"{url}/webhook"}}
            else:
                task = task._replace(wake_stream=f"wakes/{kind.id}")
                self._calls.create(task.wake_stream)
                config |= {"type": "pull-wake", "wake_stream": task.wake_stream}
            self._calls.subscribe(kind.id, config)
            for _ in range(kind.workers):
                self.crew.start(kind.work, task)
        stack.callback(self.crew.close)
        self.feeder.start()

    def _proxied(self, kind: Kind, task: Task, stack: ExitStack) -> str:
        """Start a proxy before a receiver, and return its URL."""
        plan = FaultPlan(DELIVERY_FAULTS, script=DELIVERY_FAULTS, seed=self._size.seed + 3)
        proxy = FaultProxy(f"http://127.0.0.1:{task.port}", plan)
        self._proxies[kind.id] = stack.enter_context(proxy)
        return proxy.url

    # ---- what happens ----------------------------------------------------------------------------

    def go_through(self) -> None:
        """Let everything happen, and wait until all messages are processed and the workers left."""
        events = events_of(self._size, self._kinds, self._random)
        times = sorted(self._random.randrange(self._size.messages) for _ in events)
        for allowed in range(0, self._size.messages, _PORTION):
            self.feeder.allow(allowed)
            self.await_processed(allowed - _BACKLOG)
            while times and times[0] <= allowed:
                del times[0]
                self.kill(events.pop())
        self.feeder.allow(self._size.messages)
        for event in events:  # those after the last portion
            self.kill(event)
        self.await_processed(self._size.messages)
        self.feeder.end()
        self.crew.leave_all()

    def kill(self, event: str) -> None:
        """Kill a process, and start it again."""
        self.counts[event] += 1
        if event == KILL_SERVER:
            self._server.kill()
            sleep(self._random.uniform(0, _DOWN_SECONDS_MAX))
            self._server.restart()
            return
        is_receiver = event == KILL_RECEIVER
        found = [each for each in self.crew.running if self._is_receiver(each) is is_receiver]
        worker = self._random.choice(found)
        self.crew.kill(worker)
        self.crew.start(worker.work, worker.task)

    def _is_receiver(self, worker: Worker) -> bool:
        return worker.work in self._receivers

    def await_processed(self, count: int) -> None:
        """Wait until each subscription has processed so many messages.

        Raises Failed if nothing is processed for a long time.
        """
        last, until = -1, monotonic() + _PATIENCE_SECONDS
        while min(found := [self.processed(kind) for kind in self._kinds]) < count:
            self.feeder.check()
            ended = self.crew.ended()
            if ended:
                codes = {each.name: each.process.exitcode for each in ended}
                raise Failed(f"workers have ended by themselves: {codes}")
            if sum(found) != last:
                last, until = sum(found), monotonic() + _PATIENCE_SECONDS
            if monotonic() > until:
                shown = [self._calls.show(kind.id) for kind in self._kinds]
                raise Failed(f"{found} of {count} messages are processed. {shown}")
            sleep(_LOOK_SECONDS)

    def processed(self, kind: Kind) -> int:
        """Return how many messages a subscription has processed, by its acks."""
        streams = self._calls.show(kind.id)["streams"]
        return sum(ordinal(each["acked_offset"]) for each in streams)

    # ---- the check -------------------------------------------------------------------------------

    def check(self) -> Findings:
        """Compare the outputs with the streams. Also check what is left of the subscriptions."""
        self._await_transactions()
        inputs = [
            Input(value["key"], value["number"], path, offset(at))
            for path in self.feeder.appended
            for at, value in enumerate(self._read(path))
        ]
        found = check_inputs(inputs, self.feeder.appended)
        for kind in self._kinds:
            output = output_of(kind)
            effects = [Effect(**value, output=output) for value in self._read(output)]
            found.merge(check_effects(inputs, effects))
            self._check_subscription(kind, found)
        self._count(found)
        return found

    def _check_subscription(self, kind: Kind, found: Findings) -> None:
        shown = self._calls.show(kind.id)
        self.counts["wakes"] += shown["generation"]
        if shown["pending_count"]:
            found.add(LEFT, f"{shown['pending_count']} streams of {kind.id} are pending")
        for each in shown["streams"]:
            end = offset(self.feeder.appended[each["path"]])
            if (each["acked_offset"], each["tail_offset"]) != (end, end):
                found.add(LEFT, f"{each} of {kind.id} does not end at {end}")
        if not kind.is_webhook:
            generations = [each["generation"] for each in self._read(f"wakes/{kind.id}")]
            if generations != [*range(1, shown["generation"] + 1)]:
                found.add(LEFT, f"{kind.id} has announced the wakes {generations}")

    def _read(self, path: str) -> list[Any]:
        """Return all messages of a stream that are not of an aborted transaction."""
        return self._calls.read(path, is_committed=True)

    def _await_transactions(self) -> None:
        """Wait until the transactions of killed workers have ended by their deadline."""
        until = monotonic() + _PATIENCE_SECONDS
        while self._server.run(list_transactions(self._server.site, None, None)):
            if monotonic() > until:
                raise Failed("a transaction has not ended by its deadline")
            sleep(_LOOK_SECONDS)

    def _count(self, found: Findings) -> None:
        crew, counts = self.crew, self.counts
        deliveries: Counter[str] = Counter()
        for proxy in self._proxies.values():
            deliveries += proxy.counts
        counts["kills"] = counts[KILL_WORKER] + counts[KILL_RECEIVER] + counts[KILL_SERVER]
        counts["messages"] = self._size.messages
        counts["subscriptions"] = len(self._kinds)
        counts["wakes that were processed"] = crew.count(JOINS)
        counts["commits"] = crew.count(COMMITS)
        counts["commits refused"] = crew.count(REFUSED)
        counts["failures"] = crew.count(FAILURES)
        counts["requests of workers"] = self._proxy.counts["requests"]
        counts["responses lost after a commit"] = self._proxy.dropped_after_commit
        counts["deliveries"] = deliveries["requests"]
        for action in DELIVERY_FAULTS:
            counts[f"deliveries with {action}"] = deliveries[action]
        for kind in (LOST, DOUBLED, OUT_OF_ORDER):
            counts[kind] = found.count(kind)


def output_of(kind: Kind) -> str:
    """Return the stream that gets the effects of a subscription."""
    return f"out/{kind.id}"


def _free_port(random: Random) -> int:
    """Return a port on which nobody listens."""
    while True:
        port = random.randint(*_PORTS)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


@contextmanager
def started(data: Path, size: Size, kinds: Sequence[Kind]) -> Iterator[Run]:
    """Start a server, and the workers and the feeder of a run."""
    with local(data, long_poll_timeout=1) as server:
        run = Run(server, size, kinds)
        with ExitStack() as stack:
            run.start(stack)
            yield run
        if server.stderr:
            raise Failed(f"the server wrote to stderr: {server.stderr}")


def run_all(data: Path, size: Size, kinds: Sequence[Kind]) -> Counter[str]:
    """Run everything, and return the counts. Raises Failed if the check finds something."""
    began = monotonic()
    with started(data, size, kinds) as run:
        run.go_through()
        found = run.check()
        run.counts["seconds"] = round(monotonic() - began)
        if found:
            raise Failed(str(found))
    return run.counts
