"""Long bodies: lists over their limit are refused, and long checks keep the order of requests."""

import json
import re
import struct
from typing import Final

import pytest

from semel.model.limits import BODY_BYTES_MAX
from tests.spec.process import Server, Stream, offset_of

JSON: Final = "application/json"
BATCH: Final = "application/vnd.semel.batch"
ROOM: Final = 300  # for what surrounds a list


def array_of(element: bytes, size: int = BODY_BYTES_MAX - ROOM) -> bytes:
    """Return an array with so many elements that it has almost `size` bytes."""
    return b"[" + b",".join([element] * (size // (len(element) + 1))) + b"]"


def members_of(member: bytes) -> bytes:
    return b"{" + array_of(member)[1:-1] + b"}"


def batch_of(message: bytes) -> bytes:
    head = struct.pack("<4sHHI", b"SMB1", 0, len(JSON), 1)
    return head + JSON.encode() + struct.pack("<I", len(message)) + message


@pytest.mark.parametrize("element", [b'""', b"0", b"[]", b"{}", b'{"a":[]}', rb'"\ud800"'])
def test_an_append_of_too_many_messages_is_refused(stream: Stream, element: bytes) -> None:
    stream.create(content_type=JSON)
    answer = stream.post(array_of(element), content_type=JSON)
    assert (answer.status, answer.code) == (400, "bad_body")
    assert "10000 messages" in answer.json["message"]
    assert stream.tail == offset_of(0)


@pytest.mark.parametrize(
    ("address", "body"),
    [
        ("/v1/commits", b'{"offsets":{"g":' + members_of(b'"s":0') + b"}}"),
        ("/v1/commits", b'{"offsets":' + members_of(b'"g":{}') + b"}"),
        ("/v1/commits", b'{"if":' + members_of(b'"s":0') + b"}"),
        ("/v1/commits", b'{"transactions":' + array_of(b'{"id":"t","epoch":0}') + b"}"),
        ("/v1/commits", b'{"appends":' + array_of(b'{"stream":"s","messages":[0]}') + b"}"),
        ("/v1/groups/g/offsets", b'{"offsets":' + members_of(b'"s":0') + b"}"),
        ("/v1/groups/g/snapshot", b'{"number":0,"ranges":' + members_of(b'"s":0') + b"}"),
        ("/v1/transactions", b'{"streams":' + array_of(b'"s"') + b"}"),
        ("/v1/transactions/t/streams", b'{"streams":' + array_of(b'"s"') + b"}"),
        ("/v1/transactions/t/offsets", b'{"offsets":{"g":' + members_of(b'"s":0') + b"}}"),
    ],
)
def test_a_document_with_too_many_entries_is_refused(
    server: Server, address: str, body: bytes
) -> None:
    answer = server.ask("POST", address, body)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "too many entries; the maximum is 1,000" in answer.json["message"]


NESTED: Final = array_of(b'["[",{}]')


def commit_of(server: Server, stream: Stream) -> bytes:
    registered = server.ask("POST", "/v1/producers", b'{"producer_id":"long"}').json
    document = {**registered, "producer_seq": 0, "appends": [{"stream": stream.path}]}
    text = array_of(b'["[",{}]', BODY_BYTES_MAX - 3 * ROOM)
    return json.dumps(document).encode().replace(b'"}]', b'","messages":[' + text + b"]}]")


def pipelined(server: Server, *requests: tuple[str, str, str, bytes]) -> list[tuple[int, str]]:
    """Send all requests at once; return the status and the next offset of each response."""
    sent = b""
    for index, (method, target, content_type, body) in enumerate(requests):
        lines = [f"{method} {target} HTTP/1.1", "Host: localhost", f"Content-Type: {content_type}"]
        lines += [f"Content-Length: {len(body)}"]
        lines += ["Connection: close"] if index == len(requests) - 1 else []
        sent += "\r\n".join([*lines, "", ""]).encode() + body
    with server.dial() as line:
        line.sendall(sent)
        received = b"".join(iter(lambda: line.recv(65_536), b"")).decode()
    found = []
    for answer in received.split("HTTP/1.1 ")[1:]:
        offset = re.search("Stream-Next-Offset: ([0-9_]+)", answer)
        found.append((int(answer[:3]), "" if offset is None else offset[1]))
    return found


@pytest.mark.parametrize("kind", ["append", "batch", "too deep", "create", "commit"])
def test_a_request_that_takes_long_does_not_overtake_or_fall_behind(
    server: Server, stream: Stream, kind: str
) -> None:
    stream.create(content_type=JSON)
    target, other = stream.target, f"{stream.target}-other"
    long, status, count = {
        "append": (("POST", target, JSON, b"[" + NESTED + b"]"), 204, 1),
        "batch": (("POST", target, BATCH, batch_of(NESTED)), 204, 1),
        "too deep": (("POST", target, JSON, b"[" * 65 + NESTED + b"]" * 65), 400, 0),
        "create": (("PUT", other, JSON, b"[" + NESTED + b"]"), 201, 0),
        "commit": (("POST", "/v1/commits", JSON, commit_of(server, stream)), 200, 1),
    }[kind]
    small = [("POST", target, JSON, b'"%d"' % number) for number in range(3)]
    found = pipelined(server, small[0], long, small[1], small[2])
    assert [answer[0] for answer in found] == [204, status, 204, 204]
    assert [answer[1] for answer in (found[0], *found[2:])] == [
        offset_of(1),
        offset_of(2 + count),
        offset_of(3 + count),
    ]
