"""A minimal model of the server, and a network with faults, for tests of the producer."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgspec

from semel.client.errors import Unavailable
from semel.client.producer.batches import ProducerBatch
from semel.client.producer.core import ProducerCore
from semel.client.producer.outcomes import BatchAck, FailedBatch
from semel.client.producer.settings import ProducerSettings
from semel.client.stream_calls import DedupKnowledge
from semel.model.offsets import print_offset

Headers = dict[str, str]
PROBLEM = "application/problem+json"
HEAD: Headers = {}  # in place of the headers of an append


def json_body(messages: Any, extras: Any = None, seq: int = 0) -> bytes:
    del extras, seq
    return b"[" + b",".join(messages) + b"]"


@dataclass
class Answer:
    status: int
    headers: Headers = field(default_factory=dict)
    body: bytes = b""


def refusal(status: int, code: str, headers: Headers | None = None, **facts: Any) -> Answer:
    problem = {"code": code, "message": code, "applied": "no", **facts}
    fields = {"content-type": PROBLEM, **(headers or {})}
    return Answer(status, fields, msgspec.json.encode(problem))


@dataclass
class Known:
    """The state that the model server keeps about its only producer."""

    epoch: int
    session: str | None
    last: int
    bodies: dict[Any, bytes]
    older: frozenset[str | None] = frozenset()


class ModelServer:
    """One stream and one producer id, with the rules of the protocol and no memory limits."""

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.known: Known | None = None
        self.tombstone: Known | None = None
        self.is_closed = False
        self.has_dedup = True
        self.dedup_from = 0
        self.was_asked = False  # it has answered a HEAD request
        self._is_closing = False

    def forget(self) -> None:
        """Replace the producer by a tombstone, as after an idle time."""
        self.tombstone = self.known or self.tombstone
        self.known = None

    def switch(self) -> None:
        """Switch dedup off or on. No producer is known after that."""
        self.has_dedup = not self.has_dedup
        self.known = self.tombstone = None
        self.dedup_from = len(self.log)

    def head(self) -> Answer:
        self.was_asked = True
        if not self.has_dedup:
            return Answer(200, {"stream-dedup": "off"})
        shown = {"stream-dedup-from": print_offset(self.dedup_from)} if self.dedup_from else {}
        return Answer(200, {"stream-next-offset": print_offset(len(self.log)), **shown})

    def take(self, headers: Headers, body: bytes) -> Answer:
        self._is_closing = "stream-closed" in headers
        answer = self._take(headers, body) if self.has_dedup else self._store_unguarded(body)
        if self.is_closed:
            answer.headers["stream-closed"] = "true"
        return answer

    def _store_unguarded(self, body: bytes) -> Answer:
        self._store(body)
        offset = print_offset(len(self.log))
        return Answer(200, {"stream-next-offset": offset, "producer-dedup": "off"})

    def _take(self, headers: Headers, body: bytes) -> Answer:
        epoch = headers.get("producer-epoch")
        session = headers.get("producer-session")
        given = None if epoch is None else int(epoch)
        first, _, last = headers["producer-seq"].partition("-")
        is_sparse = headers.get("producer-mode") == "sparse"
        span = int(first), int(last or first)
        known = self.known
        if known is None and self.tombstone is not None:
            old, is_first = self.tombstone, is_sparse or not span[0]
            is_newer = (
                session not in old.older | {old.session} if given is None else given > old.epoch
            )
            if not (is_newer and is_first):
                fields = {"producer-epoch": str(old.epoch)}
                return refusal(409, "producer_state_expired", fields, current_epoch=old.epoch)
            bodies = dict(old.bodies) if is_sparse else {}
            older = old.older | {old.session}
            epoch_now = old.epoch + 1 if given is None else given
            known = Known(epoch_now, session, old.last if is_sparse else -1, bodies, older)
        if known is None:
            known = Known(given or 0 if session is None else 1, session, -1, {})
        fence = self._fence(known, given, session)
        if fence is not None:
            return fence
        if (given is not None and given > known.epoch) or (
            given is None and session != known.session
        ):
            if not is_sparse and span[0]:
                return refusal(400, "epoch_must_start_at_zero")
            raised = known.epoch + 1 if given is None else given
            last_seq = known.last if is_sparse else -1
            older = known.older | ({known.session} - {session})
            bodies = dict(known.bodies) if is_sparse else {}
            known = Known(raised, session, last_seq, bodies, older)
        return self._decide(known, span, body, is_sparse=is_sparse)

    def claim(self, session: str) -> int:
        """Fence the earlier producer and return the new epoch."""
        old = self.known
        older = frozenset() if old is None else old.older | {old.session}
        self.known = Known(1 if old is None else old.epoch + 1, session, -1, {}, older)
        return self.known.epoch

    def _fence(self, known: Known, given: int | None, session: str | None) -> Answer | None:
        if given is not None and given < known.epoch:
            fields = {"producer-epoch": str(known.epoch)}
            return refusal(403, "PRODUCER_FENCED", fields, current_epoch=known.epoch)
        if given == known.epoch and session != known.session:
            return refusal(403, "session_conflict", {"producer-epoch": str(known.epoch)})
        if given is None and session != known.session and session in known.older:
            return refusal(403, "stale_session", {"producer-epoch": str(known.epoch)})
        return None

    def _decide(
        self, known: Known, span: tuple[int, int], body: bytes, *, is_sparse: bool
    ) -> Answer:
        first, last = span
        fields = {"producer-epoch": str(known.epoch)}
        if span in known.bodies or (not is_sparse and last <= known.last):
            assert self.known is not None
            fields["producer-epoch"] = str(self.known.epoch)  # a duplicate does not raise the epoch
            if known.bodies[span] != body:
                fields["producer-payload-mismatch"] = "true"
            return Answer(204, fields)
        if self.is_closed:
            return refusal(409, "stream_closed", {"stream-closed": "true"})
        if is_sparse and first <= known.last:
            return refusal(409, "batch_overlap", last_seq=known.last)
        if not is_sparse and first != known.last + 1:
            expected = known.last + 1
            return refusal(409, "producer_seq_conflict", expected_seq=expected, received_seq=first)
        known.last = last
        known.bodies[span] = body
        self.known = known
        self._store(body)
        status = 200 if body else 204
        return Answer(status, {**fields, "stream-next-offset": print_offset(len(self.log))})

    def _store(self, body: bytes) -> None:
        self.is_closed = self.is_closed or self._is_closing
        if body:
            self.log += map(bytes, msgspec.json.decode(body, type=list[msgspec.Raw]))


class Network:
    """Connections between a core and a server. Closed ones may still hold requests."""

    def __init__(self, core: ProducerCore, server: ModelServer) -> None:
        self.core = core
        self.server = server
        self.now = 0.0
        self.seen: dict[tuple[str, str], bytes] = {}
        self.sent: deque[ProducerBatch | None] = (
            deque()
        )  # None is a HEAD request; on the current connection, in order
        self.line: deque[tuple[Headers, bytes]] = deque()  # not yet read by the server
        self.answers: deque[Answer] = deque()  # not yet read by the client
        self.ghosts: list[deque[tuple[Headers, bytes]]] = []
        self.events: list[BatchAck | FailedBatch] = []  # `acked` and `failed`, in order
        self.acked: list[BatchAck] = []
        self.failed: list[FailedBatch] = []

    def send(self) -> bool:
        if self.core.starts_check(self.now):
            self.sent.append(None)
            self.line.append((HEAD, b""))
            return True
        batch = self.core.next_to_send(self.now)
        if batch is None:
            return False
        headers = {name.lower(): value for name, value in self.core.headers(batch)}
        owner = headers.get("producer-session") or headers["producer-epoch"]
        if "producer-expires" in headers:
            owner += headers.get("producer-epoch", "")  # it may move to a higher epoch
        # A sequence of one epoch is never sent with two different payloads.
        assert self.seen.setdefault((owner, headers["producer-seq"]), batch.body) == batch.body
        self.sent.append(batch)
        self.line.append((headers, batch.body))
        return True

    def serve(self, answer: Answer | None = None, *, is_taken: bool = True) -> None:
        """Let the server read one request. `answer` replaces the response of the server."""
        if self.line:
            request = self.line.popleft()
            take = self.server.take
            own = None
            if is_taken:
                own = self.server.head() if request[0] is HEAD else take(*request)
            response = answer or own
            assert response is not None
            self.answers.append(response)

    def deliver(self) -> None:
        if self.answers:
            answer = self.answers.popleft()
            batch = self.sent.popleft()
            told = (answer.status, answer.headers, answer.body, self.now)
            if batch is None:
                self.core.on_check(*told)
            else:
                self.core.on_response(batch, *told)
            self.collect()

    def lose(self) -> None:
        """Break the connection. The server may still receive requests it has not read yet."""
        if appends := [request for request in self.line if request[0] is not HEAD]:
            self.ghosts.append(deque(appends))
        self.line, self.answers = deque(), deque()
        self.sent.clear()
        self.core.connection_lost(self.now, Unavailable("lost"))

    def haunt(self, which: int) -> None:
        """Let the server read a request of a closed connection."""
        if self.ghosts:
            ghost = self.ghosts[which % len(self.ghosts)]
            if ghost:
                self.server.take(*ghost.popleft())

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.core.tick(self.now)
        self.collect()

    def drain(self) -> None:
        """Run without further faults until no message is pending or the producer failed."""
        self.core.hurry()
        for _ in range(10_000):
            while self.send():
                pass
            while self.line:
                self.serve()
            while self.answers:
                self.deliver()
            is_done = self.core.acks.settled_count == self.core.appended_count
            if is_done or self.core.failure is not None:
                return
            self.now = max(self.now, self.core.wake_at() or self.now)
        raise AssertionError("the producer does not finish")

    def collect(self) -> None:
        for event in self.core.acks.take_events():
            self.events.append(event)
            if isinstance(event, BatchAck):
                self.acked.append(event)
            else:
                self.failed.append(event)


def make(server: ModelServer | None = None, **settings: Any) -> Network:
    if not {"epoch", "is_claiming", "session"} & set(settings):
        settings["session"] = "s-1"
    is_semel, known = settings.pop("is_semel", False), settings.pop("known", DedupKnowledge())
    settings = {"id": "p", "delivery_timeout": 1e9, **settings}
    core = ProducerCore(ProducerSettings(**settings), json_body, is_semel=is_semel, known=known)
    return Network(core, server or ModelServer())


def make_resumed(server: ModelServer | None = None, **settings: Any) -> Network:
    """Return a producer that has fetched its state from the server."""
    network = make(server, **settings)
    known = network.server.known
    epoch, last = (None, None) if known is None else (known.epoch, known.last)
    network.core.resume(epoch, last, None)
    return network


def make_claimed(server: ModelServer, session: str, **settings: Any) -> Network:
    """Return a producer that has claimed its id."""
    network = make(server, session=session, **settings)
    network.core.take_over(server.claim(session), None, None)
    return network
