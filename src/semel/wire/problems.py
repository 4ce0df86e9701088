"""Defines problems, which are HTTP error responses, and the entries of the refusal table."""

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

    Programs can test `code`, because codes never change. `message` is for people. `facts` are
    additional members of the body. `headers` are additional response headers. `applied` is "no" if
    the request had no effect, and "unknown" if the request possibly had an effect.
    """

    status: int
    code: str
    message: str
    facts: Facts = {}
    headers: Fields = []
    applied: str = "no"


class MalformedRequest(Exception):
    """Raised if a request is malformed. The attribute `problem` is the response to send.

    A function with the decorator `parser` catches this exception and returns `problem` instead.
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

    `facts` are additional members of the JSON body.
    """
    return MalformedRequest(Problem(400, code, message, facts))


def bad_header(name: str, message: str) -> MalformedRequest:
    """Return the exception for a malformed header.

    `message` must be a text that can follow the header's name, such as "must be a number".
    """
    title = name.title().replace("Ttl", "TTL")
    return bad_request("invalid_header", f"{title} {message}", header=title)


class Entry(NamedTuple):
    """An entry of the refusal table.

    `outcome` is the name of the outcome class. `message` is a format string whose argument is
    the outcome, or a function that takes the outcome and returns the message. If a field of the
    outcome has a different name in the problem document, `names` maps the field to that name.

    `error` is the name of the error class that the client raises. If it is empty, the client
    chooses the class by the status. `advice`, `cli` and `spark` are advice for users of the client,
    the command line and Spark. At most one entry for each error class has `advice`. `applied` is
    that of the problem document.
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
    applied: str = "no"
