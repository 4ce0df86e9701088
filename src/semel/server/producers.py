"""`/v1/producers`: identities given out, claims, what streams remember, what would happen, resets.

Whatever these calls tell about the state waits until that state is durable (EO-4).
"""

from collections.abc import Callable
from functools import partial
from heapq import nsmallest
from typing import Final

from semel.broker.engine import Engine
from semel.machine import State, Stream, receipts
from semel.machine.decide import dry_run
from semel.machine.receipts import Receipt
from semel.machine.rows import ProducerRow
from semel.machine.streams import find_stream
from semel.model.commands import ClaimProducer, ForgetProducer, Register
from semel.model.offsets import print_offset
from semel.model.outcomes import Outcome
from semel.server.admission import send_response
from semel.server.http import Request, Responder
from semel.wire import producer_calls as calls
from semel.wire import responses
from semel.wire.headers import print_instant
from semel.wire.problems import Problem
from semel.wire.producer_calls import explain_outcome
from semel.wire.rendering import Response

PRODUCERS: Final = "/v1/producers"
CLAIM: Final = "/v1/producers/claim"
EXPLAIN: Final = "/v1/producers/explain"
ASSIGN_SUFFIX: Final = "/producer"
_ID_BYTES: Final = 16

Description = dict[str, object]
Found = Description | Outcome


class ProducersResource:
    """Answers the calls about producers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._methods: dict[tuple[str, str], Callable[[Request, Responder], None]] = {
            (PRODUCERS, "POST"): self._register,
            (PRODUCERS, "GET"): self._look,
            (PRODUCERS, "HEAD"): self._look,
            (PRODUCERS, "DELETE"): self._forget,
            (CLAIM, "POST"): self._claim,
            (EXPLAIN, "GET"): self._explain,
            (EXPLAIN, "HEAD"): self._explain,
        }

    def handle(self, request: Request, responder: Responder) -> None:
        """Answer a request to one of the three addresses."""
        method = self._methods.get((request.path, request.method))
        if method is not None:
            method(request, responder)
            return
        allowed = [method for path, method in self._methods if path == request.path]
        send_response(responder, responses.method_response(", ".join([*allowed, "OPTIONS"])))

    def fresh_id(self) -> str:
        """Make a name nobody has."""
        return f"p-{self._engine.clock.random_bytes(_ID_BYTES).hex()}"

    # ---- register, claim, reset ------------------------------------------------------------------

    def _register(self, request: Request, responder: Responder) -> None:
        now_ms = self._engine.clock.now_ms()
        command = calls.parse_register(request.headers, request.body, now_ms=now_ms)
        self._submit(command, responder, calls.register_response)

    def _claim(self, request: Request, responder: Responder) -> None:
        now_ms = self._engine.clock.now_ms()
        command = calls.parse_claim(request.headers, request.body, now_ms=now_ms)
        path = "" if isinstance(command, Problem) else command.path
        self._submit(command, responder, partial(calls.claim_response, path=path))

    def asks_for_id(self, request: Request, path: str) -> bool:
        """Tell whether a POST to a stream's path is not an append but asks for an identity.

        It ends in `/producer` and brings nothing, no stream has this path, and one has the path
        before it.
        """
        owner = path.removesuffix(ASSIGN_SUFFIX)
        if request.body or owner == path or "stream-closed" in request.headers:
            return False
        if self._engine.has_stream(path) or not self._engine.has_stream(owner):
            return False
        stream = self._engine.stream(owner)
        return stream is not None and not stream.tail.is_deleted

    def assign(self, responder: Responder) -> None:
        """Give out an identity as the older dialect wants it: with epoch 1, good on any stream."""
        now_ms = self._engine.clock.now_ms()
        command = Register(now_ms, self.fresh_id(), calls.FIRST_EPOCH_X)
        self._submit(command, responder, calls.assigned_response)

    def _forget(self, request: Request, responder: Responder) -> None:
        now_ms = self._engine.clock.now_ms()
        command = calls.parse_forget(request.query, now_ms=now_ms)
        self._submit(command, responder, responses.outcome_response)

    def _submit(
        self,
        command: Register | ClaimProducer | ForgetProducer | Problem,
        responder: Responder,
        answer: Callable[[Outcome], Response],
    ) -> None:
        if isinstance(command, Problem):
            send_response(responder, responses.problem_response(command))
        else:
            self._engine.submit(command, lambda outcome: send_response(responder, answer(outcome)))

    # ---- look, ask -------------------------------------------------------------------------------

    def _look(self, request: Request, responder: Responder) -> None:
        look = calls.parse_producer_query(request.query)
        if isinstance(look, Problem):
            send_response(responder, responses.problem_response(look))
            return
        reply = partial(_send_found, responder)
        self._engine.ask(partial(producer_document, look=look), reply, path=look.stream or "")

    def _explain(self, request: Request, responder: Responder) -> None:
        question = calls.parse_explain_query(request.query)
        if isinstance(question, Problem):
            send_response(responder, responses.problem_response(question))
            return
        ask = partial(explain_answer, question=question, now_ms=self._engine.clock.now_ms())
        self._engine.ask(ask, partial(_send_found, responder), path=question.stream)


def _send_found(responder: Responder, found: Found) -> None:
    if isinstance(found, Outcome):
        send_response(responder, responses.outcome_response(found))
    else:
        send_response(responder, responses.json_response(200, found))


# ---- what the state says -------------------------------------------------------------------------


def producer_document(state: State, look: calls.ProducerQuery) -> Found:
    """List a stream's producers, one of them, or what is registered of an id."""
    if look.stream is None:
        return {"producers": _registered(state, look.id or ""), "next": None}
    stream = find_stream(state, look.stream)
    if not isinstance(stream, Stream):
        return stream
    known = stream.producers or {}
    if look.id is not None:
        row = known.get(look.id)
        shown = [] if row is None else [describe(state, stream, look.id, row, is_full=True)]
        return {"producers": shown, "next": None}
    page = nsmallest(look.limit + 1, (name for name in known if name > look.after))
    shown = [describe(state, stream, name, known[name]) for name in page[: look.limit]]
    return {"producers": shown, "next": page[look.limit - 1] if len(page) > look.limit else None}


