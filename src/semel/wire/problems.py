"""Problems, which are the JSON documents of HTTP errors, and the entries of the refusal table."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

from msgspec import Struct

P = ParamSpec("P")
T = TypeVar("T")
Fields = list[tuple[str, str]]
Facts = Mapping[str, object]


class Problem(Struct, frozen=True):
    """An HTTP error, whose body is `application/problem+json`.

    `code` is stable; `message` is for people. `facts` are more members of the body, and `headers`
    are more headers of the response. `applied` is "no", or "unknown" if the request may have had an
    effect.
    """

    status: int
    code: str
    message: str
    facts: Facts = {}
    headers: Fields = []
    applied: str = "no"


class MalformedRequest(Exception):
    """Raised if a request is malformed; a function decorated with `parser` returns `problem`."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def parser(function: Callable[P, T]) -> Callable[P, T | Problem]:
    """Return a function that returns the problem where `function` raises MalformedRequest."""

    @wraps(function)
    def parse(*arguments: P.args, **options: P.kwargs) -> T | Problem:
        try:
            return function(*arguments, **options)
        except MalformedRequest as refusal:
            return refusal.problem

    return parse


def bad_request(code: str, message: str, **facts: object) -> MalformedRequest:
    """Return the exception for a request that is refused with 400."""
    return MalformedRequest(Problem(400, code, message, facts))


def bad_header(name: str, message: str) -> MalformedRequest:
    """Return the exception for a malformed header; its message is the name, then `message`."""
    title = name.title().replace("Ttl", "TTL")
    return bad_request("invalid_header", f"{title} {message}", header=title)


class Entry(NamedTuple):
    """An entry of the refusal table.

    `outcome` is the name of the outcome class. `message` is a format for the outcome, or a function
    of it. `names` maps fields of the outcome to members of the problem that have another name.
    `error` is the name of the class that the client raises; without it, the status decides.
    `advice` says what a caller of the client can do; at most one entry of an error class has it.
    `cli` and `spark` say the same for the command line and for Spark.
    """

    code: str
    status: int
    outcome: str = ""
    message: str | Callable[[Any], str] = ""
    names: Mapping[str, str] = {}
    error: str = ""
    advice: str = ""
    cli: str = ""
    spark: str = ""
