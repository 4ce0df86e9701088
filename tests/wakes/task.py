"""What workers of the exactly-once rig do: the task, and how a worker processes a wake.

Every worker writes one effect for each message, in one commit with the ack of the wake.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple
from uuid import uuid4

import msgspec

from tests.sharing.crews import COMMITS, FAILURES, REFUSED, Tally
from tests.transactions.raw import Line, Lost, RawTransaction, RefusedCall
from tests.wakes.calls import Wake, ack_list, offset

INPUT: Final = "in/"
PATTERN: Final = "in/*"
LEASE_SECONDS: Final = 1.5

_TRIES: Final = 10
_PART: Final = 3
_DEADLINE_SECONDS: Final = 5.0  # of transactions
# What the server says to a worker whose wake has ended, or that another one has overtaken.
_TOO_LATE: Final = ("FENCED", "INVALID_OFFSET", "TRANSACTION_TIMED_OUT", "txn_aborted")


class Task(NamedTuple):
    """The task of one worker: its subscription, and the stream that gets the effects.

    `url` is that of the proxy before the server, and `server_url` that of the server itself. A
    receiver of webhooks listens on `port`. A worker of a pull-wake subscription waits for messages
    in `wake_stream`.
    """

    url: str
    server_url: str
    subscription: str
    output: str
    wake_stream: str = ""
    port: int = 0


def effect_of(value: dict[str, Any], stream: str, at: int, worker: str) -> dict[str, Any]:
    """Return what a worker writes for the message at an ordinal of a stream."""
    return {
        "key": value["key"],
        "number": value["number"],
        "stream": stream,
        "offset": offset(at),
        "worker": worker,
    }


class Processor:
    """Reads the messages of wakes, and commits effects and acks together."""

    def __init__(self, task: Task, name: str, tally: Tally) -> None:
        self.task = task
        self._name = name
        self._tally = tally
        self.line = Line(task.url, tries=_TRIES)

    def process_whole(self, wake: Wake, *, done: bool = True) -> bool:
        """Process a wake in one commit. Return False if it has ended before."""
        effects = [
            effect
            for path, (start, end) in wake.streams.items()
            for effect in self.effects(path, start, end)
        ]
        return self._is_done(lambda: self._commit(wake, effects, wake.tails, done=done))

    def process_in_transaction(self, wake: Wake, kind: str) -> bool:
        """Process a wake in one transaction. Return False if it has ended before."""
        effects = [
            effect
            for path, (start, end) in wake.streams.items()
            for effect in self.effects(path, start, end)
        ]

        def commit() -> None:
            name = uuid4().hex
            transaction = WakeTransaction(
                self.line, f"t-{name}", f"p-{name}", kind, _DEADLINE_SECONDS
            )
            transaction.begin()
            try:
                transaction.append(self.task.output, effects)
                transaction.commit_wake(wake)
            except RefusedCall as error:
                transaction.end_refused(error)
                raise

        return self._is_done(commit)

    def process_in_parts(self, wake: Wake, random: Random) -> bool:
        """Process a wake in random parts. Return False if it has ended before.

        Only the one worker that has claimed a wake can do this. If a delivery is repeated, two
        receivers can have the same wake, and the parts of one would overlap those of the other.
        """
        return self._process_parts(
            wake,
            [
                Part(path, at, to, f"p-{uuid4().hex}")
                for path, (start, end) in wake.streams.items()
                for at, to in _split(start, end, random)
            ],
        )

    def process_in_fixed_parts(self, wake: Wake) -> bool:
        """Process a wake in parts that depend on the wake alone, and so do their producers.

        So if two receivers have the same wake, each part is committed by one of them, and is a
        duplicate for the other.
        """
        return self._process_parts(
            wake,
            [
                Part(path, at, to, f"{wake.wake_id}-{path}-{at}")
                for path, (start, end) in wake.streams.items()
                for at, to in _split_evenly(start, end)
            ],
        )

    def _process_parts(self, wake: Wake, parts: Sequence["Part"]) -> bool:
        for number, part in enumerate(parts, 1):
            effects = self.effects(part.path, part.start, part.end)
            commit = partial(
                self._commit,
                wake,
                effects,
                {part.path: part.end},
                done=number == len(parts),
                producer=part.producer,
            )
            if not self._is_done(commit):
                return False
        return True

    def _is_done(self, commit: Callable[[], None]) -> bool:
        try:
            commit()
        except RefusedCall as error:
            if error.code not in _TOO_LATE:
                raise
            self._tally.add(REFUSED)
            return False
        except Lost:
            # It is unknown whether this was committed. The wake is still there, if not.
            self._tally.add(FAILURES)
            return False
        self._tally.add(COMMITS)
        return True

    def effects(self, path: str, start: int, end: int) -> list[dict[str, Any]]:
        """Read messages, and return their effects."""
        values: list[Any] = []
        while start + len(values) < end:
            target = f"/v1/stream/{path}?offset={offset(start + len(values))}"
            _, body = self.line.ask("GET", f"{target}&isolation=read_committed")
            page = msgspec.json.decode(body)
            assert page, f"{path} has nothing at {start + len(values)}, before {end}"
            values += page
        return [
            effect_of(value, path, at, self._name)
            for at, value in enumerate(values[: end - start], start)
        ]

    def _commit(
        self,
        wake: Wake,
        effects: list[dict[str, Any]],
        acks: dict[str, int],
        *,
        done: bool,
        producer: str = "",
    ) -> None:
        """Commit effects and acks in one request, which is repeated as it is."""
        ack = {**wake.members, "acks": ack_list(acks), "done": done, "token": wake.token}
        document = {
            "producer_id": producer or f"p-{uuid4().hex}",
            "producer_epoch": 0,
            "producer_seq": 0,
            "appends": [{"stream": self.task.output, "messages": effects}],
            "subscriptions": {wake.id: ack},
        }
        self.line.ask("POST", "/v1/commits", document)

    def close(self) -> None:
        self.line.close()


class Part(NamedTuple):
    """Messages of one stream that are processed in one commit, and the producer of the commit."""

    path: str
    start: int
    end: int
    producer: str


class WakeTransaction(RawTransaction):
    """A transaction whose commit acks a wake, and ends it."""

    def commit_wake(self, wake: Wake) -> None:
        """Commit the transaction, with the acks of the whole wake."""
        acks = ack_list(wake.tails)
        ack = {**wake.members, "acks": acks, "done": True, "token": wake.token}
        self._call("commit", {"subscriptions": {wake.id: ack}})

    def end_refused(self, error: RefusedCall) -> None:
        """Abort the transaction after a refusal, unless it has ended."""
        if error.is_abort:
            return
        with suppress(RefusedCall, Lost):  # its deadline ends it
            self.abort()


def _split(start: int, end: int, random: Random) -> list[tuple[int, int]]:
    """Return random ranges that together are the range from `start` to `end`."""
    found = []
    while start < end:
        at = min(end, start + random.randint(1, 4))
        found.append((start, at))
        start = at
    return found


def _split_evenly(start: int, end: int) -> list[tuple[int, int]]:
    """Return the ranges between the multiples of a number that are between `start` and `end`."""
    found = []
    while start < end:
        at = min(end, start - start % _PART + _PART)
        found.append((start, at))
        start = at
    return found
