"""`/v1/transactions`: begun, extended, decided, looked at."""

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
from semel.model.outcomes import Outcome
from semel.model.outcomes_txn import UnknownTransaction
from semel.model.transactions import EngineCommand, ForgetSink
from semel.model.txn_outcome import TxnOutcome
from semel.server.admission import send_response
from semel.server.http import Request, Responder
from semel.server.metrics import OutcomeCounts
from semel.wire import group_calls, responses, results, sink_calls
from semel.wire.paths import names_in
from semel.wire.problems import Problem
from semel.wire.rendering import Response
from semel.wire.results import Document, is_stuck, outcome_document, transaction_document
from semel.wire.txn_requests import (
    ACTIONS,
    STUCK,
    TxnQuery,
    parse_begin,
    parse_call,
    parse_commit,
    parse_txn_epoch,
    parse_txn_query,
)

# ---- calls ---------------------------------------------------------------------------------------
# What every group of calls has: a command is submitted, a question asked.


T = TypeVar("T")


class Resource:
    """Answers the calls below one address."""

    def __init__(self, engine: Engine, tally: OutcomeCounts) -> None:
        self.engine = engine
        self._tally = tally

    @property
    def now_ms(self) -> int:
        """The time a command carries."""
        return self.engine.clock.now_ms()

    def submit(
        self,
        command: EngineCommand | Problem,
        responder: Responder,
        answer: Callable[[Outcome], Response],
    ) -> None:
        """Submit a command, and answer its outcome."""
        if isinstance(command, Problem):
            send_response(responder, responses.problem_response(command))
            return

        def reply(outcome: Outcome) -> None:
            self._tally.note(outcome)
            send_response(responder, answer(outcome))

        self.engine.submit(command, reply)

    def ask(
        self,
        question: Callable[[State], T],
        responder: Responder,
        answer: Callable[[T], Response],
    ) -> None:
        """Ask about the state, and answer once that is durable (EO-4)."""
        self.engine.ask(question, lambda found: send_response(responder, answer(found)))


def names_below(request: Request, prefix: str) -> tuple[str, ...] | Problem:
    """Read the names in an address below a prefix; none for the prefix itself."""
    rest = request.path[len(prefix) :]
    return names_in(rest[1:]) if rest else ()


def send_refusal(responder: Responder, problem: Problem) -> None:
    """Answer a refusal."""
    send_response(responder, responses.problem_response(problem))


def refuse_method(responder: Responder, *allowed: str) -> None:
    """Answer a method that is not served at an address."""
    send_response(responder, responses.method_response(", ".join([*allowed, "OPTIONS"])))


def refuse_path(responder: Responder) -> None:
    """Answer an address at which nothing is."""
    send_refusal(responder, Problem(404, "no_such_address", "nothing is served at this address"))


# ---- transactions --------------------------------------------------------------------------------


TRANSACTIONS: Final = "/v1/transactions"
_READING: Final = frozenset({"GET", "HEAD"})


class TransactionsResource(Resource):
    """Answers the calls about transactions."""

    def handle(self, request: Request, responder: Responder) -> None:
        """Answer a request to the address or below it."""
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
            self.submit(command, responder, results.begin_response)
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
            return
        answer = partial(results.call_response, command=command)
        self.submit(command, responder, answer)

    # ---- look ------------------------------------------------------------------------------------

    def _list(self, request: Request, responder: Responder) -> None:
        look = parse_txn_query(request.query)
        if isinstance(look, Problem):
            send_refusal(responder, look)
            return
        question = partial(transactions_page, look=look, now_ms=self.now_ms)
        self.ask(question, responder, partial(responses.json_response, 200))

    def _handle_one(self, request: Request, responder: Responder, name: str) -> None:
        if request.method not in _READING:
            refuse_method(responder, *sorted(_READING))
            return
        epoch = parse_txn_epoch(request.query)
        if isinstance(epoch, Problem):
            send_refusal(responder, epoch)
            return
        # Both are asked of the same state, and the first is answered first.
        views: list[TxnView | None] = []
        self.engine.ask(partial(transaction, txn_id=name), views.append)
        now_ms = self.now_ms

        def reply(known: TxnOutcome | Outcome | None) -> None:
            send_response(responder, _describe(views[0], known, epoch, now_ms))

        self.engine.outcome(name, epoch, reply)


def _describe(
    view: TxnView | None, known: TxnOutcome | Outcome | None, epoch: int | None, now_ms: int
) -> Response:
    """Show the open transaction if it is the one that was asked for, else how it ended."""
    if view is not None and epoch in (None, view.epoch):
        return responses.json_response(200, transaction_document(view, now_ms))
    if isinstance(known, TxnOutcome):
        return responses.json_response(200, outcome_document(known))
    return responses.outcome_response(known if known is not None else UnknownTransaction())


