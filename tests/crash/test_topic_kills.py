"""The server is killed with SIGKILL while several clients append to one topic.

Every append of a producer is sent again until it is answered, and must be stored once. A plain
append is never sent again: whether it is answered or not, all its messages are stored or none. The
topic grows, checkpoints are frequent, and all is read from all partitions at the end.
"""

import http.client
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.crash.conftest import Report
from tests.spec.process import Answer, Server
from tests.spec.topic_calls import Topic

pytestmark = pytest.mark.crash

KILLS = int(os.environ.get("SEMEL_TOPIC_KILLS", "10"))
SEED = int(os.environ.get("SEMEL_SEED", "0")) or time.time_ns() % 1_000_000_000
PARTITIONS, GROWN = 6, 9
WRITERS = 3  # of each kind
KEYS = 25
OPTIONS = ("--segment-bytes", "65536", "--checkpoint-seconds", "0.05")
LOST = (OSError, http.client.HTTPException)


@dataclass
class Batch:
    """An append: its number, and the keys of its messages. `parts` is what the server answered."""

    number: int
    keys: list[str]
    parts: list[dict[str, Any]] | None = None


@dataclass
class Writer:
    """A client on a thread, and all that it has sent."""

    name: str
    is_producer: bool
    batches: list[Batch] = field(default_factory=list)

    def run(self, topic: Topic, stop: threading.Event, random: Random) -> None:
        """Append until the server is gone or `stop` is set."""
        while not stop.is_set():
            last = self.batches[-1] if self.batches else None
            if last is None or last.parts is not None or not self.is_producer:
                keys = [f"key-{random.randrange(KEYS)}" for _ in range(random.randrange(1, 40))]
                last = Batch(len(self.batches), keys)
                self.batches.append(last)
            try:
                answer = self.send(topic, last)
            except LOST:
                return
            assert answer.status in (200, 204), answer
            last.parts = answer.json["parts"]

    def send(self, topic: Topic, batch: Batch) -> Answer:
        values = [
            {"writer": self.name, "batch": batch.number, "index": index, "key": key}
            for index, key in enumerate(batch.keys)
        ]
        names = {"Message-Key-Pointer": "/key"}
        if not self.is_producer:
            return topic.send(values, names)
        identity = {"producer_id": self.name, "producer_epoch": 0, "producer_seq": batch.number}
        return topic.send(values, names, **identity)


@dataclass
class Stored:
    """All messages of a topic: of each batch, the places of its messages by index."""

    places: dict[tuple[str, int], dict[int, tuple[int, int]]] = field(default_factory=dict)
    partition_count: int = 0

    def read(self, topic: Topic) -> None:
        texts = topic.texts()
        self.partition_count = len(texts)
        for partition, messages in enumerate(texts):
            newest: Counter[tuple[str, str, int]] = Counter()
            for offset, message in enumerate(messages):
                found = self.places.setdefault((message["writer"], message["batch"]), {})
                assert message["index"] not in found, f"stored twice: {message}"
                found[message["index"]] = (partition, offset)
                self._check_order(newest, message, partition)

    def _check_order(
        self, newest: Counter[tuple[str, str, int]], message: dict[str, Any], partition: int
    ) -> None:
        """Check that the messages with a key are in the order in which a writer sent them."""
        key = (message["writer"], message["key"], partition)
        number = 1_000 * message["batch"] + message["index"] + 1
        assert number > newest[key], f"out of order: {message}"
        newest[key] = number


def run_and_kill(data: Path, writers: list[Writer], random: Random, *, grows: bool) -> None:
    server = Server(data, *OPTIONS)
    stop = threading.Event()
    threads = []
    try:
        topic = Topic(server, "orders")
        for writer in writers:
            arguments = (topic, stop, Random(random.random()))
            threads.append(threading.Thread(target=writer.run, args=arguments))
            threads[-1].start()
        time.sleep(random.uniform(0.02, 0.4))
        if grows:
            answer = topic.patch(partitions=GROWN, keys_may_move=True)
            assert answer.status == 200, answer
            time.sleep(random.uniform(0, 0.1))
    finally:
        server.kill()
        stop.set()
        for thread in threads:
            thread.join()
    assert not server.stderr


def finish(server: Server, writers: list[Writer]) -> None:
    """Send again what the producers have sent without a response."""
    topic = Topic(server, "orders")
    for writer in writers:
        last = writer.batches[-1] if writer.batches else None
        if writer.is_producer and last is not None and last.parts is None:
            answer = writer.send(topic, last)
            assert answer.status in (200, 204), answer
            last.parts = answer.json["parts"]


def check(writers: list[Writer], stored: Stored) -> Counter[str]:
    """Compare what was sent with what is stored."""
    counts: Counter[str] = Counter()
    for writer in writers:
        for batch in writer.batches:
            places = stored.places.pop((writer.name, batch.number), {})
            assert len(places) in (0, len(batch.keys)), f"stored in part: {writer.name} {batch}"
            if batch.parts is None:
                assert not writer.is_producer
                counts["unanswered and stored" if places else "unanswered and not stored"] += 1
                continue
            counts["answered"] += 1
            assert places, f"answered and lost: {writer.name} {batch}"
            told = {
                (part["partition"], offset)
                for part in batch.parts
                for offset in range(ordinal(part["offset"]), ordinal(part["next_offset"]))
            }
            assert set(places.values()) == told
            counts["partitions"] = max(counts["partitions"], len(batch.parts))
    assert not stored.places, "nobody has sent this"
    return counts


def ordinal(offset: str) -> int:
    return int(offset.partition("_")[2])


def test_an_append_to_a_topic_is_stored_in_all_its_partitions_or_in_none(
    tmp_path: Path, figure: Report
) -> None:
    random = Random(SEED)
    data = tmp_path / "data"
    writers = [Writer(f"producer-{n}", is_producer=True) for n in range(WRITERS)]
    writers += [Writer(f"plain-{n}", is_producer=False) for n in range(WRITERS)]
    server = Server(data, *OPTIONS)
    Topic(server, "orders").create(PARTITIONS)
    server.kill()
    try:
        for number in range(KILLS):
            run_and_kill(data, writers, random, grows=number == KILLS // 2)
        server = Server(data, *OPTIONS)
        finish(server, writers)
        stored = Stored()
        stored.read(Topic(server, "orders"))
        counts = check(writers, stored)
    except BaseException as error:
        error.add_note(f"seed: SEMEL_SEED={SEED}")
        raise
    finally:
        server.kill()
    assert stored.partition_count == GROWN
    assert counts["answered"] > 5 * KILLS
    assert counts["partitions"] > 3, "batches over several partitions"
    figure(f"topic kills: {KILLS} kills, {dict(counts)}; seed {SEED}")
