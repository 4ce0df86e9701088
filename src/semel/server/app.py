"""The routes: `wire` parses a request, the engine runs it, `wire` encodes the response."""

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Final

from semel.broker.broker import TAIL, ReadDone, Reply
from semel.broker.durable_view import DurableView, StreamView
from semel.broker.engine import Engine
from semel.broker.figures import engine_figures
from semel.broker.gap_hold import GapHold
from semel.model.commands import Append
from semel.model.offsets import print_offset
from semel.model.outcomes import Appended, Outcome
from semel.server.admission import AdmittedRead, ReadAdmission, UnreadBudget, send_response
from semel.server.event_stream import EventStream
from semel.server.fanout import FanoutGroups
from semel.server.http import Request, Responder
from semel.server.live import Live, LongPoll, blocker_of, facts_of
from semel.server.metrics import OutcomeCounts, render_metrics
from semel.server.producers import ASSIGN_SUFFIX, ProducersResource
from semel.server.transactions import (
    CommitsResource,
    GroupsResource,
    Resource,
    SinksResource,
    TransactionsResource,
)
from semel.wire import paths, requests, responses
from semel.wire.paths import (
    CLAIM,
    COMMITS,
    EXPLAIN,
    GROUPS,
    HEALTH,
    METRICS,
    PRODUCERS,
    SINKS,
    STREAM_PREFIX,
    STREAMS,
    TRANSACTIONS,
    parse_query,
    read_limit,
)
from semel.wire.problems import Problem, parser
from semel.wire.rendering import Response as WireResponse
from semel.wire.requests import CATCH_UP, LONG_POLL, AppendPlan, ReadRequest
from semel.wire.schema import Health, StreamEntry, StreamsPage

_INCARNATION_BYTES: Final = 8


