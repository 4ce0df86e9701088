"""What the client accepts as messages, and its errors for those that it cannot send or decode."""

import asyncio
from typing import Any

import pytest

import semel
from semel import AsyncClient, Client, errors
from semel.client.processing import InputBatch
from tests.spec.process import Server
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


# ---- mistakes of the caller ----------------------------------------------------------------------


def test_a_time_that_is_no_datetime_is_refused(client: Any, paths: tuple[str, str]) -> None:
    stream = client.stream(paths[0])
    with pytest.raises(TypeError, match="a datetime with a time zone, not int"):
        stream.append(1, timestamp=1234567)
    with pytest.raises(TypeError, match="a datetime with a time zone, not str"):
        client.stream(fresh("new")).create(expires_at="tomorrow")
    assert raws(client, paths[0]) == []


def test_a_transaction_accepts_a_stream_object(server: Server) -> None:
    with Client(server.url) as client:
        stream = client.stream(fresh("s")).create("application/json")
        with client.transaction(streams=[stream]) as txn:
            txn.append(stream, 1)
            txn.append_many(stream, [2, 3])
        client.commit(producer_id=fresh("p"), seq=0, appends={stream: [4]})  # type: ignore[dict-item]
        target = client.stream(fresh("t")).create("application/json")
        count = client.process(
            fresh("g"),
            stream,
            lambda batch: {target: [message.value for message in batch]},  # type: ignore[dict-item]
            live=False,
        )
        assert count == 4
        assert [message.value for message in target.read()] == [1, 2, 3, 4]


def test_a_transaction_of_asyncio_accepts_a_stream_object(server: Server) -> None:
    async def run() -> list[Any]:
        async with AsyncClient(server.url) as client:
            stream = await client.stream(fresh("s")).create("application/json")
            async with client.transaction() as txn:
                await txn.append(stream, 1)
            return [message.value async for message in stream.read()]

    assert asyncio.run(run()) == [1]


def test_what_is_no_stream_is_refused(client: Any) -> None:
    for wrong in (7, None, b"x", ["x"]):
        with (
            pytest.raises(TypeError, match="the path of a stream or a stream object"),
            client.transaction() as txn,
        ):
            txn.append(wrong, 1)
        with pytest.raises(TypeError, match="path of a stream"):
            client.process("g", [wrong], lambda batch: None)


def test_a_url_of_another_scheme_is_refused_with_the_schemes_that_are_accepted(
    client: Any,
) -> None:
    for wrong in ("ftp://x/y", "FTP://x/y", "s3+http://x/y", "ws://127.0.0.1/v1/stream/a"):
        with pytest.raises(ValueError, match="a URL must begin with http:// or https://"):
            client.stream(wrong)


def test_an_address_that_is_not_utf8_is_refused(server: Server) -> None:
    with pytest.raises(ValueError, match="is not valid UTF-8"):
        Client(f"{server.url}/\udcff")
    with Client(server.url) as client, pytest.raises(ValueError, match="is not valid UTF-8"):
        client.stream(f"{server.url}/v1/stream/\udcff")


@pytest.mark.parametrize("outputs", [[1], [], "out", 7, {"out": 7}, {"out": "text"}], ids=str)
def test_process_says_what_its_function_must_return(
    client: Any, paths: tuple[str, str], outputs: Any
) -> None:
    client.stream(paths[0]).append(1)
    if isinstance(outputs, dict):
        outputs = dict.fromkeys([paths[1]], outputs["out"])
    with pytest.raises(TypeError, match=r"a mapping from output streams|pass a list of values"):
        client.process(fresh("g"), paths[0], lambda batch: outputs, live=False)


def test_text_that_is_not_utf8_can_be_read_as_bytes(client: Any) -> None:
    stream = client.stream(fresh("text")).create("text/plain")
    stream.append("ä")
    stream.append(b"\xff")
    good, bad = stream.read()
    assert good.value == "ä"
    assert bad.raw == b"\xff"
    for call in (lambda: bad.value, stream.read_text, lambda: list(map(value_of, stream.tail()))):
        with pytest.raises(errors.UndecodableMessage, match=stream.path) as told:
            call()
        assert isinstance(told.value, semel.SemelError)
        assert isinstance(told.value.__cause__, UnicodeDecodeError)
    assert f"at offset {bad.offset} of stream {stream.path}" in str(told.value)
    assert "message.raw" in str(told.value)

    def decode(batch: InputBatch) -> dict[str, list[Any]]:
        return {stream.path: [message.value for message in batch]}

    with pytest.raises(errors.UndecodableMessage, match=f"of stream {stream.path}"):
        client.process(fresh("g"), stream.path, decode, live=False)


def value_of(message: semel.Message) -> Any:
    return message.value
