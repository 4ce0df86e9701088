"""Sinks of both clients, against a real server."""

from typing import Any

import pytest

from semel import errors
from semel.wire.bodies import encode_batch
from tests.spec.txn_calls import fresh


@pytest.fixture
def totals(client: Any) -> Any:
    return client.stream(fresh("totals")).create("application/json")


def values(stream: Any) -> list[Any]:
    return [message.value for message in stream.read()]


def test_a_version_is_seen_once_however_often_it_is_run(client: Any, totals: Any) -> None:
    sink = client.sink(fresh("app"))
    for is_again in (False, True):
        with sink.task(0, 1) as later, sink.task(0, 0) as earlier:
            later.append_many(totals.path, [2], keys=["k"])
            body = encode_batch("application/json", [b"0", b"1"])
            earlier.append_batch(totals.path, body, 2)
            tokens = [earlier.prepare(), later.prepare()]
        assert values(totals) == ([0, 1, 2] if is_again else [])
        result = sink.commit(0, tokens, query_id="q", input="sha256:0")
        assert (result.duplicate, result.streams[totals.path].messages) == (is_again, 3)
    assert values(totals) == [0, 1, 2]
    assert sink.info().open_transactions == 2
    sink.commit(1, query_id="q")
    assert sink.info().open_transactions == 0


def test_what_was_not_prepared_or_was_aborted_is_never_seen(client: Any, totals: Any) -> None:
    sink = client.sink(fresh("app"))
    with pytest.raises(RuntimeError), sink.task(0) as failed:
        failed.append_many(totals.path, ["failed"])
        raise RuntimeError
    with sink.task(0) as unsealed:
        unsealed.append_many(totals.path, ["unsealed"])
    with pytest.raises(errors.BranchIncomplete):
        sink.commit(0, [unsealed.token])
    with pytest.raises(errors.BranchMissing):
        sink.commit(0, [failed.token])
    assert not sink.commit(0).duplicate
    assert values(totals) == []


def test_sinks_are_looked_after(client: Any) -> None:
    sink = client.sink(fresh("app"))
    sink.commit(4, query_id="q", input="sha256:4")
    assert sink.app in [one.app for one in client.sinks()]
    assert [kept.version for kept in sink.info().versions] == [4]
    with pytest.raises(errors.AppBound):
        sink.commit(5, query_id="r")
    assert sink.rebind("r", 4).query_id == "r"
    sink.commit(5, query_id="r")
    sink.forget()
    with pytest.raises(errors.Refused):
        sink.info()


def test_an_abort_undoes_no_commit(client: Any, totals: Any) -> None:
    sink = client.sink(fresh("app"))
    with sink.task(0) as task:
        task.append_many(totals.path, [1])
        task.prepare()
    sink.commit(0, [task.token])
    with pytest.raises(errors.TransactionCommitted):
        sink.abort(task.token)
    assert values(totals) == [1]


def test_a_version_moves_groups_and_appends_with_its_tasks_or_not_at_all(
    client: Any, totals: Any
) -> None:
    sink, group = client.sink(fresh("app")), client.group(fresh("group"))
    totals.append_many([1, 2])
    with sink.task(0) as task:
        task.append_many(totals.path, ["staged"])
        task.prepare()
    wrong = {group.name: {totals.path: (1, 2)}}
    with pytest.raises(errors.PositionConflict):
        sink.commit(0, [task.token], appends={totals.path: ["beside"]}, offsets=wrong)
    assert values(totals) == [1, 2]
    right = {group.name: {totals.path: (0, 2)}}
    for _ in range(2):  # a retry returns the same result
        sink.commit(
            0, [task.token], input="sha256:0", appends={totals.path: ["beside"]}, offsets=right
        )
    assert values(totals) == [1, 2, "beside", "staged"]
    assert group.offsets()[totals.path].endswith("2")
