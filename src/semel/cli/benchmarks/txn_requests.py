"""Requests about transactions as bytes, and what a benchmark looks up in their answers."""

import asyncio
import socket
from collections.abc import Iterator
from typing import Final

import msgspec

from semel.cli.benchmarks.processes import HOST, Process
from semel.cli.benchmarks.requests import (
    BYTES,
    JSON,
    Source,
    get,
    head,
    http_answer_bytes,
    stream_url,
)

_METRICS: Final = "/metrics"
_SYNCS: Final = b"\nsemel_journal_syncs_total "


def call(path: str, document: object) -> bytes:
    """Post a document."""
    body = msgspec.json.encode(document)
    fields = (f"Content-Type: {JSON}", f"Content-Length: {len(body)}")
    return head("POST", path, *fields) + b"\r\n" + body


def commits(producer: str, streams: list[str], message: object) -> Source:
    """Append to all streams with one commit, for ever."""
    appends = [{"stream": stream, "messages": [message]} for stream in streams]
    fixed = {"appends": appends, "producer_id": producer, "producer_epoch": 0}
    requests = (call("/v1/commits", {**fixed, "producer_seq": seq}) for seq in _numbers())
    return lambda: next(requests)


def _numbers() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


class Calls:
    """The requests of transactions of one id, of which each epoch is the next."""

    def __init__(self, name: str, stream: str) -> None:
        self._id = name
        self._producer = f"producer-{name}"
        self._stream = stream
        self._owner = {"producer_id": self._producer, "producer_epoch": 0}

    def begin(self, kind: str = "inline") -> bytes:
        """Begin."""
        named = {"transaction_id": self._id, "streams": [self._stream], "kind": kind}
        return call("/v1/transactions", {**named, **self._owner})

    def publish(self, epoch: int, body: bytes) -> bytes:
        """Append inside an inline one."""
        return self._post(
            epoch,
            body,
            f"Producer-Id: {self._producer}",
            "Producer-Epoch: 0",
            "Producer-Seq: 0",
        )

    def stage(self, epoch: int, seq: int, body: bytes) -> bytes:
        """Append a chunk to a staged one."""
        return self._post(epoch, body, f"Transaction-Seq: {seq}")

    def end(self, epoch: int, action: str) -> bytes:
        """Decide."""
        document = {**self._owner, "transaction_epoch": epoch}
        return call(f"/v1/transactions/{self._id}/{action}", document)

    def _post(self, epoch: int, body: bytes, *fields: str) -> bytes:
        common = (f"Content-Type: {BYTES}", f"Content-Length: {len(body)}")
        tag = (f"Transaction-Id: {self._id}", f"Transaction-Epoch: {epoch}")
        return head("POST", stream_url(self._stream), *common, *tag, *fields) + b"\r\n" + body


async def count_syncs(process: Process) -> int:
    """Ask how often the journal was synced."""
    found = await asyncio.to_thread(_ask, process, get(_METRICS))
    return int(found.partition(_SYNCS)[2].partition(b"\n")[0])


def _ask(process: Process, request: bytes) -> bytes:
    with socket.create_connection((HOST, process.port)) as line:
        line.sendall(request)
        data = line.recv(1 << 16)
        while not http_answer_bytes(data):
            data += line.recv(1 << 16)
        return data
