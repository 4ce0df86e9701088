"""Keys, headers and timestamps of messages: sent in a batch, read back in frames."""

import gzip
import struct
from typing import Any, Final

import pytest

from semel.model.limits import HEADER_VALUE_BYTES_MAX, MESSAGE_KEY_BYTES_MAX
from semel.model.slices import Slice, SliceProducer
from semel.wire.bodies import decode_frames, encode_batch
from semel.wire.headers import BATCH, FRAMES
from tests.spec.process import Answer, Server, Stream, offset_of

JSON: Final = "application/json"
TEXT: Final = "text/plain"
KEYS: Final = [b"a", None, b""]
HEADERS: Final = [[("trace", b"\xff\x00"), ("trace", b"2")], [], [("é", b"")]]
TIMES: Final = [-5, None, 1_700_000_000_000]
RICH: Final[dict[str, Any]] = {"keys": KEYS, "headers": HEADERS, "timestamps": TIMES}
PRODUCER: Final[dict[str, Any]] = {"producer_id": "p", "producer_epoch": 3}


def send(stream: Stream, kind: str, messages: list[bytes], **options: Any) -> Answer:
    rich = {
        name: options.pop(name) for name in ("keys", "headers", "timestamps") if name in options
    }
    return stream.post(encode_batch(kind, messages, **rich), content_type=BATCH, **options)


def pieces(stream: Stream, offset: int = 0) -> list[Slice]:
    return decode_frames(stream.get(f"offset={offset_of(offset)}", accept=FRAMES).body).slices


def shown(piece: Slice) -> list[tuple[bytes, bytes | None, list[tuple[str, bytes]], int]]:
    columns = (piece.messages(), piece.keys(), piece.headers(), piece.timestamps())
    return list(zip(*columns, strict=True))


@pytest.mark.spec("design 7.2")
@pytest.mark.parametrize("kind", [TEXT, JSON])
def test_messages_come_back_with_what_they_carried_and_who_brought_them(
    stream: Stream, kind: str
) -> None:
    stream.create(b"", kind)
    assert send(stream, kind, [b"1", b"2", b"3"], **RICH, producer_seq=0, **PRODUCER).status == 200
    assert stream.post(b"4", content_type=kind).status == 204
    rich, plain = pieces(stream)
    assert rich.producer == SliceProducer("p", 3, 0, 0)
    assert shown(rich) == [
        (b"1", b"a", HEADERS[0], -5),
        (b"2", None, [], rich.time_ms),
        (b"3", b"", HEADERS[2], 1_700_000_000_000),
    ]
    assert plain.producer is None
    assert shown(plain) == [(b"4", None, [], plain.time_ms)]
    assert stream.text == ("[1,2,3,4]" if kind == JSON else "1234"), "other read formats omit them"


@pytest.mark.spec("design 7.2")
def test_a_read_or_a_fork_inside_an_append_has_its_part_of_them(server: Server) -> None:
    source, fork = server.stream(), server.stream()
    source.create(b"", JSON)
    send(source, JSON, [b"1", b"2", b"3"], **RICH, producer_seq=0, **PRODUCER)
    (part,) = pieces(source, 2)
    assert (part.keys(), part.headers(), part.timestamps()) == ([b""], [HEADERS[2]], [TIMES[2]])
    assert part.producer == SliceProducer("p", 3, 0, 0), "the sequence is that of the whole append"
    made = fork.put(
        stream_forked_from=source.target,
        stream_fork_offset=offset_of(0),
        stream_fork_sub_offset=2,
    )
    assert made.status == 201
    (shared,) = pieces(fork)
    assert (shared.keys(), shared.headers()) == (KEYS[:2], HEADERS[:2])


@pytest.mark.spec("design 7.2")
def test_a_copy_of_half_a_message_is_a_message_of_its_own(server: Server) -> None:
    source, fork = server.stream(), server.stream()
    source.create()
    send(source, TEXT, [b"abc"], keys=[b"k"], producer_seq=0, **PRODUCER)
    fork.put(
        stream_forked_from=source.target,
        stream_fork_offset=offset_of(0),
        stream_fork_sub_offset=2,
    )
    (copy,) = pieces(fork)
    assert (copy.payload, copy.extras, copy.producer) == (b"ab", b"", None)


