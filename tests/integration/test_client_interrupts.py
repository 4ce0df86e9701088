"""Appends in signal handlers, and appends whose threads are interrupted at any point."""

import json
import linecache
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from types import FrameType
from typing import Any, Final, Self

import pytest

from semel import Client
from semel.client import append_queue, appenders, pending_append
from semel.client.appenders import SyncAppender
from semel.client.sync.stream import Stream
from tests.spec.process import PATIENCE_SECONDS, Server

SOON_SECONDS: Final = 10.0  # far below TIMEOUT, and far above what a busy machine needs
TIMEOUT: Final = 60.0
JSON: Final = "application/json"
LINES_MIN: Final = 30
THREADS: Final = 3


def run_program(source: str, *arguments: str) -> str:
    """Run a program in a process of its own, whose main thread can get signals."""
    command = [sys.executable, "-c", source, *arguments]
    ended = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=PATIENCE_SECONDS * 3
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


# ---- signal handlers -----------------------------------------------------------------------------

HANDLER: Final = """
import faulthandler, signal, sys, threading
import semel
from semel.client.append_queue import AppendQueue
from semel.client.appenders import SyncAppender

url, path, window = sys.argv[1:]
faulthandler.dump_traceback_later(15, exit=True)  # far below the timeout of the appends
is_armed = False

def interrupt(*_):
    global is_armed
    if is_armed and threading.current_thread() is threading.main_thread():
        is_armed = False
        signal.raise_signal(signal.SIGUSR1)
    return "1"

def during(kind, name):
    inner = getattr(kind, name)
    def outer(*arguments, **named):
        interrupt()
        result = inner(*arguments, **named)
        return result
    setattr(kind, name, outer)

headers = {"X-Sent": interrupt} if window == "sending" else {}
client = semel.Client(url, headers=headers, timeout=60)
stream = client.stream(path)
stream.append("before")
if window == "starting":
    during(AppendQueue, "start")
elif window == "recording":
    during(AppendQueue, "finish")
elif window == "passing the turn":
    during(AppendQueue, "_pass_turn")

def handle(*_):
    receipt = stream.append("handler")
    print("handler", receipt.next_offset is not None, flush=True)

signal.signal(signal.SIGUSR1, handle)
is_armed = True
stream.append("interrupted")
print("interrupted", is_armed)
stream.append("after")
client.close()
"""


@pytest.mark.parametrize("window", ["sending", "starting", "recording", "passing the turn"])
def test_an_append_in_a_signal_handler_does_not_wait_for_the_one_it_interrupted(
    server: Server, orders: Stream, window: str
) -> None:
    output = run_program(HANDLER, server.url, orders.path, window)
    assert output.splitlines() == ["handler True", "interrupted False"]
    found = [message.value for message in orders.read()]
    assert sorted(found) == ["after", "before", "handler", "interrupted"]
    assert (found[0], found[-1]) == ("before", "after")


WAITING: Final = """
import faulthandler, signal, sys, threading
import semel
url, path = sys.argv[1:]
faulthandler.dump_traceback_later(15, exit=True)
client = semel.Client(url, timeout=60)
stream = client.stream(path)
stream.append("before")
lane = client.appender._lanes.find(stream.calls)
sending, is_free = threading.Event(), threading.Event()

def hold(value):
    sending.set()
    is_free.wait()
    return value

class Held:
    inner = client.driver.run
    def run(self, *arguments):
        if threading.current_thread() is not threading.main_thread():
            hold(None)
        return Held.inner(*arguments)
client.appender._driver = Held()
other = threading.Thread(target=stream.append, args=("other",))
other.start()
sending.wait()

def handle(*_):
    stream.append("handler", timeout=30)  # its deadline is earlier: it would not get the turn
    print("handler", other.is_alive(), flush=True)
    is_free.set()

signal.signal(signal.SIGALRM, handle)
def watch():
    while not lane.queue.waiting_count: pass
    signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)
threading.Thread(target=watch).start()
stream.append("interrupted")
other.join()
client.close()
"""


