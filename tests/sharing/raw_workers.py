"""A worker that is a member of a group over plain HTTP, without the client of semel.

It has one thread. Between two batches it has nothing open, so it releases streams at once.
"""

from contextlib import suppress
from random import Random
from time import monotonic, sleep
from typing import Any, Final, NamedTuple
from uuid import uuid4

import msgspec

from semel.client.values import Origin
from semel.model.offsets import parse_offset, print_offset
from tests.sharing.crews import (
    ASSIGNED,
    COMMITS,
    FAILURES,
    JOINS,
    LOST_STREAMS,
    REFUSED,
    REVOKED,
    Leave,
    Tally,
)
from tests.sharing.effects import Task, effect_document
from tests.transactions.raw import Line, Lost, Position, RawTransaction, RefusedCall, read_page

_TAKEN_MAX: Final = 5
_WAIT_MS: Final = 50
_DEADLINE_SECONDS: Final = 5.0  # of transactions: those of killed workers hide later messages
_LOST_TO_OTHERS: Final = ("ILLEGAL_GENERATION", "position_conflict")


class Held(NamedTuple):
    """A stream that the member owns: where the group is, and up to where it may be read."""

    epoch: int
    incarnation: str
    position: Position
    limit: int | None


class RawMember:
    """A member of a group, and the streams that it owns."""

    def __init__(self, line: Line, task: Task, instance: str | None, tally: Tally) -> None:
        self.held: dict[str, Held] = {}
        self._line = line
        self._task = task
        self._tally = tally
        document: dict[str, Any] = {
            "topics": [task.topic],
            "session_timeout_ms": round(task.session_seconds * 1000),
        }
        if instance is not None:
            document["instance"] = instance
        found = self._ask("POST", "", document)
        self.id: Final = found["member"]
        self._heartbeat_seconds = found["heartbeat_ms"] / 1000
        self._next_beat = 0.0
        self._version = ""
        self._note(found)
        tally.add(JOINS)

    def beat(self, wait_ms: int = 0) -> None:
        """Send a heartbeat, and release what the server asks for."""
        document = {"version": self._version, "wait_ms": wait_ms}
        found = self._ask("POST", f"/{self.id}", document)
        released = self._note(found)
        if released:
            document = {"released": released, "version": self._version}
            self._note(self._ask("POST", f"/{self.id}", document))

    @property
    def is_due(self) -> bool:
        return monotonic() >= self._next_beat

    def leave(self) -> None:
        self._line.ask("DELETE", f"{self._members}/{self.id}")

    def moved(self, stream: str, to: int) -> None:
        """Record that the group was moved in a stream."""
        held = self.held[stream]
        self.held[stream] = held._replace(position=Position(to, held.position.version + 1))

    def lost(self, stream: str) -> None:
        """Record that a commit was refused because the stream was lost."""
        self._tally.add(LOST_STREAMS)
        del self.held[stream]
        self._version = ""  # the next heartbeat must show all streams

    def _note(self, found: dict[str, Any]) -> list[str]:
        """Record the streams of the member. Return those that it must release."""
        self._version = found["version"]
        self._next_beat = monotonic() + self._heartbeat_seconds
        released = list(found["release"])
        owned = {}
        for each in found["assigned"]:
            stream, epoch = each["stream"], each["epoch"]
            limit = None if each["limit"] is None else parse_offset(each["limit"])
            held = self.held.get(stream)
            if held is None or held.epoch != epoch:
                self._tally.add(ASSIGNED)
                position = Position(parse_offset(each["position"]) or 0, each["version"])
                held = Held(epoch, each["incarnation"], position, limit)
            owned[stream] = held._replace(limit=limit)
        self._tally.add(LOST_STREAMS, len(self.held.keys() - owned.keys() - set(released)))
        self._tally.add(REVOKED, len(released))
        self.held = {stream: each for stream, each in owned.items() if stream not in released}
        return released

    @property
    def _members(self) -> str:
        return f"/v1/groups/{self._task.group}/members"

    def _ask(self, method: str, target: str, document: dict[str, Any]) -> dict[str, Any]:
        _, body = self._line.ask(method, f"{self._members}{target}", document)
        found: dict[str, Any] = msgspec.json.decode(body)
        return found


# ---- work ----------------------------------------------------------------------------------------


