"""Consumers and workers that end at the present tails, while others crash or go on."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

from semel import Client
from tests.spec.process import Server
from tests.spec.txn_calls import fresh

COUNT: Final = 3
# A worker that has got a message, and does nothing more.
HOLDER: Final = """
import sys, time
from semel import Client

url, group, timeout, *streams = sys.argv[1:]
with Client(url) as client:
    with client.consume(streams, group=group, session_timeout=float(timeout)) as consumer:
        next(consumer)
        print("here", flush=True)
        time.sleep(600)
"""


@pytest.fixture
def plain(server: Server) -> Iterator[Client]:
    with Client(server.url) as it:
        yield it


def filled(client: Client) -> str:
    path = fresh("in")
    client.stream(path).create("application/json").append_many(range(COUNT))
    return path


def holder(server: Server, group: str, path: str, timeout: float) -> subprocess.Popen[bytes]:
    """Start a worker that owns a stream and processes its first message for ever."""
    arguments = [sys.executable, "-c", HOLDER, server.url, group, str(timeout), path]
    worker = subprocess.Popen(arguments, stdout=subprocess.PIPE)
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"here\n"
    return worker


def consumed(client: Client, group: str, *paths: str) -> list[Any]:
    found = []
    with client.consume(paths, group=group, live=False) as consumer:
        for message in consumer:
            found.append(message.value)
            message.commit()
    return found


def test_the_streams_of_a_member_that_was_killed_are_waited_for(
    server: Server, plain: Client
) -> None:
    groups, paths = [fresh("g"), fresh("g")], [filled(plain), filled(plain)]
    workers = [holder(server, *names, 1) for names in zip(groups, paths, strict=True)]
    for worker in workers:
        worker.send_signal(signal.SIGKILL)
        worker.communicate()
    assert consumed(plain, groups[0], paths[0]) == list(range(COUNT))
    count = plain.process(groups[1], [paths[1]], lambda batch: None, workers=1, live=False)
    assert count == COUNT
    assert [plain.group(group).describe().lag for group in groups] == [0, 0]


def test_the_streams_of_a_member_that_is_alive_are_its_business(
    server: Server, plain: Client
) -> None:
    group, path = fresh("g"), filled(plain)
    worker = holder(server, group, path, 3)
    try:
        assert consumed(plain, group, path) == []
    finally:
        worker.kill()
        worker.communicate()
    assert plain.group(group).describe().lag == COUNT


def test_members_of_one_process_do_not_wait_for_each_other(plain: Client) -> None:
    group, path = fresh("g"), filled(plain)
    with plain.consume([path], group=group, live=False) as first:
        assert next(first).value == 0
        begin = time.monotonic()
        assert consumed(plain, group, path) == []
        assert time.monotonic() - begin < 5, "not until the next heartbeat, which is after 10 s"


def test_streams_that_the_consumer_does_not_read_are_not_waited_for(plain: Client) -> None:
    group, left, path = fresh("g"), filled(plain), filled(plain)
    with plain.consume([left], group=group) as consumer:
        next(consumer).commit()
    assert consumed(plain, group, path) == list(range(COUNT))


@pytest.mark.timeout(60)
def test_a_stream_with_the_path_of_a_partition_is_not_waited_for(plain: Client) -> None:
    group, topic = fresh("g"), fresh("t")
    plain.topic(topic, 2, "application/json").append_many(range(COUNT))
    plain.stream(f"{topic}/99").create("application/json").append_many(range(COUNT))
    with plain.consume([f"{topic}/99"], group=group, live=False) as consumer:
        next(consumer).commit()
    assert sorted(consumed(plain, group, topic)) == [*range(COUNT)]
