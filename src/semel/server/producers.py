"""The endpoints below `/v1/producers`: register, claim, show, explain, retire and forget.

A response that shows state is sent only after that state has become durable (rule EO-4).
"""

from collections.abc import Callable
from functools import partial
from heapq import nsmallest
from typing import Final

from msgspec import UNSET, UnsetType
from msgspec.structs import asdict, replace

from semel.machine import State, Stream
from semel.machine.decide import dry_run
from semel.machine.producer_counts import Producers
from semel.machine.producers import Receipt, receipts_of, unpack_receipt
from semel.machine.rows import ProducerRow
from semel.machine.state import find_producer
from semel.machine.streams import find_any
from semel.machine.topic_receipts import unpack_parts
from semel.model.commands import Register
from semel.model.limits import TOMBSTONE_MS
from semel.model.offsets import print_offset
from semel.model.outcomes import Outcome
from semel.model.rights import PRODUCER, STREAM, WRITE, Caller
from semel.server.http import Request, Responder
from semel.server.resources import Resource, RouteHandlers, valid
from semel.wire import producers as calls
from semel.wire import responses, routes
from semel.wire.gate import ASSIGN_SUFFIX
from semel.wire.headers import print_instant
from semel.wire.producers import explain_outcome
from semel.wire.rendering import Response
from semel.wire.schema.producers import (
    ExplainResponse,
    ProducerDetails,
    ProducerEntry,
    ProducerReceipt,
    ProducersPage,
    RegisteredProducer,
)
from semel.wire.topics import topic_parts

_ID_BYTES: Final = 16

Page = ProducersPage[RegisteredProducer]
# Returns the owner of a producer in a stream or, without a stream, of its registration. UNSET means
# that a response does not show it.
OwnerOf = Callable[[str, Stream | None], str | UnsetType | None]


def _not_shown(_producer_id: str, _stream: Stream | None) -> UnsetType:
    return UNSET


class ProducersResource(Resource):
    """The handlers that register, claim, show, retire and forget producers, and explain appends."""

    def handlers(self) -> RouteHandlers:
        return {
            routes.PRODUCER_REGISTER: self._register,
            routes.PRODUCER_SHOW: self._show,
            routes.PRODUCER_FORGET: self._forget,
            routes.PRODUCER_CLAIM: self._claim,
            routes.PRODUCER_RETIRE: self._retire,
            routes.PRODUCER_EXPLAIN: self._explain,
        }

    def fresh_id(self) -> str:
        """Return a random producer id."""
        return f"p-{self.engine.clock.random_bytes(_ID_BYTES).hex()}"

    def _register(self, request: Request, responder: Responder, _name: str) -> None:
        command = calls.parse_register(request.headers, request.body, now_ms=self.now_ms)
        self.submit(command, responder, calls.register_response)

    def _claim(self, request: Request, responder: Responder, _name: str) -> None:
        command = valid(calls.parse_claim(request.headers, request.body, now_ms=self.now_ms))
        response_of = partial(
            calls.claim_response, path=command.path, is_topic=self.access.is_topic(command.path)
        )
        self.submit(command, responder, response_of)

    def _retire(self, request: Request, responder: Responder, _name: str) -> None:
        command = calls.parse_retire(request.headers, request.body, now_ms=self.now_ms)
        self.submit(command, responder, calls.retire_response)

    def asks_for_id(self, request: Request, path: str, caller: Caller | None) -> bool:
        """Return True if a POST to `path` asks for a producer id and is not an append.

        Such a request has no body and no header Stream-Closed. `path` is the path of a stream
        that is not deleted, plus the suffix `/producer`. There is no stream at `path` itself.
        """
        owner = path.removesuffix(ASSIGN_SUFFIX)
        if request.body or owner == path or "stream-closed" in request.headers:
            return False
        if caller is not None and not caller.may(STREAM, owner, WRITE):
            return False
        is_seen = self.access.may_see(caller, STREAM, path)
        if (is_seen and self.engine.has_stream(path)) or not self.engine.has_stream(owner):
            return False
        stream = self.engine.stream(owner)
        return stream is not None and not stream.tail.is_deleted

    def assign(self, responder: Responder) -> None:
        """Register a random producer id with epoch 1, for clients with `X-Producer-*` headers."""
        command = Register(self.now_ms, self.fresh_id(), calls.FIRST_EPOCH_X)
        self.submit(command, responder, calls.assigned_response)

    def _forget(self, request: Request, responder: Responder, _name: str) -> None:
        command = calls.parse_forget(request.query, now_ms=self.now_ms)
        self.submit(command, responder, responses.outcome_response)

    # ---- show, explain ---------------------------------------------------------------------------

    def _show(self, request: Request, responder: Responder, _name: str) -> None:
        query = valid(calls.parse_producer_query(request.query))
        if query.stream is None and not self.access.may_see(
            responder.caller, PRODUCER, query.id or ""
        ):
            responder.send(_page_response(ProducersPage([])))
            return
        question = partial(
            producers_page,
            query=query,
            stays=self.engine.settings.tombstone_ms,
            owner_of=partial(self.access.shown_owner, responder.caller, PRODUCER),
        )
        self.ask(question, responder, _page_response, query.stream or "")

    def _explain(self, request: Request, responder: Responder, _name: str) -> None:
        query = valid(calls.parse_explain_query(request.query))
        question = partial(
            explain_append, query=query, now_ms=self.now_ms, stays=self.engine.settings.tombstone_ms
        )
        self.ask(question, responder, _page_response, query.stream)


