"""The handlers for all HTTP addresses. `App` finds the handler for a request.

A handler parses the request with `semel.wire`, submits a command to the engine or reads from it,
and encodes the response with `semel.wire`.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from semel.broker.broker import TAIL, ReadDone, Reply
from semel.broker.engine import Engine
from semel.broker.figures import figure_steps
from semel.broker.gap_hold import AnyAppend, GapHold
from semel.machine.policies import dedup_source
from semel.model.commands import Append
from semel.model.outcomes import Appended, Outcome
from semel.model.outcomes_access import Unauthenticated
from semel.model.rights import ENDED, Caller
from semel.model.steps import STEP_BYTES
from semel.server.access import USES_SECONDS, Access, HasPeercert, every
from semel.server.admission import AdmittedRead, ReadAdmission, send_response, send_view
from semel.server.event_stream import EventStream, FanoutGroups
from semel.server.groups import MembersResource
from semel.server.http import Request, Responder
from semel.server.listings import streams_page
from semel.server.live import Live, LongPoll, blocker_of, facts_of, refuse_other
from semel.server.metrics import APPENDED, OutcomeCounts, render_metrics
from semel.server.producers import ProducersResource
from semel.server.resources import (
    CommitsResource,
    GroupsResource,
    PoliciesResource,
    Resource,
    RouteHandler,
    RouteHandlers,
    SinksResource,
    TransactionsResource,
    in_steps,
    valid,
)
from semel.server.subscriptions import SubscriptionsResource
from semel.server.tokens import TokensResource
from semel.server.topics import TopicsResource
from semel.server.unread_budget import UnreadBudget
from semel.server.wake_tokens import WakeTokens
from semel.server.webhooks import Webhooks
from semel.wire import paths, requests, responses, routes
from semel.wire.control_errors import control_problem
from semel.wire.gate import ASSIGN_SUFFIX, is_open
from semel.wire.json_mode import prepare_limits
from semel.wire.problems import MalformedRequest, Problem
from semel.wire.rendering import Response, as_private, problem_of
from semel.wire.requests import CATCH_UP, LONG_POLL, AppendPlan, ReadRequest
from semel.wire.routes import find_route, is_control, join_handlers
from semel.wire.schema import Health

_INCARNATION_BYTES: Final = 8
_LIVE_CHECK_SECONDS: Final = 0.5  # live reads end within this time after their tokens


class App:
    """Handles all requests to one engine. Methods must be called on the event loop's thread.

    `webhooks` has the address of the server, too.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        long_poll_seconds: float,
        sse_seconds: float,
        webhooks: Webhooks,
        is_strict: bool = False,
        gap_hold_ms: int = 0,
        unread: UnreadBudget | None = None,
        access: Access | None = None,
    ) -> None:
        self._engine = engine
        self._is_strict = is_strict
        self._access = access = access or Access(engine)
        self._is_guarded = access.is_on
        self._producers = ProducersResource(engine, access)
        self._gaps: GapHold | None = None
        self._append: Callable[[AnyAppend, Reply, Caller | None], None] = engine.submit
        if gap_hold_ms:
            call_later = asyncio.get_running_loop().call_later
            self._gaps = GapHold(engine.submit, call_later, seconds=gap_hold_ms / 1000)
            self._append = self._gaps.submit
        self._origin = webhooks.origin  # for requests without a Host header
        self._scheme = self._origin.partition(":")[0]
        self._tally = OutcomeCounts()
        self._streams = Resource(engine, access, self._tally)
        self._reads = ReadAdmission(engine, unread or UnreadBudget())
        self._live = Live(
            engine,
            self._reads,
            long_poll_seconds=long_poll_seconds,
            sse_seconds=sse_seconds,
            is_called=access.is_live,
        )
        self._groups: FanoutGroups = {}
        self._topics = TopicsResource(
            engine,
            access,
            self._tally,
            submit_append=self._append,
            fresh_id=self._producers.fresh_id,
            origin_of=self._origin_of,
            is_strict=is_strict,
        )
        self._members = MembersResource(engine, access, self._tally, wait_seconds=long_poll_seconds)
        tokens = WakeTokens(webhooks)
        self._subscriptions = SubscriptionsResource(
            engine, access, self._tally, webhooks=webhooks, tokens=tokens
        )
        self._handlers = self._all_handlers(engine, access, self._tally, tokens)
        prepare_limits()
        self._timers: list[Callable[[], None]] = []
        if self._is_guarded:
            self._timers.append(every(_LIVE_CHECK_SECONDS, self._live.end_uncalled))
            self._timers.append(every(_LIVE_CHECK_SECONDS, self._members.end_uncalled))
            self._timers.append(every(USES_SECONDS, access.note_uses))

    def _all_handlers(
        self, engine: Engine, access: Access, tally: OutcomeCounts, tokens: WakeTokens
    ) -> Mapping[str, RouteHandler]:
        """Return the handler of every route. Raises ValueError if a route has none."""
        others = (PoliciesResource, GroupsResource, SinksResource, TokensResource)
        committing = (CommitsResource, TransactionsResource)
        return join_handlers(
            [
                self._own_handlers(),
                self._topics.handlers(),
                self._producers.handlers(),
                self._members.handlers(),
                self._subscriptions.handlers(),
                *(
                    resource(engine, access, tally, tokens=tokens).handlers()
                    for resource in committing
                ),
                *(resource(engine, access, tally).handlers() for resource in others),
            ]
        )

    def _own_handlers(self) -> RouteHandlers:
        return {
            routes.STREAM_READ: self._get,
            routes.STREAM_APPEND: self._post,
            routes.STREAM_CREATE: self._put,
            routes.STREAM_CHANGE: self._patch,
            routes.STREAM_DELETE: self._delete,
            routes.STREAM_HEAD: self._head,
            routes.STREAM_LIST: self._list,
            routes.HEALTH: self._health,
            routes.METRICS: self._metrics,
        }

    def handle(self, request: Request, responder: Responder) -> None:
        """Handle one request. The response is sent now, or later when the outcome is durable."""
        plan, topic_plan = request.head.plan, request.head.topic_plan
        try:
            # With a plan, it is not refused: `_post` has set the plan, here or for topics.
            if plan is not None or topic_plan is not None:
                caller = None
                if self._is_guarded:  # the engine checks the rights, as with every command
                    caller = request.head.caller
                    if caller is None or caller.version == ENDED:
                        caller = self._find_caller(request, responder)
                        if caller is None:
                            return
                if plan is not None:
                    self._submit_append(plan, request, responder, caller)
                elif topic_plan is not None:
                    self._topics.append(topic_plan, request, responder, caller)
            elif request.head.refusal is not None:
                send_response(responder, _problem_response(request, request.head.refusal))
            elif request.method == "OPTIONS":
                send_response(responder, responses.options_response())
            else:
                self._route(request, responder)
        except MalformedRequest as refusal:
            send_response(responder, _problem_response(request, refusal.problem))

    def is_stranger(self, request: Request, connection: HasPeercert) -> bool:
        """Return True if a request will be refused because it has no valid caller.

        Such a request is answered before its body is read. If it needs the token of a wake, it is
        one without such a token, whether access is on or off.
        """
        if is_control(request.path):
            match = find_route(request.method, request.path)
            if isinstance(match, Problem):
                return False
            if is_open(match):
                return self._subscriptions.is_stranger(match, request)
        return self._access.is_stranger(request, connection)

    def _find_caller(self, request: Request, responder: Responder) -> Caller | None:
        """Return the caller of an append with a plan. If it has none, refuse it, and return None.

        The head has no caller if a certificate identifies the caller.
        """
        caller = self._access.caller_of(request, responder)
        if caller is None:
            route = routes.STREAM_APPEND if request.head.plan else routes.TOPIC_APPEND
            self._access.refusals.note_unknown(responder.account.address, route)
            send_response(responder, responses.outcome_response(Unauthenticated()))
        return caller

    def _route(self, request: Request, responder: Responder) -> None:
        """Call the handler of the route, if the caller may use this address.

        Raises MalformedRequest if the request selects no route.
        """
        match = valid(find_route(request.method, request.path))
        refusal = self._access.admit(match, request, responder)
        if refusal is None:
            request.detail = match.detail
            self._handlers[match.route](request, responder, match.name)
        else:
            self._tally.note(refusal)
            send_response(responder, _problem_response(request, problem_of(refusal)))

    def drain(self) -> None:
        """End all live reads. Submit the held appends, although earlier appends are missing."""
        self._live.drain()
        self._members.drain()
        if self._gaps is not None:
            self._gaps.drain()
        for cancel in self._timers:
            cancel()
        self._access.refusals.flush()
        self._access.note_uses()

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
            source_type=partial(self._streams.type_of, caller=responder.caller),
        )
        location = paths.stream_url(self._origin_of(request), path)
        self._streams.submit(command, responder, partial(responses.put_response, location=location))

    def _origin_of(self, request: Request) -> str:
        return paths.origin_of(request.headers.get("host"), self._scheme) or self._origin

    def _post(self, request: Request, responder: Responder, path: str) -> None:
        is_assignable = path.endswith(ASSIGN_SUFFIX)
        if is_assignable and self._producers.asks_for_id(request, path, responder.caller):
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
        self._submit_append(plan, request, responder, responder.caller)

    def _submit_append(
        self, plan: AppendPlan, request: Request, responder: Responder, caller: Caller | None
    ) -> None:
        if len(request.body) > STEP_BYTES and not plan.is_opaque:
            steps = self._append_in_steps(plan, request, responder, caller)
            responder.run(in_steps(steps, responder))
            return
        now_ms = self._engine.clock.now_ms()
        command = requests.append_of(plan, request.body, now_ms=now_ms, seq=request.seq)
        if isinstance(command, Problem):
            raise MalformedRequest(command)
        self._append_command(plan, command, responder, caller)

    def _append_in_steps(
        self, plan: AppendPlan, request: Request, responder: Responder, caller: Caller | None
    ) -> Iterator[None]:
        now_ms = self._engine.clock.now_ms()
        command = yield from requests.append_steps(
            plan, request.body, now_ms=now_ms, seq=request.seq
        )
        self._append_command(plan, command, responder, caller)

    def _append_command(
        self, plan: AppendPlan, command: Append, responder: Responder, caller: Caller | None
    ) -> None:
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

        self._append(command, reply, caller)

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
        if self._is_guarded and not self._access.is_live(responder.caller):
            outcome = Unauthenticated()
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
        if self._is_guarded:
            response = as_private(response)
        send_response(responder, response, self._reads.unread)

    # ---- pages -----------------------------------------------------------------------------------

    def _health(self, _request: Request, responder: Responder, _name: str) -> None:
        status = "full" if self._engine.is_full else "ok"
        access = "on" if self._is_guarded else "off"
        health = Health(status, self._engine.durable, self._engine.generation, access)
        send_response(responder, responses.json_response(200, health))

    def _metrics(self, _request: Request, responder: Responder, _name: str) -> None:
        responder.run(self._send_metrics(responder))

    def _send_metrics(self, responder: Responder) -> Iterator[None]:
        text = render_metrics(
            (yield from figure_steps(self._engine)),
            self._tally,
            live_readers=len(self._live.readers) + len(self._members.waiting),
            gaps_held=0 if self._gaps is None else self._gaps.count,
            unread=self._reads.unread,
        )
        headers = [("Content-Type", "text/plain; version=0.0.4"), ("Cache-Control", "no-store")]
        send_view(responder, Response(200, headers, text.encode()))

    def _list(self, request: Request, responder: Responder, _name: str) -> None:
        engine, caller = self._engine, responder.caller
        page = streams_page(
            engine.durable_view,
            request.query,
            generation=engine.generation,
            caller=caller,
        )
        send_view(responder, responses.json_response(200, page))


def _problem_response(request: Request, problem: Problem) -> Response:
    """Return the response to a refused request, in the form of its address."""
    if is_control(request.path):
        return control_problem(problem)
    return responses.problem_response(problem)