def work_raw(task: Task, name: str, tally: Tally, leave: Leave) -> None:
    """Process messages until `leave` is set. Join anew after every failure."""
    line, random = Line(task.url, tries=10), Random()
    while not leave.is_set():
        try:
            member = RawMember(line, task, task.instance_of(name), tally)
            _work(line, task, name, member, tally, random, leave)
        except (Lost, RefusedCall):
            tally.add(FAILURES)
            sleep(random.uniform(0, 0.2))
    line.close()


def _work(
    line: Line,
    task: Task,
    name: str,
    member: RawMember,
    tally: Tally,
    random: Random,
    leave: Leave,
) -> None:
    while not leave.is_set():
        is_idle = True
        for stream in list(member.held):
            if leave.is_set():
                break
            if member.is_due:
                member.beat()
            if stream in member.held and _is_moved(line, task, name, member, stream, tally, random):
                is_idle = False
        if is_idle:
            member.beat(_WAIT_MS)
    member.leave()


def _is_moved(
    line: Line,
    task: Task,
    name: str,
    member: RawMember,
    stream: str,
    tally: Tally,
    random: Random,
) -> bool:
    """Process the next messages of a stream, and return True if there were some."""
    held = member.held[stream]
    start = held.position.offset
    end = None if held.limit is None else max(held.limit - start, 0)
    values = read_page(line, stream, start).values[:end][: random.randint(1, _TAKEN_MAX)]
    if not values:
        return False
    effects = [
        effect_document(value, Origin(stream, print_offset(start + index)), name)
        for index, value in enumerate(values)
    ]
    try:
        if random.random() < 0.5:
            _commit_at_once(line, task, member, stream, effects)
        else:
            _commit_transaction(line, task, member, stream, effects, random)
    except RefusedCall as error:
        if error.code not in _LOST_TO_OTHERS:
            raise
        tally.add(REFUSED)
        member.lost(stream)
        return True
    member.moved(stream, start + len(values))
    tally.add(COMMITS)
    return True


def _move_of(held: Held, to: int) -> dict[str, Any]:
    return {
        "from": print_offset(held.position.offset),
        "to": print_offset(to),
        "incarnation": held.incarnation,
        "version": held.position.version,
    }


def _commit_at_once(
    line: Line, task: Task, member: RawMember, stream: str, effects: list[dict[str, Any]]
) -> None:
    held = member.held[stream]
    keys = [each["key"] for each in effects]
    document = {
        "producer_id": f"p-{uuid4().hex}",
        "producer_epoch": 0,
        "producer_seq": 0,
        "appends": [
            {"stream": task.stream, "messages": effects},
            {"stream": task.copies, "messages": effects, "keys": keys},
        ],
        "offsets": {task.group: {stream: _move_of(held, held.position.offset + len(effects))}},
        "member": member.id,
        "epochs": {stream: held.epoch},
    }
    line.ask("POST", "/v1/commits", document)


def _commit_transaction(
    line: Line,
    task: Task,
    member: RawMember,
    stream: str,
    effects: list[dict[str, Any]],
    random: Random,
) -> None:
    held, name = member.held[stream], uuid4().hex
    kind = random.choice(("inline", "staged"))
    transaction = MemberTransaction(line, f"t-{name}", f"p-{name}", kind, _DEADLINE_SECONDS)
    transaction.begin()
    try:
        transaction.append(task.stream, effects)
        transaction.append_keyed(task.copies, effects)
        transaction.move_owned(
            task.group,
            {stream: _move_of(held, held.position.offset + len(effects))},
            member.id,
            {stream: held.epoch},
        )
        transaction.commit()
    except RefusedCall:
        with suppress(RefusedCall, Lost):
            transaction.abort()
        raise


class MemberTransaction(RawTransaction):
    """A transaction of a member, which can write to topics. The server hashes the keys."""

    def append_keyed(self, topic: str, values: list[dict[str, Any]]) -> None:
        """Append messages to a topic. The key is a member of each."""
        self._post(f"/v1/topics/{topic}", topic, values, Message_Key_Pointer="/key")

    def move_owned(
        self, group: str, moves: dict[str, dict[str, Any]], member: str, epochs: dict[str, int]
    ) -> None:
        """Move a group in streams that a member owns."""
        document = {"group": group, "offsets": moves, "member": member, "epochs": epochs}
        self._call("offsets", document)
