"""Which message becomes a dead letter when workers are killed, with real processes."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

import pytest

from semel import Client
from tests.spec.process import Server
from tests.spec.txn_calls import fresh

SECONDS_MAX: Final = 30

# Each worker replaces the one before at once, because it has the same instance.
HEADER: Final = """
import os, sys, threading
from semel import Client

url, group, *streams = sys.argv[1:]
client = Client(url)
options = dict(instance="w", max_attempts=3, live=False)

def look(message):
    if message.value["is_poison"]:
        os.kill(os.getpid(), 9)
"""
EVERY_TENTH: Final = """
with client.consume(streams, group=group, **options) as consumer:
    for number, message in enumerate(consumer):
        look(message)
        if number % 10 == 9:
            message.commit()
"""
# The threads have got one message each when the poison is looked at.
THREADS: Final = """
with client.consume(streams, group=group, **options) as consumer:
    lock, both = threading.Lock(), threading.Barrier(2)
    def work():
        while True:
            with lock:
                message = next(consumer, None)
            if message is None:
                both.abort()
                return
            try:
                both.wait(0.5)
            except threading.BrokenBarrierError:
                pass
            look(message)
            message.commit()
    threads = [threading.Thread(target=work) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
"""
TASKS: Final = """
import asyncio
from semel import AsyncClient

async def main():
    async with AsyncClient(url) as client:
        async with client.consume(streams, group=group, **options) as consumer:
            async def work():
                async for message in consumer:
                    await asyncio.sleep(0.2)  # time for the other task
                    look(message)
                    await message.commit()
            await asyncio.gather(work(), work())

asyncio.run(main())
"""
BATCHES: Final = """
def function(batch):
    for message in batch:
        look(message)

client.process(group, streams, function, workers=1, **options)
"""


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as it:
        yield it


def made(client: Client, count: int, poison: int | None) -> str:
    """Return a stream with numbered messages. The one with the number `poison` kills workers."""
    path = fresh("in")
    documents = [{"number": each, "is_poison": each == poison} for each in range(count)]
    client.stream(path).create("application/json").append_many(documents)
    return path


def crash(server: Server, code: str, group: str, *streams: str) -> bool:
    """Run a worker. Return True if it was killed, and False if it came to the end."""
    arguments = [sys.executable, "-c", HEADER + code, server.url, group, *streams]
    ended = subprocess.run(arguments, timeout=SECONDS_MAX, check=False, capture_output=True)
    assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
    return ended.returncode != 0


def crashes(server: Server, code: str, group: str, *streams: str, at_most: int) -> int:
    """Run workers until one comes to the end. Return how many were killed."""
    for count in range(at_most + 1):
        if not crash(server, code, group, *streams):
            return count
    raise AssertionError(f"more than {at_most} workers were killed")


def dead(client: Client, group: str) -> list[Any]:
    return [letter.value["number"] for letter in client.dead_letters(group)]


def test_no_message_is_blamed_if_workers_do_not_commit_each_one(
    server: Server, client: Client
) -> None:
    group, stream = fresh("g"), made(client, 12, poison=5)
    for _ in range(6):
        assert crash(server, EVERY_TENTH, group, stream)
    assert dead(client, group) == []
    (row,) = client.group(group).describe().streams
    assert row.starts == 1


@pytest.mark.parametrize("code", [THREADS, TASKS], ids=["threads", "tasks"])
def test_threads_and_tasks_that_share_a_consumer_find_the_guilty_message(
    server: Server, client: Client, code: str
) -> None:
    group, one, two = fresh("g"), made(client, 6, None), made(client, 4, poison=1)
    assert crashes(server, code, group, one, two, at_most=8) >= 3
    assert dead(client, group) == [1]
    assert client.group(group).describe().lag == 0


def test_a_poison_message_inside_a_batch_is_found_after_a_few_crashes(
    server: Server, client: Client
) -> None:
    group, stream = fresh("g"), made(client, 40, poison=30)
    assert crashes(server, BATCHES, group, stream, at_most=1 + 3) == 1 + 3
    assert dead(client, group) == [30]
    assert client.group(group).describe().lag == 0
