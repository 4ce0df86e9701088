"""Carrying out a flow by hand: the test says what becomes of each step."""

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from semel.client.errors import SemelError
from semel.client.flows import CloseChannel, Flow, Pause, Send, Step
from semel.client.requests import parse_address
from semel.client.response_parser import Response
from semel.client.stream_calls import ServerConfig, StreamCalls

T = TypeVar("T")
SITE = ServerConfig(parse_address("http://127.0.0.1:4437"))


class Played:
    """What a flow did: its result or its error, and every step it took."""

    def __init__(self, flow: Flow[Any], replies: Iterable[Any]) -> None:
        self.steps: list[Step] = []
        self.result: Any = None
        self.error: SemelError | None = None
        left = list(replies)
        reply: Any = None
        try:
            while True:
                step = flow.send(reply)
                self.steps.append(step)
                reply = self._reply(step, left)
        except StopIteration as end:
            self.result = end.value
        except SemelError as error:
            self.error = error
        assert not left, f"not asked for: {left}"

    @staticmethod
    def _reply(step: Step, left: list[Any]) -> Any:
        """A pause fits, unless a test says otherwise; to hang up is always possible."""
        if isinstance(step, CloseChannel):
            return None
        if isinstance(step, Pause) and not (left and isinstance(left[0], bool)):
            return True
        assert left, f"nobody answers {step}"
        return left.pop(0)

    @property
    def sends(self) -> list[Send]:
        return [step for step in self.steps if isinstance(step, Send)]

    @property
    def pauses(self) -> list[Pause]:
        return [step for step in self.steps if isinstance(step, Pause)]


def play(flow: Flow[T], *replies: Any) -> T:
    """Carry out a flow that ends well."""
    played = Played(flow, replies)
    if played.error is not None:
        raise played.error
    result: T = played.result
    return result


def calls(path: str = "orders", content_type: str | None = "application/json") -> StreamCalls:
    """The calls of a stream whose media type is known, and known to be one of semel's."""
    found = StreamCalls(SITE, path)
    found.content_type = content_type
    found.is_semel = True
    return found


def answer(status: int, body: bytes = b"", **headers: str) -> Response:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(status, fields, body)


def problem(status: int, code: str, applied: str = "no", **facts: Any) -> Response:
    """A refusal as semel words it."""
    body = msgspec.json.encode({"code": code, "message": "no", "applied": applied, **facts})
    return answer(status, body, content_type="application/problem+json")


def document(value: Any, status: int = 200) -> Response:
    """A JSON document as an answer."""
    return answer(status, msgspec.json.encode(value), content_type="application/json")


def body_of(send: Send) -> Any:
    """The JSON document that was sent."""
    return msgspec.json.decode(send.request.body or b"")
