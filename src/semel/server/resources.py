"""The endpoints of `/v1/transactions`, `/v1/commits`, `/v1/groups`, `/v1/sinks`, `/v1/policies`.

If a request is malformed, the handler raises MalformedRequest. `App.handle` catches the exception
and responds with a problem document.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from msgspec import UnsetType

from semel.broker.engine import Engine
from semel.machine import State
from semel.machine.txn.views import (
    SinkView,
    TxnView,
    group_view,
    sink,
    sinks,
    snapshot,
    transaction,
)
from semel.model.commands import CommitTxn, EngineCommand, TxnOutcome
from semel.model.errors import EngineStopped
from semel.model.outcomes import Outcome, PolicySet, Refusal, UnknownPolicy
from semel.model.outcomes_txn import CommitDone, PositionsSet, UnknownTransaction
from semel.model.rights import POLICY, SINK, STREAM, TOPIC, TRANSACTION, Caller
from semel.model.sink_commands import ForgetSink
from semel.model.steps import Steps
from semel.model.subscription_commands import WakeAck
from semel.server.access import Access
from semel.server.admission import send_response, send_view
from semel.server.http import Request, Responder, internal_error, refused_problem
from semel.server.listings import transactions_page
from semel.server.metrics import OutcomeCounts
from semel.server.wake_tokens import WakeTokens
from semel.wire import commits, groups, policies, responses, routes
from semel.wire.problems import MalformedRequest, Problem
from semel.wire.rendering import Response, problem_of
from semel.wire.schema import PoliciesPage, PolicyEntry
from semel.wire.transactions import (
    begin_response,
    call_response,
    ended_transaction,
    parse_begin,
    parse_call,
    parse_txn_epoch,
    parse_txn_query,
    pending_transaction,
)
from semel.wire.wake_acks import refused_token

T = TypeVar("T")
# Whether there is more to process, for each subscription whose wake a commit has acked.
Following = tuple[tuple[str, bool], ...]
# The handler of a route. The text is the name in the address, and empty if the address has none.
RouteHandler = Callable[[Request, Responder, str], None]
# Keyed by the name of the route.
RouteHandlers = dict[str, RouteHandler]


class Resource:
    """Base class for the handlers of an address and all addresses below it."""

    def __init__(self, engine: Engine, access: Access, tally: OutcomeCounts | None = None) -> None:
        self.engine = engine
        self.access = access
        self._tally = tally  # None if outcomes are not counted

    def problem_response(self, problem: Problem) -> Response:
        """Return the response to a refused request. A subclass can use another form."""
        return responses.problem_response(problem)

    @property
    def now_ms(self) -> int:
        """The current time of the engine's clock. Every command contains this time."""
        return self.engine.clock.now_ms()

    def type_of(self, path: str, caller: Caller | None) -> str | None:
        """Return the content type of a stream or topic; None if the caller may see none there."""
        stream = self.engine.stream(path)
        if stream is None:
            return None
        kind = STREAM if stream.topic is None else TOPIC
        return stream.row.content_type if self.access.may_see(caller, kind, path) else None

    def submit(
        self,
        command: EngineCommand | Problem,
        responder: Responder,
        response_of: Callable[[Outcome], Response],
    ) -> None:
        """Submit a command to the engine, and respond with its outcome.

        Raises MalformedRequest if `command` is a Problem, because then the request was malformed.
        """
        if isinstance(command, Problem):
            raise MalformedRequest(command)

        def reply(outcome: Outcome) -> None:
            if self._tally is not None:
                self._tally.note(outcome)
            send_response(responder, response_of(outcome))

        self.access.submit(command, reply, responder.caller)

    def ask(
        self,
        question: Callable[[State], T],
        responder: Responder,
        response_of: Callable[[T], Response],
        path: str = "",
    ) -> None:
        """Call `question` with the state, and respond with the result.

        If the stream at `path` has expired, the stream is deleted before `question` is called. The
        response is sent after the state has become durable (rule EO-4).
        """
        self.engine.ask(
            question,
            lambda view: send_view(responder, response_of(view), self.problem_response),
            path=path,
        )

    def ask_in_steps(
        self,
        question: Callable[[State], T],
        responder: Responder,
        steps_of: Callable[[T], Steps[Response]],
        path: str = "",
    ) -> None:
        """Do the same as `ask`, for a long response: it is made in steps from the result.

        The result must not change when the state changes, because the state does so between steps.
        """
        self.engine.ask(
            question, lambda view: responder.run(self._send(steps_of(view), responder)), path=path
        )

    def _send(self, steps: Steps[Response], responder: Responder) -> Iterator[None]:
        send_view(responder, (yield from steps), self.problem_response)

    def submit_and_ask(
        self,
        command: EngineCommand,
        responder: Responder,
        question: Callable[[State], T],
        steps_of: Callable[[Outcome, T], Steps[Response]],
    ) -> None:
        """Submit a command, and respond with its refusal or with the state after it.

        `steps_of` makes the response from the outcome and the result of `question`.
        """

        def reply(outcome: Outcome) -> None:
            if self._tally is not None:
                self._tally.note(outcome)
            if isinstance(outcome, Refusal):
                send_response(responder, self.problem_response(problem_of(outcome)))
                return
            try:
                self.ask_in_steps(question, responder, partial(steps_of, outcome))
            except EngineStopped:  # the command was executed, but the server ends
                send_response(responder, self.problem_response(refused_problem(internal_error())))

        self.access.submit(command, reply, responder.caller)


