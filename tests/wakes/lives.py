"""What is known about a subscription over the lives of its server, and what must be true of it.

A request without a response may have been applied or not. So for each stream there are two bounds:
what a response has confirmed, and what was asked for.
"""

from collections.abc import Callable
from time import monotonic, sleep
from typing import Any, Final

from tests.wakes.calls import Answer, Calls, Wake, ack_list, ordinal, require

INPUTS: Final = ("in/a", "in/b")
OUTPUT: Final = "out"
PATTERN: Final = "in/*"
LEASE_MS: Final = 20_000
SHORT_LEASE_MS: Final = 1_500  # where a lease must expire

_LATE_MAX: Final = 3
PATIENCE_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.005


class Life:
    """A subscription, its streams, and the worker that knows all of this.

    After `check`, which each life of the server begins with, what was unknown is known.
    """

    def __init__(self, id: str, config: dict[str, Any]) -> None:
        self.id: Final = id
        self.calls = Calls("http://127.0.0.1")  # until the first `connect`
        self.acked = dict.fromkeys(INPUTS, 0)
        self.asked = dict.fromkeys(INPUTS, 0)
        self.generation = 0
        self.ended: list[Wake] = []
        self.output: list[int] = []
        self._config = config
        self._commits = 0
        self._unknown_commit: tuple[int, Wake, dict[str, int]] | None = None

    def connect(self, url: str) -> None:
        """Use a server that was started."""
        self.calls = Calls(url)

    def prepare(self) -> None:
        """Create the streams and the subscription."""
        for path in (*INPUTS, OUTPUT):
            self.calls.create(path)
        self.calls.subscribe(self.id, self._config)

    # ---- what is asked for -----------------------------------------------------------------------

    def ask_ack(self, wake: Wake, acks: dict[str, int], *, done: bool) -> bool:
        """Ack, which must be accepted. Return whether there is a next wake."""
        self._will_ack(acks)
        answer = require(self.calls.ack(wake, acks, done=done), 200)
        assert answer.document.keys() == {"ok", "next_wake"}, answer
        assert answer.document["ok"] is True
        self._has_acked(wake, acks, done=done)
        next_wake: bool = answer.document["next_wake"]
        return next_wake

    def ask_commit(self, wake: Wake, acks: dict[str, int]) -> None:
        """Commit a message and the acks, which must be accepted. The wake is done."""
        self._commits += 1
        self._unknown_commit = (self._commits, wake, acks)
        self._will_ack(acks)
        require(self._commit(), 200)
        self._has_committed()

    def _commit(self) -> Answer:
        assert self._unknown_commit is not None
        number, wake, acks = self._unknown_commit
        ack = {**wake.members, "acks": ack_list(acks), "done": True, "token": wake.token}
        document = {
            "producer_id": f"commit-{number}",
            "producer_epoch": 0,
            "producer_seq": 0,
            "appends": [{"stream": OUTPUT, "messages": [number]}],
            "subscriptions": {wake.id: ack},
        }
        return self.calls.ask("POST", "/v1/commits", document)

    def _has_committed(self) -> None:
        assert self._unknown_commit is not None
        number, wake, acks = self._unknown_commit
        self.output.append(number)
        self._has_acked(wake, acks, done=True)
        self._unknown_commit = None

    def _will_ack(self, acks: dict[str, int]) -> None:
        for path, at in acks.items():
            self.asked[path] = max(self.asked[path], at)

    def _has_acked(self, wake: Wake, acks: dict[str, int], *, done: bool) -> None:
        for path, at in acks.items():
            self.acked[path] = max(self.acked[path], at)
        if done:
            self.note_end(wake)

    def note_end(self, wake: Wake) -> None:
        """Record that a wake has certainly ended."""
        if all(each.generation != wake.generation for each in self.ended):
            self.ended.append(wake)

    # ---- what must be true -----------------------------------------------------------------------

    def check(self) -> dict[str, Any]:
        """Check what a server has stored, after its start. Return what it says.

        If the response to a commit was lost, it is repeated: it is either stored, or accepted now,
        or refused because the lease has expired.
        """
        if self._unknown_commit is not None:
            answer = self._commit()
            if answer.status == 200:
                self._has_committed()
            else:
                assert answer.code == "FENCED", answer
                self._unknown_commit = None
        assert self.calls.read(OUTPUT) == self.output
        shown = self._check_offsets()
        for wake in self.ended[-_LATE_MAX:]:
            self.check_fenced(wake)
        return shown

    def _check_offsets(self) -> dict[str, Any]:
        tails = {path: self.calls.tail(path) for path in INPUTS}
        shown = self.calls.show(self.id)
        assert shown["generation"] >= self.generation, "a generation has gone back"
        self.generation = shown["generation"]
        streams = {each["path"]: each for each in shown["streams"]}
        assert streams.keys() == set(INPUTS)
        for path, each in streams.items():
            acked = ordinal(each["acked_offset"])
            is_possible = self.acked[path] <= acked <= self.asked[path]
            assert is_possible, f"{path} is acked up to {acked}"
            assert ordinal(each["tail_offset"]) == tails[path]
            assert each["has_pending"] is (acked < tails[path])
            self.acked[path] = self.asked[path] = acked
        assert shown["pending_count"] == sum(each["has_pending"] for each in streams.values())
        return shown

    def check_fenced(self, wake: Wake) -> None:
        """Check that a late worker of a wake that has ended cannot ack."""
        for done in (False, True):
            for acks in ({}, {INPUTS[0]: self.acked[INPUTS[0]]}):
                answer = self.calls.ack(wake, acks, done=done)
                is_fenced = (answer.status, answer.code) == (409, "FENCED")
                assert is_fenced, f"a late worker is not fenced: {answer}"

    @property
    def last_ended(self) -> int:
        """The generation of the last wake that has certainly ended."""
        return max((wake.generation for wake in self.ended), default=0)


def until(is_so: Callable[[], bool], what: str) -> None:
    """Wait until something is so. Raises AssertionError after a long time, and Lost."""
    end = monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert monotonic() < end, what
        sleep(_LOOK_SECONDS)
