"""Run a flow without a network: the test gives the reply to each step."""

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from semel.client.addresses import parse_address
from semel.client.errors import SemelError
from semel.client.flows import CloseChannel, Flow, Pause, Send, Step
from semel.client.response_parser import Response
from semel.client.stream_calls import ServerConfig, StreamCalls

T = TypeVar("T")
SITE = ServerConfig(parse_address("http://127.0.0.1:4437"))


class Played:
    """A finished flow: its result or error, and all its steps."""

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
        assert not left, f"unused replies: {left}"

    def _reply(self, step: Step, left: list[Any]) -> Any:
        """Return the next reply. A pause gets True by default, and closing needs no reply."""
        if isinstance(step, CloseChannel):
            return None
        if isinstance(step, Pause) and not (left and isinstance(left[0], bool)):
            return True
        assert left, f"no reply left for {step}"
        return left.pop(0)

    @property
    def sends(self) -> list[Send]:
        return [step for step in self.steps if isinstance(step, Send)]

    @property
    def pauses(self) -> list[Pause]:
        return [step for step in self.steps if isinstance(step, Pause)]


def play(flow: Flow[T], *replies: Any) -> T:
    """Run a flow and return its result, or raise its error."""
    played = Played(flow, replies)
    if played.error is not None:
        raise played.error
    result: T = played.result
    return result


def calls(
    path: str = "orders",
    content_type: str | None = "application/json",
    retries: int | None = None,
) -> StreamCalls:
    """Return the calls of a semel stream whose media type is known."""
    found = StreamCalls(replace(SITE, retries=retries), path)
    found.content_type = content_type
    found.is_semel = True
    return found


def answer(status: int, body: bytes = b"", **headers: str) -> Response:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(status, fields, body)


def problem(status: int, code: str, applied: str = "no", **facts: Any) -> Response:
    """Return an error response in semel's format."""
    body = msgspec.json.encode({"code": code, "message": "no", "applied": applied, **facts})
    return answer(status, body, content_type="application/problem+json")


def document(value: Any, status: int = 200) -> Response:
    """Return a response with a JSON document."""
    return answer(status, msgspec.json.encode(value), content_type="application/json")


def body_of(send: Send) -> Any:
    """Return the JSON document of a sent request."""
    return msgspec.json.decode(send.request.body or b"")
