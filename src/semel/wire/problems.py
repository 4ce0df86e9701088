"""A request refused: what to answer, as a value; and as an exception between parsing functions."""

from collections.abc import Mapping

from msgspec import Struct

Fields = list[tuple[str, str]]
Facts = Mapping[str, object]


class Problem(Struct, frozen=True):
    """A refusal to be answered as `application/problem+json`.

    `code` is stable, `message` is for people, `facts` join the body, `headers` the headers.
    `applied` is "no", or "unknown" if the server cannot tell.
    """

    status: int
    code: str
    message: str
    facts: Facts = {}
    headers: Fields = []
    applied: str = "no"


class MalformedRequest(Exception):
    """Ends the parsing of a request; never leaves this package."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def bad_request(code: str, message: str, **facts: object) -> MalformedRequest:
    """Refuse with 400."""
    return MalformedRequest(Problem(400, code, message, facts))


def bad_header(name: str, message: str) -> MalformedRequest:
    """Refuse a header by name."""
    shown = name.title().replace("Ttl", "TTL")
    return bad_request("invalid_header", f"{shown} {message}", header=shown)
