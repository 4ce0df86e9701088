"""A forked process and its parent use one client object: nothing is lost, doubled or fenced."""

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from typing import Final

import pytest

from semel.client.sync.stream import Stream
from tests.spec.process import PATIENCE_SECONDS, Server

# Separate programs: after an error in a fork, the child must not continue as a second pytest.
BEGIN: Final = """
import os, signal, sys, threading, traceback
import semel
signal.alarm(25)  # a hang ends the process
url, path = sys.argv[1:3]
client = semel.Client(url, timeout=60)
stream = client.stream(path)

def fork(in_child, in_parent):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(20)
            in_child()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    in_parent()
    assert os.waitpid(child, 0)[1] == 0
"""


def run_program(source: str, *arguments: str) -> list[str]:
    """Run a program that forks. Return its lines."""
    command = [sys.executable, "-c", BEGIN + source, *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        try:
            output, errors = program.communicate(timeout=PATIENCE_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)  # including a fork that hangs
    assert program.returncode == 0, errors
    return output.splitlines()


EVERYTHING: Final = """
COUNT = 20

def write(name):
    for number in range(COUNT):
        stream.append([name, "append", number])
        with client.transaction() as txn:
            txn.append(stream, [name, "transaction", number])
        with client.transaction(kind="staged") as txn:
            txn.append(stream, [name, "staged", number])
        with stream.producer() as producer:
            producer.append([name, "producer", number])

stream.append(["before"])
for _ in range(2):
    with client.transaction() as txn:
        txn.append(stream, ["before"])

def in_child():
    write("child")
    client.close()

def in_parent():
    write("parent")

with stream.producer() as producer:
    producer.append(["before"])
    producer.flush()
    fork(in_child, in_parent)
    producer.append(["after"])
write("afterwards")
client.close()
"""


def test_parent_and_child_append_commit_and_produce_with_one_client(
    server: Server, orders: Stream
) -> None:
    run_program(EVERYTHING, server.url, orders.path)
    found = Counter(str(message.value) for message in orders.read(isolation="read_committed"))
    kinds = ("append", "transaction", "staged", "producer")
    expected = Counter(
        str([name, kind, number])
        for name in ("parent", "child", "afterwards")
        for kind in kinds
        for number in range(20)
    )
    assert found == expected + Counter({"['before']": 4, "['after']": 1})


TRANSACTION: Final = """
def commit(name):
    with early as txn:
        for number in range(5):
            txn.append(stream, [name, number])
    print(txn.id, flush=True)

early = client.transaction()
fork(lambda: commit("child"), lambda: commit("parent"))
"""


def test_a_transaction_that_was_created_before_the_fork_has_an_id_in_each_process(
    server: Server, orders: Stream
) -> None:
    ids = run_program(TRANSACTION, server.url, orders.path)
    assert len(ids) == len(set(ids)) == 2
    found = [message.value for message in orders.read(isolation="read_committed")]
    assert sorted(found) == [[name, n] for name in ("child", "parent") for n in range(5)]


OPEN: Final = """
def refused(call, *arguments):
    try:
        call(*arguments)
    except RuntimeError as error:
        assert "forked process" in str(error) and "nothing was applied" in str(error)
        return True
    return False

class Oops(Exception): pass

def in_child():
    calls = [(txn.append, stream, "child"), (txn.commit,), (txn.abort,), (txn.prepare,)]
    calls += [(task.append_many, path, ["child"]), (task.prepare,), (task.abort,)]
    print([refused(*call) for call in calls], flush=True)
    print(stack_is_left(), flush=True)

def stack_is_left():
    try:
        with txn:
            raise Oops
    except Oops:
        return True

task = client.sink("app").task(0)
task.begin()
with client.transaction() as txn:
    txn.append(stream, 1)
    fork(in_child, lambda: None)
    txn.append(stream, 2)
task.append_many(path, [3])
client.sink("app").commit(0, [task.prepare()])
"""


def test_a_child_cannot_use_or_end_an_open_transaction_of_its_parent(
    server: Server, orders: Stream
) -> None:
    assert run_program(OPEN, server.url, orders.path) == [str([True] * 7), "True"]
    found = [message.value for message in orders.read(isolation="read_committed")]
    assert found == [1, 2, 3]


LOCKS: Final = """
import gc
LOCK = type(threading.Lock())
stream.append(0)
with client.transaction() as txn:
    txn.append(stream, 1)
group = client.group("g" + path)
tail = stream.tail(group="g" + path)
message = next(tail)
producer = stream.producer("p")
producer.append(2)
producer.flush()

# Another thread holds every lock of the client at the moment of the fork.
held = [it for it in gc.get_objects() if type(it) is LOCK]
names = {}
for owner in gc.get_objects():
    module = getattr(type(owner), "__module__", "")
    if module.startswith("semel."):
        for name, value in getattr(owner, "__dict__", {}).items():
            if type(value) is LOCK:
                names[id(value)] = (value, f"{type(owner).__name__}.{name}")
from semel.client.producer import sync_producer
names[id(sync_producer._lock)] = (sync_producer._lock, "sync_producer._lock")
is_ready, is_over = threading.Event(), threading.Event()

def hold():
    for lock, name in names.values():
        lock.acquire()
    is_ready.set()
    is_over.wait()
    for lock, name in names.values():
        lock.release()

def in_child():
    stream.append(["child", 0])
    with client.transaction() as txn:
        txn.append(stream, ["child", 1])
    message.commit()
    assert next(tail).value == 1
    tail.close()
    assert producer.pending_count == 0
    with stream.producer() as own:
        own.append(["child", 2])
    with client.transaction(producer_id="named") as txn:
        txn.commit_offsets("h" + path, {path: (0, 1)})
    client.close()

holder = threading.Thread(target=hold)
holder.start()
is_ready.wait()
print(len(names) > 5, flush=True)

def in_parent():
    is_over.set()
    holder.join()

fork(in_child, in_parent)
assert next(tail).value == 1
stream.append(["parent", 0])
producer.append(["parent", 1])
producer.close()
tail.close()
client.close()
"""


def test_locks_and_connections_of_the_parent_do_not_stop_the_child(
    server: Server, orders: Stream
) -> None:
    assert run_program(LOCKS, server.url, orders.path) == ["True"]
    found = [message.value for message in orders.read(isolation="read_committed")]
    assert sorted(map(str, found)) == sorted(
        map(str, [0, 1, 2, *[["child", n] for n in range(3)], ["parent", 0], ["parent", 1]])
    )


TAILS: Final = """
import select
values = []
tail = stream.tail(live="sse")
for _ in range(2):
    values.append(next(tail).value)
waiting = threading.Thread(target=lambda: values.append(next(tail).value))
waiting.start()
while tail._stop._socket is None: pass

line = tail._stop._socket
fork(tail.close, lambda: None)
print(select.select([line], [], [], 0)[0])  # one that has ended is readable
stream.append(3)
waiting.join()
print(values)
tail.close()
client.close()
"""


def test_a_child_does_not_end_the_connection_on_which_its_parent_waits(
    server: Server, orders: Stream
) -> None:
    orders.append(1)
    orders.append(2)
    assert run_program(TAILS, server.url, orders.path) == ["[]", "[1, 2, 3]"]


ASYNC: Final = """
import asyncio
client = semel.AsyncClient(url, timeout=60)
stream = client.stream(path)

async def write(name):
    for number in range(10):
        await stream.append([name, "append", number])
        async with client.transaction() as txn:
            await txn.append(stream, [name, "transaction", number])

asyncio.run(write("before"))

def in_child():
    asyncio.run(write("child"))
    asyncio.run(client.close())

fork(in_child, lambda: asyncio.run(write("parent")))
asyncio.run(write("after"))
asyncio.run(client.close())
"""


def test_parent_and_child_use_one_async_client_in_event_loops_of_their_own(
    server: Server, orders: Stream
) -> None:
    run_program(ASYNC, server.url, orders.path)
    found = Counter(str(message.value) for message in orders.read(isolation="read_committed"))
    assert found == Counter(
        str([name, kind, number])
        for name in ("before", "parent", "child", "after")
        for kind in ("append", "transaction")
        for number in range(10)
    )


LOCAL: Final = """
with semel.local() as local:
    local.stream("x").create("application/json")
    child = os.fork()
    if child == 0:
        sys.exit(0)
    os.waitpid(child, 0)
    local.stream("x").append(1)
    print([message.value for message in local.stream("x").read()])
client.close()
"""


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_that_exits_does_not_stop_the_local_server_of_its_parent(
    server: Server, orders: Stream
) -> None:
    assert run_program(LOCAL, server.url, orders.path) == ["[1]"]
