"""Option types that several commands share.

For commands that use a server, this module also has the common options and the error reports.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import wraps
from math import isfinite
from typing import Any, Final

import click

from semel.cli.output import EXIT_NOT_UNDERSTOOD, EXIT_REFUSED, EXIT_UNAVAILABLE, CommandRefused
from semel.cli.server_choice import ChooseServer, ServerChoice, server_options
from semel.client import errors
from semel.client.credentials import CredentialsError
from semel.client.errors import ClientError
from semel.client.sync.client import Client
from semel.client.transport import TRUST_ADVICE
from semel.model.limits import NUMBER_MAX
from semel.model.offsets import parse_offset, print_offset
from semel.wire.headers import read_instant, to_datetime, to_position
from semel.wire.paths import STREAM_PREFIX, TOPIC_PREFIX, stream_path, stream_url, topic_name
from semel.wire.problems import MalformedRequest, Problem
from semel.wire.refusal_table import BY_CODE


class Seconds(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.5
    """A number of seconds, also a fraction: above zero, or from `minimum`, up to `maximum`."""

    name = "seconds"

    def __init__(self, maximum: float, minimum: float | None = None) -> None:
        self.maximum = maximum
        self._minimum = minimum or 0.0
        self._expected = (
            f"a number above 0 and at most {maximum:g}"
            if minimum is None
            else f"a number from {minimum:g} to {maximum:g}"
        )

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            seconds = float(value)
        except (TypeError, ValueError):
            self.fail(f"{value!r} is not a number of seconds; expected e.g. 1.5", param, ctx)
        is_in_range = self._minimum <= seconds <= self.maximum and seconds > 0
        if not (isfinite(seconds) and is_in_range):
            self.fail(f"{value} is out of range; expected {self._expected}", param, ctx)
        return seconds


class Number(click.IntRange):
    """An integer from `low` to `high`, by default to the greatest number that a server accepts."""

    def __init__(self, low: int = 0, high: int = NUMBER_MAX) -> None:
        super().__init__(low, high)
        self._expected = f"expected an integer from {low} to {high}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            is_integer = str(value).strip().removeprefix("-").isdecimal()
        what = f"{value} is out of range" if is_integer else f"{str(value)!r} is not an integer"
        self.fail(f"{what}; {self._expected}", param, ctx)


class Offset(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.5
    """An offset as semel prints it, or the number of a message.

    The number of a message is converted to its offset. If `is_for_reading`, `-1` (head) and `now`
    (tail) are also accepted.
    """

    name = "offset"

    def __init__(self, *, is_for_reading: bool = False) -> None:
        self.is_for_reading = is_for_reading

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if self.is_for_reading and text in {"-1", "now"}:
            return text
        if parse_offset(text) is not None:
            return text
        number = to_position(text)
        if number is None:
            special = "-1 (the beginning), now, " if self.is_for_reading else ""
            expected = f"{special}an offset as semel prints it, or the number of a message"
            self.fail(f"{text!r} is not an offset; expected {expected}", param, ctx)
        return print_offset(number)


class Moment(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.5
    """A date and a time, such as `2030-01-31T12:00:00Z`."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """Parse the time with the function that the server uses."""
        try:
            instant_ms = read_instant({"time": str(value)}, "time")
        except MalformedRequest:
            example = "2030-01-31T12:00:00Z"
            self.fail(f"{value!r} is not a date and time; expected e.g. {example}", param, ctx)
        assert instant_ms is not None
        return to_datetime(instant_ms)


_SPAN: Final = re.compile(r"([0-9]{1,7})([smhdw])")
_UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


class SpanOrMoment(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.5
    """A length of time such as `30d` or `12h`, or a date and a time as in `Moment`."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime | timedelta:
        """Return a timedelta for a length of time, and a datetime for a date and a time."""
        span = _SPAN.fullmatch(str(value))
        if span is not None:
            return timedelta(seconds=int(span[1]) * _UNIT_SECONDS[span[2]])
        try:
            return Moment().convert(value, param, ctx)
        except click.BadParameter:
            expected = "expected e.g. 30d, 12h, 90m or 2030-01-31T12:00:00Z"
            self.fail(f"{value!r} is not a time; {expected}", param, ctx)


