"""`/v1/sinks`: what apps have committed; given to another query, or forgotten."""

from functools import partial
from typing import Final

from semel.machine.txn_views import sink, sinks
from semel.model.transactions import ForgetSink
from semel.server.calls import Calls, names_below, refuse, refuse_address, refuse_method
from semel.server.http import Request, Responder
from semel.wire import responses
from semel.wire import sink_calls as calls
from semel.wire.problems import Problem

SINKS: Final = "/v1/sinks"
_READING: Final = ("GET", "HEAD")


class Sinks(Calls):
    """Answers the calls about sinks."""

    def handle(self, request: Request, responder: Responder) -> None:
        """Answer a request to the address or below it."""
        names = names_below(request, SINKS)
        if isinstance(names, Problem):
            refuse(responder, names)
        elif not names:
            self._list(request, responder)
        elif len(names) == 1:
            self._handle_one(request, responder, names[0])
        elif names[1:] == ("rebind",):
            self._rebind(request, responder, names[0])
        else:
            refuse_address(responder)

    def _list(self, request: Request, responder: Responder) -> None:
        if request.method in _READING:
            self.ask(sinks, responder, calls.sinks_response)
        else:
            refuse_method(responder, *_READING)

    def _handle_one(self, request: Request, responder: Responder, app: str) -> None:
        if request.method in _READING:
            self.ask(partial(sink, app=app), responder, calls.sink_response)
        elif request.method == "DELETE":
            self.submit(ForgetSink(self.now_ms, app), responder, responses.outcome_response)
        else:
            refuse_method(responder, "DELETE", *_READING)

    def _rebind(self, request: Request, responder: Responder, app: str) -> None:
        if request.method != "POST":
            refuse_method(responder, "POST")
            return
        command = calls.parse_rebind(app, request.headers, request.body, now_ms=self.now_ms)
        if isinstance(command, Problem):
            refuse(responder, command)
            return
        self.submit(command, responder, partial(calls.rebound_response, command=command))
