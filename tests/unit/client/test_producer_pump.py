"""The producers on a real event loop and a socket, with a scripted server."""

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from semel import AsyncClient, Client
from semel.client import errors
from semel.client.errors import NotSupported, TooLarge
from semel.client.flows import Send
from semel.client.producer.encoding import BodyEncoder
from semel.client.producer.opening import OpenResult, open_producer
from semel.client.producer.settings import ProducerSettings
from semel.client.producer.sync_producer import background
from semel.client.response_parser import Response
from semel.client.stream_calls import ServerConfig, StreamCalls
from semel.client.transport import transport_to
from semel.model.messages import headers_of, keys_of, timestamps_of
from semel.wire.bodies import decode_batch
from tests.unit.client.producer_model import ModelServer

Headers = dict[str, str]
Speak = Callable[[str, Headers, bytes], "bytes | None"]


def http_response(status: int, headers: Headers | None = None, body: bytes = b"") -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    return f"HTTP/1.1 {status} X\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Stub:
    """A server on a socket: HEAD and GET respond as semel does, POST with what `speak` returns.

    None closes the connection. Requests are read one after another. `claim` is the response to a
    claim, or None for a server without that call.
    """

    def __init__(self, speak: Speak | None = None, *, is_semel: bool = True) -> None:
        self.model = ModelServer()
        self.speak = speak or self.answer
        self.is_semel = is_semel
        self.past: list[dict[str, Any]] | None = []
        self.claim: dict[str, Any] | None = None
        self.claims: list[dict[str, Any]] = []
        self.lost_claims = 0
        self.posts: list[tuple[Headers, bytes]] = []
        self.connections = 0
        self._writers: list[asyncio.StreamWriter] = []
        self.port = 0

    def answer(self, line: str, headers: Headers, body: bytes) -> bytes | None:
        found = self.model.take(headers, body)
        return http_response(found.status, found.headers, found.body)

    async def __aenter__(self) -> "Stub":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()

    async def hang_up(self) -> None:
        """Close all connections, and wait until the client has had time to notice."""
        for writer in self._writers:
            writer.close()
        for writer in self._writers:
            await writer.wait_closed()
        await asyncio.sleep(0.01)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                line, _, rest = head.partition("\r\n")
                pairs = (field.split(": ", 1) for field in rest.strip().split("\r\n"))
                headers = {name.lower(): value for name, value in pairs}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                answer = self._reply(line, headers, body)
                if answer is None:
                    break
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _reply(self, line: str, headers: Headers, body: bytes) -> bytes | None:
        if line.startswith("HEAD"):
            fields = {"content-type": "application/json", "stream-next-offset": "0"}
            if self.is_semel:
                fields["stream-incarnation"] = "i"
            return http_response(200, fields)
        if line.startswith("GET"):
            if self.past is None:
                return http_response(404, {"content-type": "application/problem+json"}, b"{}")
            body = msgspec.json.encode({"producers": self.past})
            return http_response(200, {"content-type": "application/json"}, body)
        if line.startswith("POST /v1/producers/claim"):
            return self._reply_to_claim(body)
        self.posts.append((headers, body))
        return self.speak(line, headers, body)

    def _reply_to_claim(self, body: bytes) -> bytes | None:
        self.claims.append(msgspec.json.decode(body))
        if self.claim is None:
            problem = b'{"code": "no_such_address"}'
            return http_response(404, {"content-type": "application/problem+json"}, problem)
        if len(self.claims) <= self.lost_claims:
            return None
        status = self.claim.get("status", 200)
        kind = "application/json" if status == 200 else "application/problem+json"
        return http_response(status, {"content-type": kind}, msgspec.json.encode(self.claim))


def run(stub: Stub, messages: int = 10, **options: Any) -> Any:
    """Send a number of messages, close, and return the producer."""

    async def main() -> Any:
        async with stub, AsyncClient(stub.url, timeout=5.0) as client:
            async with client.stream("s").producer("p", **options) as producer:
                for number in range(messages):
                    await producer.append(number)
            return producer

    return asyncio.run(main())


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# ---- the connection --------------------------------------------------------------------------


