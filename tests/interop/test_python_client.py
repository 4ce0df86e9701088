"""The PyPI client `durable-streams` against a real server."""

import asyncio
from typing import Any

import pytest
from durable_streams import (
    AsyncDurableStream,
    DurableStream,
    SeqConflictError,
    StreamExistsError,
    StreamNotFoundError,
)

from tests.spec.process import Stream, offset_of


def url_of(stream: Stream) -> str:
    return stream.server.url + stream.target


def test_it_creates_appends_and_reads(stream: Stream) -> None:
    with DurableStream.create(url_of(stream), content_type="application/json") as handle:
        offsets = [handle.append({"id": n}).next_offset for n in range(3)]
        assert offsets == [offset_of(n) for n in (1, 2, 3)]
        with handle.stream(live=False) as session:
            assert session.read_json() == [{"id": 0}, {"id": 1}, {"id": 2}]
        with handle.stream(offset=offsets[1], live=False) as session:
            assert session.read_json() == [{"id": 2}]
        head = handle.head()
        assert (head.content_type, head.offset) == ("application/json", offset_of(3))
    assert stream.text == '[{"id": 0},{"id": 1},{"id": 2}]'


def test_it_reads_the_bytes_it_wrote(stream: Stream) -> None:
    with DurableStream.create(url_of(stream), content_type="application/octet-stream") as handle:
        handle.append(b"\x00\xff")
        handle.append(b"\n\r")
        with handle.stream(live=False) as session:
            assert session.read_bytes() == b"\x00\xff\n\r"


def test_it_understands_refusals(stream: Stream) -> None:
    with pytest.raises(StreamNotFoundError):
        DurableStream.connect(url_of(stream))
    with DurableStream.create(url_of(stream), content_type="text/plain") as handle:
        with pytest.raises(StreamExistsError):
            DurableStream.create(url_of(stream), content_type="application/json")
        handle.append("a", seq="2")
        with pytest.raises(SeqConflictError):
            handle.append("b", seq="1")
        handle.delete()
    assert stream.head().status == 404


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_it_follows_a_stream(live: Any, stream: Stream) -> None:
    with DurableStream.create(url_of(stream), content_type="application/json") as handle:
        handle.append(1)
        seen = []
        with handle.stream(offset="-1", live=live) as session:
            for item in session.iter_json():
                seen.append(item)
                if item == 3:
                    break
                handle.append(item + 1)  # all messages but the first arrive live
    assert seen == [1, 2, 3]
    assert stream.text == "[1,2,3]"


def test_its_asynchronous_half_does_the_same(stream: Stream) -> None:
    async def story() -> list[Any]:
        seen: list[Any] = []
        created = AsyncDurableStream.create(url_of(stream), content_type="application/json")
        async with await created as handle:
            await asyncio.gather(*[handle.append(n) for n in range(3)])
            async with handle.stream(offset="-1", live="sse") as session:
                async for item in session.iter_json():
                    seen.append(item)
                    if item == 3:
                        return seen
                    if item == 2:
                        await handle.append(3)
        return seen

    assert asyncio.run(story()) == [0, 1, 2, 3]
    assert stream.text == "[0,1,2,3]"
