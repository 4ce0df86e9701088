"""The endpoints of `/v1/transactions`, `/v1/commits`, `/v1/groups`, `/v1/sinks`, `/v1/policies`.

If a request is malformed, the handler raises MalformedRequest. `App.handle` catches the exception
and responds with a problem document.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TypeVar

from semel.broker.engine import Engine
from semel.machine import State
from semel.machine.state import Txn
from semel.machine.txn.views import (
    Dates,
    TxnView,
    group_view,
    pending_txns,
    sink,
    sinks,
    snapshot,
    transaction,
    txn_state,
    txn_view,
)
from semel.model.commands import EngineCommand, ForgetSink, TxnOutcome
from semel.model.limits import TXN_PAGE_ROWS_MAX, TXN_PAGE_SEARCHED_MAX
from semel.model.outcomes import Outcome, PolicySet, UnknownPolicy
from semel.model.outcomes_txn import UnknownTransaction
from semel.model.steps import Steps
from semel.server.admission import send_response, send_view
from semel.server.http import Request, Responder
from semel.server.metrics import OutcomeCounts
from semel.wire import commits, groups, policies, responses
from semel.wire.problems import MalformedRequest, Problem
from semel.wire.rendering import Response
from semel.wire.schema import PoliciesPage, PolicyEntry
from semel.wire.schema.transactions import PendingTransaction, TransactionsPage
from semel.wire.transactions import (
    ACTIONS,
    STUCK,
    TxnQuery,
    begin_response,
    call_response,
    ended_transaction,
    is_stuck,
    parse_begin,
    parse_call,
    parse_txn_epoch,
    parse_txn_query,
    pending_transaction,
)

T = TypeVar("T")
# A handler. Its arguments are a request, a responder, and the first name in the address if there is
# one.
Route = Callable[..., None]
# A mapping from the names in an address to the handlers of that address, keyed by method. "*"
# matches any first name.
Routes = Mapping[tuple[str, ...], Mapping[str, Route]]


class Resource:
    """Base class for the handlers of an address and all addresses below it."""

    def __init__(self, engine: Engine, tally: OutcomeCounts | None = None) -> None:
        self.engine = engine
        self._tally = tally  # None if outcomes are not counted

    @property
    def now_ms(self) -> int:
        """The current time of the engine's clock. Every command contains this time."""
        return self.engine.clock.now_ms()

    def type_of(self, path: str) -> str | None:
        """Return the content type of a stream, or None if the stream does not exist."""
        stream = self.engine.stream(path)
        return None if stream is None else stream.row.content_type

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

        self.engine.submit(command, reply)

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
        self.engine.ask(question, lambda view: send_view(responder, response_of(view)), path=path)

    def ask_in_steps(
        self,
        question: Callable[[State], T],
        responder: Responder,
        steps_of: Callable[[T], Steps[Response]],
    ) -> None:
        """Do the same as `ask`, for a long response: it is made in steps from the result.

        The result must not change when the state changes, because the state does so between steps.
        """
        self.engine.ask(question, lambda view: responder.run(_send(steps_of(view), responder)))


def _send(steps: Steps[Response], responder: Responder) -> Iterator[None]:
    send_view(responder, (yield from steps))


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


def reads(handler: Route) -> dict[str, Route]:
    """Return routes that use `handler` for both GET and HEAD."""
    return {"GET": handler, "HEAD": handler}


class TransactionsResource(Resource):
    """The handlers that begin, list, show and change transactions."""

    def routes(self) -> Routes:
        return {
            (): {**reads(self._list), "POST": self._begin},
            ("*",): reads(self._show),
            **{("*", action): {"POST": partial(self._call, action)} for action in ACTIONS},
        }

    def _begin(self, request: Request, responder: Responder) -> None:
        command = parse_begin(request.headers, request.body, now_ms=self.now_ms)
        self.submit(command, responder, begin_response)

    def _call(self, action: str, request: Request, responder: Responder, name: str) -> None:
        command = parse_call(name, action, request.headers, request.body, now_ms=self.now_ms)
        if isinstance(command, Problem):
            raise MalformedRequest(command)
        self.submit(command, responder, partial(call_response, command=command))

    def _list(self, request: Request, responder: Responder) -> None:
        query = valid(parse_txn_query(request.query))
        dates = self.engine.txn_dates()
        question = partial(transactions_page, query=query, now_ms=self.now_ms, dates=dates)
        self.ask(question, responder, partial(responses.json_response, 200))

    def _show(self, request: Request, responder: Responder, name: str) -> None:
        epoch = valid(parse_txn_epoch(request.query))
        # Both calls of the engine read the same state, and their replies arrive in this order.
        views: list[TxnView | None] = []
        now_ms, dates = self.now_ms, self.engine.txn_dates()
        self.engine.ask(partial(transaction, txn_id=name, dates=dates), views.append)

        def reply(ended: TxnOutcome | Outcome | None) -> None:
            send_view(responder, _transaction_response(views[0], ended, epoch, now_ms))

        self.engine.outcome(name, epoch, reply)


def _transaction_response(
    view: TxnView | None, ended: TxnOutcome | Outcome | None, epoch: int | None, now_ms: int
) -> Response:
    """Return the response that shows one transaction.

    If there is a pending transaction `view`, and `epoch` is either None or its epoch, show `view`.
    Otherwise show `ended`. If `ended` is None, return the refusal UnknownTransaction.
    """
    if view is not None and epoch in (None, view.epoch):
        return responses.json_response(200, pending_transaction(view, now_ms))
    if isinstance(ended, TxnOutcome):
        return responses.json_response(200, ended_transaction(ended))
    return responses.outcome_response(ended if ended is not None else UnknownTransaction())


