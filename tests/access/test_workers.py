"""What the token of a group's worker is enough for, with the Python client."""

from typing import Any, Final
from uuid import uuid4

import pytest

from semel import Client, errors
from semel.model.rights import retries_of
from tests.access.rig import AccessServer

COUNT: Final = 4


class Work:
    """A stream with some messages, and the name of a group."""

    def __init__(self, server: AccessServer) -> None:
        self.server = server
        self.stream = f"work-{uuid4().hex}"
        self.group = f"{self.stream}/group"
        with self.client("cluster:admin") as admin:
            admin.stream(self.stream).create("application/json").append_many(list(range(COUNT)))

    def client(self, *scopes: str) -> Client:
        return Client(self.server.url, token=self.server.make(*scopes))

    def worker(self, *more: str) -> Client:
        """Return a client with the rights that the page of access advises for a consumer."""
        return self.client(f"stream:{self.stream}:read", f"group:{self.group}:read,write", *more)

    def reject_all(self, client: Client) -> list[Any]:
        values = []
        with client.consume([self.stream], group=self.group, live=False) as consumer:
            for message in consumer:
                values.append(message.value)
                message.reject("no")
        return values


# L8, R7
def test_the_token_of_a_consumer_rejects_and_replays(server: AccessServer) -> None:
    work = Work(server)
    with work.worker() as client:
        assert work.reject_all(client) == list(range(COUNT))
        letters = client.dead_letters(work.group)
        assert [letter.value for letter in letters] == list(range(COUNT))
        assert letters.replay(limit=3) == 3
        assert letters.drop() == 1
        assert work.reject_all(client) == [0, 1, 2]
        assert len(list(letters)) == 3


# L8, R7
def test_the_token_of_a_worker_commits_what_it_has_processed(server: AccessServer) -> None:
    work = Work(server)

    def fail(batch: Any) -> None:
        if any(message.value == 1 for message in batch):
            raise ValueError("one")

    with work.worker() as client:
        options: Any = {"workers": 1, "live": False, "max_attempts": 2, "backoff": 0}
        assert client.process(work.group, [work.stream], fail, **options) == COUNT
        assert [letter.cause for letter in client.dead_letters(work.group)] == ["ValueError: one"]


# rows: R37
def test_with_strict_rights_a_worker_needs_idempotent_write(strict: AccessServer) -> None:
    work = Work(strict)
    with work.worker() as client:
        scope = "a token that also has the scope cluster:IdempotentWrite has it"
        with pytest.raises(errors.Forbidden, match=scope) as refused:
            work.reject_all(client)
        assert (refused.value.kind, refused.value.right) == ("cluster", "IdempotentWrite")
        assert list(client.dead_letters(work.group)) == []
    with work.worker("cluster:IdempotentWrite") as client:
        assert work.reject_all(client) == list(range(COUNT))
        assert client.dead_letters(work.group).replay() == COUNT


# R7
def test_a_group_is_deleted_with_its_retries_by_who_may_delete_it(server: AccessServer) -> None:
    work = Work(server)
    with work.worker() as client:
        work.reject_all(client)
        client.dead_letters(work.group).replay()
        with pytest.raises(errors.Forbidden):
            client.group(work.group).delete()
        assert client.stream(retries_of(work.group)).head().content_type == "application/json"
    with work.client(f"group:{work.group}:read,delete") as client:
        client.group(work.group).delete()
        with pytest.raises(errors.StreamNotFound):
            client.stream(retries_of(work.group)).head()
        assert len(list(client.dead_letters(work.group).list(all=True))) == COUNT


def test_a_reader_of_the_group_rejects_nothing(server: AccessServer) -> None:
    work = Work(server)
    with work.client(f"stream:{work.stream}:read", f"group:{work.group}:read") as client:
        with pytest.raises(errors.Forbidden):
            work.reject_all(client)
        with pytest.raises(errors.GroupNotFound):
            client.dead_letters(work.group).replay()
