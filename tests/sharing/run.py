"""The run: members of a group that are killed, join and leave, on a server that is killed as well.

A feeder appends keyed messages to a topic. Workers share the topic, and write one effect for each
message to two outputs. Between portions of the messages, something happens: a worker or the server
is killed, a worker joins, leaves, or is stopped for longer than its session timeout, and in the
middle the topic grows, so that keys move. At the end the outputs are compared with the topic.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Final, NamedTuple

from semel.client.member_calls import GroupInfo, describe_group
from semel.client.server_calls import list_transactions
from semel.model.offsets import parse_offset
from semel.model.rights import dead_letters_of
from semel.testing import LocalServer, local
from tests.sharing.checker import (
    DOUBLED,
    LOST,
    OUT_OF_ORDER,
    Failed,
    Findings,
    check_effects,
    check_inputs,
    keys_that_moved,
)
from tests.sharing.crews import (
    ASSIGNED,
    COMMITS,
    FAILURES,
    JOINS,
    LOST_STREAMS,
    REFUSED,
    REVOKED,
    Crew,
    Work,
)
from tests.sharing.effects import Task, read_effects, read_inputs
from tests.sharing.feeder import Feeder

TOPIC: Final = "orders"
COPIES: Final = "copies"
EFFECTS: Final = "effects"
GROUP: Final = "billing"

_COPIES_PARTITIONS: Final = 5
_PATIENCE_SECONDS: Final = 120.0  # without any progress
_LOOK_SECONDS: Final = 0.02
_DOWN_SECONDS_MAX: Final = 0.2
_PAUSE_SECONDS_MAX: Final = 0.1
_STOPPED_TIMES: Final = 1.6  # how many session timeouts a stopped worker is stopped for
_EXPIRY_TIMES: Final = 1.2
_BACKLOG_SHARE: Final = 0.5  # of a portion: it need not be processed before the next event

KILL_WORKER: Final = "workers killed"
KILL_SERVER: Final = "server kills"
JOIN: Final = "workers joined"
LEAVE: Final = "workers left"
STOP: Final = "workers stopped"
GROW: Final = "growths"


class Size(NamedTuple):
    """The size and the seed of a run. Of all kills, a third are of the server."""

    messages: int
    keys: int
    partitions: int
    grown_to: int
    workers: int
    kills: int
    joins: int
    leaves: int
    stops: int
    session_seconds: float
    seed: int


def events_of(size: Size, random: Random) -> list[str]:
    """Return what happens between the portions of the messages, in order."""
    server_kills = size.kills // 3
    events = [
        *[KILL_WORKER] * (size.kills - server_kills),
        *[KILL_SERVER] * server_kills,
        *[JOIN] * size.joins,
        *[LEAVE] * size.leaves,
        *[STOP] * size.stops,
    ]
    random.shuffle(events)
    events.insert(len(events) // 2, GROW)
    return events


class Run:
    """A server, the workers of a group, and the feeder of their topic."""

    def __init__(self, server: LocalServer, size: Size, works: Sequence[Work]) -> None:
        self._server = server
        self._size = size
        self._works = works
        self._random = Random(size.seed)
        self.task = Task(
            server.url, GROUP, TOPIC, EFFECTS, COPIES, session_seconds=size.session_seconds
        )
        self.crew = Crew(self.task, size.workers + size.joins)
        self.feeder = Feeder(server.url, TOPIC, keys=size.keys, random=Random(size.seed + 1))
        self.counts: Counter[str] = Counter()

    def start(self) -> None:
        """Make the topic and the outputs, and start the workers and the feeder."""
        size = self._size
        self._server.topic(TOPIC).create(size.partitions, "application/json")
        self._server.topic(COPIES).create(_COPIES_PARTITIONS, "application/json")
        self._server.stream(EFFECTS).create("application/json")
        for number in range(size.workers):
            self.crew.start(self._works[number % len(self._works)])
        self.feeder.start()

    def close(self) -> None:
        """Kill all workers."""
        self.crew.close()

    # ---- what happens ----------------------------------------------------------------------------

    def go_through(self) -> None:
        """Let everything happen, and wait until all messages are processed and the workers left."""
        events = events_of(self._size, self._random)
        portion = self._size.messages / (len(events) + 1)
        for number, event in enumerate(events):
            allowed = round(portion * (number + 1))
            self.feeder.allow(allowed)
            self.await_processed(round(allowed - _BACKLOG_SHARE * portion))
            sleep(self._random.uniform(0, _PAUSE_SECONDS_MAX))
            self.happen(event)
            self.counts[event] += 1
        self.feeder.allow(self._size.messages)
        self.await_processed(self._size.messages)
        self.feeder.end()
        self._await(lambda: len(self.crew.running) == len(self.crew.workers), "stopped workers")
        sleep(_EXPIRY_TIMES * self._size.session_seconds)  # until killed members are overdue
        self._await(self._is_settled, "the group has not settled")
        self.crew.leave_all()

    def happen(self, event: str) -> None:
        """Let one thing happen."""
        match event:
            case "workers killed":
                worker = self._random.choice(self.crew.running)
                self.crew.kill(worker)
                self.crew.start(worker.work, worker.task)
            case "server kills":
                self._server.kill()
                sleep(self._random.uniform(0, _DOWN_SECONDS_MAX))
                self._server.restart()
            case "workers joined":
                self.crew.start(self._random.choice(self._works))
            case "workers left":
                self.crew.leave(self._random.choice(self.crew.running))
            case "workers stopped":
                worker = self._random.choice(self.crew.running)
                self.crew.stop(worker, _STOPPED_TIMES * self._size.session_seconds)
            case "growths":
                topic = self._server.topic(TOPIC)
                topic.grow(self._size.grown_to, keys_may_move=True)
            case _:
                raise AssertionError(event)

    def await_processed(self, count: int) -> None:
        """Wait until the group has processed so many messages."""
        self._await(lambda: self.processed() >= count, f"expected {count} processed messages")

    def processed(self) -> int:
        """Return how many messages the group has processed, by its positions."""
        found = self._server.group(GROUP).offsets()
        topic = f"{TOPIC}/"
        return sum(parse_offset(at) or 0 for path, at in found.items() if path.startswith(topic))

    def _is_settled(self) -> bool:
        """Return whether each partition has an owner that is alive and need not release it."""
        group = self._group()
        if any((each.heard_ms_ago or 0) >= each.session_timeout_ms for each in group.members):
            return False  # it was killed, and is about to be removed
        return len(group.streams) == self._size.grown_to and all(
            each.phase == "owned" and each.lag == 0 for each in group.streams
        )

    def _group(self) -> GroupInfo:
        return self._server.run(describe_group(self._server.site, GROUP))

    def _await(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait until something is so. Raises Failed if nothing is processed for a long time."""
        last, until = -1, monotonic() + _PATIENCE_SECONDS
        while not is_so():
            self.feeder.check()
            ended = self.crew.ended()
            if ended:
                codes = {each.name: each.process.exitcode for each in ended}
                raise Failed(f"workers have ended by themselves: {codes}")
            if (now := self.processed()) != last:
                last, until = now, monotonic() + _PATIENCE_SECONDS
            if monotonic() > until:
                raise Failed(f"{what}; {last} are processed. {self._group()}")
            sleep(_LOOK_SECONDS)

    # ---- the check -------------------------------------------------------------------------------

    def check(self) -> Findings:
        """Compare the outputs with the topic. Also check what is left in the group."""
        self._await_transactions()
        inputs = read_inputs(self._server, TOPIC)
        found = check_inputs(inputs, self.feeder.appended)
        for effects in read_effects(self._server, self.task, found).values():
            found.merge(check_effects(inputs, effects))
        group = self._group()
        if group.members:
            found.add("left", f"{group.members}, although all members have left")
        if self.processed() != self._size.messages:
            found.add("left", f"the group is at {self.processed()}")
        letters = self._server.stream(dead_letters_of(GROUP))
        if letters.exists():
            for letter in letters.read():
                found.add("dead letters", letter.value)
        self._count(keys_that_moved(inputs), found)
        return found

    def _await_transactions(self) -> None:
        """Wait until the transactions of killed workers have ended by their deadline."""
        until = monotonic() + _PATIENCE_SECONDS
        while self._server.run(list_transactions(self._server.site, None, None)):
            if monotonic() > until:
                raise Failed("a transaction has not ended by its deadline")
            sleep(_LOOK_SECONDS)

    def _count(self, moved: int, found: Findings) -> None:
        crew, counts = self.crew, self.counts
        counts["messages"] = self._size.messages
        counts["kills"] = counts[KILL_WORKER] + counts[KILL_SERVER]
        counts["commits"] = crew.count(COMMITS)
        counts["commits refused"] = crew.count(REFUSED)
        counts["failures"] = crew.count(FAILURES)
        counts["joins"] = crew.count(JOINS)
        counts["streams assigned"] = crew.count(ASSIGNED)
        counts["streams released"] = crew.count(REVOKED)
        counts["streams lost"] = crew.count(LOST_STREAMS)
        counts["changes of members or owners"] = self._group().version
        counts["keys moved"] = moved
        for kind in (LOST, DOUBLED, OUT_OF_ORDER):
            counts[kind] = found.count(kind)


@contextmanager
def started(data: Path, size: Size, works: Sequence[Work]) -> Iterator[Run]:
    """Start a server, and the workers and the feeder of a run."""
    with local(data, long_poll_timeout=2) as server:
        run = Run(server, size, works)
        try:
            run.start()
            yield run
        finally:
            run.close()
        if server.stderr:
            raise Failed(f"the server wrote to stderr: {server.stderr}")


def run_all(data: Path, size: Size, works: Sequence[Work]) -> Counter[str]:
    """Run everything, and return the counts. Raises Failed if the check finds something."""
    began = monotonic()
    with started(data, size, works) as run:
        run.go_through()
        found = run.check()
        run.counts["seconds"] = round(monotonic() - began)
        if found:
            raise Failed(str(found))
        if not run.counts["keys moved"]:
            raise Failed("the growth has moved no key")
    return run.counts