def transactions_page(
    state: State, query: TxnQuery, now_ms: int, dates: Dates
) -> TransactionsPage[PendingTransaction]:
    """Return a page of the pending transactions that match `query`, oldest first.

    The page also ends after transactions with TXN_PAGE_ROWS_MAX streams and positions together, and
    after TXN_PAGE_SEARCHED_MAX transactions of which some do not match. So a page takes a few
    milliseconds, and it can be empty although there is a next one.
    """
    entries: list[PendingTransaction] = []
    rows, last = 0, query.after
    for searched, txn in enumerate(pending_txns(state, query.stream, query.after)):
        if searched == TXN_PAGE_SEARCHED_MAX:
            return TransactionsPage(entries, last)
        if _is_in_state(txn, query.state, now_ms, dates):
            if len(entries) == query.limit or rows >= TXN_PAGE_ROWS_MAX:
                return TransactionsPage(entries, last)
            entries.append(pending_transaction(txn_view(state, txn, dates), now_ms))
            rows += len(txn.streams) + len(txn.row.positions)
        last = txn.row.number
    return TransactionsPage(entries)


def _is_in_state(txn: Txn, wanted: str | None, now_ms: int, dates: Dates) -> bool:
    """Return True if a transaction is in the state of a query. Every one is in the state None."""
    if wanted == STUCK:
        return is_stuck(dates(txn).touched_ms, now_ms)
    return wanted in (None, txn_state(txn))


class SinksResource(Resource):
    """The handlers that list, show, forget and rebind sinks."""

    def routes(self) -> Routes:
        return {
            (): reads(self._list),
            ("*",): {"DELETE": self._forget, **reads(self._show)},
            ("*", "rebind"): {"POST": self._rebind},
        }

    def _list(self, _request: Request, responder: Responder) -> None:
        self.ask(sinks, responder, commits.sinks_response)

    def _show(self, _request: Request, responder: Responder, app: str) -> None:
        self.ask_in_steps(partial(sink, app=app), responder, commits.sink_steps)

    def _forget(self, _request: Request, responder: Responder, app: str) -> None:
        self.submit(ForgetSink(self.now_ms, app), responder, responses.outcome_response)

    def _rebind(self, request: Request, responder: Responder, app: str) -> None:
        command = valid(
            commits.parse_rebind(app, request.headers, request.body, now_ms=self.now_ms)
        )
        self.submit(command, responder, partial(commits.rebound_response, command=command))


class CommitsResource(Resource):
    """The handler of commits that need only one request: `POST /v1/commits`."""

    def commit(self, request: Request, responder: Responder) -> None:
        """Submit the commit that the request contains, and respond with its outcome."""
        responder.run(in_steps(self._commit(request, responder), responder))

    def _commit(self, request: Request, responder: Responder) -> Iterator[None]:
        command = yield from commits.parse_commit(
            request.headers, request.body, now_ms=self.now_ms, type_of=self.type_of
        )
        self.submit(command, responder, partial(commits.commit_response, command=command))


class GroupsResource(Resource):
    """The handlers that show and change a group's positions and its pinned pipeline step."""

    def routes(self) -> Routes:
        return {
            ("*", "offsets"): {**reads(self._show), "POST": self._move},
            ("*", "snapshot"): {**reads(self._show_snapshot), "POST": self._pin},
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
        self.submit(
            command, responder, partial(groups.moved_response, command=command, group=group)
        )


class PoliciesResource(Resource):
    """The handlers that set, show, list and delete policies: `/v1/policies?prefix=`."""

    def methods(self) -> Mapping[str, Route]:
        return {**reads(self._show), "PUT": self._set, "DELETE": self._delete}

    def _set(self, request: Request, responder: Responder) -> None:
        command = policies.parse_set_policy(
            request.query, request.headers, request.body, now_ms=self.now_ms
        )
        self.submit(command, responder, _policy_set)

    def _delete(self, request: Request, responder: Responder) -> None:
        command = policies.parse_delete_policy(request.query, now_ms=self.now_ms)
        self.submit(command, responder, responses.outcome_response)

    def _show(self, request: Request, responder: Responder) -> None:
        (prefix,) = valid(policies.parse_policy_query(request.query))
        if prefix is None:
            self.ask(all_policies, responder, partial(responses.json_response, 200))
        else:
            self.ask(partial(one_policy, prefix=prefix), responder, _policy_response)


@responses.responds_to(PolicySet)
def _policy_set(outcome: PolicySet) -> Response:
    entry = policies.policy_entry(outcome.prefix, outcome.dedup, outcome.changed_ms)
    return responses.json_response(201 if outcome.is_new else 200, entry)


def _policy_response(entry: PolicyEntry | None) -> Response:
    if entry is None:
        return responses.outcome_response(UnknownPolicy())
    return responses.json_response(200, entry)


def all_policies(state: State) -> PoliciesPage:
    """Return all policies, sorted by prefix."""
    rows = sorted(state.policies.items())
    return PoliciesPage(
        [policies.policy_entry(prefix, row.dedup, row.changed_ms) for prefix, row in rows]
    )


def one_policy(state: State, prefix: str) -> PolicyEntry | None:
    """Return the policy of a prefix, or None if the prefix has none."""
    row = state.policies.get(prefix)
    return None if row is None else policies.policy_entry(prefix, row.dedup, row.changed_ms)
