"""Helpers for requests about topics, and about members of groups."""

import threading
from typing import Any
from zlib import crc32

import msgspec

from semel.wire.bodies import encode_batch, encode_parts
from tests.spec.process import PATIENCE_SECONDS, Answer, Server, Stream, offset_of
from tests.spec.txn_calls import call, fresh

TOPIC_BATCH = "application/vnd.semel.topic-batch"
BATCH = "application/vnd.semel.batch"


class Topic:
    """A topic of a server, with an unused name."""

    def __init__(self, server: Server, name: str = "") -> None:
        self.server = server
        self.name = name or fresh("topic")
        self.target = f"/v1/topics/{self.name}"

    def put(self, partitions: int = 3, **more: Any) -> Answer:
        document = {"partitions": partitions, "content_type": "application/json", **more}
        return call(self.server, "PUT", self.target, document)

    def create(self, partitions: int = 3, **more: Any) -> "Topic":
        answer = self.put(partitions, **more)
        assert answer.status == 201, answer
        return self

    def show(self) -> Answer:
        return self.server.ask("GET", self.target)

    def patch(self, **members: Any) -> Answer:
        return call(self.server, "PATCH", self.target, members)

    def delete(self) -> Answer:
        return self.server.ask("DELETE", self.target)

    def post(self, body: Any, **headers: Any) -> Answer:
        """Append a body: bytes as they are, anything else as JSON."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return self.server.ask("POST", self.target, data, **headers)

    def post_keyed(self, value: Any, key: str, **headers: Any) -> Answer:
        return self.send(value, {"Message-Key": key}, **headers)

    def send(self, body: Any, names: dict[str, str], **headers: Any) -> Answer:
        """Append with headers whose names are no keywords."""
        return self.post(body, **{**names, **headers})

    def post_parts(
        self,
        parts: dict[int, list[bytes]],
        *,
        partitions: int,
        content_type: str = "application/json",
        **headers: Any,
    ) -> Answer:
        """Append messages that are grouped for this number of partitions."""
        body = encode_parts(
            {place: encode_batch(content_type, messages) for place, messages in parts.items()}
        )
        return self.post(body, content_type=TOPIC_BATCH, topic_partitions=partitions, **headers)

    def partition(self, number: int) -> Stream:
        return self.server.stream(f"{self.name}/{number}")

    def texts(self) -> list[Any]:
        """Return the messages of each partition."""
        count = self.show().json["partition_count"]
        return [
            [each for page in self.partition(number).pages() for each in msgspec.json.decode(page)]
            for number in range(count)
        ]

    @property
    def ends(self) -> list[str]:
        return [each["next_offset"] for each in self.show().json["partitions"]]


def place_of(key: str, partitions: int) -> int:
    """Return the partition of a key in a topic with the partitioner `crc32`."""
    return crc32(key.encode()) % partitions


def part(topic: Topic, partition: int, start: int, end: int) -> dict[str, Any]:
    """Return a part of the response to an append."""
    return {
        "partition": partition,
        "stream": f"{topic.name}/{partition}",
        "offset": offset_of(start),
        "next_offset": offset_of(end),
    }


class Member:
    """A member of a group, and the last response that it got."""

    def __init__(self, server: Server, group: str, **subscription: Any) -> None:
        self.server = server
        self.group = group
        self.target = f"/v1/groups/{group}/members"
        answer = call(server, "POST", self.target, subscription)
        assert answer.status == 201, answer
        self.state = answer.json
        self.id = self.state["member"]
        self.target += f"/{self.id}"

    def beat(self, **members: Any) -> Answer:
        answer = call(self.server, "POST", self.target, members)
        if answer.status == 200:
            self.state = answer.json
        return answer

    def wait(self, wait_ms: int = 60_000) -> Answer:
        """Send a heartbeat that waits for another state than the last one."""
        return self.beat(version=self.state["version"], wait_ms=wait_ms)

    def release(self) -> Answer:
        """Release what the member must release."""
        return self.beat(released=self.state["release"])

    def leave(self) -> Answer:
        return self.server.ask("DELETE", self.target)

    @property
    def owned(self) -> set[str]:
        return {each["stream"] for each in self.state["assigned"]}

    @property
    def epochs(self) -> dict[str, int]:
        return {each["stream"]: each["epoch"] for each in self.state["assigned"]}

    def move(self, stream: str, to: int, epoch: int | None = None, **more: Any) -> Answer:
        """Move the position of the group, as this member."""
        epochs = {stream: self.epochs[stream] if epoch is None else epoch}
        document = {"offsets": {stream: to}, "member": self.id, "epochs": epochs, **more}
        return call(self.server, "POST", f"/v1/groups/{self.group}/offsets", document)


class InBackground:
    """A request on a thread of its own."""

    def __init__(self, ask: Any) -> None:
        self._found: list[Answer] = []
        self._thread = threading.Thread(target=lambda: self._found.append(ask()))
        self._thread.start()

    @property
    def is_answered(self) -> bool:
        return bool(self._found)

    def answer(self) -> Answer:
        self._thread.join(PATIENCE_SECONDS)
        return self._found[0]
