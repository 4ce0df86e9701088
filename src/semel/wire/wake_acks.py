"""Acks of wakes in requests: those of a worker, and those in a commit."""

from collections.abc import Callable, Iterable
from typing import Final

from msgspec.structs import replace

from semel.model.outcomes import Outcome
from semel.model.outcomes_subscriptions import Fenced, TokenInvalid, UnknownSubscription
from semel.model.subscription_commands import WakeAck
from semel.wire.documents import read_offset
from semel.wire.problems import Problem
from semel.wire.rendering import problem_of
from semel.wire.schema.transactions import CommitWake, CommitWakes, NextWake, Offset

NEVER: Final = "-1"  # the offset before the first ack, and that of a stream that does not exist
_NO_WAKE: Final = "-"  # no wake has this id
_NOT_PERMITTED: Final = "!"  # nor this one: it is in acks of a commit whose token is not valid

# A function that returns the wake id and the generation in a token, or None. Its arguments are the
# token, and the id of the subscription that it must be of.
TokenReader = Callable[[str, str], tuple[str, int] | None]


def read_no_token(_token: str, _name: str) -> tuple[str, int] | None:
    """Read the tokens of a server that has issued none."""
    return None


def read_ack(path: str, offset: Offset) -> tuple[str, int]:
    """Return an ack. An offset before the first one is not malformed: it is refused later (W5)."""
    is_never = offset == NEVER or (isinstance(offset, int) and offset < 0)
    return path.strip("/"), -1 if is_never else read_offset(offset, "offset")


def fence_other(ack: WakeAck, wake: tuple[str, int]) -> WakeAck:
    """Return an ack that is fenced if its token is that of another wake, `wake`."""
    if wake == (ack.wake_id, ack.generation):
        return ack
    return replace(ack, wake_id=_NO_WAKE)


def ack_without_token(name: str) -> WakeAck:
    """Return the ack of a request without a valid token, which is refused whatever it contains."""
    return WakeAck(name, _NO_WAKE, 0)


def read_wakes(wakes: CommitWakes, read_token: TokenReader) -> tuple[WakeAck, ...]:
    """Return the acks in a commit. Raises MalformedRequest.

    An ack whose token is not valid cannot be accepted: see `refused_token`.
    """
    return tuple(_read_wake(name, wake, read_token) for name, wake in wakes.items())


def _read_wake(name: str, wake: CommitWake, read_token: TokenReader) -> WakeAck:
    acks = tuple(read_ack(each.stream, each.offset) for each in wake.acks)
    is_permitted = wake.token is not None
    ack = WakeAck(name, wake.wake_id, wake.generation, acks, wake.done, is_permitted)
    if wake.token is None:
        return ack
    owner = read_token(wake.token, name)
    return replace(ack, wake_id=_NOT_PERMITTED) if owner is None else fence_other(ack, owner)


def refused_token(outcome: Outcome, wakes: Iterable[WakeAck]) -> Problem | None:
    """Return the problem if a commit was refused because of a token that is not valid, else None.

    Such a commit is decided as others are, because it can be the repeat of a commit that was
    accepted before the keys of the tokens were replaced: then it gets the first result.
    """
    if not isinstance(outcome, Fenced | UnknownSubscription):
        return None
    refused = [each for each in wakes if each.is_permitted and each.wake_id == _NOT_PERMITTED]
    if all(each.id != outcome.id for each in refused):
        return None
    return replace(problem_of(TokenInvalid()), facts={"subscription": outcome.id})


def next_wakes(outcomes: Iterable[tuple[str, bool]]) -> dict[str, NextWake]:
    """Return what became of the wakes that a commit has acked, by the id of the subscription."""
    return {name: NextWake(next_wake) for name, next_wake in outcomes}
