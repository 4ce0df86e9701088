"""The needs of the commands on subscriptions, as in `needs.py`.

A request that carries a token of a wake needs no other right: the token is checked before, and the
command says so. Wakes are issued and ended, and deliveries are recorded, by the server only.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from semel.machine.need_checks import Check, Checks, Rule, matched_streams
from semel.machine.state import State
from semel.model.outcomes_subscriptions import (
    NO_WAKE_STREAM,
    UnknownSubscription,
    WakeStreamRefused,
)
from semel.model.rights import ADMIN, CREATE, DELETE, READ, STREAM, SUBSCRIPTION, WRITE, Caller
from semel.model.subscription_commands import (
    AckWake,
    ClaimWake,
    CreateSubscription,
    DeleteSubscription,
    LinkStreams,
    ReleaseWake,
    ResumeSubscription,
    UnlinkStream,
    WakeAck,
)


def _uses(name: str, right: str, unknown: UnknownSubscription, *, is_taken: bool) -> Checks:
    """Yield the checks of a use of a subscription, which must be the caller's (O1)."""
    yield Check(SUBSCRIPTION, name, right, unknown)
    yield Check(SUBSCRIPTION, name, ADMIN, key=(SUBSCRIPTION, 0, name), is_taken=is_taken)


def _on_existing(right: str) -> Rule:
    return lambda _state, command, _caller: _uses(
        command.id, right, UnknownSubscription(), is_taken=False
    )


def _reads(paths: Iterable[str]) -> Checks:
    """Yield the checks of streams that are followed. They do not have to exist."""
    for path in paths:
        yield Check(STREAM, path, READ)


def _create(_state: State, command: CreateSubscription, _caller: Caller) -> Checks:
    yield Check(SUBSCRIPTION, command.id, CREATE)
    yield Check(SUBSCRIPTION, command.id, ADMIN, key=(SUBSCRIPTION, 0, command.id))
    yield from _reads(command.streams)
    if command.pattern is not None:
        yield from matched_streams(command.pattern)
    if command.wake_stream is not None:
        hidden = WakeStreamRefused(command.wake_stream, NO_WAKE_STREAM)
        yield Check(STREAM, command.wake_stream, WRITE, hidden)


def _link(_state: State, command: LinkStreams, _caller: Caller) -> Checks:
    yield from _uses(command.id, WRITE, UnknownSubscription(), is_taken=False)
    yield from _reads(command.streams)


def _by_token(_state: State, _command: AckWake | ReleaseWake, _caller: Caller) -> Checks:
    return iter(())


def acks_of(wakes: Iterable[WakeAck]) -> Checks:
    """Yield the checks of the acks in a commit that came without a token of their wake."""
    for wake in wakes:
        if not wake.is_permitted:
            yield from _uses(wake.id, WRITE, UnknownSubscription(wake.id), is_taken=False)


SUBSCRIPTION_RULES: Final[Mapping[type, Rule]] = {
    CreateSubscription: _create,
    DeleteSubscription: _on_existing(DELETE),
    LinkStreams: _link,
    UnlinkStream: _on_existing(WRITE),
    ClaimWake: _on_existing(WRITE),
    AckWake: _by_token,
    ReleaseWake: _by_token,
    ResumeSubscription: _on_existing(WRITE),
}
