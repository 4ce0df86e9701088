"""Kinds of option that several commands have, and what every command about a server takes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from math import isfinite
from typing import Any, Final

import click

from semel.cli.exit_codes import EXIT_NOT_UNDERSTOOD, EXIT_REFUSED, EXIT_UNAVAILABLE, CommandRefused
from semel.client import errors
from semel.client.errors import ClientError
from semel.client.requests import URL_DEFAULT
from semel.client.sync.client import Client
from semel.model.offsets import parse_offset, print_offset
from semel.wire.headers import read_instant, to_datetime, to_position
from semel.wire.paths import stream_path, stream_url
from semel.wire.problems import MalformedRequest, Problem
from semel.wire.refusal_table import BY_CODE

TIMEOUT_DEFAULT: Final = 30.0
_HEAD: Final = "-1"
_NOW: Final = "now"


class Seconds(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.5
    """A time above zero, fractions allowed."""

    name = "seconds"

    def __init__(self, maximum: float) -> None:
        self.maximum = maximum

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read a number; one that is not finite is none."""
        try:
            seconds = float(value)
        except (TypeError, ValueError):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        if not (isfinite(seconds) and 0 < seconds <= self.maximum):
            self.fail(f"{value} is not above 0 and at most {self.maximum:g}", param, ctx)
        return seconds


class Offset(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.5
    """An offset as printed, or the number of a message; for a reader also -1 and now."""

    name = "offset"

    def __init__(self, *, is_for_reading: bool = False) -> None:
        self.is_for_reading = is_for_reading

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Give the offset as it is printed."""
        text = str(value)
        if self.is_for_reading and text in {_HEAD, _NOW}:
            return text
        if parse_offset(text) is not None:
            return text
        number = to_position(text)
        if number is None:
            words = "-1 (the beginning), now, " if self.is_for_reading else ""
            wanted = f"{words}an offset as semel prints it, or the number of a message"
            self.fail(f"{text!r} is none; wanted is {wanted}", param, ctx)
        return print_offset(number)


class Moment(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.5
    """A date and a time, such as `2030-01-31T12:00:00Z`."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """Read it as a server would."""
        try:
            instant_ms = read_instant({"time": str(value)}, "time")
        except MalformedRequest:
            wanted = "a date and time such as 2030-01-31T12:00:00Z"
            self.fail(f"{value!r} is none; wanted is {wanted}", param, ctx)
        assert instant_ms is not None
        return to_datetime(instant_ms)


class TokenText(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.5
    """What can travel in a header."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Let printable ASCII pass."""
        text = str(value)
        if not (text.isascii() and text.isprintable() and text == text.strip()):
            self.fail(f"{text!r} must be printable ASCII, without spaces around it", param, ctx)
        return text


class HeaderPair(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.5
    """A header of a message, `NAME=VALUE`."""

    name = "name=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Split it; the value may hold more of `=`."""
        name, sign, text = str(value).partition("=")
        if not (name and sign):
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, text


class Path(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.5
    """The name of a stream, such as `shop/orders`."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Let pass what a server would, and say at once what it would not."""
        text = str(value)
        try:
            found = stream_path(stream_url("", text))
        except UnicodeEncodeError:
            self.fail("the name is not UTF-8", param, ctx)
        if isinstance(found, Problem):
            self.fail(f"{text!r}: {found.message}", param, ctx)
        return found


def path_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """Take the name of a stream."""
    return click.argument("path", type=Path())(function)


def remote(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command its server: the options --url, --timeout and --json."""

    @click.option(
        "--url",
        envvar="SEMEL_URL",
        default=URL_DEFAULT,
        show_default=True,
        show_envvar=True,
        help="Where the server is.",
    )
    @click.option(
        "--timeout",
        envvar="SEMEL_TIMEOUT",
        type=Seconds(86_400),
        default=TIMEOUT_DEFAULT,
        show_default=True,
        show_envvar=True,
        help="Seconds to wait for an answer.",
    )
    @click.option("--json", "is_json", is_flag=True, help="Print JSON, for programs.")
    @wraps(function)
    def run(*, url: str, timeout: float, **given: Any) -> Any:
        with client_errors(url, timeout) as client:
            return function(client, **given)

    return run


def require_together(**given: object) -> bool:
    """Tell whether options that belong together are there; refuse some without the others."""
    missing = [name for name, value in given.items() if value is None]
    if missing and len(missing) < len(given):
        names = [f"--{name.replace('_', '-')}" for name in given]
        listed = f"{', '.join(names[:-1])} and {names[-1]}"
        raise CommandRefused(
            f"{listed} belong together; --{missing[0].replace('_', '-')} is missing"
        )
    return not missing


# ---- remote --------------------------------------------------------------------------------------
# The server a command asks, and what it says in the words of the command line.


# A person waits: a server that is not there is said so within a second.
_RETRIES: Final = 4

_NOT_REACHED: Final = (
    "start one with `semel serve`, or say with --url where it is and with --timeout how long to"
    " wait for it"
)
_IN_DOUBT: Final = (
    "it may have been done or not: look first; an append with --producer, --epoch and --seq or"
    " with --idempotency-key may simply be sent again"
)


@contextmanager
def client_errors(url: str, timeout: float) -> Iterator[Client]:
    """Give a command its server; what the server refuses ends the command."""
    try:
        client = Client(url, timeout=timeout, retries=_RETRIES)
    except ValueError as error:
        raise CommandRefused(f"--url: {error}; wanted is one such as {URL_DEFAULT}") from error
    with client:
        try:
            yield client
        except ClientError as error:
            raise error_report(error) from error


def error_report(error: ClientError) -> CommandRefused:
    """Say what went wrong, and what to do."""
    if isinstance(error, errors.NotSupported | errors.ProtocolError):
        return CommandRefused(f"{error.message}; is this semel? check --url", EXIT_NOT_UNDERSTOOD)
    if isinstance(error, errors.Refused):
        return CommandRefused(_refusal(error), EXIT_REFUSED)
    if isinstance(error, errors.Indeterminate):
        return CommandRefused(f"{error.message}; {_IN_DOUBT}", EXIT_UNAVAILABLE)
    if isinstance(error, errors.Unavailable) and error.status is not None:
        return CommandRefused(f"{error.message}; send the same again, later", EXIT_UNAVAILABLE)
    is_said = "SSL_CERT_FILE" in error.message
    return CommandRefused(
        error.message if is_said else f"{error.message}; {_NOT_REACHED}", EXIT_UNAVAILABLE
    )


def _refusal(error: errors.Refused) -> str:
    said = error.message.removeprefix(f"{error.status} {error.code}: ")
    listed = ", ".join(
        f"{name} {value}"
        for name, value in error.facts.items()
        if value is not None and not (isinstance(value, str) and value in said)
    )
    text = f"{error.code}: {said}" + (f" ({listed})" if listed else "")
    if error.applied != errors.NO:
        text += "; it may have been applied"
    # What the client found out by itself has no status, and says all there is.
    entry = BY_CODE.get(error.code) if error.status else None
    return f"{text}; {entry.cli}" if entry is not None and entry.cli else text
