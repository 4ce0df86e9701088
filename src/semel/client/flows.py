"""Flows: generators that decide which requests to send. The sync and async clients share them.

A flow yields steps. A flow driver executes each step and sends the step's reply back into the flow.
A flow uses no sockets. The flow driver owns the sockets, and it enforces the timeout of each call.
"""

from collections.abc import Callable, Generator, Mapping
from enum import Enum
from math import inf
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from semel.client import errors
from semel.client.errors import ClientError, Indeterminate, Refused, Unavailable
from semel.client.requests import Request
from semel.client.response_parser import Response
from semel.model.messages import JSON_MEDIA_TYPE, normalise
from semel.wire.headers import PROBLEM, read_flag, to_number
from semel.wire.refusal_table import BY_CODE
from semel.wire.refusal_table_subscriptions import INVALID_REQUEST

T = TypeVar("T")
Flow = Generator["Step", Any, T]
# Called before each retry, with the error that caused it and the number of earlier retries.
OnRetry = Callable[[ClientError, int], object]
# The errors with which a request can fail. Other client errors have no status and no Retry-After.
Failure = Refused | Unavailable | Indeterminate

PAUSE_SECONDS_MIN: Final = 0.05
PAUSE_SECONDS_MAX: Final = 2.0
RETRY_AFTER_SECONDS_MAX: Final = 60.0  # a reader without a deadline must not sleep for a day
_DOUBLINGS_MAX: Final = 10
_TEMPORARY: Final = frozenset({429, 507})


class RetrySafety(Enum):
    """What happens if the server receives the same request twice."""

    READ = "the request changes nothing"
    REPEATABLE = "the second copy of the request changes nothing"
    ONCE = "the request is applied twice"


# ---- steps and their replies ---------------------------------------------------------------------


class Send(Struct, frozen=True):
    """A step of a flow: send a request and wait for the response.

    The reply is Response, or Opened if the response is streamed. The connection can also fail, or
    be silent for `silence_seconds`. Then the reply is Lost if the whole request was sent, and
    NotSent if not.
    """

    request: Request
    kind: RetrySafety
    silence_seconds: float = inf


class Pause(Struct, frozen=True):
    """A step of a flow: wait about `seconds` seconds, but not less than `at_least` seconds.

    The reply is True after the whole pause. It is False if the pause would last beyond the call's
    timeout, or if the caller has stopped the call.
    """

    seconds: float
    at_least: float = 0.0


class Receive(Struct, frozen=True):
    """A step of a flow: wait for the next part of a streamed response.

    The reply is BodyPart, BodyEnd or Lost.
    """

    channel: Any
    silence_seconds: float


class CloseChannel(Struct, frozen=True):
    """A step of a flow: stop reading a streamed response."""

    channel: Any


Step = Send | Pause | Receive | CloseChannel


class Opened(Struct, frozen=True):
    """A streamed response has begun. Pass `channel` to Receive and CloseChannel."""

    response: Response
    channel: Any


class NotSent(Struct, frozen=True):
    """The server did not receive the whole request, so it applied nothing.

    `is_permanent` is True if a retry would also fail.
    """

    reason: str
    is_permanent: bool = False


class Lost(Struct, frozen=True):
    """The request was sent, but no response came.

    `is_stale` is True if a reused connection was closed before the first byte of the response. The
    server has probably closed an idle connection, so a retry does not need a pause. `is_cut` is
    True if the connection was closed in the middle of the response.
    """

    reason: str
    is_stale: bool = False
    is_cut: bool = False


Reply = Response | Opened | NotSent | Lost


class Exchanged(Struct, frozen=True):
    """The final response to a request.

    `was_lost` is True if an earlier attempt got no response. That attempt may have been applied. It
    is always False for a read.
    `stream` is the stream of the request, for error messages.
    """

    response: Response
    was_lost: bool = False
    channel: Any = None
    stream: str | None = None

    def expect(self, *statuses: int) -> Response:
        """Return the response if it has one of these statuses.

        Any other status below 400 raises ProtocolError. From 400 on, the server's error is raised.
        """
        status = self.response.status
        if status in statuses:
            return self.response
        if status < 400:
            raise errors.ProtocolError(
                f"the response has status {status}; expected {' or '.join(map(str, statuses))}"
            )
        raise self.error()

    def error(self) -> ClientError:
        """Return the error for a response with a status of 400 or more.

        The server checks the token before it recognises a repeat. So if it refuses a repeat for its
        token, an earlier attempt without a response may have been applied.
        """
        response = self.response
        error = error_of(response.status, response.headers, response.body, self.stream)
        if self.was_lost and isinstance(error, errors.Unauthenticated | errors.Forbidden):
            error.applied = errors.UNKNOWN
        return error


# ---- retries -------------------------------------------------------------------------------------


