"""A member that has not yet heard of a growth cannot commit messages that come after it."""

from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

import msgspec
import pytest

from semel.client.local import LocalServer
from semel.model.offsets import print_offset
from semel.testing import local
from tests.transactions.raw import Line, RefusedCall

GROUP: Final = "/v1/groups/billing"
SESSION_MS: Final = 60_000
PARTITIONS: Final = 3  # after the growth
PATIENCE_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.02


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalServer]:
    with local(tmp_path / "data") as found:
        yield found


def ask(line: Line, method: str, target: str, document: Any = None, **fields: Any) -> Any:
    _, body = line.ask(method, target, document, **fields)
    return msgspec.json.decode(body) if body else None


def append(line: Line, partition: int, value: str) -> None:
    fields = {"Message_Key": "k", "Stream_Partition": partition}
    ask(line, "POST", "/v1/topics/orders", value, **fields)


class Owner:
    """A member that owns all partitions. It commits what it has read, with an effect."""

    def __init__(self, line: Line) -> None:
        self._line = line
        document = {"topics": ["orders"], "session_timeout_ms": SESSION_MS}
        joined = ask(line, "POST", f"{GROUP}/members", document)
        self._member = joined["member"]
        self._epochs = {each["stream"]: each["epoch"] for each in joined["assigned"]}
        self._seq = 0

    def limits(self) -> dict[str, str | None]:
        """Return the limit of each partition. Wait until the member has all of them."""
        until = monotonic() + PATIENCE_SECONDS
        while True:
            state = ask(self._line, "POST", f"{GROUP}/members/{self._member}", {})
            self._epochs = {each["stream"]: each["epoch"] for each in state["assigned"]}
            if len(self._epochs) == PARTITIONS:
                return {each["stream"]: each["limit"] for each in state["assigned"]}
            assert monotonic() < until, state
            sleep(LOOK_SECONDS)

    def commit(self, stream: str, to: int) -> None:
        document = {
            "producer_id": "p",
            "producer_epoch": 0,
            "producer_seq": self._seq,
            "appends": [{"stream": "effects", "messages": [f"{stream} up to {to}"]}],
            "offsets": {"billing": {stream: {"to": to}}},
            "member": self._member,
            "epochs": {stream: self._epochs[stream]},
        }
        ask(self._line, "POST", "/v1/commits", document)
        self._seq += 1


def test_messages_after_a_growth_cannot_be_committed_before_all_before_it_are(
    server: LocalServer,
) -> None:
    line = Line(server.url)
    ask(line, "PUT", "/v1/topics/orders", {"partitions": 2, "content_type": "application/json"})
    server.stream("effects").create("application/json")
    append(line, 0, "before")
    append(line, 1, "before")
    owner = Owner(line)
    change = {"partitions": PARTITIONS, "keys_may_move": True}
    ask(line, "PATCH", "/v1/topics/orders", change)
    append(line, 0, "after")
    append(line, 2, "after")

    def refused(stream: str, to: int) -> str:
        with pytest.raises(RefusedCall) as caught:
            owner.commit(stream, to)
        return caught.value.code

    # It has read both messages of the partition, and does not know that the topic has grown.
    assert refused("orders/0", 2) == "position_conflict"
    owner.commit("orders/0", 1)
    assert refused("orders/0", 2) == "position_conflict", "the other partition is not read yet"
    limit = print_offset(1)
    assert owner.limits() == {
        "orders/0": limit,
        "orders/1": None,  # nothing before the growth is left in the others
        "orders/2": print_offset(0),
    }
    assert refused("orders/2", 1) == "position_conflict"
    owner.commit("orders/1", 1)
    assert set(owner.limits().values()) == {None}
    owner.commit("orders/0", 2)
    owner.commit("orders/2", 1)
    line.close()
    effects = [message.value for message in server.stream("effects").read()]
    assert effects == [
        "orders/0 up to 1",
        "orders/1 up to 1",
        "orders/0 up to 2",
        "orders/2 up to 1",
    ]
