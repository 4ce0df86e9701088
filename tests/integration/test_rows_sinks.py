"""Rows of docs/reference/seeds.md about Spark's sink, without a JVM, with a real server process."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest

from semel import Client
from semel.spark.errors import RowError
from tests.spec.process import Server
from tests.unit.spark.sink_world import Current, Query, batches, install, values

BODY_BYTES_MAX: Final = 20_000


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that accepts only small requests."""
    server = Server(
        tmp_path_factory.mktemp("sinks") / "data", "--body-bytes-max", str(BODY_BYTES_MAX)
    )
    try:
        yield server
        assert server.is_sound(), server.stderr
    finally:
        server.kill()


@pytest.fixture
def client(small: Server) -> Iterator[Client]:
    with Client(small.url) as it:
        yield it


@pytest.fixture
def query(small: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Query:
    current: Current = install(monkeypatch)
    path = f"out-{uuid4().hex}"
    return Query(current, small.url, path, tmp_path / "checkpoint", uuid4().hex)


# rows: K02, K03
def test_of_two_finished_attempts_only_the_listed_one_is_seen_and_the_other_is_dropped(
    query: Query, client: Client
) -> None:
    path = query.options["stream"]
    query.run(0, ["0"], end=1)
    query.plan(1, 2)
    query.write(1, batches(["1"]))  # prepared, but its message is lost with the executor
    second = query.write(1, batches(["1"]))
    assert client.sink(query.query_id).info().open_transactions == 2
    assert values(client, path) == [0]
    query.commit(1, second)
    assert values(client, path) == [0, 1]
    assert client.sink(query.query_id).info().open_transactions == 0


# rows: K17
def test_what_is_too_large_fails_its_task_and_nothing_of_it_is_seen(
    query: Query, client: Client, small: Server
) -> None:
    path = query.options["stream"]
    rows = [f'"{number:0100d}"' for number in range(1_000)]
    query.run(0, ['"first"'], end=1)
    query.plan(1, 2)
    with pytest.raises(RowError, match=r"partition 0, row 1000: .* is too large for the server"):
        query.write(1, batches([*rows, f'"{"x" * BODY_BYTES_MAX}"', "2"]))
    assert values(client, path) == ["first"]
    assert client.sink(query.query_id).info().open_transactions == 0
    refused = small.stream(path).post(b"[" + b"1," * BODY_BYTES_MAX + b"1]")
    assert (refused.status, refused.json["applied"]) == (413, "no")
    query.run(1, rows, end=2)  # rows that fit one by one are split to the limits of the server
    assert values(client, path) == ["first", *[row.strip('"') for row in rows]]