def ask(
    request: Request,
    kind: RetrySafety,
    *,
    retries: int | None = None,
    silence_seconds: float = inf,
    on_retry: OnRetry | None = None,
    still_safe: Callable[[], Flow[bool]] | None = None,
    stream: str | None = None,
) -> Flow[Exchanged]:
    """Send a request and return its final response. Send it again after a failure if that is safe.

    `retries` is the maximum number of retries. None means to retry until the call's timeout.
    `still_safe` is a flow that runs before a repeat of a request that may have been applied. If it
    returns False, the request is not repeated.
    `stream` is the stream that the request refers to. The error says which stream does not exist.

    Raises Unavailable or Indeterminate if no attempt gets a final response. Raises DamagedResponse
    if the response to a read was always incomplete.
    """
    was_lost = False
    had_stale = False
    tries = 0
    while True:
        reply: Reply = yield Send(request, kind, silence_seconds)
        if isinstance(reply, Opened):
            return Exchanged(reply.response, was_lost, reply.channel, stream)
        error = _failure(reply)
        if error is None:
            assert isinstance(reply, Response)
            return Exchanged(reply, was_lost, stream=stream)
        is_safe = error.applied == errors.NO or kind is not RetrySafety.ONCE
        is_read = kind is RetrySafety.READ
        was_lost = was_lost or (error.applied != errors.NO and not is_read)
        if is_safe and isinstance(reply, Lost) and reply.is_stale and not had_stale:
            had_stale = True  # the server only closed an idle connection, so no pause is needed
        else:
            is_permanent = isinstance(reply, NotSent) and reply.is_permanent
            if not is_safe or is_permanent or (retries is not None and tries >= retries):
                raise _final_error(error, kind, reply, was_lost=was_lost)
            if on_retry is not None:
                on_retry(error, tries)
            if not (yield pause_after(tries, error.retry_after)):
                raise _final_error(error, kind, reply, was_lost=was_lost)
            tries += 1
        if was_lost and still_safe is not None and not (yield from still_safe()):
            raise _final_error(error, kind, reply, was_lost=was_lost)


def pause_after(tries: int, at_least: float | None = None) -> Pause:
    """Return the pause before the next retry. `at_least` is the Retry-After value in seconds."""
    seconds = backoff_seconds(tries, PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX)
    return Pause(seconds, min(at_least or 0.0, RETRY_AFTER_SECONDS_MAX))


def backoff_seconds(attempts: int, first: float, maximum: float) -> float:
    """Return `first`, doubled `attempts` times, but at most `maximum`."""
    return min(first * 2.0 ** min(attempts, _DOUBLINGS_MAX), maximum)


def _failure(reply: Response | NotSent | Lost) -> Failure | None:
    """Return the error of an attempt if it failed and a retry can help. Otherwise return None.

    A retry can help if no response came, or if the error is Unavailable or Indeterminate. After a
    refusal, it can help only if the status is 408, or if the status is 429 or 507 and the
    Retry-After header is a number of seconds. It can also help after a 429 from another server than
    semel, which limits the rate of requests.
    """
    if isinstance(reply, NotSent):
        unavailable = Unavailable(reply.reason)
        if reply.is_permanent:
            unavailable.advice = ""  # the reason says what to do
        return unavailable
    if isinstance(reply, Lost):
        return Indeterminate(reply.reason)
    if reply.status < 400:
        return None
    error = error_of(reply.status, reply.headers, reply.body)
    if not isinstance(error, Refused) or reply.status == 408:
        return error
    is_rate = reply.status == 429 and not is_lasting_limit(reply.status, reply.headers)
    is_temporary = reply.status in _TEMPORARY and error.retry_after is not None
    return error if is_temporary or is_rate else None


def is_lasting_limit(status: int, headers: Mapping[str, str]) -> bool:
    """Return True if a response reports a limit of semel that does not change with time.

    Such a 429 has no Retry-After. A 429 of another server limits the rate of requests.
    """
    is_semel = normalise(headers.get("content-type", "")) == PROBLEM
    return status == 429 and is_semel and to_number(headers.get("retry-after", "")) is None


def _final_error(
    error: Failure, kind: RetrySafety, reply: Response | NotSent | Lost, *, was_lost: bool
) -> Failure | errors.DamagedResponse:
    """Return the error to raise after the last attempt, with the correct value of `applied`.

    For a read, `applied` is "no", because a read changes nothing. For any other request, it is
    "unknown" if `was_lost` is True. Otherwise `error` is returned unchanged.
    """
    if kind is RetrySafety.READ and isinstance(reply, Lost) and reply.is_cut:
        damaged = errors.DamagedResponse(error.message)
        damaged.applied = errors.NO
        return damaged
    if kind is RetrySafety.READ:
        return (
            error if error.applied == errors.NO else Unavailable(error.message, status=error.status)
        )
    if was_lost and error.applied == errors.NO:
        return Indeterminate(
            f"an earlier attempt got no response, and the last one failed: {error.message}",
            status=error.status,
        )
    return error


