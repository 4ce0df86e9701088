"""`/v1/transactions`, `/v1/commits`, `/v1/groups` and `/v1/sinks`."""

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Final, TypeVar

from semel.broker.engine import Engine
from semel.machine import State
from semel.machine.txn.views import (
    TxnView,
    group_view,
    sink,
    sinks,
    snapshot,
    transaction,
    transactions,
)
from semel.model.commands import EngineCommand, ForgetSink, TxnOutcome
from semel.model.outcomes import Outcome
from semel.model.outcomes_txn import UnknownTransaction
from semel.server.admission import send_response
from semel.server.http import Request, Responder
from semel.server.metrics import OutcomeCounts
from semel.wire import commits, groups, responses
from semel.wire.paths import GROUPS, SINKS, TRANSACTIONS, names_in
from semel.wire.problems import Problem
from semel.wire.rendering import Response
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
C = TypeVar("C", bound=EngineCommand)
_READING: Final = ("GET", "HEAD")


class Resource:
    """Handles the requests to one address and those below it."""

    def __init__(self, engine: Engine, tally: OutcomeCounts) -> None:
        self.engine = engine
        self._tally = tally

    @property
    def now_ms(self) -> int:
        """The current time, for commands."""
        return self.engine.clock.now_ms()

    def submit(
        self,
        command: EngineCommand | Problem,
        responder: Responder,
        answer: Callable[[Outcome], Response],
    ) -> None:
        """Submit a command, and respond with its outcome; respond at once to a problem."""
        if isinstance(command, Problem):
            send_refusal(responder, command)
            return

        def reply(outcome: Outcome) -> None:
            self._tally.note(outcome)
            send_response(responder, answer(outcome))

        self.engine.submit(command, reply)

    def submit_with(
        self,
        command: C | Problem,
        responder: Responder,
        answer: Callable[[Outcome, C], Response],
    ) -> None:
        """Submit a command as `submit` does; its response needs the command, too."""
        if isinstance(command, Problem):
            send_refusal(responder, command)
        else:
            self.submit(command, responder, lambda outcome: answer(outcome, command))

    def ask(
        self,
        question: Callable[[State], T],
        responder: Responder,
        answer: Callable[[T], Response],
    ) -> None:
        """Read the state, and respond when what was read is durable (EO-4)."""
        self.engine.ask(question, lambda view: send_response(responder, answer(view)))


def names_below(request: Request, prefix: str) -> tuple[str, ...] | Problem:
    """Return the names in an address below a prefix; none for the prefix itself."""
    rest = request.path[len(prefix) :]
    return names_in(rest[1:]) if rest else ()


def send_refusal(responder: Responder, problem: Problem) -> None:
    send_response(responder, responses.problem_response(problem))


def refuse_method(responder: Responder, *allowed: str) -> None:
    send_response(responder, responses.method_response(", ".join([*allowed, "OPTIONS"])))


def refuse_path(responder: Responder) -> None:
    send_refusal(responder, Problem(404, "no_such_address", "nothing is served at this address"))


class TransactionsResource(Resource):
    """Handles requests about transactions."""

    def handle(self, request: Request, responder: Responder) -> None:
        names = names_below(request, TRANSACTIONS)
        if isinstance(names, Problem):
            send_refusal(responder, names)
        elif not names:
            self._handle_all(request, responder)
        elif len(names) == 1:
            self._handle_one(request, responder, names[0])
        elif len(names) == 2 and names[1] in ACTIONS:
            self._handle_action(request, responder, *names)
        else:
            refuse_path(responder)

    def _handle_all(self, request: Request, responder: Responder) -> None:
        if request.method == "POST":
            command = parse_begin(request.headers, request.body, now_ms=self.now_ms)
            self.submit(command, responder, begin_response)
        elif request.method in _READING:
            self._list(request, responder)
        else:
            refuse_method(responder, "GET", "HEAD", "POST")

    def _handle_action(
        self, request: Request, responder: Responder, name: str, action: str
    ) -> None:
        if request.method != "POST":
            refuse_method(responder, "POST")
            return
        command = parse_call(name, action, request.headers, request.body, now_ms=self.now_ms)
        if isinstance(command, Problem):
            send_refusal(responder, command)
        else:
            self.submit(command, responder, partial(call_response, command=command))

    def _list(self, request: Request, responder: Responder) -> None:
        query = parse_txn_query(request.query)
        if isinstance(query, Problem):
            send_refusal(responder, query)
            return
        question = partial(transactions_page, query=query, now_ms=self.now_ms)
        self.ask(question, responder, partial(responses.json_response, 200))

    def _handle_one(self, request: Request, responder: Responder, name: str) -> None:
        if request.method not in _READING:
            refuse_method(responder, *_READING)
            return
        epoch = parse_txn_epoch(request.query)
        if isinstance(epoch, Problem):
            send_refusal(responder, epoch)
            return
        # Both read the same state, and the replies come in this order.
        views: list[TxnView | None] = []
        self.engine.ask(partial(transaction, txn_id=name), views.append)
        now_ms = self.now_ms

        def reply(ended: TxnOutcome | Outcome | None) -> None:
            send_response(responder, _transaction_response(views[0], ended, epoch, now_ms))

        self.engine.outcome(name, epoch, reply)