def test_one_connection_carries_all_batches() -> None:
    stub = Stub()
    run(stub, max_batch_messages=1)
    assert stub.model.log == numbers(10)
    assert stub.connections == 2  # one for queries, one for appends


def test_a_connection_that_ends_with_every_answer_costs_nothing() -> None:
    stub = Stub()

    def speak(line: str, headers: Headers, body: bytes) -> bytes | None:
        found = stub.model.take(headers, body)
        return http_response(found.status, {**found.headers, "connection": "close"}, found.body)

    stub.speak = speak
    run(stub, max_batch_messages=1)
    assert stub.model.log == numbers(10)


def test_an_answer_that_ends_with_the_connection_is_an_answer() -> None:
    stub = Stub()

    def speak(line: str, headers: Headers, body: bytes) -> bytes | None:
        if len(stub.posts) == 1:
            return b"HTTP/1.1 503 Busy\r\nConnection: close\r\n\r\nlater"
        return stub.answer(line, headers, body) if len(stub.posts) > 2 else None

    stub.speak = speak
    run(stub)
    assert stub.model.log == numbers(10)


def test_answers_lost_after_the_write_make_no_copies() -> None:
    stub = Stub()

    def speak(line: str, headers: Headers, body: bytes) -> bytes | None:
        answer = stub.answer(line, headers, body)
        return None if len(stub.posts) % 3 == 2 else answer

    stub.speak = speak
    producer = run(stub, max_batch_messages=1)
    assert stub.model.log == numbers(10)
    assert producer.stats.retries > 0


def test_nonsense_is_not_an_answer_and_the_batch_is_sent_again() -> None:
    stub = Stub()

    def speak(line: str, headers: Headers, body: bytes) -> bytes | None:
        answer = stub.answer(line, headers, body)
        return b"ICY 200 OK\r\n\r\n" if len(stub.posts) == 1 else answer

    stub.speak = speak
    run(stub)
    assert stub.model.log == numbers(10)


def test_a_server_that_says_nothing_is_left_and_asked_anew() -> None:
    stub = Stub()

    def speak(line: str, headers: Headers, body: bytes) -> bytes | None:
        answer = stub.answer(line, headers, body)
        return b"" if len(stub.posts) == 1 else answer

    stub.speak = speak

    async def main() -> None:
        async with stub, AsyncClient(stub.url, timeout=0.2) as client:
            producer = client.stream("s").producer("p")
            assert producer.pending_count == 0
            await producer.append(0)
            await producer.close()
        assert producer.stats.retries == 1

    asyncio.run(main())
    assert stub.model.log == [b"0"]


def test_a_server_that_hangs_up_when_idle_is_not_missed() -> None:
    stub = Stub()

    async def main() -> Any:
        async with stub, AsyncClient(stub.url) as client:
            async with client.stream("s").producer("p") as producer:
                await producer.append(0)
                await producer.flush()
                await stub.hang_up()
                await producer.append(1)
            return producer

    producer = asyncio.run(main())
    assert stub.model.log == numbers(2)
    assert producer.stats.retries == 0


def test_an_answer_nobody_waits_for_ends_the_connection_only() -> None:
    stub = Stub()

    def speak(line: str, headers: Headers, body: bytes) -> bytes | None:
        answer = stub.answer(line, headers, body)
        assert answer is not None
        return answer + http_response(200) if len(stub.posts) == 1 else answer

    stub.speak = speak
    run(stub, max_batch_messages=1)
    assert stub.model.log == numbers(10)


def test_a_busy_server_is_waited_for() -> None:
    stub = Stub()

    def speak(line: str, headers: Headers, body: bytes) -> bytes | None:
        if len(stub.posts) in (2, 5, 6):
            return http_response(503, {"content-type": "text/plain"}, b"busy")
        return stub.answer(line, headers, body)

    stub.speak = speak
    run(stub, max_batch_messages=1)
    assert stub.model.log == numbers(10)


