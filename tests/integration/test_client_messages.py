"""What the client accepts as messages, and what it says about those it cannot take or decode."""

from typing import Any

import pytest

from semel.client.processing import InputBatch
from tests.spec.txn_calls import fresh

LONE = [rb'"\ud800"', rb'{"a":"\udc00 \ud83d\ude00"}', rb'["\\ud800\uDBFF"]']


@pytest.fixture
def paths(client: Any) -> tuple[str, str]:
    """The paths of two new JSON streams."""
    names = fresh("in"), fresh("out")
    for name in names:
        client.stream(name).create("application/json")
    return names


def raws(client: Any, path: str) -> list[bytes]:
    return [message.raw for message in client.stream(path).read()]


# ---- halves of surrogate pairs -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["raw", "value"])
def test_process_copies_a_lone_surrogate(client: Any, paths: tuple[str, str], name: str) -> None:
    source, target = paths
    for raw in LONE:
        client.stream(source).append(raw)

    def copy(batch: InputBatch) -> dict[str, list[Any]]:
        return {target: [getattr(message, name) for message in batch]}

    assert client.process(fresh("g"), source, copy, live=False) == len(LONE)
    copies = client.stream(target).read()
    assert [copy.value for copy in copies] == [m.value for m in client.stream(source).read()]
    if name == "raw":
        assert raws(client, target) == LONE


@pytest.mark.parametrize("kind", ["inline", "staged"])
def test_a_transaction_stores_a_lone_surrogate(
    client: Any, paths: tuple[str, str], kind: str
) -> None:
    with client.transaction(kind=kind) as txn:
        txn.append_many(paths[0], LONE)
        if kind == "staged":
            txn.prepare()
    if kind == "staged":
        client.commit_prepared(txn.token)
    assert raws(client, paths[0]) == LONE


def test_a_one_shot_commit_stores_a_lone_surrogate(client: Any, paths: tuple[str, str]) -> None:
    client.commit(producer_id=fresh("p"), seq=0, appends={paths[0]: LONE, paths[1]: ["\udfff"]})
    assert raws(client, paths[0]) == LONE
    assert raws(client, paths[1]) == [rb'"\udfff"']


def test_a_sink_stores_a_lone_surrogate(client: Any, paths: tuple[str, str]) -> None:
    client.sink(fresh("app")).commit(0, appends={paths[0]: LONE})
    assert raws(client, paths[0]) == LONE


def test_bytes_that_are_not_json_are_refused_before_they_are_sent(
    client: Any, paths: tuple[str, str]
) -> None:
    for bad in (b'"\\ud800', b"1,2", b""):
        with pytest.raises(ValueError, match="not JSON"):
            client.commit(producer_id=fresh("p"), seq=0, appends={paths[0]: [bad]})
    assert raws(client, paths[0]) == []