# ---- errors from responses -----------------------------------------------------------------------
# A refusal from semel has a stable code. A refusal from a different Durable Streams server is
# recognised by its status and headers.


_BY_CODE: Final[Mapping[str, type[Refused]]] = {
    code: getattr(errors, entry.error) for code, entry in BY_CODE.items() if entry.error
}

_BY_STATUS: Final[Mapping[int, type[Refused]]] = {
    401: errors.Unauthenticated,
    403: errors.Forbidden,
    404: errors.StreamNotFound,
    410: errors.StreamGone,
    412: errors.PreconditionFailed,
    413: errors.TooLarge,
    429: errors.LimitReached,
    507: errors.DiskFull,
}

# Maps a header to the name of its fact. Some responses have these facts only in headers.
_FACTS: Final[Mapping[str, str]] = {
    "stream-next-offset": "next_offset",
    "producer-epoch": "current_epoch",
    "producer-seq": "last_seq",
    "producer-expected-seq": "expected_seq",
    "producer-received-seq": "received_seq",
}
# The message of these errors must name the stream. The server's message often does not.
_NAMING: Final = frozenset({errors.StreamNotFound, errors.StreamGone, errors.TopicNotFound})
_SHOWN_CHARS_MAX: Final = 200
_OWN: Final = frozenset({"code", "message", "applied"})


def error_of(
    status: int, headers: Mapping[str, str], body: bytes, stream: str | None = None
) -> Failure:
    """Return the error for a response with a status of 300 or more.

    A status of 500 or more gives Indeterminate, unless the server says that nothing was applied.
    If the server says so, 503 gives Unavailable. Every other response gives Refused or a subclass
    of it. If the stream or topic does not exist, the message names `stream`.
    """
    problem = _problem(headers, body)
    message = _message(status, problem, body)
    seconds = to_number(headers.get("retry-after", ""))  # None for a date
    retry_after = None if seconds is None else float(seconds)
    applied = problem.get("applied")
    code = problem.get("code")
    code = code if isinstance(code, str) else None
    if status == 503 and applied == errors.NO:
        return Unavailable(message, status=status, retry_after=retry_after)
    if status >= 500 and applied != errors.NO:
        # A proxy can send this status even though the server has processed the request.
        return Indeterminate(message, status=status, retry_after=retry_after)
    cause = problem.get("cause") if code == INVALID_REQUEST else None
    kind = _error_class(status, cause if isinstance(cause, str) else code, headers)
    if stream is not None and kind in _NAMING and stream not in message:
        message = f"{message}: {stream}"
    return kind(
        message,
        status=status,
        code=code,
        applied=applied if isinstance(applied, str) else errors.NO,
        facts=_facts(problem, headers),
        retry_after=retry_after,
    )


def _error_class(status: int, code: str | None, headers: Mapping[str, str]) -> type[Refused]:
    kind = _BY_CODE.get(code or "")
    if kind is not None:
        return kind
    if status == 403 and "producer-epoch" in headers:
        return errors.ProducerFenced
    if status == 409 and "producer-expected-seq" in headers:
        return errors.SequenceGap
    if status == 409 and read_flag(headers, "stream-closed"):
        return errors.StreamClosed
    if status == 409:
        return Refused
    return _BY_STATUS.get(status, errors.BadRequest if 400 <= status < 500 else Refused)


def _problem(headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    media_type = normalise(headers.get("content-type", ""))
    if media_type not in (PROBLEM, JSON_MEDIA_TYPE):
        return {}
    try:
        problem = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    if not isinstance(problem, dict):
        return {}
    # Responses about subscriptions, and those of some other servers, have this format:
    # {"error": {"code": ..., "message": ...}}.
    inner = problem.get("error")
    return inner if isinstance(inner, dict) else problem


def _message(status: int, problem: Mapping[str, Any], body: bytes) -> str:
    text = problem.get("message") or problem.get("detail")
    if not isinstance(text, str) or not text:
        text = body[:_SHOWN_CHARS_MAX].decode("utf-8", "replace").strip()
    code = problem.get("code", "")
    return f"{status} {code}: {text}" if code else f"{status}: {text}" if text else f"{status}"


def _facts(problem: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, object]:
    facts: dict[str, object] = {name: value for name, value in problem.items() if name not in _OWN}
    for header, name in _FACTS.items():
        value = headers.get(header)
        if value is not None and name not in facts:
            number = None if name == "next_offset" else to_number(value)
            facts[name] = value if number is None else number
    return facts