class App:
    """Handles the requests for one engine. All methods must be called on the loop's thread."""

    def __init__(
        self,
        engine: Engine,
        *,
        long_poll_seconds: float,
        sse_seconds: float,
        origin: str = "http://localhost",
        dedup: bool = True,
        is_strict: bool = False,
        gap_hold_ms: int = 0,
        unread: UnreadBudget | None = None,
    ) -> None:
        self._engine = engine
        self._dedup = dedup
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
        self._methods: dict[str, Callable[[Request, Responder, str], None]] = {
            "PUT": self._put,
            "POST": self._post,
            "PATCH": self._patch,
            "GET": self._get,
            "HEAD": self._head,
            "DELETE": self._delete,
        }
        self._pages: dict[str, Callable[[Request], WireResponse]] = {
            HEALTH: self._health,
            METRICS: self._metrics,
            STREAMS: self._list,
        }
        # By the first two segments of their paths.
        self._resources: dict[str, Callable[[Request, Responder], None]] = {
            TRANSACTIONS: TransactionsResource(engine, self._tally).handle,
            COMMITS: CommitsResource(engine, self._tally).handle,
            GROUPS: GroupsResource(engine, self._tally).handle,
            SINKS: SinksResource(engine, self._tally).handle,
        }

    def handle(self, request: Request, responder: Responder) -> None:
        """Respond to one request, now or when its outcome is durable."""
        plan = request.head.plan
        if plan is not None:
            self._submit_append(plan, request, responder)
        elif request.method == "OPTIONS":
            send_response(responder, responses.options_response())
        elif request.path.startswith(STREAM_PREFIX):
            self._handle_stream(request, responder)
        elif request.path in self._pages:
            self._handle_page(request, responder)
        elif request.path in (PRODUCERS, CLAIM, EXPLAIN):
            self._producers.handle(request, responder)
        elif handle := self._resources.get("/".join(request.path.split("/", 3)[:3])):
            handle(request, responder)
        else:
            problem = Problem(404, "no_such_address", f"streams are below {STREAM_PREFIX}")
            send_response(responder, responses.problem_response(problem))

    def drain(self) -> None:
        """End all live reads, and submit the appends that wait for their predecessors."""
        self._live.drain()
        if self._gaps is not None:
            self._gaps.drain()

    def _handle_stream(self, request: Request, responder: Responder) -> None:
        path = paths.stream_path(request.path)
        method = self._methods.get(request.method)
        if isinstance(path, Problem):
            send_response(responder, responses.problem_response(path))
        elif method is None:
            send_response(responder, responses.method_response())
        else:
            method(request, responder, path)

    def _handle_page(self, request: Request, responder: Responder) -> None:
        if request.method in {"GET", "HEAD"}:
            send_response(responder, self._pages[request.path](request))
        else:
            send_response(responder, responses.method_response("GET, HEAD, OPTIONS"))

    # ---- writes ----------------------------------------------------------------------------------

    def _put(self, request: Request, responder: Responder, path: str) -> None:
        clock = self._engine.clock
        command = requests.parse_put(
            path,
            request.headers,
            request.repeated,
            request.body,
            now_ms=clock.now_ms(),
            incarnation=clock.random_bytes(_INCARNATION_BYTES).hex(),
            source_type=self._source_type,
            dedup_default=self._dedup,
        )
        origin = paths.origin_of(request.headers.get("host"), self._scheme)
        location = paths.stream_url(origin or self._origin, path)
        self._streams.submit(command, responder, partial(responses.put_response, location=location))

    def _source_type(self, path: str) -> str | None:
        stream = self._engine.stream(path)
        return None if stream is None else stream.row.content_type

    def _post(self, request: Request, responder: Responder, path: str) -> None:
        is_assignable = path.endswith(ASSIGN_SUFFIX)
        if is_assignable and self._producers.asks_for_id(request, path):
            self._producers.assign(responder)
            return
        plan = requests.plan_post(
            path,
            request.headers,
            request.repeated,
            fresh_id=self._producers.fresh_id,
            is_strict=self._is_strict,
        )
        if isinstance(plan, Problem):
            send_response(responder, responses.problem_response(plan))
            return
        if plan.is_named and not is_assignable:  # the same for every request with this head
            request.head.plan = plan
        self._submit_append(plan, request, responder)

    def _submit_append(self, plan: AppendPlan, request: Request, responder: Responder) -> None:
        now_ms = self._engine.clock.now_ms()
        command = requests.append_of(plan, request.body, now_ms=now_ms, seq=request.seq)
        if isinstance(command, Problem):
            send_response(responder, responses.problem_response(command))
            return
        note = self._tally.note

        def reply(outcome: Outcome) -> None:  # a closure is cheaper than an object per append
            note(outcome)
            if plan.is_common and type(outcome) is Appended and not outcome.is_unguarded:
                responder.send_lines(*responses.append_response_lines(outcome))
                return
            is_x, is_named = plan.is_x, plan.is_named
            send_response(
                responder, responses.post_response(outcome, command, is_x=is_x, is_named=is_named)
            )

        self._append(command, reply)

    def _patch(self, request: Request, responder: Responder, path: str) -> None:
        now_ms = self._engine.clock.now_ms()
        command = requests.parse_patch(path, request.headers, request.repeated, now_ms=now_ms)
        self._streams.submit(command, responder, responses.patch_response)

    def _delete(self, request: Request, responder: Responder, path: str) -> None:
        now_ms = self._engine.clock.now_ms()
        command = requests.parse_delete(path, request.query, now_ms=now_ms)
        self._streams.submit(command, responder, responses.outcome_response)

    # ---- reads -----------------------------------------------------------------------------------

    def _head(self, _request: Request, responder: Responder, path: str) -> None:
        self._engine.head(path, partial(self._send_head, responder))

    def _send_head(self, responder: Responder, outcome: Outcome) -> None:
        if isinstance(outcome, ReadDone):
            send_response(responder, responses.head_response(facts_of(outcome)))
        else:
            send_response(responder, responses.outcome_response(outcome))

    def _get(self, request: Request, responder: Responder, path: str) -> None:
        read = requests.parse_get(request.query, request.headers)
        if isinstance(read, Problem):
            send_response(responder, responses.problem_response(read))
        elif read.live == CATCH_UP:
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
        if not isinstance(outcome, ReadDone):
            send_response(responder, responses.outcome_response(outcome))
            return
        slices = outcome.slices
        response = responses.read_response(
            facts_of(outcome, blocker_of(self._engine, outcome, read.isolation)),
            read,
            slices,
            start=slices[0].offset if slices else outcome.next_offset,
            next_offset=outcome.next_offset,
        )
        send_response(responder, response, self._reads.unread)

    # ---- pages -----------------------------------------------------------------------------------

    def _health(self, _request: Request) -> WireResponse:
        engine = self._engine
        status = "full" if engine.is_full else "ok"
        return responses.json_response(200, Health(status, engine.durable))

    def _metrics(self, _request: Request) -> WireResponse:
        text = render_metrics(
            engine_figures(self._engine),
            self._tally,
            now_ms=self._engine.clock.now_ms(),
            live_readers=len(self._live.readers),
            gaps_held=0 if self._gaps is None else self._gaps.count,
        )
        headers = [("Content-Type", "text/plain; version=0.0.4"), ("Cache-Control", "no-store")]
        return WireResponse(200, headers, text.encode())

    def _list(self, request: Request) -> WireResponse:
        page = streams_page(self._engine.durable_view, request.query)
        if isinstance(page, Problem):
            return responses.problem_response(page)
        return responses.json_response(200, page)


# ---- pages ---------------------------------------------------------------------------------------
# `GET /v1/streams`: the durable streams, in order of their paths, a page at a time.


_PARAMETERS: Final = frozenset({"prefix", "after", "limit"})


@parser
def streams_page(view: DurableView, query: str) -> StreamsPage:
    """Return a page of the durable streams, in order of their paths."""
    parameters = parse_query(query, _PARAMETERS) if query else {}
    limit = read_limit(parameters.get("limit"))
    prefix, after = parameters.get("prefix", ""), parameters.get("after", "")
    page = list(islice(view.paths.after(after, prefix), limit + 1))
    return StreamsPage(
        [_entry_of(path, view.by_path[path]) for path in page[:limit]],
        page[limit - 1] if len(page) > limit else None,
    )


def _entry_of(path: str, view: StreamView) -> StreamEntry:
    row, tail = view.row, view.tail
    assert tail is not None
    return StreamEntry(
        path=path,
        content_type=row.content_type,
        incarnation=row.incarnation,
        first_offset=print_offset(tail.head),
        next_offset=print_offset(tail.tail),
        closed=tail.is_closed,
        created_at_ms=row.created_ms,
        written_at_ms=tail.written_ms,
    )