def _page_response(page: Page | ExplainResponse | Outcome) -> Response:
    if isinstance(page, Outcome):
        return responses.outcome_response(page)
    return responses.json_response(200, page)


# ---- documents of the state ----------------------------------------------------------------------


def producers_page(
    state: State, query: calls.ProducerQuery, stays: int, owner_of: OwnerOf = _not_shown
) -> Page | Outcome:
    """Return a page with the producers that `query` selects.

    `stays` is how long the tombstone of an idle producer stays at least, in milliseconds.
    `owner_of` returns the owner of an id in a stream, or of its registration if the stream is None.

    If `query` names no stream, the page contains only the registration of `query.id`. If `query`
    names a stream that does not exist, return a refusal.
    """
    if query.stream is None:
        return ProducersPage(_registered(state, query.id or "", owner_of))
    stream = find_any(state, query.stream)
    if not isinstance(stream, Stream):
        return stream
    rows = stream.producers or Producers()
    if query.id is not None:
        row = rows.get(query.id)
        if row is None:
            return ProducersPage([])
        shown = _state_of(state, stream, query.id, row, stays)
        return ProducersPage([replace(shown, owner=owner_of(query.id, stream))])
    page = nsmallest(query.limit + 1, (name for name in rows if name > query.after))
    entries: list[RegisteredProducer] = [
        replace(_entry_of(state, stream, name, rows[name], stays), owner=owner_of(name, stream))
        for name in page[: query.limit]
    ]
    return ProducersPage(entries, page[query.limit - 1] if len(page) > query.limit else None)


def _registered(state: State, producer_id: str, owner_of: OwnerOf) -> list[RegisteredProducer]:
    row = state.registry.get(producer_id)
    if row is None:
        return []
    owner = owner_of(producer_id, None)
    return [
        RegisteredProducer(
            None, producer_id, None, row.epoch, registered_epoch=row.epoch, owner=owner
        )
    ]