def _transaction_response(
    view: TxnView | None, ended: TxnOutcome | Outcome | None, epoch: int | None, now_ms: int
) -> Response:
    """Show the pending transaction if it has the epoch that was asked for, else how it ended."""
    if view is not None and epoch in (None, view.epoch):
        return responses.json_response(200, pending_transaction(view, now_ms))
    if isinstance(ended, TxnOutcome):
        return responses.json_response(200, ended_transaction(ended))
    return responses.outcome_response(ended if ended is not None else UnknownTransaction())


def transactions_page(
    state: State, query: TxnQuery, now_ms: int
) -> TransactionsPage[PendingTransaction]:
    """Return a page of the pending transactions, oldest first."""
    views = (
        view
        for view in transactions(
            state, None if query.state == STUCK else query.state, query.stream, query.after
        )
        if query.state != STUCK or is_stuck(view, now_ms)
    )
    page = list(islice(views, query.limit + 1))
    return TransactionsPage(
        [pending_transaction(view, now_ms) for view in page[: query.limit]],
        page[query.limit - 1].number if len(page) > query.limit else None,
    )


class SinksResource(Resource):
    """Handles requests about sinks."""

    def handle(self, request: Request, responder: Responder) -> None:
        names = names_below(request, SINKS)
        if isinstance(names, Problem):
            send_refusal(responder, names)
        elif not names:
            self._list(request, responder)
        elif len(names) == 1:
            self._handle_one(request, responder, names[0])
        elif names[1:] == ("rebind",):
            self._rebind(request, responder, names[0])
        else:
            refuse_path(responder)

    def _list(self, request: Request, responder: Responder) -> None:
        if request.method in _READING:
            self.ask(sinks, responder, commits.sinks_response)
        else:
            refuse_method(responder, *_READING)

    def _handle_one(self, request: Request, responder: Responder, app: str) -> None:
        if request.method in _READING:
            self.ask(partial(sink, app=app), responder, commits.sink_response)
        elif request.method == "DELETE":
            self.submit(ForgetSink(self.now_ms, app), responder, responses.outcome_response)
        else:
            refuse_method(responder, "DELETE", *_READING)

    def _rebind(self, request: Request, responder: Responder, app: str) -> None:
        if request.method != "POST":
            refuse_method(responder, "POST")
            return
        command = commits.parse_rebind(app, request.headers, request.body, now_ms=self.now_ms)
        self.submit_with(command, responder, commits.rebound_response)


class CommitsResource(Resource):
    """Handles one-shot commits."""

    def handle(self, request: Request, responder: Responder) -> None:
        if request.method != "POST":
            refuse_method(responder, "POST")
            return
        command = commits.parse_commit(
            request.headers, request.body, now_ms=self.now_ms, type_of=self._type_of
        )
        self.submit_with(command, responder, commits.commit_response)

    def _type_of(self, path: str) -> str | None:
        stream = self.engine.stream(path)
        return None if stream is None else stream.row.content_type


class GroupsResource(Resource):
    """Handles requests about groups."""

    def handle(self, request: Request, responder: Responder) -> None:
        names = names_below(request, GROUPS)
        if isinstance(names, Problem):
            send_refusal(responder, names)
        elif len(names) != 2 or names[1] not in ("offsets", "snapshot"):
            refuse_path(responder)
        elif request.method == "POST":
            change = self._pin if names[1] == "snapshot" else self._move
            change(request, responder, names[0])
        elif request.method in _READING:
            self._show(request, responder, *names)
        else:
            refuse_method(responder, "GET", "HEAD", "POST")

    def _show(self, request: Request, responder: Responder, group: str, page: str) -> None:
        if page == "snapshot":
            self.ask(partial(snapshot, group=group), responder, groups.snapshot_response)
            return
        query = groups.parse_group_query(request.query)
        if isinstance(query, Problem):
            send_refusal(responder, query)
            return
        self.ask(
            partial(group_view, group=group, stream=query.stream, transaction=query.transaction),
            responder,
            partial(groups.positions_response, query=query, now_ms=self.now_ms),
        )

    def _pin(self, request: Request, responder: Responder, group: str) -> None:
        command = groups.parse_snapshot(group, request.headers, request.body, now_ms=self.now_ms)
        self.submit(command, responder, partial(groups.pinned_response, group=group))

    def _move(self, request: Request, responder: Responder, group: str) -> None:
        command = groups.parse_positions(group, request.headers, request.body, now_ms=self.now_ms)
        self.submit_with(command, responder, partial(groups.moved_response, group=group))