# ---- the state on the server -----------------------------------------------------------------


def known(**changes: Any) -> dict[str, Any]:
    return {
        "stream": "s",
        "producer_id": "p",
        "mode": "dense",
        "epoch": 4,
        "last_seq": 11,
        "last_offset": "0",
        "cursor": "file:120",
        "updated_at": "2026-01-01T00:00:00.000Z",
        **changes,
    }


def test_a_producer_begins_with_what_the_server_knows_of_it() -> None:
    stub = Stub()
    stub.past = [known(producer_id="other", cursor="other"), known()]

    async def main() -> None:
        async with stub, AsyncClient(stub.url) as client:
            producer = await client.stream("s").producer("p").open()
            assert (producer.cursor, producer.last_seq) == ("file:120", 11)
            await producer.append(1, cursor="file:240")
            await producer.flush()
            assert (producer.cursor, producer.last_seq) == ("file:240", 0)
            await producer.close()

    asyncio.run(main())


def test_a_sparse_producer_skips_what_the_server_has() -> None:
    stub = Stub()
    stub.past = [known(mode="sparse", last_seq=20)]

    async def main() -> None:
        async with stub, AsyncClient(stub.url) as client:
            async with client.stream("s").producer("p", mode="sparse") as producer:
                for seq in (10, 20, 30):
                    await producer.append(seq, seq=seq)
            assert producer.stats.messages_skipped == 2

    asyncio.run(main())
    assert stub.model.log == [b"30"]


def test_a_claim_begins_above_the_epoch_the_server_knows() -> None:
    stub = Stub()
    stub.past = [known()]
    run(stub, 1, auto_claim=True)
    assert stub.posts[0][0]["producer-epoch"] == "5"


def claimed(**changes: Any) -> dict[str, Any]:
    return {
        "stream": "s",
        "producer_id": "p",
        "producer_epoch": 5,
        "last_seq": 11,
        "last_offset": "0",
        "cursor": "file:120",
        **changes,
    }


def test_a_producer_claims_before_it_believes_a_cursor() -> None:
    stub = Stub()
    stub.past = None  # the client must not query it
    stub.claim = claimed()

    async def main() -> Any:
        async with stub, AsyncClient(stub.url) as client:
            producer = await client.stream("s").producer("p").open()
            assert (producer.cursor, producer.last_seq, producer.epoch) == ("file:120", 11, 5)
            await producer.append(1)
            await producer.close()

    asyncio.run(main())
    (asked,) = stub.claims
    assert asked == {
        "stream": "s",
        "producer_id": "p",
        "session": stub.posts[0][0]["producer-session"],
        "mode": "dense",
    }
    assert stub.posts[0][0]["producer-epoch"] == "5"
    assert stub.posts[0][0]["producer-seq"] == "0"


def test_a_claim_whose_answer_is_lost_is_made_again_with_the_same_session() -> None:
    stub = Stub()
    stub.claim, stub.lost_claims = claimed(), 2
    run(stub, 1, auto_claim=True)
    first, second, third = stub.claims
    assert first == second == third


def test_behind_a_claim_the_first_batches_are_sent_at_once() -> None:
    """The claimed epoch is already known, so no response has to be awaited."""
    stub = Stub()
    stub.claim = claimed()
    held: list[bytes] = []

    def speak(line: str, headers: Headers, body: bytes) -> bytes | None:
        answer = stub.answer(line, headers, body)
        assert answer is not None
        held.append(answer)
        if len(held) < 3:
            return b""
        answers, held[:] = b"".join(held), []
        return answers

    stub.speak = speak
    producer = run(stub, 3, auto_claim=True, max_batch_messages=1)
    assert stub.model.log == numbers(3)
    assert producer.stats.retries == 0


def test_auto_claim_uses_a_claim_and_writes_under_its_session() -> None:
    stub = Stub()
    stub.claim = claimed()
    run(stub, 1, auto_claim=True)
    assert stub.posts[0][0]["producer-epoch"] == "5"
    assert len(stub.claims) == 1
    assert stub.posts[0][0]["producer-session"] == stub.claims[0]["session"]


