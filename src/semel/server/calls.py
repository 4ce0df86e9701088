"""What every group of calls has: a command is submitted, a question asked."""

from collections.abc import Callable
from typing import TypeVar

from semel.broker.engine import Engine
from semel.machine import State
from semel.model.outcomes import Outcome
from semel.model.transactions import EngineCommand
from semel.server.answers import send
from semel.server.http import Request, Responder
from semel.server.metrics import Tally
from semel.wire import responses
from semel.wire.paths import names_in
from semel.wire.problems import Problem
from semel.wire.rendering import Response

T = TypeVar("T")


class Calls:
    """Answers the calls below one address."""

    def __init__(self, engine: Engine, tally: Tally) -> None:
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
            send(responder, responses.problem_response(command))
            return

        def reply(outcome: Outcome) -> None:
            self._tally.note(outcome)
            send(responder, answer(outcome))

        self.engine.submit(command, reply)

    def ask(
        self,
        question: Callable[[State], T],
        responder: Responder,
        answer: Callable[[T], Response],
    ) -> None:
        """Ask about the state, and answer once that is durable (EO-4)."""
        self.engine.ask(question, lambda found: send(responder, answer(found)))


def names_below(request: Request, prefix: str) -> tuple[str, ...] | Problem:
    """Read the names in an address below a prefix; none for the prefix itself."""
    rest = request.path[len(prefix) :]
    return names_in(rest[1:]) if rest else ()


def refuse(responder: Responder, problem: Problem) -> None:
    """Answer a refusal."""
    send(responder, responses.problem_response(problem))


def refuse_method(responder: Responder, *allowed: str) -> None:
    """Answer a method that is not served at an address."""
    send(responder, responses.method_response(", ".join([*allowed, "OPTIONS"])))


def refuse_address(responder: Responder) -> None:
    """Answer an address at which nothing is."""
    refuse(responder, Problem(404, "no_such_address", "nothing is served at this address"))
