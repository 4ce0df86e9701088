"""A receiver of webhooks that processes wakes by plain HTTP, in a process of its own."""

import os
import threading
import traceback
from random import Random
from typing import Any, Final

from tests.sharing.crews import FAILURES, JOINS, Leave, Tally
from tests.transactions.raw import Lost
from tests.wakes.calls import Calls, Wake, delivered, require
from tests.wakes.calls import Lost as CallLost
from tests.wakes.receivers import (
    DONE,
    FAILED,
    TAKEN,
    Delivery,
    Receiver,
    Reply,
    check_signature,
)
from tests.wakes.task import Processor, Task

_FAIL_SHARE: Final = 0.02
_FORGET_SHARE: Final = 0.01  # of the wakes are left alone, until their lease has expired


def receive_raw(task: Task, name: str, tally: Tally, leave: Leave) -> None:
    """Process deliveries in every way, each on a thread, until `leave` is set."""
    work = _Work(task, name, tally)
    with Receiver(work.answer, task.port):
        leave.wait()


class _Work:
    """What a receiver does with a delivery. Deliveries can be repeated at the same time.

    All copies of a delivery are processed in the same way: a copy that commits everything at once
    would repeat the parts that another copy has committed before.
    """

    def __init__(self, task: Task, name: str, tally: Tally) -> None:
        self._task = task
        self._name = name
        self._tally = tally
        self._random = Random(name)
        self._keys: dict[str, Any] = {}

    def answer(self, delivery: Delivery) -> Reply:
        """Process a delivery, and return the response. What must not happen ends the process."""
        try:
            return self._answer(delivery)
        except (Lost, CallLost):
            self._tally.add(FAILURES)
            return FAILED
        except BaseException:
            _end()
            raise

    def _answer(self, delivery: Delivery) -> Reply:
        self._check(delivery)
        self._tally.add(JOINS)
        wake = delivered(delivery.body)
        drawn = self._random.random()
        if drawn < _FAIL_SHARE:
            return FAILED
        if drawn < _FAIL_SHARE + _FORGET_SHARE:
            return TAKEN
        if drawn < 0.3:
            threading.Thread(target=self._process_later, args=(wake,)).start()
            return TAKEN
        if not self._process(wake):
            return FAILED
        return self._random.choice((TAKEN, DONE, FAILED))  # the wake has ended, whatever this says

    def _process(self, wake: Wake) -> bool:
        """Process a wake. Return False if this worker has not ended it."""
        processor = Processor(self._task, self._name, self._tally)
        way = Random(wake.wake_id).random()
        try:
            if way < 0.5:
                return processor.process_whole(wake)
            if way < 0.65:
                kind = self._random.choice(("inline", "staged"))
                return processor.process_in_transaction(wake, kind)
            return processor.process_in_fixed_parts(wake)
        finally:
            processor.close()

    def _process_later(self, wake: Wake) -> None:
        try:
            self._process(wake)
        except Lost:
            self._tally.add(FAILURES)
        except BaseException:
            _end()
            raise

    def _check(self, delivery: Delivery) -> None:
        """Check the signature, with the keys of the server."""
        if not self._keys:
            calls = Calls(self._task.server_url)
            self._keys = require(calls.ask("GET", "/v1/stream/__ds/jwks.json"), 200).document
        check_signature(delivery, self._keys)


def _end() -> None:
    """End the process, so that the run fails. A thread alone would only print the error."""
    traceback.print_exc()
    os._exit(1)
