"""Headers and query parameters that functions compute for each request.

A function is called for each request, each retry and each reconnection, so that a token can be
renewed while a long read continues. What a function raises is raised to the caller.

If the server refuses a token that a function has computed, the function is called once more. If it
returns another token, the request is sent again with that one: the server has not applied a request
without a valid token.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from semel.client.errors import CallbackFailed
from semel.client.flows import Reply
from semel.client.requests import AUTHORIZATION, Fields, Request, check_header, own_headers
from semel.client.response_parser import Response

FieldValue = str | Callable[[], str]
AsyncFieldValue = str | Callable[[], str | Awaitable[str]]
_BEARER: Final = "Bearer "
_UNAUTHENTICATED: Final = 401


class _Part(Struct, frozen=True):
    """A header or a query parameter. `function` computes its value, after `prefix`."""

    kind: str
    name: str
    function: Callable[[], object]
    prefix: str = ""

    def checked(self, value: object) -> str:
        """Return the value that the function has computed.

        Raises TypeError if it is not a str, and ValueError if it cannot be sent.
        """
        if inspect.iscoroutine(value):
            value.close()  # otherwise Python warns that it was never awaited
            raise TypeError(f"the function for the {self} is async; use it with AsyncClient")
        if not isinstance(value, str):
            raise TypeError(
                f"the function for the {self} returned a {type(value).__name__}; expected a str"
            )
        text = self.prefix + value
        if self.kind == "header":
            check_header(self.name, text)
        return text

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class ComputedFields:
    """The headers and query parameters of a client's requests that are not the same each time.

    A query parameter with a constant value also counts as one of them.
    """

    def __init__(
        self,
        token: Callable[[], object] | None,
        headers: Mapping[str, Callable[[], object]],
        params: Mapping[str, AsyncFieldValue],
    ) -> None:
        self._parts = [_Part("header", name, function) for name, function in headers.items()]
        if token is not None:
            self._parts.append(_Part("header", "Authorization", token, _BEARER))
        self._constants = {name: value for name, value in params.items() if isinstance(value, str)}
        self._parts += [
            _Part("parameter", name, value)
            for name, value in params.items()
            if not isinstance(value, str)
        ]

        self.has_token = any(part.name.lower() == AUTHORIZATION for part in self._parts)

    def __bool__(self) -> bool:
        return bool(self._parts or self._constants)

    def is_token_refused(self, reply: Reply) -> bool:
        """Return True if the server has refused the token, and a function can compute another."""
        is_refused = isinstance(reply, Response) and reply.status == _UNAUTHENTICATED
        return is_refused and self.has_token

    def add_to(self, request: Request) -> Request:
        """Call the functions, and return the request with their values.

        Raises what a function raises, and TypeError or ValueError if a value cannot be sent.
        """
        return self._added(request, [part.checked(part.function()) for part in self._parts])

    async def add_to_async(self, request: Request) -> Request:
        """Call the functions, await their results if necessary, and return the new request.

        Raises what a function raises, and TypeError or ValueError if a value cannot be sent.
        """
        values = []
        for part in self._parts:
            value = part.function()
            values.append(part.checked(await value if isinstance(value, Awaitable) else value))
        return self._added(request, values)

    def _added(self, request: Request, values: list[str]) -> Request:
        params = dict(self._constants)
        headers: list[tuple[str, str]] = []
        for part, value in zip(self._parts, values, strict=True):
            if part.kind == "header":
                if request.bearer is None or part.name.lower() != AUTHORIZATION:
                    headers.append((part.name, value))
            else:
                params[part.name] = value
        target = request.target
        for name, value in params.items():
            sign = "&" if "?" in target else "?"
            target += f"{sign}{quote(name, safe='-._~')}={quote(value, safe='-._~')}"
        return replace(request, target=target, headers=(*request.headers, *headers))


def computed_fields(
    token: AsyncFieldValue | None,
    headers: Mapping[str, AsyncFieldValue] | None,
    params: Mapping[str, AsyncFieldValue] | None,
) -> tuple[Fields, ComputedFields | None]:
    """Return the headers with constant values, and what must be added to each request, if any.

    Raises ValueError or TypeError if an option is invalid.
    """
    for kind, values in (("header", headers), ("parameter", params), ("token", {"": token or ""})):
        for name, value in (values or {}).items():
            if not (isinstance(value, str) or callable(value)):
                raise TypeError(
                    f"the {kind} {name} must be a str or a function, not {type(value).__name__}"
                )
    functions = {name: value for name, value in (headers or {}).items() if callable(value)}
    constants = {name: value for name, value in (headers or {}).items() if isinstance(value, str)}
    own_headers(None, dict.fromkeys(functions, ""), has_token=token is not None)  # checks the names
    fields = own_headers(
        token if isinstance(token, str) else None, constants, has_token=token is not None
    )
    computed = ComputedFields(token if callable(token) else None, functions, params or {})
    return fields, computed or None


def callback_failed(error: Exception) -> CallbackFailed:
    """Return the error with which a producer ends if one of the functions has raised `error`."""
    failed = CallbackFailed(
        f"the headers of a request could not be computed: {type(error).__name__}: {error}"
    )
    failed.__cause__ = error
    return failed