def _entry_of(
    state: State, stream: Stream, producer_id: str, row: ProducerRow, stays: int
) -> ProducerEntry:
    last = None if row.is_expired else _last_receipt_of(row)
    is_topic = stream.topic is not None  # then the receipt has a number that is no offset
    stays = TOMBSTONE_MS if row.is_brief else stays
    registered = state.registry.get(producer_id)
    return ProducerEntry(
        stream=stream.row.path,
        producer_id=producer_id,
        mode=row.mode,
        epoch=row.epoch,
        last_seq=row.last_seq if row.last_seq >= 0 else None,
        last_offset=None if last is None or is_topic else print_offset(last.next_offset),
        cursor=None if row.cursor is None else row.cursor.decode("utf-8", "replace"),
        updated_at=print_instant(row.updated_ms),
        registered_epoch=None if registered is None else registered.epoch,
        session=row.session,
        expired=row.is_expired,
        state=_life_of(row),
        expires=row.expires_ms // 1000 or None,
        ended_at=print_instant(row.ended_ms) if row.ended_ms else None,
        until=print_instant(row.ended_ms + stays) if row.ended_ms else None,
    )


def _life_of(row: ProducerRow) -> str:
    if row.is_expired:
        return "retired" if row.is_brief else "expired"
    return "expiring" if row.expires_ms else "live"


def _state_of(
    state: State, stream: Stream, producer_id: str, row: ProducerRow, stays: int
) -> ProducerDetails:
    shown = _topic_receipt if stream.topic is not None else _stream_receipt
    retained = [shown(stream, row, receipt) for receipt in _receipts_of(row)]
    return ProducerDetails(
        **asdict(_entry_of(state, stream, producer_id, row, stays)), receipts=retained
    )


def _stream_receipt(_stream: Stream, _row: ProducerRow, receipt: Receipt) -> ProducerReceipt:
    return ProducerReceipt(
        receipt.first_seq,
        receipt.last_seq,
        print_offset(receipt.first_offset),
        print_offset(receipt.next_offset),
        f"{receipt.digest:016x}",
    )


def _topic_receipt(topic: Stream, row: ProducerRow, receipt: Receipt) -> ProducerReceipt:
    packed = (row.parts or {}).get(receipt.next_offset)
    parts = None if packed is None else topic_parts(topic.row.path, unpack_parts(packed))
    digest = f"{receipt.digest:016x}"
    return ProducerReceipt(receipt.first_seq, receipt.last_seq, None, None, digest, parts)


def _last_receipt_of(row: ProducerRow) -> Receipt | None:
    """Return the last of the `_receipts_of` a producer. The others are not unpacked."""
    count = receipts_of(row.receipts)
    if count:
        return unpack_receipt(row.receipts, count - 1)
    return unpack_receipt(row.first_receipt, 0) if row.last_seq >= 0 and row.first_receipt else None


def _receipts_of(row: ProducerRow) -> list[Receipt]:
    retained = [unpack_receipt(row.receipts, index) for index in range(receipts_of(row.receipts))]
    if row.last_seq >= 0 and row.first_receipt and not (retained and retained[0].first_seq == 0):
        retained.insert(0, unpack_receipt(row.first_receipt, 0))
    return retained


def explain_append(
    state: State, query: calls.ExplainQuery, now_ms: int, stays: int
) -> ExplainResponse | Outcome:
    """Return the outcome that an append would have, and explain it. Nothing is appended.

    If the stream does not exist, return a refusal.
    """
    tag = query.tag
    run = dry_run(state, query.stream, tag, now_ms=now_ms)
    stream = find_any(state, query.stream)
    if not isinstance(stream, Stream):
        return stream
    row = find_producer(stream, tag.id)
    explain = partial(
        explain_outcome,
        tag=tag,
        epoch=None if row is None else row.epoch,
        last_seq=None if row is None else row.last_seq,
        is_topic=stream.topic is not None,
    )
    explanation = explain(run.outcome)
    return ExplainResponse(
        stream=query.stream,
        producer_id=tag.id,
        mode=tag.mode,
        epoch=tag.epoch,
        session=tag.session,
        first_seq=tag.first_seq,
        last_seq=tag.last_seq,
        **asdict(explanation),
        other_payload=None if run.other is None else explain(run.other),
        known=None if row is None else _entry_of(state, stream, tag.id, row, stays),
    )