def valid(value: T | Problem) -> T:
    """Return the result of a parser. Raises MalformedRequest if the result is a Problem."""
    if isinstance(value, Problem):
        raise MalformedRequest(value)
    return value


def in_steps(steps: Iterator[None], responder: Responder) -> Iterator[None]:
    """Return the steps of a handler. If the request is malformed, respond with the problem."""
    try:
        yield from steps
    except MalformedRequest as refusal:
        send_response(responder, responses.problem_response(refusal.problem))


class CommittingResource(Resource):
    """Base class for the handlers of commits, which can ack wakes. `tokens` reads their tokens."""

    def __init__(
        self, engine: Engine, access: Access, tally: OutcomeCounts, *, tokens: WakeTokens
    ) -> None:
        super().__init__(engine, access, tally)
        self.tally = tally
        self.tokens = tokens

    def submit_commit(
        self,
        command: EngineCommand,
        wakes: tuple[WakeAck, ...],
        responder: Responder,
        response_of: Callable[[Outcome, Following], Response],
    ) -> None:
        """Submit a commit. Respond with its outcome, and what became of the wakes that it acks."""
        if not wakes:
            self.submit(command, responder, lambda outcome: response_of(outcome, ()))
            return

        def reply(outcome: Outcome) -> None:
            self.tally.note(outcome)
            problem = refused_token(outcome, wakes)
            if problem is not None:
                send_response(responder, self.problem_response(problem))
                return
            if not isinstance(outcome, CommitDone) or outcome.is_duplicate:
                send_response(responder, response_of(outcome, ()))
                return
            respond = partial(response_of, outcome)
            try:
                self.ask(partial(following_wakes, wakes=wakes), responder, respond)
            except EngineStopped:  # the command was executed, but the server ends
                send_response(responder, respond(()))

        self.access.submit(command, reply, responder.caller)


def following_wakes(state: State, wakes: tuple[WakeAck, ...]) -> Following:
    """Return, for each wake that a commit has acked, whether it is done and more is pending."""
    found = []
    for wake in wakes:
        subscription = state.subscriptions.by_id.get(wake.id)
        is_pending = subscription is not None and bool(subscription.pending)
        found.append((wake.id, wake.done and is_pending))
    return tuple(found)


