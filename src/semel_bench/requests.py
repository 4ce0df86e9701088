"""Functions that build requests as bytes, and functions that find the end of a response."""

import re
from collections.abc import Callable, Iterator
from itertools import count, cycle
from typing import Any, Final

import msgspec

from semel.model.limits import BATCH_MESSAGES_MAX, MIB

BYTES: Final = "application/octet-stream"
JSON: Final = "application/json"
FRAMES: Final = "application/vnd.semel.frames"
SMALL_BODY: Final = bytes(range(256))
LARGE_BODY: Final = SMALL_BODY * (MIB // 256)

Source = Callable[[], bytes | None]  # returns the next request; None if there are no more requests

_MESSAGE_BYTES: Final = 100
_HEAD_END: Final = b"\r\n\r\n"
_EXACT: Final = b"Content-Length: "
_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length: *([0-9]+)")
_LAST_CHUNK: Final = b"0\r\n\r\n"


# ---- bodies --------------------------------------------------------------------------------------


def large_json() -> bytes:
    """Return a JSON array of 100-byte messages.

    The array has as many messages as fit into 1 MiB, but at most as many as an append can have.
    """
    messages = min(BATCH_MESSAGES_MAX, MIB // (_MESSAGE_BYTES + 1))
    return b"[" + b",".join(map(_message, range(messages))) + b"]"


def small_values(number: int) -> list[Any]:
    """Return `number` values that are 100 bytes long when they are encoded as JSON."""
    return [msgspec.json.decode(_message(index)) for index in range(number)]


def _message(number: int) -> bytes:
    text = b'{"number":%d,"name":"a message of a batch","tags":["a","b"],"pad":"' % number
    return text + b"x" * (_MESSAGE_BYTES - len(text) - 2) + b'"}'


# ---- responses -----------------------------------------------------------------------------------


class BadResponse(Exception):
    """Raised if the server's response is not a success, or if the connection is closed early."""


def http_response_bytes(data: bytes) -> int:
    """Return the size of the first response in `data`; 0 if this response is incomplete.

    Raises BadResponse if the response is not a success.
    """
    end = data.find(_HEAD_END)
    if end < 0:
        return 0
    if data[9:10] != b"2":
        raise BadResponse(data[:200].decode("latin-1"))
    if data[9:12] == b"204":
        return end + 4
    total = end + 4 + _body_bytes(data, end)
    return total if total <= len(data) else 0


def _body_bytes(data: bytes, end: int) -> int:
    at = data.rfind(_EXACT, 0, end)
    if at >= 0:
        return int(data[at + len(_EXACT) : data.index(b"\r\n", at)])
    length = _LENGTH.search(data, 0, end)
    if length is not None:
        return int(length[1])
    last = data.find(_LAST_CHUNK, end)  # good enough, because chunked responses are short here
    return last + len(_LAST_CHUNK) - (end + 4) if last >= 0 else len(data)


def http_head_bytes(data: bytes) -> int:
    """Return the size of the response head at the start of `data`; 0 if it is incomplete."""
    return data.find(_HEAD_END) + 4 if _HEAD_END in data else 0


def redis_response_bytes(data: bytes) -> int:
    """Return the size of the first Redis reply in `data`; 0 if this reply is incomplete.

    Raises BadResponse if the reply is not a bulk string.
    """
    if not data.startswith(b"$"):
        raise BadResponse(data[:200].decode("latin-1"))
    end = data.find(b"\r\n")
    if end < 0:
        return 0
    total = end + 2 + int(data[1:end]) + 2
    return total if total <= len(data) else 0


# ---- streams -------------------------------------------------------------------------------------


def stream_url(name: str) -> str:
    """Return the URL of a stream, without the scheme and the host."""
    return f"/v1/stream/{name}"


def bare_request(method: str, path: str, *fields: str) -> bytes:
    """Return a request without a body. `fields` are additional header lines."""
    return _head(method, path, *fields) + b"\r\n"


def _head(method: str, path: str, *fields: str) -> bytes:
    """Return a request head, without the empty line at its end."""
    lines = (f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *fields)
    return "".join(f"{line}\r\n" for line in lines).encode()


def _body_head(path: str, content_type: str, size: int, *fields: str) -> bytes:
    """Return the head of a POST with a body of `size` bytes, without the empty line at its end."""
    return _head("POST", path, f"Content-Type: {content_type}", f"Content-Length: {size}", *fields)


def put(name: str, content_type: str, *fields: str) -> bytes:
    """Return the request that creates a stream. `fields` are additional header lines."""
    all_fields = (f"Content-Type: {content_type}", "Content-Length: 0", *fields)
    return bare_request("PUT", stream_url(name), *all_fields)


def _put(path: str, document: object) -> bytes:
    body = msgspec.json.encode(document)
    head = _head("PUT", path, f"Content-Type: {JSON}", f"Content-Length: {len(body)}")
    return head + b"\r\n" + body


def post(name: str, content_type: str, body: bytes, *fields: str) -> bytes:
    """Return a request that appends to a stream."""
    return _body_head(stream_url(name), content_type, len(body), *fields) + b"\r\n" + body


def plain_appends(names: list[str], body: bytes, *fields: str, content_type: str = BYTES) -> Source:
    """Return an endless source of appends that go to each stream in turn.

    `fields` are additional header lines.
    """
    return cycle([post(name, content_type, body, *fields) for name in names]).__next__


def produced_appends(names: list[str], producer: str, body: bytes, *more: str) -> Source:
    """Return an endless source of appends to each stream in turn, with producer headers."""
    fields = (*more, f"Producer-Id: {producer}", "Producer-Epoch: 0")
    heads = [_body_head(stream_url(name), BYTES, len(body), *fields) for name in names]
    starts = [head + b"Producer-Seq: " for head in heads]
    rest = _HEAD_END + body
    return (start + b"%d%b" % (seq, rest) for seq in count() for start in starts).__next__


def xadd_appends(names: list[str], body: bytes) -> Source:
    """Return an endless source of Redis appends (XADD) that go to each stream in turn."""
    commands = [(b"XADD", name.encode(), b"*", b"d", body) for name in names]
    return cycle([_redis_command(*words) for words in commands]).__next__


def _redis_command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


def limited(requests: Iterator[bytes]) -> Source:
    """Return a source that returns each of the requests once, and then None."""
    return lambda: next(requests, None)


# ---- transactions --------------------------------------------------------------------------------


def _call(path: str, document: object) -> bytes:
    body = msgspec.json.encode(document)
    return _body_head(path, JSON, len(body)) + b"\r\n" + body


def commits(producer: str, streams: list[str], message: object) -> Iterator[bytes]:
    """Return an endless iterator of one-shot commits. Each appends `message` to every stream."""
    appends = [{"stream": stream, "messages": [message]} for stream in streams]
    fixed = {"appends": appends, "producer_id": producer, "producer_epoch": 0}
    return (_call("/v1/commits", {**fixed, "producer_seq": seq}) for seq in count())


class TransactionRequests:
    """Requests for successive transactions with the same id.

    The transaction epochs are 1, 2 and so on.
    """

    def __init__(self, name: str, stream: str) -> None:
        self._id = name
        self._producer = f"producer-{name}"
        self._stream = stream
        self._owner = {"producer_id": self._producer, "producer_epoch": 0}

    def begin(self, kind: str = "inline") -> bytes:
        """Return the request that begins the next transaction."""
        named = {"transaction_id": self._id, "streams": [self._stream], "kind": kind}
        return _call("/v1/transactions", {**named, **self._owner})

    def publish(self, epoch: int, body: bytes) -> bytes:
        """Return the request that appends `body` to an inline transaction."""
        fields = (f"Producer-Id: {self._producer}", "Producer-Epoch: 0", "Producer-Seq: 0")
        return self._post(epoch, body, *fields)

    def stage(self, epoch: int, seq: int, body: bytes) -> bytes:
        """Return the request that sends the chunk `seq` of a staged transaction."""
        return self._post(epoch, body, f"Transaction-Seq: {seq}")

    def end(self, epoch: int, action: str) -> bytes:
        """Return the request that ends a transaction. `action` is `commit` or `abort`."""
        document = {**self._owner, "transaction_epoch": epoch}
        return _call(f"/v1/transactions/{self._id}/{action}", document)

    def _post(self, epoch: int, body: bytes, *fields: str) -> bytes:
        tag = (f"Transaction-Id: {self._id}", f"Transaction-Epoch: {epoch}")
        return post(self._stream, BYTES, body, *tag, *fields)


# ---- topics --------------------------------------------------------------------------------------


def put_topic(name: str, content_type: str, partitions: int) -> bytes:
    """Return the request that creates a topic."""
    return _put(_topic_url(name), {"partitions": partitions, "content_type": content_type})


def post_topic(name: str, content_type: str, body: bytes, *fields: str) -> bytes:
    """Return a request that appends to a topic. `fields` are additional header lines."""
    return _body_head(_topic_url(name), content_type, len(body), *fields) + b"\r\n" + body


def keyed_appends(topic: str, content_type: str, body: bytes, *fields: str) -> Source:
    """Return an endless source of appends to a topic, each with another `Message-Key`."""
    head = _body_head(_topic_url(topic), content_type, len(body), *fields) + b"Message-Key: "
    rest = _HEAD_END + body
    return (b"%bcustomer-%d%b" % (head, number, rest) for number in count()).__next__


def _topic_url(name: str) -> str:
    """Return the URL of a topic, without the scheme and the host."""
    return f"/v1/topics/{name}"


# ---- subscriptions -------------------------------------------------------------------------------


def put_subscription(name: str, config: object) -> bytes:
    """Return the request that creates a subscription."""
    return _put(stream_url(f"__ds/subscriptions/{name}"), config)