def test_an_epoch_of_the_callers_is_not_claimed() -> None:
    stub = Stub()
    stub.claim = claimed()
    stub.past = [known()]
    run(stub, 1, epoch=7)
    assert stub.claims == []
    assert stub.posts[0][0]["producer-epoch"] == "7"


def test_a_sparse_claim_skips_what_is_stored() -> None:
    stub = Stub()
    stub.claim = claimed(last_seq=20)

    async def main() -> None:
        async with stub, AsyncClient(stub.url) as client:
            async with client.stream("s").producer("p", mode="sparse") as producer:
                for seq in (10, 20, 30):
                    await producer.append(seq, seq=seq)
            assert producer.stats.messages_skipped == 2

    asyncio.run(main())
    assert stub.claims[0]["mode"] == "sparse"
    assert stub.model.log == [b"30"]


def test_a_stream_that_recognises_no_duplicates_is_only_asked() -> None:
    stub = Stub()
    stub.claim = {"status": 409, "code": "dedup_off"}
    stub.past = [known()]
    run(stub, 1, auto_claim=True)
    assert stub.posts[0][0]["producer-epoch"] == "5"


def test_any_other_refusal_of_a_claim_is_raised_at_the_start() -> None:
    stub = Stub()
    stub.claim = {"status": 400, "code": "producer_mode_conflict", "mode": "sparse"}
    with pytest.raises(errors.ProducerRefused):
        run(stub, 1, auto_claim=True)
    assert stub.posts == []


@pytest.mark.parametrize("is_semel", [True, False])
def test_a_server_that_cannot_tell_is_written_to_all_the_same(is_semel: bool) -> None:
    stub = Stub(is_semel=is_semel)
    stub.past = None
    run(stub, epoch=3)
    assert stub.model.log == numbers(10)


def test_the_question_names_stream_and_producer() -> None:
    calls = StreamCalls(ServerConfig(transport("http://h").address), "a b")
    flow = open_producer(calls, ProducerSettings(id="p/1", epoch=5))
    step = next(flow)
    assert isinstance(step, Send)
    fields = {
        "content-type": "text/plain",
        "stream-next-offset": "0",
        "stream-incarnation": "i",
    }
    step = flow.send(Response(200, fields))
    assert isinstance(step, Send)
    assert step.request.target == "/v1/producers?stream=a%20b&id=p%2F1"
    body = msgspec.json.encode({"producers": [known(producer_id="p/1", cursor=None)]})
    with pytest.raises(StopIteration) as end:
        flow.send(Response(200, {"content-type": "application/json"}, body))
    opening = end.value.value
    assert isinstance(opening, OpenResult)
    assert opening.past.states is not None
    assert opening.past.states[0].epoch == 4


def test_any_other_refusal_of_the_question_is_raised() -> None:
    calls = StreamCalls(ServerConfig(transport("http://h").address), "s")
    flow = open_producer(calls, ProducerSettings(id="p", epoch=5))
    next(flow)
    flow.send(Response(200, {"stream-next-offset": "0", "stream-incarnation": "i"}))
    with pytest.raises(errors.Unauthenticated):
        flow.send(Response(401, {}))


def transport(url: str) -> Any:
    return transport_to(url, token=None, headers=None, timeout=1.0, connect_timeout=1.0, tls=None)


# ---- bodies ----------------------------------------------------------------------------------


def test_bytes_go_to_another_server_one_after_the_other() -> None:
    packing = BodyEncoder("application/octet-stream", is_semel=False)
    assert packing.body([b"a", b"b"], {}) == b"ab"
    assert packing.content_type(2, {}) == "application/octet-stream"
    assert packing.to_raw(bytearray(b"x")) == b"x"


def test_bytes_go_to_semel_in_a_batch_or_alone() -> None:
    packing = BodyEncoder("text/plain", is_semel=True)
    assert packing.content_type(1, {}) == "text/plain"
    assert packing.body([b"a"], {}) == b"a"
    assert packing.content_type(2, {}) == "application/vnd.semel.batch"
    assert packing.body([b"a", b"b"], {}).startswith(b"SMB1")
    assert packing.to_raw("ü") == "ü".encode()


