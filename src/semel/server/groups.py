"""`/v1/groups/{group}/offsets` and `/snapshot`: where groups stand, and what they have pinned."""

from functools import partial
from typing import Final

from semel.machine.txn_views import group_view, snapshot
from semel.server.calls import Calls, names_below, refuse, refuse_address, refuse_method
from semel.server.http import Request, Responder
from semel.wire import group_calls as calls
from semel.wire.problems import Problem

GROUPS: Final = "/v1/groups"


class Groups(Calls):
    """Answers the calls about groups."""

    def handle(self, request: Request, responder: Responder) -> None:
        """Answer a request below the address."""
        names = names_below(request, GROUPS)
        if isinstance(names, Problem):
            refuse(responder, names)
        elif len(names) != 2 or names[1] not in ("offsets", "snapshot"):
            refuse_address(responder)
        elif request.method == "POST":
            self._change(request, responder, *names)
        elif request.method in ("GET", "HEAD"):
            self._look(request, responder, *names)
        else:
            refuse_method(responder, "GET", "HEAD", "POST")

    def _look(self, request: Request, responder: Responder, group: str, what: str) -> None:
        if what == "snapshot":
            self.ask(partial(snapshot, group=group), responder, calls.snapshot_response)
            return
        look = calls.parse_group_look(request.query)
        if isinstance(look, Problem):
            refuse(responder, look)
            return
        question = partial(
            group_view, group=group, stream=look.stream, transaction=look.transaction
        )
        self.ask(
            question, responder, partial(calls.positions_response, look=look, now_ms=self.now_ms)
        )

    def _change(self, request: Request, responder: Responder, group: str, what: str) -> None:
        if what == "snapshot":
            pin = calls.parse_snapshot(group, request.headers, request.body, now_ms=self.now_ms)
            self.submit(pin, responder, partial(calls.pinned_response, group=group))
            return
        moves = calls.parse_positions(group, request.headers, request.body, now_ms=self.now_ms)
        if isinstance(moves, Problem):
            refuse(responder, moves)
            return
        answer = partial(calls.moved_response, command=moves, group=group)
        self.submit(moves, responder, answer)
