"""What topics cost, compared with plain streams.

A single append with a key is compared with a plain append. A batch of messages with keys goes to
the partitions of one topic, and for comparison to one stream. Either the client selects the
partitions and groups the messages, or the server does this.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import Any, Final

import msgspec

from semel.client.extras import Extras, extras_of
from semel.client.grouping import Grouper
from semel.client.stream_calls import encode_body
from semel.client.sync.client import Client
from semel.wire.headers import TOPIC_BATCH
from semel_bench.harness import (
    Figure,
    Harness,
    Side,
    interleave,
    median_of,
    median_ratio,
    ratio_at_least,
    ratio_at_most,
)
from semel_bench.load import Round, create_streams, send_all, timed_side
from semel_bench.requests import (
    BYTES,
    JSON,
    SMALL_BODY,
    Source,
    keyed_appends,
    plain_appends,
    post,
    post_topic,
    put_topic,
    small_values,
)
from semel_bench.servers import Process, semel_server

_PARTITIONS: Final = 12


async def measure_topic(harness: Harness) -> list[Figure]:
    """Measure single appends with a key, and batches of messages with keys."""
    from semel_bench.calls import calls_per_keyed_append  # loads the server into this process

    with harness.scratch() as folder, semel_server(folder) as semel:
        single = await _measure_single(harness, semel)
        calls = await calls_per_keyed_append(f"{folder}/calls")
        batches = await _measure_batches(harness, semel)
        return [*single, calls, *batches, *await _measure_client(harness, semel)]


# ---- single: 256 bytes to 504 partitions ---------------------------------------------------------

_CONNECTIONS: Final = 256
_TOPICS: Final = [f"topic-{number}" for number in range(42)]
_STREAMS: Final = [f"stream-{number}" for number in range(42 * _PARTITIONS)]
_KEYS: Final = 64

_PLAIN: Final = "plain append"
_KEYED: Final = "append with Message-Key"
_GROUPED: Final = "append in the batch format, for a selected partition"
_BATCHED: Final = "append in the batch format, with a key to a stream"


async def _measure_single(harness: Harness, semel: Process) -> list[Figure]:
    side = partial(timed_side, harness.options, semel)
    await create_streams(semel, _STREAMS, BYTES)
    await send_all(semel, *(put_topic(name, BYTES, _PARTITIONS) for name in _TOPICS))
    places = [_TOPICS[index % len(_TOPICS)] for index in range(_CONNECTIONS)]
    sides: dict[str, Side[Round]] = {
        _PLAIN: side(
            [plain_appends(_STREAMS[index::_CONNECTIONS], SMALL_BODY) for index in range(256)]
        ),
        _KEYED: side([keyed_appends(place, BYTES, SMALL_BODY) for place in places]),
        _GROUPED: side([_grouped_appends(place) for place in places]),
        _BATCHED: side([_batched_appends(name) for name in _STREAMS[:_CONNECTIONS]]),
    }
    rounds = await interleave(sides, harness.options.pick(15, 1))
    plain = rounds[_PLAIN]
    figures = [Figure(f"CPU, {_PLAIN}", median_of(plain, lambda r: r.cpu_us), "us")]
    # The client sends the key of a single message to a topic as a header. Only if a header cannot
    # have the key, and for streams, it sends a batch, which costs more.
    targets = {_KEYED: ratio_at_most(1.3), _GROUPED: None, _BATCHED: None}
    for name, target in targets.items():
        by_round = median_ratio(rounds[name], plain, lambda r: r.cpu_us)
        cpu = median_of(rounds[name], lambda r: r.cpu_us)
        figures.append(Figure(f"CPU, {name}", cpu, "us", target, by_round, "plain"))
    return [
        *figures,
        *(Figure(n, median_of(each, lambda r: r.rate), "appends/s") for n, each in rounds.items()),
    ]


def _grouped_appends(topic: str) -> Source:
    """Return an endless source of single appends in the batch format for topics."""
    requests = [
        _grouped_request(topic, BYTES, [SMALL_BODY], extras_of([f"customer-{number}"], None, None))
        for number in range(_KEYS)
    ]
    return cycle(requests).__next__


def _batched_appends(stream: str) -> Source:
    """Return an endless source of single appends with keys to a stream."""
    bodies = [
        encode_body([SMALL_BODY], BYTES, extras_of([f"customer-{number}"], None, None))
        for number in range(_KEYS)
    ]
    return cycle([post(stream, kind, body) for kind, body in bodies]).__next__


def _grouped_request(
    topic: str, content_type: str, messages: Sequence[bytes], extras: Extras
) -> bytes:
    grouped = Grouper("crc32", _PARTITIONS).group(content_type, messages, extras)
    fields = [f"{name}: {value}" for name, value in grouped.fields]
    return post_topic(topic, TOPIC_BATCH, grouped.body, *fields)


# ---- batches: 1,000 messages over one connection -------------------------------------------------

_COUNT: Final = 1_000
_ONE: Final = "one stream"
_BY_CLIENT: Final = "grouped by the client"
_BY_SERVER: Final = "hashed by the server"
_BY_POINTER: Final = "hashed by the server, Message-Key-Pointer"


async def _measure_batches(harness: Harness, semel: Process) -> list[Figure]:
    """Measure only the server: the same requests are sent again and again."""
    await create_streams(semel, ["plain-batches"], JSON)
    await send_all(semel, put_topic("batches", JSON, _PARTITIONS))
    messages = [msgspec.json.encode(value) for value in small_values(_COUNT)]
    extras = extras_of(_keys(), None, None)
    kind, body = encode_body(messages, JSON, extras)
    array = b"[" + b",".join(messages) + b"]"
    requests: Mapping[str, bytes] = {
        _ONE: post("plain-batches", kind, body),
        _BY_CLIENT: _grouped_request("batches", JSON, messages, extras),
        _BY_SERVER: post_topic("batches", kind, body),
        _BY_POINTER: post_topic("batches", JSON, array, "Message-Key-Pointer: /number"),
    }
    sides: dict[str, Side[Round]] = {
        name: timed_side(harness.options, semel, [cycle([request]).__next__])
        for name, request in requests.items()
    }
    rounds = await interleave(sides, harness.options.rounds)
    figures = []
    for name, each in rounds.items():
        rate = median_of(each, lambda r: r.rate) * _COUNT
        compared = (None, "") if name == _ONE else (_rate_ratio(each, rounds[_ONE]), _ONE)
        figures += [
            Figure(f"server alone, 1,000 messages, {name}", rate, "messages/s", None, *compared),
            Figure(
                f"server CPU per message, {name}",
                median_of(each, lambda r: r.cpu_us) / _COUNT,
                "us",
            ),
        ]
    return figures


def _rate_ratio(rounds: Sequence[Round], others: Sequence[Round]) -> float:
    return median_ratio(rounds, others, lambda r: r.rate)


def _keys() -> list[str]:
    return [f"customer-{number}" for number in range(_COUNT)]


# ---- client: the same with the Python client -----------------------------------------------------


async def _measure_client(harness: Harness, semel: Process) -> list[Figure]:
    """Measure the client and the server together: the client encodes, hashes and groups."""
    await create_streams(semel, ["plain-client"], JSON)
    await send_all(semel, put_topic("client", JSON, _PARTITIONS))
    values, keys = small_values(_COUNT), _keys()
    with Client(semel.url) as client:
        topic, stream = client.topic("client"), client.stream("plain-client")
        ways: dict[str, Callable[[], Any]] = {
            _ONE: lambda: stream.append_many(values, keys=keys),
            _BY_CLIENT: lambda: topic.append_many(values, keys=keys),
        }
        sides: dict[str, Side[float]] = {
            name: partial(asyncio.to_thread, _rate, way, harness.options.round_seconds)
            for name, way in ways.items()
        }
        rounds = await interleave(sides, 3 * harness.options.rounds)
    by_round = median_ratio(rounds[_BY_CLIENT], rounds[_ONE], float)
    target = ratio_at_least(0.7)
    name, unit = "client and server, 1,000 messages", "messages/s"
    grouped = median_of(rounds[_BY_CLIENT], float)
    return [
        Figure(f"{name}, {_ONE}", median_of(rounds[_ONE], float), unit),
        Figure(f"{name}, {_BY_CLIENT}", grouped, unit, target, by_round, _ONE),
    ]


def _rate(way: Callable[[], Any], seconds: float) -> float:
    """Append batches for some seconds. Return the number of messages per second."""
    began, batches = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        way()
        batches += 1
    return batches * _COUNT / (time.perf_counter() - began)