def _registered(state: State, producer_id: str) -> list[Description]:
    row = state.registry.get(producer_id)
    if row is None:
        return []
    return [
        {
            "stream": None,
            "producer_id": producer_id,
            "mode": None,
            "epoch": row.epoch,
            "last_seq": None,
            "last_offset": None,
            "cursor": None,
            "updated_at": None,
            "registered_epoch": row.epoch,
        }
    ]


def describe(
    state: State, stream: Stream, producer_id: str, row: ProducerRow, *, is_full: bool = False
) -> Description:
    """Describe a producer of a stream; in full with what was answered to its last appends."""
    held = _receipts_of(row)
    registered = state.registry.get(producer_id)
    shown: Description = {
        "stream": stream.row.path,
        "producer_id": producer_id,
        "mode": row.mode,
        "epoch": row.epoch,
        "last_seq": row.last_seq if row.last_seq >= 0 else None,
        "last_offset": print_offset(held[-1].next_offset) if held and not row.is_expired else None,
        "cursor": None if row.cursor is None else row.cursor.decode("utf-8", "replace"),
        "updated_at": print_instant(row.updated_ms),
        "registered_epoch": None if registered is None else registered.epoch,
        "session": row.session,
        "expired": row.is_expired,
    }
    if is_full:
        shown["receipts"] = [_describe_receipt(receipt) for receipt in held]
    return shown


def _receipts_of(row: ProducerRow) -> list[Receipt]:
    held = [
        receipts.unpack(row.receipts, index) for index in range(receipts.receipts_of(row.receipts))
    ]
    if row.last_seq >= 0 and row.first_receipt and not (held and held[0].first_seq == 0):
        held.insert(0, receipts.unpack(row.first_receipt, 0))
    return held


def _describe_receipt(receipt: Receipt) -> Description:
    return {
        "first_seq": receipt.first_seq,
        "last_seq": receipt.last_seq,
        "first_offset": print_offset(receipt.first_offset),
        "next_offset": print_offset(receipt.next_offset),
        "digest": f"{receipt.digest:016x}",
    }


def explain_answer(state: State, question: calls.ExplainQuery, now_ms: int) -> Found:
    """Tell what an append would be answered, and why."""
    tag = question.tag
    run = dry_run(state, question.stream, tag, now_ms=now_ms)
    stream = find_stream(state, question.stream)
    if not isinstance(stream, Stream):
        return stream
    row = (stream.producers or {}).get(tag.id)
    tell = partial(
        explain_outcome,
        tag=tag,
        epoch=None if row is None else row.epoch,
        last_seq=None if row is None else row.last_seq,
    )
    return {
        "stream": question.stream,
        "producer_id": tag.id,
        "mode": tag.mode,
        "epoch": tag.epoch,
        "session": tag.session,
        "first_seq": tag.first_seq,
        "last_seq": tag.last_seq,
        **tell(run.outcome),
        "other_payload": None if run.other is None else tell(run.other),
        "known": None if row is None else describe(state, stream, tag.id, row),
    }