def transactions_page(state: State, look: TxnQuery, now_ms: int) -> Document:
    """List what is not decided, oldest first; `next` is where the next page begins."""
    wanted = None if look.state == STUCK else look.state
    found = (
        view
        for view in transactions(state, wanted, look.stream, look.after)
        if look.state != STUCK or is_stuck(view, now_ms)
    )
    page = list(islice(found, look.limit + 1))
    shown = page[: look.limit]
    return {
        "transactions": [transaction_document(view, now_ms) for view in shown],
        "next": shown[-1].number if len(page) > look.limit else None,
    }


# ---- sinks ---------------------------------------------------------------------------------------
# `/v1/sinks`: what apps have committed; given to another query, or forgotten.


SINKS: Final = "/v1/sinks"
_SINK_READING: Final = ("GET", "HEAD")


class SinksResource(Resource):
    """Answers the calls about sinks."""

    def handle(self, request: Request, responder: Responder) -> None:
        """Answer a request to the address or below it."""
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
        if request.method in _SINK_READING:
            self.ask(sinks, responder, sink_calls.sinks_response)
        else:
            refuse_method(responder, *_SINK_READING)

    def _handle_one(self, request: Request, responder: Responder, app: str) -> None:
        if request.method in _SINK_READING:
            self.ask(partial(sink, app=app), responder, sink_calls.sink_response)
        elif request.method == "DELETE":
            self.submit(ForgetSink(self.now_ms, app), responder, responses.outcome_response)
        else:
            refuse_method(responder, "DELETE", *_SINK_READING)

    def _rebind(self, request: Request, responder: Responder, app: str) -> None:
        if request.method != "POST":
            refuse_method(responder, "POST")
            return
        command = sink_calls.parse_rebind(app, request.headers, request.body, now_ms=self.now_ms)
        if isinstance(command, Problem):
            send_refusal(responder, command)
            return
        self.submit(command, responder, partial(sink_calls.rebound_response, command=command))


# ---- commits -------------------------------------------------------------------------------------
# `POST /v1/commits`: many streams, positions and transactions, all or nothing.


COMMITS: Final = "/v1/commits"


class CommitsResource(Resource):
    """Answers one-shot commits."""

    def handle(self, request: Request, responder: Responder) -> None:
        """Answer a request to the address."""
        if request.method != "POST":
            refuse_method(responder, "POST")
            return
        command = parse_commit(
            request.headers, request.body, now_ms=self.now_ms, type_of=self._type_of
        )
        if isinstance(command, Problem):
            send_refusal(responder, command)
            return
        answer = partial(results.commit_response, command=command)
        self.submit(command, responder, answer)

    def _type_of(self, path: str) -> str | None:
        stream = self.engine.stream(path)
        return None if stream is None else stream.row.content_type


# ---- groups --------------------------------------------------------------------------------------
# `/v1/groups/{group}/offsets` and `/snapshot`: where groups stand, and what they have pinned.


GROUPS: Final = "/v1/groups"


class GroupsResource(Resource):
    """Answers the calls about groups."""

    def handle(self, request: Request, responder: Responder) -> None:
        """Answer a request below the address."""
        names = names_below(request, GROUPS)
        if isinstance(names, Problem):
            send_refusal(responder, names)
        elif len(names) != 2 or names[1] not in ("offsets", "snapshot"):
            refuse_path(responder)
        elif request.method == "POST":
            self._change(request, responder, *names)
        elif request.method in ("GET", "HEAD"):
            self._look(request, responder, *names)
        else:
            refuse_method(responder, "GET", "HEAD", "POST")

    def _look(self, request: Request, responder: Responder, group: str, what: str) -> None:
        if what == "snapshot":
            self.ask(partial(snapshot, group=group), responder, group_calls.snapshot_response)
            return
        look = group_calls.parse_group_query(request.query)
        if isinstance(look, Problem):
            send_refusal(responder, look)
            return
        question = partial(
            group_view, group=group, stream=look.stream, transaction=look.transaction
        )
        self.ask(
            question,
            responder,
            partial(group_calls.positions_response, look=look, now_ms=self.now_ms),
        )

    def _change(self, request: Request, responder: Responder, group: str, what: str) -> None:
        if what == "snapshot":
            pin = group_calls.parse_snapshot(
                group, request.headers, request.body, now_ms=self.now_ms
            )
            self.submit(pin, responder, partial(group_calls.pinned_response, group=group))
            return
        moves = group_calls.parse_positions(
            group, request.headers, request.body, now_ms=self.now_ms
        )
        if isinstance(moves, Problem):
            send_refusal(responder, moves)
            return
        answer = partial(group_calls.moved_response, command=moves, group=group)
        self.submit(moves, responder, answer)
