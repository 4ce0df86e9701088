"""Problems, which are the JSON bodies of HTTP errors, and the type of a refusal table entry."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

from msgspec import Struct

P = ParamSpec("P")
T = TypeVar("T")
Fields = list[tuple[str, str]]
Facts = Mapping[str, object]


class Problem(Struct, frozen=True):
    """An HTTP error response with a body of the type `application/problem+json`.

    `code` never changes, so programs can test it. `message` is for people. `facts` are additional
    members of the body, and `headers` are additional response headers. `applied` is "no" if the
    request had no effect, and "unknown" if it is possible that the request had an effect.
    """

    status: int
    code: str
    message: str
    facts: Facts = {}
    headers: Fields = []
    applied: str = "no"


class MalformedRequest(Exception):
    """Raised if a request is malformed. The attribute `problem` is the response to send.

    A function decorated with `parser` returns `problem` instead of raising this exception.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def parser(function: Callable[P, T]) -> Callable[P, T | Problem]:
    """Decorate `function` so that it returns the problem instead of raising MalformedRequest."""

    @wraps(function)
    def parse(*arguments: P.args, **options: P.kwargs) -> T | Problem:
        try:
            return function(*arguments, **options)
        except MalformedRequest as refusal:
            return refusal.problem

    return parse


def bad_request(code: str, message: str, **facts: object) -> MalformedRequest:
    """Return the exception for a request that is refused with the status 400.

    `facts` are additional members of the problem.
    """
    return MalformedRequest(Problem(400, code, message, facts))


def bad_header(name: str, message: str) -> MalformedRequest:
    """Return the exception for a malformed header.

    The message for people is the header's name followed by `message`.
    """
    title = name.title().replace("Ttl", "TTL")
    return bad_request("invalid_header", f"{title} {message}", header=title)


class Entry(NamedTuple):
    """An entry of the refusal table.

    `outcome` is the name of the outcome class. `message` is a format string for the outcome, or a
    function that takes the outcome and returns the message. `names` maps a field of the outcome to
    the member of the problem if the two have different names.

    `error` is the name of the error class that the client raises. If it is empty, the client
    chooses the class by the status. `advice` says what the caller of the client can do. Of the
    entries with the same error class, at most one has advice. `cli` and `spark` are the advice for
    users of the command line and of Spark.
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
