"""Messages that cannot be processed: each becomes a dead letter once, and is replayed once.

Some messages make the function of a worker raise, and some kill the process of their worker, each
time. Ended workers are started again, as an operator would do. When everything else is processed,
the workers are replaced by fixed ones, and the dead letters are replayed by several callers at the
same time. The server is killed now and then.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Final, NamedTuple

from semel import Client
from semel.client.errors import ClientError
from semel.model.offsets import parse_offset
from semel.model.rights import retries_of
from semel.testing import LocalServer, local
from tests.sharing.checker import Failed, Findings, check_effects, check_inputs, check_letters
from tests.sharing.crews import COMMITS, FAILURES, JOINS, Crew, Work
from tests.sharing.effects import DIE, RAISE, Task, read_effects, read_inputs
from tests.sharing.feeder import Feeder

TOPIC: Final = "orders"
COPIES: Final = "copies"
EFFECTS: Final = "effects"
GROUP: Final = "billing"

_COPIES_PARTITIONS: Final = 3
_REPLAYERS: Final = 3
_PATIENCE_SECONDS: Final = 120.0  # without any progress
_LOOK_SECONDS: Final = 0.02
_DOWN_SECONDS_MAX: Final = 0.2


class Size(NamedTuple):
    """The size and the seed of a run: how many messages raise, and how many kill their worker."""

    messages: int
    keys: int
    partitions: int
    workers: int
    raising: int
    deadly: int
    kills: int
    max_attempts: int
    session_seconds: float
    seed: int


class PoisonRun:
    """A server, a topic in which some messages are poisoned, and the workers of a group."""

    def __init__(self, server: LocalServer, size: Size, works: Sequence[Work]) -> None:
        self._server = server
        self._size = size
        self._works = works
        self._random = Random(size.seed)
        self.task = Task(
            server.url,
            GROUP,
            TOPIC,
            EFFECTS,
            COPIES,
            session_seconds=size.session_seconds,
            max_attempts=size.max_attempts,
        )
        self.crew = Crew(self.task, size.workers)
        self.counts: Counter[str] = Counter()
        poisoned = self._random.sample(range(size.messages), size.raising + size.deadly)
        self._poison_of = {
            index: RAISE if place < size.raising else DIE for place, index in enumerate(poisoned)
        }
        self._feeder = Feeder(
            server.url,
            TOPIC,
            keys=size.keys,
            random=Random(size.seed + 1),
            poison_of=self._poison_of,
        )

    def feed(self) -> None:
        """Make the topic and the outputs, and append all messages."""
        size = self._size
        self._server.topic(TOPIC).create(size.partitions, "application/json")
        self._server.topic(COPIES).create(_COPIES_PARTITIONS, "application/json")
        self._server.stream(EFFECTS).create("application/json")
        self._feeder.start()
        self._feeder.allow(size.messages)
        self._feeder.end()

    def work(self) -> None:
        """Let the workers process everything but the poisoned messages, and let them leave."""
        for number in range(self._size.workers):
            self.crew.start(self._works[number % len(self._works)])
        for number in range(self._size.kills):
            part = self._size.messages * (number + 1) // (self._size.kills + 1)
            self._await(lambda part=part: self.processed() >= part)  # type: ignore[misc]
            self._kill_server()
        self._await(lambda: self.processed() >= self._size.messages)
        self.crew.leave_all()

    def replay(self) -> None:
        """Let fixed workers process the dead letters, which several callers replay at once."""
        fixed = self.task._replace(is_fixed=True)
        for number in range(self._size.workers):
            self.crew.start(self._works[number % len(self._works)], fixed)
        with ThreadPoolExecutor(_REPLAYERS) as pool:
            replays = [pool.submit(_replay, self._server.url) for _ in range(_REPLAYERS)]
            if self._size.kills:
                self._kill_server()
            for each in replays:
                each.result()
        self.counts["replayed again"] = _replay(self._server.url)
        retries = self._server.stream(retries_of(GROUP)).head().next_offset
        self.counts["replayed"] = parse_offset(retries or "") or 0
        self._await(self._is_all_retried)
        self.crew.leave_all()

    def close(self) -> None:
        """Kill all workers."""
        self.crew.close()

    def processed(self) -> int:
        """Return how many messages of the topic the group has passed."""
        found = self._server.group(GROUP).offsets()
        topic = f"{TOPIC}/"
        return sum(parse_offset(at) or 0 for path, at in found.items() if path.startswith(topic))

    def _is_all_retried(self) -> bool:
        path = retries_of(GROUP)
        position = parse_offset(self._server.group(GROUP).offsets().get(path, "")) or 0
        end = parse_offset(self._server.stream(path).head().next_offset or "") or 0
        return position >= end > 0

    def _kill_server(self) -> None:
        self._server.kill()
        sleep(self._random.uniform(0, _DOWN_SECONDS_MAX))
        self._server.restart()
        self.counts["server kills"] += 1

    def _await(self, is_so: Callable[[], bool]) -> None:
        """Start killed workers again until something is so. Raises Failed without progress."""
        last, until = -1, monotonic() + _PATIENCE_SECONDS
        while not is_so():
            for worker in self.crew.ended():
                self.counts["workers killed by messages"] += 1
                self.crew.start(worker.work, worker.task)
            if (now := self.processed()) != last:
                last, until = now, monotonic() + _PATIENCE_SECONDS
            if monotonic() > until:
                raise Failed(f"{last} messages are processed, and nothing goes on")
            sleep(_LOOK_SECONDS)

    # ---- the check -------------------------------------------------------------------------------

    def check(self, *, is_replayed: bool) -> Findings:
        """Compare the outputs and the dead letters with the topic."""
        inputs = read_inputs(self._server, TOPIC)
        found = check_inputs(inputs, self._feeder.appended)
        poisoned = [each.place for each in inputs if each.poison]
        if len(poisoned) != len(self._poison_of):
            found.add("appended wrong", f"{len(poisoned)} poisoned messages")
        letters = list(self._server.dead_letters(GROUP).list(all=True))
        places = [(str(each.origin.stream), str(each.origin.offset)) for each in letters]
        found.merge(check_letters(places, poisoned))
        for effects in read_effects(self._server, self.task, found).values():
            if is_replayed:
                found.merge(check_effects(inputs, effects, without_order=poisoned))
            else:
                found.merge(check_effects(inputs, effects, without_effect=poisoned))
        self.counts["messages"] = len(inputs)
        self.counts["dead letters"] = len(letters)
        return found


def _replay(url: str) -> int:
    """Replay all dead letters, again after each error. Return how many the last call replayed."""
    with Client(url) as client:
        while True:
            try:
                return client.dead_letters(GROUP).replay()
            except ClientError:
                sleep(_LOOK_SECONDS)


def run_all(data: Path, size: Size, works: Sequence[Work]) -> Counter[str]:
    """Run everything, and return the counts. Raises Failed if the check finds something."""
    began = monotonic()
    with local(data, long_poll_timeout=2) as server:
        run = PoisonRun(server, size, works)
        try:
            run.feed()
            run.work()
            _require_none(run.check(is_replayed=False), "before the replay")
            run.replay()
            _require_none(run.check(is_replayed=True), "after the replay")
        finally:
            run.close()
        if server.stderr:
            raise Failed(f"the server wrote to stderr: {server.stderr}")
    counts, poisoned = run.counts, size.raising + size.deadly
    if counts["replayed"] != poisoned or counts["replayed again"]:
        raise Failed(f"expected {poisoned} replays, and then none: {counts}")
    if size.deadly and not counts["workers killed by messages"]:
        raise Failed("no message has killed a worker")
    for name, what in (("commits", COMMITS), ("failures", FAILURES), ("joins", JOINS)):
        counts[name] = run.crew.count(what)
    counts["seconds"] = round(monotonic() - began)
    return counts


def _require_none(found: Findings, when: str) -> None:
    if found:
        raise Failed(f"{when}: {found}")