@pytest.mark.spec("design 7.2; D01")
def test_a_retry_is_compared_with_keys_and_headers(stream: Stream) -> None:
    stream.create()
    first = send(stream, TEXT, [b"m"], keys=[b"k"], producer_seq=0, **PRODUCER)
    again = send(stream, TEXT, [b"m"], keys=[b"k"], producer_seq=0, **PRODUCER)
    assert (first.status, again.status) == (200, 204)
    assert again.next_offset == first.next_offset
    assert "producer-payload-mismatch" not in again.headers
    other = send(stream, TEXT, [b"m"], keys=[b"j"], producer_seq=0, **PRODUCER)
    assert (other.status, other.headers["producer-payload-mismatch"]) == (204, "true")
    assert send(stream, TEXT, [b"m"], keys=[b"k"], idempotency_key="i").status == 204
    assert (
        send(stream, TEXT, [b"m"], keys=[b"j"], idempotency_key="i").code
        == "idempotency_key_reused"
    )
    assert [piece.keys() for piece in pieces(stream)] == [[b"k"], [b"k"]]


@pytest.mark.spec("design 7.2")
def test_batches_that_lie_about_what_they_carry_are_refused_and_store_nothing(
    stream: Stream,
) -> None:
    stream.create()
    whole = encode_batch(TEXT, [b"ab", b"c"], keys=[b"k", None], timestamps=[1, 2])
    extras_at = 12 + len(TEXT) + 8
    block_at = extras_at + 4
    lies = [whole[:size] for size in range(13, len(whole))]
    lies += [
        whole[:at] + value + whole[at + len(value) :]
        for at, value in (
            (4, b"\x00"),
            (4, b"\x02"),
            (8, struct.pack("<I", 1)),
            (8, struct.pack("<I", 2**32 - 1)),
            (extras_at, struct.pack("<I", 0)),
            (extras_at, struct.pack("<I", 2**32 - 1)),
            (block_at, struct.pack("<I", 0)),
            (block_at, struct.pack("<I", 7)),
            (block_at, struct.pack("<I", 8)),
            (block_at + 4, struct.pack("<q", 2**62)),
            (block_at + 20, struct.pack("<I", 2**32 - 2)),
            (block_at + 20, struct.pack("<I", 2**32 - 1)),
        )
    ]
    for body in lies:
        answer = stream.post(body, content_type=BATCH)
        assert (answer.status, answer.code) == (400, "bad_body"), body
    assert stream.tail == offset_of(0)
    assert stream.post(whole, content_type=BATCH).status == 204


@pytest.mark.spec("design 7.2")
@pytest.mark.parametrize(
    "column",
    [
        {"keys": [bytes(MESSAGE_KEY_BYTES_MAX + 1)]},
        {"headers": [[("n", bytes(HEADER_VALUE_BYTES_MAX + 1))]]},
        {"headers": [[("", b"v")]]},
        {"headers": [[("n", b"v")] * 65]},
        {"timestamps": [2**53]},
    ],
    ids=["key", "value", "name", "headers", "timestamp"],
)
def test_what_a_message_carries_is_bounded(stream: Stream, column: dict[str, Any]) -> None:
    stream.create()
    answer = send(stream, TEXT, [b"x"], producer_seq=0, **PRODUCER, **column)
    assert (answer.status, answer.code) == (400, "bad_body")
    assert stream.tail == offset_of(0)
    assert send(stream, TEXT, [b"x"], producer_seq=0, **PRODUCER).status == 200


@pytest.mark.spec("design 7.2; protocol 1.6")
def test_frames_with_extras_are_compressed_and_tagged_like_any_read(stream: Stream) -> None:
    stream.create()
    send(stream, TEXT, [b"x" * 2000], keys=[b"k"])
    answer = stream.get(accept=FRAMES, accept_encoding="gzip")
    assert answer.headers["content-encoding"] == "gzip"
    (piece,) = decode_frames(gzip.decompress(answer.body)).slices
    assert piece.keys() == [b"k"]
    same = stream.get(accept=FRAMES, accept_encoding="gzip", if_none_match=answer.headers["etag"])
    assert (same.status, same.body) == (304, b"")