class TokenText(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.5
    """Text that can be sent in an HTTP header."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not (text and text.isascii() and text.isprintable() and text == text.strip()):
            expected = "printable ASCII without leading or trailing spaces"
            self.fail(f"{text!r} cannot be sent in a header; expected {expected}", param, ctx)
        return text


class Name(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.5
    """A name or an id that is sent to the server. It is UTF-8, and not empty by default."""

    name = "text"

    def __init__(self, *, can_be_empty: bool = False) -> None:
        self._can_be_empty = can_be_empty

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not is_utf8(text):
            self.fail(f"{text!r} is not valid UTF-8; expected text", param, ctx)
        if not (text or self._can_be_empty):
            self.fail("the text is empty; expected at least one character", param, ctx)
        return text


def is_utf8(text: str) -> bool:
    """Return True if an argument of the command is valid UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class HeaderPair(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.5
    """A header of a message, written as `NAME=VALUE`. The value can contain `=`."""

    name = "name=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        name, sign, text = str(value).partition("=")
        if not (name and sign):
            self.fail(f"{value!r} is not a header; expected NAME=VALUE", param, ctx)
        if not is_utf8(name + text):
            self.fail(f"{value!r} is not valid UTF-8; expected text", param, ctx)
        return name, text


class Path(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.5
    """The path of a stream, such as `shop/orders`."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the path. An invalid path fails with the message that the server would send."""
        text = str(value)
        try:
            path = stream_path(stream_url("", text))
        except UnicodeEncodeError:
            self.fail(f"{text!r} is not valid UTF-8; expected the path of a stream", param, ctx)
        if isinstance(path, Problem):
            self.fail(f"{text!r}: {path.message}", param, ctx)
        return path


class TopicName(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.5
    """The name of a topic, such as `shop/orders`."""

    name = "topic"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name. An invalid one fails with the message that the server would send."""
        text = str(value)
        try:
            escaped = stream_url("", text).removeprefix(STREAM_PREFIX)
        except UnicodeEncodeError:
            self.fail(f"{text!r} is not valid UTF-8; expected the name of a topic", param, ctx)
        name = topic_name(TOPIC_PREFIX + escaped)
        if isinstance(name, Problem):
            self.fail(f"{text!r}: {name.message}", param, ctx)
        return name


path_argument: Final = click.argument("path", type=Path())
topic_argument: Final = click.argument("topic", type=TopicName())
timeout_option: Final = click.option(
    "--timeout",
    envvar="SEMEL_TIMEOUT",
    type=Seconds(86_400),
    default=30.0,
    show_default=True,
    show_envvar=True,
    help="How many seconds to wait for a response.",
)
json_option: Final = click.option(
    "--json", "is_json", is_flag=True, help="Print JSON, for programs."
)


def remote(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options about the server, --timeout and --json to a command.

    The command gets a `Client` as its first argument.
    """

    @server_options()
    @timeout_option
    @json_option
    @wraps(function)
    def run(*, choose: ChooseServer, timeout: float, **options: Any) -> Any:
        with client_errors(choose(), timeout) as client:
            return function(client, **options)

    return run


def require_together(**options: object) -> bool:
    """Return True if all of the options are set, and False if none is set.

    Raises CommandRefused if only some of the options are set.
    """
    names = {name: f"--{name.replace('_', '-')}" for name in options}
    missing = [names[name] for name, value in options.items() if value is None]
    if missing and len(missing) < len(options):
        *others, last = names.values()
        raise CommandRefused(
            f"{', '.join(others)} and {last} must be used together; {missing[0]} is missing"
        )
    return not missing


# ---- errors of the server ------------------------------------------------------------------------


@contextmanager
def client_errors(server: ServerChoice, timeout: float) -> Iterator[Client]:
    """Yield a client for a server.

    Raises CommandRefused if the address or the token is invalid, or if the `with` block raises a
    ClientError.
    """
    try:
        # There are few retries, because a user is waiting. An unreachable server is reported after
        # about a second.
        client = Client(
            server.url, token=server.token or "", tls=server.ca, timeout=timeout, retries=4
        )
    except ValueError as error:
        raise option_error(error) from error
    try:
        with client:
            yield client
    except ClientError as error:
        raise error_report(error) from error
    except CredentialsError as error:  # a token file is read for each request
        raise CommandRefused(str(error)) from None


def option_error(error: ValueError) -> CommandRefused:
    """Return the error for an address, or for certificates of a context, that cannot be used."""
    if "(tls=)" in str(error):
        return CommandRefused(str(error).replace("(tls=)", "(ca of the context)"))
    return CommandRefused(f"--url: {error}")


def error_report(error: ClientError) -> CommandRefused:
    """Convert a client's error to a CommandRefused with an exit code.

    The message says what is wrong and what to do.
    """
    if isinstance(error, errors.DamagedResponse) and error.applied == errors.NO:
        return CommandRefused(f"{error.message}; {error.advice}", EXIT_UNAVAILABLE)
    if isinstance(error, errors.NotSupported | errors.ProtocolError):
        return CommandRefused(
            f"{error.message}; check that --url points to a semel server", EXIT_NOT_UNDERSTOOD
        )
    if isinstance(error, errors.Refused):
        return CommandRefused(_refusal(error), EXIT_REFUSED)
    if isinstance(error, errors.Indeterminate):
        repeat = _first_fitting(
            " an append with --idempotency-key or --seq can be repeated safely; before you repeat"
            " another request, check whether the server applied it",
            " before you repeat it, check whether the server applied it",
        )
        return CommandRefused(
            f"{error.message}; it is unknown whether the server applied the request;{repeat}",
            EXIT_UNAVAILABLE,
        )
    if isinstance(error, errors.Unavailable) and error.status is not None:
        return CommandRefused(f"{error.message}; try again later", EXIT_UNAVAILABLE)
    if TRUST_ADVICE in error.message:  # only Python has tls=
        message = error.message.replace("tls= or SSL_CERT_FILE", "SSL_CERT_FILE")
        return CommandRefused(message, EXIT_UNAVAILABLE)
    if "TLS" in error.message:  # the message already says what to do
        return CommandRefused(error.message, EXIT_UNAVAILABLE)
    advice = _first_fitting(
        "check that `semel serve` is running at --url, or increase --timeout",
        "check that `semel serve` is running at --url",
        "check that `semel serve` is running",
    )
    return CommandRefused(f"{error.message}; {advice}", EXIT_UNAVAILABLE)


_OPTION: Final = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_OTHER_COMMAND: Final = re.compile(r"`semel [^`]*`")


def options_named(text: str) -> set[str]:
    """Return the options in a text, without those of other commands, in `semel ...`."""
    return set(_OPTION.findall(_OTHER_COMMAND.sub("", text)))


def _first_fitting(*texts: str) -> str:
    """Return the first text that names only options of the current command, else an empty text."""
    context = click.get_current_context(silent=True)
    if context is None:
        return texts[-1]
    known = {option for parameter in context.command.params for option in parameter.opts}
    return next((text for text in texts if options_named(text) <= known), "")


def _is_named(value: Any, message: str) -> bool:
    """Return True if a message contains a value, so that it need not be listed after it."""
    if isinstance(value, int):
        return re.search(rf"\b{value}\b", message) is not None
    return isinstance(value, str) and value in message


def _refusal(error: errors.Refused) -> str:
    message = error.message.removeprefix(f"{error.status} {error.code}: ")
    listed = ", ".join(
        f"{name} {value}"
        for name, value in error.facts.items()
        if value is not None
        and not _is_named(value, message)
        and not (name == "cause" and str(value).upper() == error.code)  # it is the same
    )
    text = f"{error.code}: {message}" + (f" ({listed})" if listed else "")
    if error.applied != errors.NO:
        text += "; perhaps the server has applied the request"
    # An error that the client itself detected has no status. Its message already says what to do.
    entry = BY_CODE.get(error.code) if error.status else None
    advice = _first_fitting(entry.cli) if entry is not None and entry.cli else ""
    return f"{text}; {advice}" if advice else text
