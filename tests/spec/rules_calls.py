"""Helpers for requests about topics, and about groups whose members share work."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from zlib import crc32

import msgspec
import pytest

from tests.spec.clock_rig import Machine, running_machine
from tests.spec.process import Answer, Server, Stream, offset_of
from tests.spec.txn_calls import call, fresh

JSON: Final = "application/json"
TEXT: Final = "text/plain"


@contextmanager
def shared_machine(folder: Path) -> Iterator[Machine]:
    """Run a machine for several tests, which only let time pass and do not restart its server."""
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as environment:  # no other process shall have this clock
            it = stack.enter_context(running_machine(folder, environment))
        yield it


def ordinal(offset: str) -> int:
    """Return the ordinal of a printed offset."""
    return int(offset.rpartition("_")[2])


def key_for(partition: int, partitions: int, *, other: int = 0) -> str:
    """Return a key that CRC-32 sends to a partition; another one for each `other`."""
    found = (f"k{n}" for n in range(100_000) if crc32(f"k{n}".encode()) % partitions == partition)
    for _ in range(other):
        next(found)
    return next(found)


class Topic:
    """One topic of a server."""

    def __init__(self, server: Server, name: str = "") -> None:
        self.server = server
        self.name = name or fresh("topic")
        self.target = f"/v1/topics/{quote(self.name)}"

    def put(self, partitions: int, **more: Any) -> Answer:
        return call(self.server, "PUT", self.target, {"partitions": partitions, **more})

    def create(self, partitions: int, content_type: str = TEXT, **more: Any) -> "Topic":
        answer = self.put(partitions, content_type=content_type, **more)
        assert answer.status == 201, answer
        return self

    def post(self, body: bytes, **headers: Any) -> Answer:
        """Append to the topic, as text by default."""
        headers.setdefault("content_type", TEXT)
        return self.server.ask("POST", self.target, body, **headers)

    def show(self) -> Answer:
        return call(self.server, "GET", self.target)

    def patch(self, **change: Any) -> Answer:
        return call(self.server, "PATCH", self.target, change)

    def delete(self) -> Answer:
        return call(self.server, "DELETE", self.target)

    def part(self, partition: int) -> Stream:
        """Return the stream of a partition."""
        return self.server.stream(f"{self.name}/{partition}")

    @property
    def parts(self) -> list[Stream]:
        return [self.part(each["partition"]) for each in self.show().json["partitions"]]

    @property
    def tails(self) -> list[int]:
        """The tail of each partition."""
        return [ordinal(each["next_offset"]) for each in self.show().json["partitions"]]

    def values(self) -> list[list[Any]]:
        """Return the messages of each partition, which must be JSON."""
        return [msgspec.json.decode(stream.text) for stream in self.parts]

    def texts(self) -> list[str]:
        """Return the content of each partition."""
        return [stream.text for stream in self.parts]


def parts_of(answer: Answer) -> dict[int, tuple[int, int]]:
    """Return the first and the next ordinal in each partition of an accepted append."""
    assert answer.status == 200, answer
    found = answer.json["parts"]
    assert [each["partition"] for each in found] == sorted(each["partition"] for each in found)
    for each in found:
        assert each["stream"] == f"{answer.json['topic']}/{each['partition']}"
    return {
        each["partition"]: (ordinal(each["offset"]), ordinal(each["next_offset"])) for each in found
    }


def is_repeat_of(again: Answer, first: Answer) -> bool:
    """Return whether an answer says that the append was stored before, with its first parts."""
    same = again.status == 200 and again.json["parts"] == first.json["parts"]
    return same and again.json["duplicate"] and not first.json["duplicate"]


class Member:
    """A member of a group, as it is told by the server."""

    def __init__(self, server: Server, group: str, answer: Answer) -> None:
        assert answer.status == 201, answer
        self.server = server
        self.group = group
        self.joined = answer
        self.id: str = answer.json["member"]
        self.target = f"{group_target(group)}/members/{quote(self.id, safe='')}"
        self.last: dict[str, Any] = answer.json

    def beat(self, **more: Any) -> Answer:
        """Send a heartbeat; remember what the member owns."""
        answer = call(self.server, "POST", self.target, more or None)
        if answer.status == 200:
            self.last = answer.json
        return answer

    def leave(self) -> Answer:
        return call(self.server, "DELETE", self.target)

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """What the last answer says about each stream that the member owns."""
        return {each["stream"]: each for each in self.last["assigned"]}

    @property
    def streams(self) -> list[str]:
        return sorted(self.rows)

    def epoch(self, stream: Stream | str) -> int:
        path = stream if isinstance(stream, str) else stream.path
        found: int = self.rows[path]["epoch"]
        return found

    def move(self, stream: Stream, to: Any, **more: Any) -> Answer:
        """Set the group's position in a stream that the member owns."""
        document = {
            "offsets": {stream.path: to},
            "member": self.id,
            "epochs": {stream.path: self.epoch(stream)},
            **more,
        }
        return call(self.server, "POST", f"{group_target(self.group)}/offsets", document)


def group_target(group: str) -> str:
    return f"/v1/groups/{quote(group, safe='')}"


def try_join(server: Server, group: str, **more: Any) -> Answer:
    return call(server, "POST", f"{group_target(group)}/members", more)


def join(server: Server, group: str, *streams: Stream, **more: Any) -> Member:
    """Join a group as a new member that shares these streams."""
    if streams:
        more["streams"] = [stream.path for stream in streams]
    return Member(server, group, try_join(server, group, **more))


def settle(*members: Member) -> None:
    """Send heartbeats of all members, which release what they must, until nothing changes."""
    for _ in range(10):
        releases = [
            member.beat(released=member.last["release"])
            for member in members
            if member.last["release"]
        ]
        assert all(answer.status == 200 for answer in releases), releases
        before = [member.last["version"] for member in members]
        for member in members:
            assert member.beat().status == 200
        if not releases and before == [member.last["version"] for member in members]:
            return
    raise AssertionError("the assignment does not settle")


def shown(server: Server, group: str) -> dict[str, Any]:
    """Return the description of a group."""
    answer = call(server, "GET", group_target(group))
    assert answer.status == 200, answer
    found: dict[str, Any] = answer.json
    return found


def stream_rows(server: Server, group: str) -> dict[str, dict[str, Any]]:
    """Return the description of each stream of a group."""
    return {each["stream"]: each for each in shown(server, group)["streams"]}


def filled(server: Server, count: int, *, messages: Iterable[bytes] = (b"a", b"b")) -> list[Stream]:
    """Return new streams with some messages, each appended alone."""
    streams = []
    for _ in range(count):
        stream = server.stream()
        stream.create()
        for message in messages:
            assert stream.post(message).status == 204
        streams.append(stream)
    return sorted(streams, key=lambda stream: stream.path)


__all__ = [
    "JSON",
    "TEXT",
    "Member",
    "Topic",
    "filled",
    "group_target",
    "is_repeat_of",
    "join",
    "key_for",
    "offset_of",
    "ordinal",
    "parts_of",
    "settle",
    "shared_machine",
    "shown",
    "stream_rows",
    "try_join",
]
