"""Helpers for requests about transactions, commits, groups and sinks."""

from typing import Any
from urllib.parse import quote
from uuid import uuid4

import msgspec

from tests.spec.process import Answer, Server, Stream, offset_of

COMMITTED = "isolation=read_committed"


def fresh(word: str = "t") -> str:
    """Return an unused name."""
    return f"{word}-{uuid4().hex}"


def call(server: Server, method: str, target: str, document: Any = None) -> Answer:
    body = b"" if document is None else msgspec.json.encode(document)
    return server.ask(method, target, body, content_type="application/json")


class Txn:
    """A transaction of a producer, which adds the common fields to every request."""

    def __init__(self, server: Server, producer: str = "", *, name: str = "", epoch: int = 0):
        self.server = server
        self.id = name or fresh()
        self.producer = producer or fresh("p")
        self.producer_epoch = epoch
        self.epoch = 1
        self._seqs: dict[str, int] = {}

    def begin(self, **more: Any) -> Answer:
        document = {
            "transaction_id": self.id,
            "producer_id": self.producer,
            "producer_epoch": self.producer_epoch,
            **more,
        }
        answer = call(self.server, "POST", "/v1/transactions", document)
        if answer.status in (200, 201):
            self.epoch = answer.json["transaction_epoch"]
        return answer

    def call(self, action: str, **more: Any) -> Answer:
        document = {
            "producer_id": self.producer,
            "producer_epoch": self.producer_epoch,
            "transaction_epoch": self.epoch,
            **more,
        }
        target = f"/v1/transactions/{quote(self.id, safe='')}/{action}"
        return call(self.server, "POST", target, document)

    def streams(self, *streams: Stream) -> Answer:
        return self.call("streams", streams=[stream.path for stream in streams])

    def post(self, stream: Stream, body: bytes = b"x", **more: Any) -> Answer:
        """Append with the next sequence of the producer on the stream."""
        seq = self._seqs.get(stream.path, 0)
        answer = stream.post(
            body,
            **{
                "producer_id": self.producer,
                "producer_epoch": self.producer_epoch,
                "producer_seq": seq,
                "transaction_id": self.id,
                "transaction_epoch": self.epoch,
                **more,
            },
        )
        if answer.status == 200:
            self._seqs[stream.path] = seq + 1
        return answer

    def stage(self, stream: Stream, body: bytes, seq: int, **more: Any) -> Answer:
        return stream.post(
            body,
            transaction_id=self.id,
            transaction_epoch=self.epoch,
            transaction_seq=seq,
            **more,
        )

    def commit(self, **more: Any) -> Answer:
        return self.call("commit", **more)

    def abort(self, **more: Any) -> Answer:
        return self.call("abort", **more)

    def status(self, query: str = "") -> Answer:
        target = f"/v1/transactions/{quote(self.id, safe='')}?{query}"
        return call(self.server, "GET", target)


def begun(*streams: Stream, **more: Any) -> Txn:
    """Return an open transaction that may write to these streams."""
    txn = Txn(streams[0].server)
    answer = txn.begin(streams=[stream.path for stream in streams], **more)
    assert answer.status == 201, answer
    return txn


def committed(stream: Stream, query: str = "offset=-1") -> Answer:
    return stream.get(f"{query}&{COMMITTED}")


def commit(server: Server, **document: Any) -> Answer:
    return call(server, "POST", "/v1/commits", document)


def positions(server: Server, group: str) -> dict[str, str]:
    answer = call(server, "GET", f"/v1/groups/{group}/offsets")
    assert answer.status == 200, answer
    found: dict[str, str] = answer.json["offsets"]
    return found


def refusal(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.code


__all__ = [
    "COMMITTED",
    "Txn",
    "begun",
    "call",
    "commit",
    "committed",
    "fresh",
    "offset_of",
    "positions",
    "refusal",
]
