"""Problems: the JSON documents of HTTP errors, as values and as entries of a table."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

from msgspec import Struct

P = ParamSpec("P")
T = TypeVar("T")
Fields = list[tuple[str, str]]
Facts = Mapping[str, object]


class Problem(Struct, frozen=True):
    """A refusal; the body of its response is `application/problem+json`.

    `code` is stable, `message` is for people; `facts` are added to the body, `headers` to the
    headers. `applied` is "no", or "unknown" if the request may have had an effect.
    """

    status: int
    code: str
    message: str
    facts: Facts = {}
    headers: Fields = []
    applied: str = "no"


class MalformedRequest(Exception):
    """Raised to end the parsing of a request; a `parser` returns its problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def parser(function: Callable[P, T]) -> Callable[P, T | Problem]:
    """Make a function that raises MalformedRequest return the problem instead."""

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
    """Return the exception for a header that is malformed; `message` follows its name."""
    title = name.title().replace("Ttl", "TTL")
    return bad_request("invalid_header", f"{title} {message}", header=title)


class Entry(NamedTuple):
    """A refusal.

    `message` is formatted with the outcome, or called with it. `names` maps fields of the outcome
    to members of the problem that have another name. `error` is the class the client raises; by
    default the status decides. `advice` is what to do next, for a caller of the client; it is given
    once per class. `cli` and `spark` say the same in terms of the command line and of Spark.
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
