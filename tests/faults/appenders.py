"""Writers that append single messages: the clients, and raw requests with their own retries."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random
from time import monotonic, sleep
from typing import Final

from semel import AsyncClient, Client
from semel.client.aio.stream import AsyncStream
from semel.client.errors import NO, Indeterminate, Unavailable
from semel.client.sync.stream import Stream
from semel.testing import Operation
from tests.faults.notes import Notes, Work, last_offset
from tests.faults.raw import Broken, Line

_TIMEOUTS: Final = (0.2, 30.0, 30.0)
_PAUSE_SECONDS: Final = 0.03
_GIVE_UP_SECONDS: Final = 120.0
_ACCEPTED: Final = frozenset({200, 201, 204})


def append_unnumbered(notes: Notes, random: Random) -> None:
    """Append with the switch off; a failed append is not repeated."""
    with Client(notes.single_url, retry_appends=False) as client:
        _append_plain(notes, random, client.stream(notes.path), "client, unnumbered")


def append_together(notes: Notes, random: Random) -> None:
    """Append from four threads that share requests, with some short timeouts."""
    with Client(notes.url) as client, ThreadPoolExecutor(4) as pool:
        stream = client.stream(notes.path)
        threads = [
            pool.submit(_append_plain, notes, Random(random.random()), stream, f"client-{index}")
            for index in range(4)
        ]
        for thread in threads:
            thread.result()


def _append_plain(notes: Notes, random: Random, stream: Stream, writer: str) -> None:
    number = 0
    while not notes.over.is_set():
        operation = notes.begin(writer, number, is_ordered=False)
        number += 1
        try:
            receipt = stream.append(notes.encoded(operation), timeout=random.choice(_TIMEOUTS))
        except (Unavailable, Indeterminate) as error:
            notes.fail(operation, is_certain=error.applied == NO)
            notes.over.wait(_PAUSE_SECONDS)
        else:
            notes.settle(writer.partition("-")[0], operation, receipt)


def append_keyed(notes: Notes, random: Random) -> None:
    """Append with idempotency keys."""
    number = 0
    with Client(notes.url) as client:
        stream = client.stream(notes.path)
        while not notes.over.is_set():
            operation = notes.begin("keyed", number, is_ordered=False)
            number += 1
            _append_keyed(notes, random, stream, operation)


def _append_keyed(notes: Notes, random: Random, stream: Stream, operation: Operation) -> None:
    """Append with an idempotency key; if the call fails, possibly repeat it with the same key."""
    is_certain = True
    for _ in range(random.randint(1, 3)):
        try:
            receipt = stream.append(
                notes.encoded(operation),
                idempotency_key=str(operation.value),
                timeout=random.choice(_TIMEOUTS),
            )
        except (Unavailable, Indeterminate) as error:
            is_certain = is_certain and error.applied == NO
        else:
            notes.settle("client, key", operation, receipt)
            return
    notes.fail(operation, is_certain=is_certain)


async def _append(
    notes: Notes, random: Random, stream: AsyncStream, writer: str, *, has_key: bool
) -> None:
    number = 0
    while not notes.over.is_set():
        operation = notes.begin(writer, number, is_ordered=False)
        number += 1
        key = str(operation.value) if has_key else None
        timeout = random.choice(_TIMEOUTS)
        try:
            receipt = await stream.append(
                notes.encoded(operation), idempotency_key=key, timeout=timeout
            )
        except (Unavailable, Indeterminate) as error:
            notes.fail(operation, is_certain=error.applied == NO)
        else:
            notes.settle("async client, key" if has_key else "async client", operation, receipt)


def append_on_a_loop(notes: Notes, random: Random) -> None:
    """Append from tasks on an event loop: three that share requests, and three with keys."""

    async def several() -> None:
        async with (
            AsyncClient(notes.url) as one,
            AsyncClient(notes.url) as other,
            asyncio.TaskGroup() as group,
        ):
            for index in range(6):
                has_key = index % 2 == 0
                stream = (one if has_key else other).stream(notes.path)
                writer, mine = f"async-{index}", Random(random.random())
                group.create_task(_append(notes, mine, stream, writer, has_key=has_key))

    asyncio.run(several())


def repeat_by_hand(notes: Notes, random: Random, *, writer: str, dialect: str) -> None:
    """Append with explicit sequences; repeat each append until there is a response."""
    line = Line(notes.url)
    number = 0
    try:
        while not notes.over.is_set():
            operation = notes.begin(writer, number)
            fields = _tag(dialect, writer, number)
            operation.ok(_until_response(notes, line, operation, fields))
            notes.count(f"acknowledged: by hand, {dialect}")
            number += 1
    finally:
        line.close()


def _tag(dialect: str, writer: str, number: int) -> dict[str, str]:
    seq = str(number)
    match dialect:
        case "Producer, epoch":
            return {"Producer-Id": writer, "Producer-Epoch": "3", "Producer-Seq": seq}
        case "Producer, session":
            return {"Producer-Id": writer, "Producer-Session": "one", "Producer-Seq": seq}
        case "Producer, sparse":
            seq = str(number * number)
            return {"Producer-Id": writer, "Producer-Mode": "sparse", "Producer-Seq": seq}
        case "X, epoch":
            return {"X-Producer-Id": writer, "X-Producer-Epoch": "0", "X-Producer-Seq": seq}
        case _:
            return {"X-Producer-Id": writer, "X-Producer-Seq": seq}


def _until_response(
    notes: Notes, line: Line, operation: Operation, fields: dict[str, str]
) -> int | None:
    """Repeat a request until the server responds; return the offset of the message."""
    until = monotonic() + _GIVE_UP_SECONDS
    body = notes.encoded(operation)
    while monotonic() < until:
        try:
            response = line.post(f"/v1/stream/{notes.path}", notes.content_type, fields, body)
        except (OSError, Broken):
            response = None
            line.close()
            sleep(_PAUSE_SECONDS)
        if response is not None and response.status != 502:
            assert response.status in _ACCEPTED, (fields, response.status, response.body)
            notes.count("duplicates refused", response.status == 204)
            offset = last_offset(response.fields.get("stream-next-offset"))
            header = response.fields.get("x-stream-offset")
            assert header in (None, f"{offset:08d}"), (operation.value, header, offset)
            return offset
        notes.count("retries")
    raise AssertionError(f"{operation.value} got no response")


DIALECTS: Final = (
    "Producer, epoch",
    "Producer, session",
    "Producer, sparse",
    "X, epoch",
    "X, bare",
)


def work() -> list[Work]:
    """Return all writers of this kind for one stream."""
    return [
        append_unnumbered,
        append_together,
        append_keyed,
        append_on_a_loop,
        *(
            partial(repeat_by_hand, writer=f"hand-{index}", dialect=dialect)
            for index, dialect in enumerate(DIALECTS)
        ),
    ]