def test_a_signal_handler_also_appends_while_its_thread_waits_for_another_one(
    server: Server, orders: Stream
) -> None:
    assert run_program(WAITING, server.url, orders.path) == "handler True\n"
    found = [message.value for message in orders.read()]
    assert found == ["before", "handler", "other", "interrupted"]


CLOSING: Final = HANDLER.replace('receipt = stream.append("handler")', "client.close()").replace(
    'print("handler", receipt.next_offset is not None, flush=True)', 'print("closed")'
)


@pytest.mark.parametrize("window", ["recording", "passing the turn"])
def test_a_signal_handler_can_close_the_client_during_an_append(
    server: Server, orders: Stream, window: str
) -> None:
    source = CLOSING.replace('stream.append("after")', "")
    assert run_program(source, server.url, orders.path, window).splitlines() == [
        "closed",
        "interrupted False",
    ]
    assert [message.value for message in orders.read()] == ["before", "interrupted"]


PRODUCER: Final = """
import faulthandler, signal, sys
import semel
from semel.client.producer.core import ProducerCore
url, path = sys.argv[1:]
faulthandler.dump_traceback_later(15, exit=True)
client = semel.Client(url)
inner = ProducerCore.append
def interrupted(*arguments):
    ProducerCore.append = inner
    signal.raise_signal(signal.SIGUSR1)
    return inner(*arguments)
def handle(*_):
    for call in (lambda: producer.append("handler"), producer.flush, producer.close):
        try:
            call()
        except RuntimeError as error:
            print(error)
signal.signal(signal.SIGUSR1, handle)
with client.stream(path).producer() as producer:
    ProducerCore.append = interrupted
    producer.append("interrupted")
    producer.append("after")
"""


def test_a_producer_refuses_a_signal_handler_that_has_interrupted_it(
    server: Server, orders: Stream
) -> None:
    lines = run_program(PRODUCER, server.url, orders.path).splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["append()", "flush()", "close()"]
    assert all("nothing was applied" in line for line in lines)
    assert [message.value for message in orders.read()] == ["interrupted", "after"]


# ---- interruptions at every line -----------------------------------------------------------------

FILES: Final = {module.__file__ for module in (append_queue, appenders, pending_append)}


class InterruptAt:
    """Raises KeyboardInterrupt in this thread before one line of the append queue.

    With `is_twice`, the repair after it is interrupted as well.
    """

    def __init__(self, index: int, *, is_twice: bool) -> None:
        self._index = index
        self._is_twice = is_twice
        self._repair = SyncAppender._repair
        self._count = 0
        self.has_raised = False

    def __enter__(self) -> Self:
        def repair(appender: SyncAppender, lane: Any, append: Any) -> None:
            if self.has_raised and self._is_twice:
                self._is_twice = False
                raise KeyboardInterrupt
            self._repair(appender, lane, append)

        SyncAppender._repair = repair  # type: ignore[method-assign,assignment]
        sys.settrace(self._trace)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)
        SyncAppender._repair = self._repair  # type: ignore[method-assign]

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in FILES:
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        # A real interruption never comes between the end of a block and the release of its lock.
        if event == "line" and not line.startswith("with "):
            self._count += 1
            if self._count == self._index:
                self.has_raised = True
                raise KeyboardInterrupt
        return self._trace


def append_interrupted(stream: Stream, index: int, *, is_twice: bool) -> list[Any] | None:
    """Append, with an interruption at a line. Return what was acknowledged.

    Return None if the append has fewer lines.
    """
    acked = []
    with InterruptAt(index, is_twice=is_twice) as interruption, suppress(KeyboardInterrupt):
        stream.append(index)
        acked.append(index)
    return acked if interruption.has_raised else None


def check_stored(stream: Stream, acked: list[Any]) -> None:
    found = Counter(str(message.value) for message in stream.read())
    assert max(found.values()) == 1
    assert not {str(value) for value in acked} - found.keys()


