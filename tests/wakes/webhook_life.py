"""A webhook subscription and its receiver, which answers in each way that there is."""

import threading
from collections.abc import Callable
from typing import Any, Final

from tests.wakes.calls import Lost, Wake, delivered
from tests.wakes.lives import INPUTS, PATTERN, Life, until
from tests.wakes.receivers import DONE, FAILED, TAKEN, Delivery, Receiver, Reply

_NOTHING: Final = Reply(None)


class WebhookLife(Life):
    """A webhook subscription, and its receiver."""

    def __init__(self, receiver: Receiver, lease_ms: int) -> None:
        config = {
            "type": "webhook",
            "pattern": PATTERN,
            "webhook": {"url": receiver.url},
            "lease_ttl_ms": lease_ms,
        }
        super().__init__("webhook", config)
        self._receiver = receiver
        self._checked = 0  # deliveries
        self._is_settling = threading.Event()
        self._closed = 0  # a wake with this generation, or a lower one, must not be delivered again

    # ---- the lives -------------------------------------------------------------------------------
    #
    # Before each of them everything was processed, and afterwards, too.

    def live_done(self) -> None:
        """Answer that the work is done. During the first delivery, more is appended."""
        first, second = INPUTS
        count = len(self._receiver.deliveries)

        def answer(delivery: Delivery) -> Reply:
            if len(self._receiver.deliveries) == count + 1:
                self.calls.append(second, "two")
            return self._done(delivery)

        self._receiver.answer = self._survive(answer)
        self.calls.append(first, "one")
        self._await_processed()
        assert len({each.wake for each in self._receiver.deliveries[count:]}) == 2

    def live_killed(self, kill: Callable[[], None]) -> None:
        """Let the server be killed while it waits for the response."""

        def answer(delivery: Delivery) -> Reply:
            kill()
            return self._done(delivery)

        self._receiver.answer = answer
        self.calls.append(INPUTS[0], "one")
        self._await_processed()

    def live_failure(self) -> None:
        """Answer with an error, and to the next delivery that the work is done."""
        count = len(self._receiver.deliveries)

        def answer(delivery: Delivery) -> Reply:
            return FAILED if len(self._receiver.deliveries) == count + 1 else self._done(delivery)

        self._receiver.answer = answer
        self.calls.append(INPUTS[0], "one")
        self._await_processed()
        assert len({each.wake for each in self._receiver.deliveries[count:]}) == 1

    def live_callback(self) -> None:
        """Answer at once, and ack afterwards, in two parts."""
        wake = self._await_delivery(lambda _: TAKEN, "one", "two")
        start, end = wake.streams[INPUTS[0]]
        assert not self.ask_ack(wake, {INPUTS[0]: start + 1}, done=False)
        self.calls.append(INPUTS[1], "three")
        self._receiver.answer = self._done
        assert self.ask_ack(wake, {INPUTS[0]: end}, done=True)
        self._check_deliveries()
        self._closed = wake.generation
        self._await_processed()

    def live_commit(self) -> None:
        """Commit a message and the ack in one frame, before the answer."""

        def answer(delivery: Delivery) -> Reply:
            wake = delivered(delivery.body)
            self.ask_commit(wake, wake.tails)
            return TAKEN

        self._receiver.answer = self._survive(answer)
        self.calls.append(INPUTS[0], "one")
        self._await_processed()

    def live_expiry(self) -> None:
        """Answer, and never ack. Ack the next wake."""
        wake = self._await_delivery(lambda _: TAKEN, "one")
        self._receiver.answer = self._done
        self._await_processed()
        assert self.generation > wake.generation

    # ---- parts of them ---------------------------------------------------------------------------

    def _await_delivery(self, answer: Callable[[Delivery], Reply], *values: str) -> Wake:
        count = len(self._receiver.deliveries)
        self._receiver.answer = answer
        self.calls.append(INPUTS[0], *values)

        def is_there() -> bool:
            # A server that is dead delivers nothing, and this request says so.
            self.calls.tail(INPUTS[0])
            return len(self._receiver.deliveries) > count

        until(is_there, "nothing is delivered")
        return delivered(self._receiver.deliveries[-1].body)

    def _done(self, delivery: Delivery) -> Reply:
        self._will_ack(delivered(delivery.body).tails)
        return DONE

    @staticmethod
    def _survive(answer: Callable[[Delivery], Reply]) -> Callable[[Delivery], Reply]:
        """Return an answer that is none if the server is dead."""

        def surviving(delivery: Delivery) -> Reply:
            try:
                return answer(delivery)
            except Lost:
                return _NOTHING

        return surviving

    def _await_processed(self) -> None:
        """Wait until everything is processed. Then no wake up to this one is delivered again."""

        def is_processed() -> bool:
            is_idle: bool = self.calls.show(self.id)["pending_count"] == 0
            return is_idle and self._unknown_commit is None

        until(is_processed, "something is forgotten")
        shown = self._check_offsets()
        self._check_deliveries()
        self._closed = shown["generation"]

    # ---- after a start ---------------------------------------------------------------------------

    def hold(self) -> None:
        """Call this before a start: deliveries get no response until `settle`."""
        self._is_settling.set()  # the server can have died before `settle`
        until(lambda: not self._receiver.active, "a response hangs")
        is_settling = self._is_settling = threading.Event()

        def answer(delivery: Delivery) -> Reply:
            is_settling.wait()
            return self._done(delivery)

        self._receiver.answer = answer

    def check(self) -> dict[str, Any]:
        """Check what the server has stored, and what it has delivered."""
        self._check_deliveries()
        for delivery in self._receiver.deliveries:
            wake = delivered(delivery.body)
            if wake.generation <= self._closed:
                self.note_end(wake)
        return super().check()

    def _check_deliveries(self) -> None:
        """Check the deliveries since the last call: their order, and that none is repeated late."""
        found = self._receiver.deliveries
        snapshots = {each.wake: _snapshot(each) for each in found[: self._checked]}
        newest = max((each.wake[0] for each in found[: self._checked]), default=0)
        for each in found[self._checked :]:
            generation, _ = each.wake
            assert generation > self._closed, "what was acked has woken again"
            assert generation >= newest, "a generation has gone back"
            newest = generation
            assert snapshots.setdefault(each.wake, _snapshot(each)) == _snapshot(each)
        ids = {wake_id for _, wake_id in snapshots}
        assert len(snapshots) == len(ids) == len({generation for generation, _ in snapshots})
        self._checked = len(found)

    def settle(self) -> None:
        """Let everything that is left be delivered, and answer that it is done."""
        self._receiver.answer = self._done
        self._is_settling.set()
        self._await_processed()
        self.check_idle()

    def check_idle(self) -> None:
        """Check that nothing is pending, and that no wake was issued after the last one."""
        generation = self.generation
        shown = self.check()
        assert shown["pending_count"] == 0
        assert shown["generation"] == generation
        assert len(self._receiver.deliveries) == self._checked


def _snapshot(delivery: Delivery) -> dict[str, str]:
    return {each["path"]: each["tail_offset"] for each in delivery.body["streams"]}
