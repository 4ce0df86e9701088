"""`POST /v1/commits`: many streams, positions and transactions, all or nothing."""

from functools import partial
from typing import Final

from semel.server.calls import Calls, refuse, refuse_method
from semel.server.http import Request, Responder
from semel.wire import txn_answers
from semel.wire.commit_requests import parse_commit
from semel.wire.problems import Problem

COMMITS: Final = "/v1/commits"


class Commits(Calls):
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
            refuse(responder, command)
            return
        answer = partial(txn_answers.commit_response, command=command)
        self.submit(command, responder, answer)

    def _type_of(self, path: str) -> str | None:
        stream = self.engine.broker.state.by_path.get(path)
        return None if stream is None else stream.row.content_type
