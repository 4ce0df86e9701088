"""The state that workers share: two inputs that are deleted and recreated, and two groups.

Every incarnation of an input has the same length and is closed. Each message contains its
incarnation and its offset, so a worker knows exactly what it has read.
"""

from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from random import Random
from threading import Event, Semaphore
from time import sleep
from typing import Any, Final, NamedTuple

from semel import Client
from semel.client.errors import ClientError, Refused
from semel.client.server_calls import list_transactions
from semel.client.values import token_of
from semel.model.offsets import parse_offset
from tests.transactions.notes import Notes

SHARED: Final = ("orders", "returns")
GROUPS: Final = ("billing", "stock")
SHARED_COUNT: Final = 80

_PACE_SECONDS: Final = 0.04
_AGAIN_SECONDS: Final = 0.05
_START_SHARE: Final = 0.1  # share of sets that rewind to the start
_SKIP_SHARE: Final = 0.1  # share of sets that skip forward
_FAR_MAX: Final = 20
_COMMIT_SHARE: Final = 0.5  # share of abandoned prepared transactions
_CALL_SECONDS: Final = 20.0
_TRIES_MAX: Final = 200


class Input(NamedTuple):
    """A message of a shared input: its incarnation and its offset."""

    incarnation: str
    number: int


def print_input(found: Input) -> str:
    return f"{found.incarnation}:{found.number}"


def parse_input(value: str) -> Input:
    incarnation, _, number = value.rpartition(":")
    return Input(incarnation, int(number))


def require_joined(values: list[str]) -> Input:
    """Return the first message; fail unless all messages are adjacent in one incarnation."""
    found = [parse_input(value) for value in values]
    for one, other in pairwise(found):
        assert other == (one.incarnation, one.number + 1), values
    return found[0]


class Operator:
    """Sets groups, deletes and recreates inputs, and decides abandoned prepared transactions.

    It does not use the fault proxy, which could deliver a copy of a request later: that would set a
    group without a record in the notes.
    """

    def __init__(self, url: str, notes: Notes, random: Random) -> None:
        self._url = url
        self._notes = notes
        self._random = random
        self._made = dict.fromkeys(SHARED, 0)
        self._count = 0
        self._due = Semaphore(0)
        self.sets = 0
        self.deletes = 0

    def run(self, over: Event) -> None:
        """Set groups and delete inputs until `over` is set."""
        with Client(self._url, timeout=_CALL_SECONDS) as client:
            while not over.wait(_PACE_SECONDS):
                if self._due.acquire(blocking=False):
                    self._delete(client, self._random.choice(SHARED))
                else:
                    self._set(client)

    def delete_one(self) -> None:
        """Make the thread of `run` delete and recreate an input."""
        self._due.release()

    def make(self, client: Client, path: str) -> None:
        """Create an input with all its messages."""
        self._made[path] += 1
        numbers = range(SHARED_COUNT)
        values = [print_input(Input(self._incarnation(path), number)) for number in numbers]
        stream = client.stream(path)
        for _ in range(_TRIES_MAX):
            try:
                stream.create("application/json", exist_ok=True)
                stream.append_many(values, idempotency_key="all", close=True)
            except ClientError:
                sleep(_AGAIN_SECONDS)
            else:
                return
        raise AssertionError(f"{path} cannot be created")

    def decide_prepared(self, client: Client, *, is_over: bool = False) -> None:
        """Commit or abort every prepared transaction, because it would block readers forever.

        With `is_over` all of them are aborted.
        """
        try:
            every = client.run(list_transactions(client.site, "prepared", None))
        except ClientError:
            return  # try again at the next call
        for found in every:
            is_commit = not is_over and self._random.random() < _COMMIT_SHARE
            with suppress(ClientError):  # already decided, or try again later
                self._decide(client, found, is_commit=is_commit)

    def _decide(self, client: Client, found: Mapping[str, Any], *, is_commit: bool) -> None:
        id = found["transaction_id"]
        token = token_of(id, found["transaction_epoch"])
        if is_commit:
            self._notes.write(id, "decide")
            client.commit_prepared(token)
            self._notes.write(id, "committed")
        else:
            client.abort_prepared(token)
            self._notes.write(id, "aborted")

    def _incarnation(self, path: str) -> str:
        return f"{path}-{self._made[path]}"

    def _delete(self, client: Client, path: str) -> None:
        id = self._change("delete", path, self._incarnation(path))
        for _ in range(_TRIES_MAX):
            try:
                client.stream(path).delete()
            except ClientError:
                sleep(_AGAIN_SECONDS)
            else:
                break
        self._notes.write(id, "ok")
        self.make(client, path)
        self.deletes += 1

    def _set(self, client: Client) -> None:
        group, path = self._random.choice(GROUPS), self._random.choice(SHARED)
        try:
            now = parse_offset(client.group(group).offsets().get(path, "")) or 0
        except ClientError:
            return
        to = self._drawn(now)
        id = self._change("set_position", path, self._incarnation(path), group, to)
        try:
            client.group(group).set({path: to})
        except Refused:
            self._notes.write(id, "refuse")
        except ClientError:
            pass  # the outcome is unknown
        else:
            self._notes.write(id, "ok")
            self.sets += 1

    def _drawn(self, now: int) -> int:
        far, fate = self._random.randint(1, _FAR_MAX), self._random.random()
        if fate < _START_SHARE:
            return 0
        if fate < _START_SHARE + _SKIP_SHARE:
            return min(now + far, SHARED_COUNT)
        return max(now - far, 0)

    def _change(self, what: str, *details: object) -> str:
        self._count += 1
        id = f"operator-{self._count}"
        self._notes.write(id, what, *details)
        return id
