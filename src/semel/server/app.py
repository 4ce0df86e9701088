"""The handlers for all HTTP addresses. `App` finds the handler for a request.

A handler parses the request with `semel.wire`, submits a command to the engine or reads from it,
and encodes the response with `semel.wire`.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Final

from semel.broker.broker import TAIL, ReadDone, Reply
from semel.broker.durable_view import DurableView, StreamView
from semel.broker.engine import Engine
from semel.broker.figures import figure_steps
from semel.broker.gap_hold import GapHold
from semel.machine.policies import Policies, dedup_source
from semel.model.commands import Append
from semel.model.offsets import print_offset
from semel.model.outcomes import Appended, Outcome
from semel.model.steps import STEP_BYTES
from semel.server.admission import AdmittedRead, ReadAdmission, send_response, send_view
from semel.server.event_stream import EventStream, FanoutGroups
from semel.server.http import Request, Responder
from semel.server.live import Live, LongPoll, blocker_of, facts_of, refuse_other
from semel.server.metrics import APPENDED, OutcomeCounts, render_metrics
from semel.server.producers import ASSIGN_SUFFIX, ProducersResource
from semel.server.resources import (
    CommitsResource,
    GroupsResource,
    PoliciesResource,
    Resource,
    Route,
    Routes,
    SinksResource,
    TransactionsResource,
    in_steps,
    reads,
    valid,
)
from semel.server.unread_budget import UnreadBudget
from semel.wire import paths, requests, responses
from semel.wire.json_mode import prepare_limits
from semel.wire.paths import (
    COMMITS,
    GROUPS,
    HEALTH,
    METRICS,
    POLICIES,
    SINKS,
    STREAM_PREFIX,
    STREAMS,
    TRANSACTIONS,
    parse_query,
    read_limit,
)
from semel.wire.policies import print_switch
from semel.wire.problems import MalformedRequest, Problem
from semel.wire.rendering import Response
from semel.wire.requests import CATCH_UP, LONG_POLL, AppendPlan, ReadRequest
from semel.wire.schema import Health, StreamEntry, StreamsPage

_INCARNATION_BYTES: Final = 8


class App:
    """Handles all requests to one engine. Methods must be called on the event loop's thread."""

    def __init__(
        self,
        engine: Engine,
        *,
        long_poll_seconds: float,
        sse_seconds: float,
        origin: str = "http://localhost",
        is_strict: bool = False,
        gap_hold_ms: int = 0,
        unread: UnreadBudget | None = None,
    ) -> None:
        self._engine = engine
        self._is_strict = is_strict
        self._producers = ProducersResource(engine)
        self._gaps: GapHold | None = None
        self._append: Callable[[Append, Reply], None] = engine.submit
        if gap_hold_ms:
            call_later = asyncio.get_running_loop().call_later
            self._gaps = GapHold(engine.submit, call_later, seconds=gap_hold_ms / 1000)
            self._append = self._gaps.submit
        self._origin = origin  # for requests without a Host header
        self._scheme = origin.partition(":")[0]
        self._tally = OutcomeCounts()
        self._streams = Resource(engine, self._tally)
        self._reads = ReadAdmission(engine, unread or UnreadBudget())
        self._live = Live(
            engine, self._reads, long_poll_seconds=long_poll_seconds, sse_seconds=sse_seconds
        )
        self._groups: FanoutGroups = {}
        # The handlers of the address of a stream, keyed by HTTP method.
        self._stream: dict[str, Route] = {
            "GET": self._get,
            "POST": self._post,
            "PUT": self._put,
            "PATCH": self._patch,
            "DELETE": self._delete,
            "HEAD": self._head,
        }
        self._pages: dict[str, Mapping[str, Route]] = {
            HEALTH: reads(self._health),
            METRICS: reads(self._metrics),
            STREAMS: reads(self._list),
            POLICIES: PoliciesResource(engine, self._tally).methods(),
            COMMITS: {"POST": CommitsResource(engine, self._tally).commit},
            **self._producers.pages(),
        }
        prepare_limits()
        # Keyed by the first two segments of the address.
        self._resources: dict[str, Routes] = {
            TRANSACTIONS: TransactionsResource(engine, self._tally).routes(),
            GROUPS: GroupsResource(engine, self._tally).routes(),
            SINKS: SinksResource(engine, self._tally).routes(),
        }

    def handle(self, request: Request, responder: Responder) -> None:
        """Handle one request. The response is sent now, or later when the outcome is durable."""
        plan = request.head.plan
        try:
            if plan is not None:  # so it is not refused: `_post` has set the plan
                self._submit_append(plan, request, responder)
            elif request.head.refusal is not None:
                send_response(responder, responses.problem_response(request.head.refusal))
            elif request.method == "OPTIONS":
                send_response(responder, responses.options_response())
            else:
                self._route(request, responder)
        except MalformedRequest as refusal:
            send_response(responder, responses.problem_response(refusal.problem))

    def _route(self, request: Request, responder: Responder) -> None:
        methods, names = self._find(request.path)
        route = methods.get(request.method)
        if route is not None:
            route(request, responder, *names)
        else:
            send_response(responder, responses.method_response(", ".join([*methods, "OPTIONS"])))

    def _find(self, path: str) -> tuple[Mapping[str, Route], tuple[str, ...]]:
        """Return the handlers for `path`, keyed by method, and the name in `path`.

        The name is a stream or an id, in a tuple. If `path` contains no name, the tuple is empty.
        Raises MalformedRequest if the address is unknown, or if the name is not valid.
        """
        if path.startswith(STREAM_PREFIX):
            return self._stream, (valid(paths.stream_path(path)),)
        parts = path.split("/", 3)
        prefix = "/".join(parts[:3])
        page = self._pages.get(path)
        if page is not None:
            return page, ()
        if prefix == COMMITS:
            raise _no_such_address("nothing is served at this address")
        if prefix not in self._resources:
            raise _no_such_address(f"streams are below {STREAM_PREFIX}")
        names = valid(paths.names_in(parts[3])) if len(parts) > 3 else ()
        methods = self._resources[prefix].get(("*", *names[1:]) if names else ())
        if methods is None:
            raise _no_such_address("nothing is served at this address")
        return methods, names[:1]

    def drain(self) -> None:
        """End all live reads. Submit the held appends, although earlier appends are missing."""
        self._live.drain()
        if self._gaps is not None:
            self._gaps.drain()

    # ---- writes ----------------------------------------------------------------------------------

    def _put(self, request: Request, responder: Responder, path: str) -> None:
        responder.run(in_steps(self._create(request, responder, path), responder))

    def _create(self, request: Request, responder: Responder, path: str) -> Iterator[None]:
        clock = self._engine.clock
        command = yield from requests.parse_put(
            path,
            request.headers,
            request.repeated,
            request.body,
            now_ms=clock.now_ms(),
            incarnation=clock.random_bytes(_INCARNATION_BYTES).hex(),
            source_type=self._streams.type_of,
        )
        origin = paths.origin_of(request.headers.get("host"), self._scheme)
        location = paths.stream_url(origin or self._origin, path)
        self._streams.submit(command, responder, partial(responses.put_response, location=location))

    def _post(self, request: Request, responder: Responder, path: str) -> None:
        is_assignable = path.endswith(ASSIGN_SUFFIX)
        if is_assignable and self._producers.asks_for_id(request, path):
            self._producers.assign(responder)
            return
        plan = valid(
            requests.plan_post(
                path,
                request.headers,
                request.repeated,
                fresh_id=self._producers.fresh_id,
                is_strict=self._is_strict,
            )
        )
        if plan.is_named and not is_assignable:  # this plan fits every request with this head
            request.head.plan = plan
        self._submit_append(plan, request, responder)

    def _submit_append(self, plan: AppendPlan, request: Request, responder: Responder) -> None:
        if len(request.body) > STEP_BYTES and not plan.is_opaque:
            responder.run(in_steps(self._append_in_steps(plan, request, responder), responder))
            return
        now_ms = self._engine.clock.now_ms()
        command = requests.append_of(plan, request.body, now_ms=now_ms, seq=request.seq)
        if isinstance(command, Problem):
            raise MalformedRequest(command)
        self._append_command(plan, command, responder)

    def _append_in_steps(
        self, plan: AppendPlan, request: Request, responder: Responder
    ) -> Iterator[None]:
        now_ms = self._engine.clock.now_ms()
        command = yield from requests.append_steps(
            plan, request.body, now_ms=now_ms, seq=request.seq
        )
        self._append_command(plan, command, responder)

    def _append_command(self, plan: AppendPlan, command: Append, responder: Responder) -> None:
        tally = self._tally

        def reply(outcome: Outcome) -> None:  # a closure is faster than an object for each append
            if plan.is_common and type(outcome) is Appended and not outcome.is_unguarded:
                tally.outcomes[APPENDED] += 1
                status, lines = responses.append_response_lines(outcome)
                responder.send_lines(status, lines)
                return
            tally.note(outcome)
            is_x, is_named = plan.is_x, plan.is_named
            send_response(
                responder, responses.post_response(outcome, command, is_x=is_x, is_named=is_named)
            )

        self._append(command, reply)

    def _patch(self, request: Request, responder: Responder, path: str) -> None:
        command = requests.parse_patch(
            path, request.headers, request.repeated, now_ms=self._streams.now_ms
        )
        self._streams.submit(command, responder, responses.patch_response)

    def _delete(self, request: Request, responder: Responder, path: str) -> None:
        command = requests.parse_delete(path, request.query, now_ms=self._streams.now_ms)
        self._streams.submit(command, responder, responses.outcome_response)

    # ---- reads -----------------------------------------------------------------------------------

    def _head(self, _request: Request, responder: Responder, path: str) -> None:
        self._engine.head(path, partial(self._send_head, responder))

    def _send_head(self, responder: Responder, outcome: Outcome) -> None:
        if isinstance(outcome, ReadDone):
            row, policies = outcome.row, self._engine.durable_view.policies
            source = dedup_source(policies, row.path, outcome.tail)
            facts = facts_of(outcome, generation=self._engine.generation, source=source)
            send_response(responder, responses.head_response(facts))
        else:
            send_response(responder, responses.outcome_response(outcome))

    def _get(self, request: Request, responder: Responder, path: str) -> None:
        read = valid(requests.parse_get(request.query, request.headers))
        if read.live == CATCH_UP:
            offset = TAIL if read.is_now else read.offset
            reply = partial(self._send_messages, read, responder)
            self._reads.begin(
                AdmittedRead(path, offset, reply, responder, isolation=read.isolation)
            )
        elif read.live == LONG_POLL:
            LongPoll(self._live, path, read, responder).start()
        else:
            EventStream(self._live, self._groups, path, read, responder).start()

    def _send_messages(self, read: ReadRequest, responder: Responder, outcome: Outcome) -> None:
        outcome = refuse_other(outcome, read, self._engine.generation)
        if not isinstance(outcome, ReadDone):
            send_response(responder, responses.outcome_response(outcome))
            return
        slices = outcome.slices
        blocker = blocker_of(self._engine, outcome, read.isolation)
        response = responses.read_response(
            facts_of(outcome, generation=self._engine.generation, blocker=blocker),
            read,
            slices,
            start=slices[0].offset if slices else outcome.next_offset,
            next_offset=outcome.next_offset,
        )
        send_response(responder, response, self._reads.unread)

    # ---- pages -----------------------------------------------------------------------------------

    def _health(self, _request: Request, responder: Responder) -> None:
        status = "full" if self._engine.is_full else "ok"
        health = Health(status, self._engine.durable, self._engine.generation)
        send_response(responder, responses.json_response(200, health))

    def _metrics(self, _request: Request, responder: Responder) -> None:
        responder.run(self._send_metrics(responder))

    def _send_metrics(self, responder: Responder) -> Iterator[None]:
        text = render_metrics(
            (yield from figure_steps(self._engine)),
            self._tally,
            live_readers=len(self._live.readers),
            gaps_held=0 if self._gaps is None else self._gaps.count,
            unread=self._reads.unread,
        )
        headers = [("Content-Type", "text/plain; version=0.0.4"), ("Cache-Control", "no-store")]
        send_view(responder, Response(200, headers, text.encode()))

    def _list(self, request: Request, responder: Responder) -> None:
        engine = self._engine
        page = streams_page(engine.durable_view, request.query, generation=engine.generation)
        send_view(responder, responses.json_response(200, page))