@pytest.mark.parametrize("is_twice", [False, True])
def test_an_append_that_is_interrupted_at_any_line_does_not_delay_the_next_one(
    server: Server, *, is_twice: bool
) -> None:
    with Client(server.url, timeout=TIMEOUT) as client:
        stream = client.stream(server.stream().path).create(JSON)
        stream.append("before")
        acked: list[Any] = []
        began = time.monotonic()
        for index in count(1):
            stored = append_interrupted(stream, index, is_twice=is_twice)
            stream.append(["next", index])
            acked += [*(stored or ()), ["next", index]]
            assert client.appender._lanes.is_idle
            if stored is None:
                break
        assert index > LINES_MIN
        assert time.monotonic() - began < TIMEOUT
        check_stored(stream, acked)


@pytest.mark.parametrize("is_twice", [False, True])
def test_an_append_that_is_interrupted_at_any_line_does_not_delay_other_threads(
    server: Server, *, is_twice: bool
) -> None:
    with Client(server.url, timeout=TIMEOUT) as client, ThreadPoolExecutor(THREADS) as pool:
        stream = client.stream(server.stream().path).create(JSON)
        stream.append("before")
        acked: list[Any] = []

        def append_all(name: str) -> None:
            for number in range(3):
                stream.append(f"{name} {number}")
                acked.append(f"{name} {number}")

        for index in range(1, LINES_MIN + 60):
            names = [f"{index} {thread}" for thread in range(THREADS)]
            futures = [pool.submit(append_all, name) for name in names]
            acked += append_interrupted(stream, index, is_twice=is_twice) or ()
            for future in futures:
                future.result(SOON_SECONDS)
        check_stored(stream, acked)


# ---- many interruptions --------------------------------------------------------------------------

STORM: Final = """
import ctypes, faulthandler, json, random, signal, sys, threading, time
import semel
from semel.client import append_queue, appenders, sync_driver

url, path, seed = sys.argv[1:]
faulthandler.dump_traceback_later(50, exit=True)
chance = random.Random(int(seed))
FILES = {module.__file__ for module in (append_queue, appenders, sync_driver)}
client = semel.Client(url, timeout=60)
stream = client.stream(path)
stream.append("before")
acked, longest, done = [], [0.0], threading.Event()
counts = {"interrupts": 0}

def is_inside(frame):
    while frame is not None:
        if frame.f_code.co_filename in FILES:
            return True
        frame = frame.f_back
    return False

def interrupt(_, frame):
    if done.is_set():
        return
    signal.setitimer(signal.ITIMER_REAL, chance.choice([0.00002, 0.0001, 0.0005, 0.003]))
    if is_inside(frame):
        counts["interrupts"] += 1
        raise KeyboardInterrupt

def append_once(name, number):
    began = time.monotonic()
    try:
        try:
            stream.append([name, number])
            acked.append([name, number])
        except KeyboardInterrupt:
            pass
    except KeyboardInterrupt:
        pass
    longest[0] = max(longest[0], time.monotonic() - began)

def work(name):
    number = 0
    while not done.is_set():
        try:
            number += 1
            append_once(name, number)
        except KeyboardInterrupt:
            pass

threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
for thread in threads:
    thread.start()
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.001)
number = 0
while counts["interrupts"] < 1500:
    number += 1
    append_once("main", number)
    victim = threads[number % 3].ident
    if number % 5 == 0 and is_inside(sys._current_frames().get(victim)):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(victim), ctypes.py_object(KeyboardInterrupt))
done.set()
signal.setitimer(signal.ITIMER_REAL, 0)
for thread in threads:
    thread.join()
stream.append("after")
print(json.dumps({"acked": acked, "longest": longest[0],
    "is_idle": client.appender._lanes.is_idle}))
client.close()
"""


@pytest.mark.parametrize("seed", ["1", "2"])
def test_a_storm_of_interruptions_delays_no_append_and_loses_nothing(
    server: Server, orders: Stream, seed: str
) -> None:
    report = json.loads(run_program(STORM, server.url, orders.path, seed).splitlines()[-1])
    found = [message.value for message in orders.read()]
    check_stored(orders, [*report["acked"], "before", "after"])
    assert report["is_idle"]
    assert report["longest"] < SOON_SECONDS
    for name in ("main", "a", "b", "c"):
        numbers = [value[1] for value in found if isinstance(value, list) and value[0] == name]
        assert numbers == sorted(numbers)
