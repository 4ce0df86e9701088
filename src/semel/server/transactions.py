"""`/v1/transactions`: begun, extended, decided, looked at."""

from functools import partial
from itertools import islice
from typing import Final

from semel.machine import State
from semel.machine.txn_views import TxnView, transaction, transactions
from semel.model.outcomes import Outcome
from semel.model.remembered import Remembered
from semel.model.txn_outcomes import UnknownTransaction
from semel.server.answers import send
from semel.server.calls import Calls, names_below, refuse, refuse_address, refuse_method
from semel.server.http import Request, Responder
from semel.wire import responses, txn_answers
from semel.wire.problems import Problem
from semel.wire.rendering import Response
from semel.wire.results import Document, is_stuck, outcome_document, transaction_document
from semel.wire.txn_requests import (
    ACTIONS,
    STUCK,
    TxnLook,
    parse_begin,
    parse_call,
    parse_txn_epoch,
    parse_txn_look,
)

TRANSACTIONS: Final = "/v1/transactions"
_READING: Final = frozenset({"GET", "HEAD"})


class Transactions(Calls):
    """Answers the calls about transactions."""

    def handle(self, request: Request, responder: Responder) -> None:
        """Answer a request to the address or below it."""
        names = names_below(request, TRANSACTIONS)
        if isinstance(names, Problem):
            refuse(responder, names)
        elif not names:
            self._handle_all(request, responder)
        elif len(names) == 1:
            self._handle_one(request, responder, names[0])
        elif len(names) == 2 and names[1] in ACTIONS:
            self._handle_action(request, responder, *names)
        else:
            refuse_address(responder)

    def _handle_all(self, request: Request, responder: Responder) -> None:
        if request.method == "POST":
            command = parse_begin(request.headers, request.body, now_ms=self.now_ms)
            self.submit(command, responder, txn_answers.begin_response)
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
            refuse(responder, command)
            return
        answer = partial(txn_answers.call_response, command=command)
        self.submit(command, responder, answer)

    # ---- look ------------------------------------------------------------------------------------

    def _list(self, request: Request, responder: Responder) -> None:
        look = parse_txn_look(request.query)
        if isinstance(look, Problem):
            refuse(responder, look)
            return
        question = partial(list_transactions, look=look, now_ms=self.now_ms)
        self.ask(question, responder, partial(responses.json_response, 200))

    def _handle_one(self, request: Request, responder: Responder, name: str) -> None:
        if request.method not in _READING:
            refuse_method(responder, *sorted(_READING))
            return
        epoch = parse_txn_epoch(request.query)
        if isinstance(epoch, Problem):
            refuse(responder, epoch)
            return
        # Both are asked of the same state, and the first is answered first.
        views: list[TxnView | None] = []
        self.engine.ask(partial(transaction, txn_id=name), views.append)
        now_ms = self.now_ms

        def reply(known: Remembered | Outcome | None) -> None:
            send(responder, _describe(views[0], known, epoch, now_ms))

        self.engine.outcome(name, epoch, reply)


def _describe(
    view: TxnView | None, known: Remembered | Outcome | None, epoch: int | None, now_ms: int
) -> Response:
    """Show the open transaction if it is the one that was asked for, else how it ended."""
    if view is not None and epoch in (None, view.epoch):
        return responses.json_response(200, transaction_document(view, now_ms))
    if isinstance(known, Remembered):
        return responses.json_response(200, outcome_document(known))
    return responses.outcome_response(known if known is not None else UnknownTransaction())


def list_transactions(state: State, look: TxnLook, now_ms: int) -> Document:
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