def test_a_json_message_may_be_as_deep_as_a_stream_takes() -> None:
    packing = BodyEncoder("application/json", is_semel=True)
    deep: Any = []
    for _ in range(63):
        deep = [deep]
    assert packing.to_raw(deep).count(b"[") == 64
    with pytest.raises(ValueError, match="deeper"):
        packing.to_raw([deep])
    wide: list[list[int]] = [[]] * 100
    assert packing.to_raw(wide).count(b"[") == 101


@pytest.mark.parametrize("media_type", ["text/plain", "application/json"])
def test_what_messages_carry_goes_in_a_batch_even_alone(media_type: str) -> None:
    packing = BodyEncoder(media_type, is_semel=True)
    extra = packing.checked_extra(b"1", "k", {"h": "v"}, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))
    assert extra is not None
    assert packing.content_type(1, {0: extra}) == "application/vnd.semel.batch"
    carried = decode_batch(packing.body([b"1", b"2"], {1: extra}))
    assert carried.content_type == media_type
    assert carried.batch is not None
    extras = carried.batch.extras
    assert keys_of(extras, 2) == [None, b"k"]
    assert headers_of(extras, 2) == [[], [("h", b"v")]]
    assert timestamps_of(extras, 2) == [None, 1000]
    assert len(extras) <= extra.size


def test_what_a_message_cannot_carry_is_refused_before_it_spoils_a_batch() -> None:
    packing = BodyEncoder("text/plain", is_semel=True)
    assert packing.checked_extra(b"1", None, {}, None) is None
    with pytest.raises(ValueError, match="a message key can have"):
        packing.checked_extra(b"1", b"k" * 100_000, None, None)
    with pytest.raises(ValueError, match="time zone"):
        packing.checked_extra(b"1", None, None, datetime(2030, 1, 1))
    with pytest.raises(TypeError, match="str, bytes or int"):
        packing.checked_extra(b"1", 7.5, None, None)  # type: ignore[arg-type]
    with pytest.raises(TooLarge):
        packing.checked_extra(b"x" * (4 * 1024 * 1024 - 600), b"k" * 500, None, None)
    with pytest.raises(NotSupported):
        BodyEncoder("text/plain", is_semel=False).checked_extra(b"1", "k", None, None)


def test_another_server_says_itself_what_is_too_large() -> None:
    raw = BodyEncoder("text/plain", is_semel=False).to_raw("x" * 5_000_000)
    assert len(raw) == 5_000_000


# ---- the process -----------------------------------------------------------------------------


def test_producers_share_one_thread() -> None:
    found = {id(background()) for _ in range(3)}
    assert len(found) == 1
    assert not background().is_here
    assert sum(thread.name == "semel-client" for thread in threading.enumerate()) == 1


def test_a_producer_made_before_a_fork_says_that_it_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with StubThread() as stub, Client(stub.url) as client:
        producer = client.stream("s").producer("p")
        with monkeypatch.context() as forked:
            forked.setattr(background(), "is_forked", True)
            with pytest.raises(RuntimeError, match="fork"):
                producer.append(1)
        producer.close()


def test_options_that_make_no_sense_are_refused_before_anything_is_sent() -> None:
    with Client("http://127.0.0.1:1") as client:
        stream = client.stream("s")
        with pytest.raises(ValueError, match="not both"):
            stream.producer("p", epoch=1, auto_claim=True)
        with pytest.raises(ValueError, match="max_pending_bytes"):
            stream.producer("p", max_pending_bytes=0)


class StubThread:
    """A stub for blocking callers, on the background event loop."""

    def __enter__(self) -> Stub:
        self._stub = Stub()
        asyncio.run_coroutine_threadsafe(self._stub.__aenter__(), background().loop).result()
        return self._stub

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stub.__aexit__(), background().loop).result()
