"""Calls as generators: what to send, when to wait, when to give up. One set for sync and async.

A flow yields steps and is sent back what became of each; a driver carries them out. Flows hold no
socket and know no clock: how much time is left is the driver's to say.
"""

from collections.abc import Callable, Generator
from enum import Enum
from math import inf
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from semel.client import errors
from semel.client.errors import ClientError, Indeterminate, Refused, Unavailable
from semel.client.refusals import error_of
from semel.client.requests import Request
from semel.client.response_parser import Response

T = TypeVar("T")
Flow = Generator["Step", Any, T]
# Told of what went wrong, and how often in a row it did before, when a call is made again.
OnRetry = Callable[[ClientError, int], object]

PAUSE_SECONDS_MIN: Final = 0.05
PAUSE_SECONDS_MAX: Final = 2.0
RETRY_AFTER_SECONDS_MAX: Final = 60.0  # a reader that waits for ever must not sleep for a day
_DOUBLINGS_MAX: Final = 10
_PASSING: Final = frozenset({408, 429, 507})


class RetrySafety(Enum):
    """What sending a request twice would mean."""

    READ = "changes nothing"
    REPEATABLE = "changes nothing the second time"
    ONCE = "would be carried out twice"


# ---- steps, and what becomes of them -------------------------------------------------------------


class Send(Struct, frozen=True):
    """Send a request and wait: Answer, Opened, NotSent or Lost.

    `silence_seconds`: how long nothing may come from the server, if not as long as the call.
    """

    request: Request
    kind: RetrySafety
    silence_seconds: float = inf


class Pause(Struct, frozen=True):
    """Wait about so long, and not less than `at_least`: False if the time is over before that."""

    seconds: float
    at_least: float = 0.0


class Receive(Struct, frozen=True):
    """Wait for the next part of a streamed answer: BodyPart, BodyEnd or Lost."""

    channel: Any
    silence_seconds: float


class CloseChannel(Struct, frozen=True):
    """Hang up on a streamed answer."""

    channel: Any


Step = Send | Pause | Receive | CloseChannel


class Opened(Struct, frozen=True):
    """An answer that is streamed has begun; `channel` is where the rest comes from."""

    answer: Response
    channel: Any


class NotSent(Struct, frozen=True):
    """The server cannot have the whole request. `is_hopeless`: nor will it ever."""

    reason: str
    is_hopeless: bool = False


class Lost(Struct, frozen=True):
    """The request was sent, and the answer did not come.

    `is_stale`: an old connection was closed before the first byte of it, as happens when a server
    is tired of waiting in the same moment.
    """

    reason: str
    is_stale: bool = False


Reply = Response | Opened | NotSent | Lost


class Exchanged(Struct, frozen=True):
    """An answer to act on. `was_lost`: an earlier try of the same call may have been applied."""

    answer: Response
    was_lost: bool = False
    channel: Any = None

    def expect(self, *statuses: int) -> Response:
        """Take nothing but these for a success; raises what the answer means."""
        answer = self.answer
        if answer.status in statuses:
            return answer
        if answer.status < 400:
            raise errors.ProtocolError(
                f"the answer was {answer.status}, and not {' or '.join(map(str, statuses))}"
            )
        raise self.error()

    def error(self) -> ClientError:
        """Tell what an answer that says no means."""
        return error_of(self.answer.status, self.answer.headers, self.answer.body)


# ---- asking until there is an answer -------------------------------------------------------------


def ask(
    request: Request,
    kind: RetrySafety,
    *,
    retries: int | None = None,
    silence_seconds: float = inf,
    on_retry: OnRetry | None = None,
) -> Flow[Exchanged]:
    """Send a request, again if that is safe, until there is an answer that says something.

    `retries` None: as often as the time allows. Raises Unavailable or Indeterminate.
    """
    was_lost = False
    is_stale_seen = False
    tries = 0
    while True:
        reply: Reply = yield Send(request, kind, silence_seconds)
        if isinstance(reply, Opened):
            return Exchanged(reply.answer, was_lost, reply.channel)
        error = _failure(reply)
        if error is None:
            assert isinstance(reply, Response)
            return Exchanged(reply, was_lost)
        is_safe = error.applied == errors.NO or kind is not RetrySafety.ONCE
        was_lost = was_lost or error.applied != errors.NO
        if is_safe and isinstance(reply, Lost) and reply.is_stale and not is_stale_seen:
            is_stale_seen = True  # nothing is wrong with the server: no need to wait
            continue
        is_hopeless = isinstance(reply, NotSent) and reply.is_hopeless
        if not is_safe or is_hopeless or (retries is not None and tries >= retries):
            raise _retry_decision(error, kind, was_lost=was_lost)
        if on_retry is not None:
            on_retry(error, tries)
        if not (yield pause_after(tries, _retry_after(error))):
            raise _retry_decision(error, kind, was_lost=was_lost)
        tries += 1


def with_silence_limit(flow: Flow[T], silence_seconds: float) -> Flow[T]:
    """Carry out a flow that may take as long as it wants, but for a server that says nothing.

    A connection to a machine that is gone may look alive for ever: the request is sent again.
    """
    reply: Any = None
    while True:
        try:
            step = flow.send(reply)
        except StopIteration as end:
            value: T = end.value
            return value
        if isinstance(step, Send):
            step = replace(step, silence_seconds=min(step.silence_seconds, silence_seconds))
        reply = yield step


def pause_after(tries: int, at_least: float | None = None) -> Pause:
    """How long to wait after so many tries that were in vain."""
    seconds = backoff_seconds(tries, PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX)
    return Pause(seconds, min(at_least or 0.0, RETRY_AFTER_SECONDS_MAX))


def backoff_seconds(attempts: int, first: float, maximum: float) -> float:
    """Return `first`, doubled with each failed attempt in a row, up to `maximum`."""
    return min(first * 2.0 ** min(attempts, _DOUBLINGS_MAX), maximum)


def _failure(reply: Response | NotSent | Lost) -> ClientError | None:
    """Tell what is wrong, if it may be right later; None if the answer is one to act on."""
    if isinstance(reply, NotSent):
        return Unavailable(reply.reason)
    if isinstance(reply, Lost):
        return Indeterminate(reply.reason)
    if reply.status < 400:
        return None
    error = error_of(reply.status, reply.headers, reply.body)
    if not isinstance(error, Refused):
        return error
    # 429 without Retry-After: a limit that does not go away by waiting.
    is_passing = error.status == 408 or (error.status in _PASSING and error.retry_after is not None)
    return error if is_passing else None


def _retry_after(error: ClientError) -> float | None:
    if isinstance(error, Refused | Unavailable | Indeterminate):
        return error.retry_after
    return None


def _retry_decision(error: ClientError, kind: RetrySafety, *, was_lost: bool) -> ClientError:
    """Say what the caller must know in the end: whether anything may have been applied."""
    status = getattr(error, "status", None)
    if kind is RetrySafety.READ:
        return Unavailable(error.message, status=status) if error.applied != errors.NO else error
    if was_lost and error.applied == errors.NO:
        return Indeterminate(
            f"an earlier try got no answer; the last one: {error.message}", status=status
        )
    return error