def _no_such_address(message: str) -> MalformedRequest:
    return MalformedRequest(Problem(404, "no_such_address", message))


# ---- the list of streams -------------------------------------------------------------------------
# `GET /v1/streams` lists the durable streams, sorted by path. Each request returns one page.


_PARAMETERS: Final = frozenset({"prefix", "after", "limit"})


def streams_page(view: DurableView, query: str, *, generation: int) -> StreamsPage:
    """Return a page of streams, sorted by path. Raises MalformedRequest if `query` is invalid."""
    parameters = parse_query(query, _PARAMETERS) if query else {}
    limit = read_limit(parameters.get("limit"))
    prefix, after = parameters.get("prefix", ""), parameters.get("after", "")
    page = list(islice(view.paths.after(after, prefix), limit + 1))
    return StreamsPage(
        [_entry_of(path, view.by_path[path], view.policies) for path in page[:limit]],
        generation,
        page[limit - 1] if len(page) > limit else None,
    )


def _entry_of(path: str, view: StreamView, policies: Policies) -> StreamEntry:
    row, tail = view.row, view.durable_tail
    source = dedup_source(policies, path, tail)
    return StreamEntry(
        path=path,
        content_type=row.content_type,
        incarnation=row.incarnation,
        first_offset=print_offset(tail.head),
        next_offset=print_offset(tail.tail),
        closed=tail.is_closed,
        created_at_ms=row.created_ms,
        written_at_ms=tail.written_ms,
        dedup=print_switch(tail.dedup_from is not None),
        dedup_source=source.name,
        dedup_policy=source.prefix,
        dedup_pending=None if source.pending is None else print_switch(source.pending),
    )