class TransactionsResource(CommittingResource):
    """The handlers that begin, list, show and change transactions."""

    def handlers(self) -> RouteHandlers:
        return {
            routes.TXN_LIST: self._list,
            routes.TXN_BEGIN: self._begin,
            routes.TXN_SHOW: self._show,
            routes.TXN_ADD_STREAMS: partial(self._call, "streams"),
            routes.TXN_ADD_OFFSETS: partial(self._call, "offsets"),
            routes.TXN_PREPARE: partial(self._call, "prepare"),
            routes.TXN_COMMIT: partial(self._call, "commit"),
            routes.TXN_ABORT: partial(self._call, "abort"),
            routes.TXN_FENCE: partial(self._call, "fence"),
        }

    def _begin(self, request: Request, responder: Responder, _name: str) -> None:
        command = parse_begin(request.headers, request.body, now_ms=self.now_ms)
        self.submit(command, responder, begin_response)

    def _call(self, action: str, request: Request, responder: Responder, name: str) -> None:
        command = parse_call(
            name,
            action,
            request.headers,
            request.body,
            now_ms=self.now_ms,
            read_token=self.tokens.read,
        )
        if isinstance(command, Problem):
            raise MalformedRequest(command)
        wakes = command.wakes if isinstance(command, CommitTxn) else ()
        self.submit_commit(
            command,
            wakes,
            responder,
            lambda outcome, following: call_response(outcome, command, following),
        )

    def _list(self, request: Request, responder: Responder, _name: str) -> None:
        query = valid(parse_txn_query(request.query))
        dates = self.engine.txn_dates()
        caller = responder.caller
        question = partial(
            transactions_page,
            query=query,
            now_ms=self.now_ms,
            dates=dates,
            is_shown=lambda name: self.access.may_see(caller, TRANSACTION, name),
            owner_of=partial(self.access.shown_owner, caller, TRANSACTION),
        )
        self.ask(question, responder, partial(responses.json_response, 200))

    def _show(self, request: Request, responder: Responder, name: str) -> None:
        epoch = valid(parse_txn_epoch(request.query))
        # Both calls of the engine read the same state, and their replies arrive in this order.
        views: list[TxnView | None] = []
        now_ms, dates = self.now_ms, self.engine.txn_dates()
        self.engine.ask(partial(transaction, txn_id=name, dates=dates), views.append)
        owner = self.access.shown_owner(responder.caller, TRANSACTION, name)

        def reply(ended: TxnOutcome | Outcome | None) -> None:
            response = _transaction_response(views[0], ended, epoch, now_ms, owner)
            send_view(responder, response)

        self.engine.outcome(name, epoch, reply)


def _transaction_response(
    view: TxnView | None,
    ended: TxnOutcome | Outcome | None,
    epoch: int | None,
    now_ms: int,
    owner: str | UnsetType | None,
) -> Response:
    """Return the response that shows one transaction.

    If there is a pending transaction `view`, and `epoch` is either None or its epoch, show `view`.
    Otherwise show `ended`. If `ended` is None, return the refusal UnknownTransaction.
    """
    if view is not None and epoch in (None, view.epoch):
        return responses.json_response(200, pending_transaction(view, now_ms, owner))
    if isinstance(ended, TxnOutcome):
        return responses.json_response(200, ended_transaction(ended, owner))
    return responses.outcome_response(ended if ended is not None else UnknownTransaction())


class SinksResource(Resource):
    """The handlers that list, show, forget and rebind sinks."""

    def handlers(self) -> RouteHandlers:
        return {
            routes.SINK_LIST: self._list,
            routes.SINK_SHOW: self._show,
            routes.SINK_FORGET: self._forget,
            routes.SINK_REBIND: self._rebind,
        }

    def _list(self, _request: Request, responder: Responder, _name: str) -> None:
        caller = responder.caller

        def question(state: State) -> tuple[list[SinkView], commits.ShownOwners]:
            shown = [each for each in sinks(state) if self.access.may_see(caller, SINK, each.app)]
            return shown, self._owners(caller, *(each.app for each in shown))

        self.ask(question, responder, lambda view: commits.sinks_response(*view))

    def _show(self, _request: Request, responder: Responder, app: str) -> None:
        def question(state: State) -> tuple[SinkView | None, commits.ShownOwners]:
            return sink(state, app), self._owners(responder.caller, app)

        self.ask_in_steps(question, responder, lambda view: commits.sink_steps(*view))

    def _owners(self, caller: Caller | None, *apps: str) -> commits.ShownOwners:
        return {app: self.access.shown_owner(caller, SINK, app) for app in apps}

    def _forget(self, _request: Request, responder: Responder, app: str) -> None:
        self.submit(ForgetSink(self.now_ms, app), responder, responses.outcome_response)

    def _rebind(self, request: Request, responder: Responder, app: str) -> None:
        command = valid(
            commits.parse_rebind(app, request.headers, request.body, now_ms=self.now_ms)
        )
        self.submit(command, responder, partial(commits.rebound_response, command=command))


class CommitsResource(CommittingResource):
    """The handler of commits that need only one request: `POST /v1/commits`."""

    def handlers(self) -> RouteHandlers:
        return {routes.COMMIT: self.commit}

    def commit(self, request: Request, responder: Responder, _name: str) -> None:
        """Submit the commit that the request contains, and respond with its outcome."""
        responder.run(in_steps(self._commit(request, responder), responder))

    def _commit(self, request: Request, responder: Responder) -> Iterator[None]:
        command = yield from commits.parse_commit(
            request.headers,
            request.body,
            now_ms=self.now_ms,
            type_of=partial(self.type_of, caller=responder.caller),
            read_token=self.tokens.read,
        )
        self.submit_commit(
            command,
            command.wakes,
            responder,
            lambda outcome, following: commits.commit_response(outcome, command, following),
        )


