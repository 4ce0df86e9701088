"""A worker of a pull-wake subscription, which does everything that a worker can do with a wake."""

from typing import Any, Final

from tests.wakes.calls import Wake, claimed, require
from tests.wakes.lives import INPUTS, PATTERN, Life, until

WAKES: Final = "wakes/pool"
WORKER: Final = "worker"


class PullLife(Life):
    """A pull-wake subscription, and its worker. `held` is the wake that the worker has."""

    def __init__(self, lease_ms: int) -> None:
        config = {
            "type": "pull-wake",
            "pattern": PATTERN,
            "wake_stream": WAKES,
            "lease_ttl_ms": lease_ms,
        }
        super().__init__("pull", config)
        self.held: Wake | None = None

    def prepare(self) -> None:
        """Create the streams and the subscription."""
        self.calls.create(WAKES)
        super().prepare()

    # ---- the lives -------------------------------------------------------------------------------

    # Everything was processed before, and is afterwards.

    def live_expiry(self) -> None:
        """Let the lease of a wake expire, and process the next one."""
        self.calls.append(INPUTS[0], "one")
        wake = self.claim()
        self._await_wake(wake.generation)
        self.note_end(wake)
        self.check_fenced(wake)
        self._commit_wake(self.claim())

    def live(self) -> None:
        """Process some messages, in each way that there is but an expiry."""
        first, second = INPUTS
        self.calls.append(first, "one", "two")
        wake = self.claim()
        start, end = wake.streams[first]
        assert not self.ask_ack(wake, {first: start + 1}, done=False)
        self.calls.append(second, "three")
        assert self.ask_ack(wake, {first: end}, done=True)
        self.held = None
        wake = self.claim()
        assert wake.streams.keys() == {second}
        require(self.calls.release(wake), 204)
        self.note_end(wake)
        self._commit_wake(self.claim())

    def _commit_wake(self, wake: Wake) -> None:
        self.ask_commit(wake, wake.tails)
        self.held = None
        self.settle()

    def claim(self) -> Wake:
        """Claim the wake that was issued, which must be a new one."""
        self._await_wake(self.last_ended)
        wake = claimed(self.id, require(self.calls.claim(self.id, WORKER), 200))
        assert wake.generation > self.last_ended
        assert wake.wake_id not in {each.wake_id for each in self.ended}
        assert wake.streams
        self.held = wake
        return wake

    def _await_wake(self, ended: int) -> None:
        """Wait for the message about a wake after that with the generation `ended`."""
        until(lambda: max(self._announced(), default=0) > ended, "the wake is forgotten")

    def _announced(self) -> list[int]:
        """Return the generations of which the wake stream has a message."""
        found = self.calls.read(WAKES)
        assert all(each["subscription_id"] == self.id for each in found)
        return [each["generation"] for each in found]

    # ---- after a start ---------------------------------------------------------------------------

    def check(self) -> dict[str, Any]:
        """Check what the server has stored. What is pending must have a wake."""
        shown = super().check()
        held = self.held
        if held is not None and (not shown["worker"] or shown["generation"] > held.generation):
            self.note_end(held)
            self.held = None
        if shown["pending_count"] and not shown["worker"]:
            self._await_wake(self.last_ended)
        announced = self._announced()
        assert announced == [*range(1, len(announced) + 1)], "not one message for each wake"
        assert len(announced) >= shown["generation"]
        return shown

    def settle(self) -> None:
        """Process what is left. Then there must be nothing that wakes again."""
        while True:
            answer = self.calls.claim(self.id, WORKER)
            if answer.status == 200:
                wake = claimed(self.id, answer)
            elif answer.code == "ALREADY_CLAIMED":
                assert answer.document["error"]["current_holder"] == WORKER
                generation = answer.document["error"]["generation"]
                if self.held is None or self.held.generation != generation:
                    until(self._is_free, "the lease does not expire")
                    continue
                wake = self.held
            else:
                assert answer.code == "NO_PENDING_WORK", answer
                break
            self.ask_ack(wake, wake.tails, done=True)
            self.held = None
        self.check_idle()

    def _is_free(self) -> bool:
        return not self.calls.show(self.id)["worker"]

    def check_idle(self) -> None:
        """Check that nothing is pending, and that no wake was issued after the last one."""
        announced = len(self._announced())
        shown = self.check()
        assert shown["pending_count"] == 0
        assert shown["generation"] == self.generation == announced
        answer = self.calls.claim(self.id, WORKER)
        assert (answer.status, answer.code) == (409, "NO_PENDING_WORK"), answer
        assert len(self._announced()) == announced
