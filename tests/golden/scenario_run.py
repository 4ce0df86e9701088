"""Runs the scenario: with clients of both kinds, plain HTTP and the command line.

Plain values describe what each step returns or raises. The only class names in them are those of
errors.
"""

import asyncio
import importlib.metadata
import inspect
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from functools import partial
from math import isfinite
from typing import Any, Final, Protocol
from unittest.mock import patch
from urllib.parse import urlsplit

import semel
from tests.golden.exchanges import Connection, Entry, Response
from tests.golden.recorder import plain_request

SYNC: Final = "sync"
ASYNC: Final = "async"
# A field that no server sends today; the replay adds it, as a later server may add fields.
UNKNOWN_FIELD: Final = "unknown_field"
_TIMEOUT_SECONDS: Final = 20.0


class Session(Protocol):
    """Receives the results of a run: a recording or a replay."""

    def begin(self, step: str) -> None:
        """Set the name of the next step."""

    def pause(self, seconds: float) -> None:
        """Wait, or only record the wait."""

    def add_result(self, result: Entry) -> None:
        """Record the result of the step."""


class ScenarioRun:
    """Two clients of one server. `other` sends a token and a header, and accepts gzip."""

    def __init__(self, kind: str, url: str, session: Session) -> None:
        self.url = url
        self.session = session
        self.kept: dict[str, Any] = {}
        self._stack = ExitStack()
        self.client = self._client(kind)
        self.other = self._client(kind, token="secret", headers={"X-Team": "golden"}, gzip=True)

    def _client(self, kind: str, **options: Any) -> Any:
        made: Any = semel.Client if kind == SYNC else BlockingClient
        return self._stack.enter_context(made(self.url, timeout=_TIMEOUT_SECONDS, **options))

    def __enter__(self) -> "ScenarioRun":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run_steps(self, steps: Iterable[Callable[["ScenarioRun"], Any]]) -> None:
        """Run steps, and pass their results to the session."""
        for step in steps:
            self.session.begin(step.__name__.replace("_", " "))
            self.session.add_result(outcome_of(partial(step, self)))

    def pause(self, seconds: float) -> None:
        self.session.pause(seconds)

    def wait(self, found: Any) -> Any:
        """Await the result of a method of an AsyncClient's message."""
        return self.client.wait(found) if inspect.isawaitable(found) else found

    def plain(self, method: str, target: str, body: Any = None, **headers: Any) -> Response:
        """Send plain HTTP; the keyword `producer_id` sets the header Producer-Id."""
        lines = {name.replace("_", "-").title(): value for name, value in headers.items()}
        connection = Connection.to(int(urlsplit(self.url).port or 0))
        with connection.socket:
            connection.send(plain_request(method, target, body, lines).encoded())
            return connection.response(method)

    def command(self, *arguments: str) -> dict[str, Any]:
        """Run a command of `semel` on the server; return its exit code and output."""
        (script,) = importlib.metadata.entry_points(group="console_scripts", name="semel")
        main = script.load()
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        code: object = 0
        given = ["semel", *arguments, "--url", self.url, "--json"]
        with patch.object(sys, "argv", given), redirect_stdout(out), redirect_stderr(io.StringIO()):
            try:
                main()
            except SystemExit as end:
                code = end.code
            out.flush()
        out.seek(0)
        return {"exit": code, "printed": [json.loads(line) for line in out]}


Step = Callable[[ScenarioRun], Any]


class Steps(list[Step]):
    """The steps of a module. Used as a decorator, the list adds a function."""

    def __call__(self, function: Step) -> Step:
        """Add a step."""
        self.append(function)
        return function


# ---- results -------------------------------------------------------------------------------------


def outcome_of(call: Callable[[], Any]) -> Entry:
    """Describe what a call returns or raises."""
    try:
        return {"returned": described(call())}
    except semel.SemelError as error:
        shown: Entry = {"raised": type(error).__name__}
        for name in ("code", "applied", "status", "facts"):
            if hasattr(error, name):
                shown[name] = described(getattr(error, name))
        return shown
    except (TypeError, ValueError) as error:
        return {"raised": type(error).__name__}


def described(value: Any) -> Any:
    """Describe a value by plain values; raise TypeError for types that no client returns."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else repr(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return repr(value)
    if isinstance(value, datetime):
        shown = value.astimezone(UTC).replace(tzinfo=None)
        return shown.isoformat(timespec="milliseconds") + "Z"
    if isinstance(value, semel.Message):
        names = ("value", "raw", "offset", "next_offset", "timestamp", "key", "headers")
        return {name: described(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(k): described(inner) for k, inner in value.items() if k != UNKNOWN_FIELD}
    fields: Sequence[str] | None = getattr(value, "__struct_fields__", None)
    if fields is not None:
        return {name: described(getattr(value, name)) for name in fields}
    if isinstance(value, Sequence | Iterator):
        return [described(inner) for inner in value]
    raise TypeError(f"{type(value).__name__} is not described")


# ---- AsyncClient with blocking calls -------------------------------------------------------------


class BlockingClient:
    """An AsyncClient, or an object it returned, with blocking calls."""

    def __init__(self, url: str, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._inner: Any = semel.AsyncClient(url, **options)

    def __getattr__(self, name: str) -> Any:
        return _blocking(self._runner, getattr(self._inner, name))

    def __enter__(self) -> "BlockingClient":
        self._runner.run(self._inner.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self._runner.run(self._inner.__aexit__(*error))
        self._runner.close()

    def wait(self, found: Any) -> Any:
        """Run an awaitable on the loop of the client."""
        return self._runner.run(_awaited(found))


class _Blocking(BlockingClient):
    """A stream, tail, producer, transaction, group, sink or task of an AsyncClient."""

    def __init__(self, runner: asyncio.Runner, inner: Any) -> None:
        self._runner = runner
        self._inner = inner

    def __enter__(self) -> "_Blocking":
        entered = self._runner.run(self._inner.__aenter__())
        return self if entered is self._inner else _Blocking(self._runner, entered)

    def __exit__(self, *error: Any) -> None:
        self._runner.run(self._inner.__aexit__(*error))

    def __iter__(self) -> "_Blocking":
        return self

    def __next__(self) -> Any:
        try:
            return _blocking(self._runner, self._runner.run(_next(self._inner)))
        except StopAsyncIteration:
            raise StopIteration from None


async def _next(inner: Any) -> Any:
    return await anext(inner)


async def _awaited(inner: Any) -> Any:
    return await inner


def _blocking(runner: asyncio.Runner, found: Any) -> Any:
    """Wrap an asynchronous object so that its calls block."""
    if inspect.isawaitable(found):
        return _blocking(runner, runner.run(_awaited(found)))
    if inspect.ismethod(found):
        return lambda *given, **named: _blocking(runner, found(*given, **named))
    is_async = hasattr(found, "__anext__") or hasattr(found, "__aenter__")
    if is_async or type(found).__name__.startswith("Async"):
        return _Blocking(runner, found)
    return found