class GroupsResource(Resource):
    """The handlers that show and change a group's positions and its pinned pipeline step."""

    def handlers(self) -> RouteHandlers:
        return {
            routes.GROUP_SHOW: self._show,
            routes.GROUP_MOVE: self._move,
            routes.SNAPSHOT_SHOW: self._show_snapshot,
            routes.SNAPSHOT_PIN: self._pin,
        }

    def _show(self, request: Request, responder: Responder, group: str) -> None:
        query = valid(groups.parse_group_query(request.query))
        question = partial(
            group_view,
            group=group,
            stream=query.stream,
            transaction=query.transaction,
            dates=self.engine.txn_dates(),
        )
        steps_of = partial(groups.positions_steps, query=query, now_ms=self.now_ms)
        self.ask_in_steps(question, responder, steps_of)

    def _show_snapshot(self, _request: Request, responder: Responder, group: str) -> None:
        self.ask(partial(snapshot, group=group), responder, groups.snapshot_response)

    def _pin(self, request: Request, responder: Responder, group: str) -> None:
        command = groups.parse_snapshot(group, request.headers, request.body, now_ms=self.now_ms)
        self.submit(command, responder, partial(groups.pinned_response, group=group))

    def _move(self, request: Request, responder: Responder, group: str) -> None:
        command = valid(
            groups.parse_positions(group, request.headers, request.body, now_ms=self.now_ms)
        )

        def respond(outcome: Outcome) -> Response:
            if command.by_operator and isinstance(outcome, PositionsSet):
                self.engine.broker.memberships.displace(group)
            return respond_as(outcome)

        respond_as = partial(groups.moved_response, command=command, group=group)
        self.submit(command, responder, respond)


class PoliciesResource(Resource):
    """The handlers that set, show, list and delete policies: `/v1/policies?prefix=`."""

    def handlers(self) -> RouteHandlers:
        return {
            routes.POLICY_SHOW: self._show,
            routes.POLICY_SET: self._set,
            routes.POLICY_DELETE: self._delete,
        }

    def _set(self, request: Request, responder: Responder, _name: str) -> None:
        command = policies.parse_set_policy(
            request.query, request.headers, request.body, now_ms=self.now_ms
        )
        self.submit(command, responder, _policy_set)

    def _delete(self, request: Request, responder: Responder, _name: str) -> None:
        command = policies.parse_delete_policy(request.query, now_ms=self.now_ms)
        self.submit(command, responder, responses.outcome_response)

    def _show(self, request: Request, responder: Responder, _name: str) -> None:
        (prefix,) = valid(policies.parse_policy_query(request.query))
        caller = responder.caller

        def is_shown(name: str) -> bool:
            return self.access.may_see(caller, POLICY, name)

        if prefix is None:
            question = partial(all_policies, is_shown=is_shown)
            self.ask(question, responder, partial(responses.json_response, 200))
        else:
            self.ask(
                partial(one_policy, prefix=prefix, is_shown=is_shown), responder, _policy_response
            )


@responses.responds_to(PolicySet)
def _policy_set(outcome: PolicySet) -> Response:
    entry = policies.policy_entry(outcome.prefix, outcome.dedup, outcome.changed_ms)
    return responses.json_response(201 if outcome.is_new else 200, entry)


def _policy_response(entry: PolicyEntry | None) -> Response:
    if entry is None:
        return responses.outcome_response(UnknownPolicy())
    return responses.json_response(200, entry)


def all_policies(state: State, is_shown: Callable[[str], bool]) -> PoliciesPage:
    """Return all policies that the caller may see, sorted by prefix."""
    rows = sorted(state.policies.items())
    return PoliciesPage(
        [
            policies.policy_entry(prefix, row.dedup, row.changed_ms)
            for prefix, row in rows
            if is_shown(prefix)
        ]
    )


def one_policy(state: State, prefix: str, is_shown: Callable[[str], bool]) -> PolicyEntry | None:
    """Return the policy of a prefix; None if it has none or the caller may not see it."""
    row = state.policies.get(prefix)
    if row is None or not is_shown(prefix):
        return None
    return policies.policy_entry(prefix, row.dedup, row.changed_ms)
