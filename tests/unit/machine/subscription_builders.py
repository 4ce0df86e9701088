"""Helpers that build commands on subscriptions, and a machine that issues wakes like the broker."""

from typing import Any

from semel.machine import MachineLimits, State
from semel.machine.rows import is_topic
from semel.machine.subscribers import Subscription, Subscriptions, is_pending
from semel.machine.subscription_events import MATCHED, NAMED, LinkRow, WakeRow
from semel.model.commands import EngineCommand
from semel.model.outcomes import Outcome, Refusal
from semel.model.patterns import Pattern
from semel.model.rights import is_of_server
from semel.model.subscription_commands import (
    PULL_WAKE,
    WEBHOOK,
    AckWake,
    ClaimWake,
    CreateSubscription,
    DeleteSubscription,
    ExpireWake,
    IssueWake,
    LinkStreams,
    NoteDelivery,
    ReleaseWake,
    ResumeSubscription,
    UnlinkStream,
    WakeAck,
)
from tests.unit.machine.builders import JSON, create
from tests.unit.machine.txn_builders import TxnMachine

URL = "https://example.com/in"


# ---- commands ------------------------------------------------------------------------------------


def hook(
    name: str = "h", *streams: str, pattern: str | None = None, url: str = URL, now: int = 0
) -> CreateSubscription:
    """Return a command that creates a webhook."""
    return CreateSubscription(now, name, WEBHOOK, pattern, streams, url=url)


def pull(
    name: str = "p", *streams: str, pattern: str | None = None, wakes: str = "w", now: int = 0
) -> CreateSubscription:
    """Return a command that creates a pull-wake subscription."""
    return CreateSubscription(now, name, PULL_WAKE, pattern, streams, wake_stream=wakes)


def delete(name: str = "h") -> DeleteSubscription:
    return DeleteSubscription(0, name)


def link(*streams: str, name: str = "h") -> LinkStreams:
    return LinkStreams(0, name, streams)


def unlink(path: str, name: str = "h") -> UnlinkStream:
    return UnlinkStream(0, name, path)


def claim_wake(worker: str = "worker", name: str = "p") -> ClaimWake:
    return ClaimWake(0, name, worker)


def wake_ack(
    *acks: tuple[str, int],
    name: str = "h",
    wake: str | None = None,
    generation: int = 1,
    done: bool = False,
) -> WakeAck:
    """Return an ack of the wake that `WakeMachine` has issued with this generation."""
    wake_id = wake_id_of(name, generation) if wake is None else wake
    return WakeAck(name, wake_id, generation, acks, done)


def ack(*acks: tuple[str, int], type_: str | None = None, **more: Any) -> AckWake:
    return AckWake(0, wake_ack(*acks, **more), type_)


def release(name: str = "p", *, generation: int = 1, has_token: bool = True) -> ReleaseWake:
    return ReleaseWake(0, name, wake_id_of(name, generation), generation, has_token)


def expire(name: str = "h", *, generation: int = 1, elapsed_ms: int = 30_000) -> ExpireWake:
    return ExpireWake(0, name, generation, elapsed_ms)


def failed(error: str | None = "no answer", name: str = "h", **more: Any) -> NoteDelivery:
    """Return a command that records a delivery of the first wake, if `more` says nothing else."""
    return NoteDelivery(0, name, **{"generation": 1, **more}, error=error)


def resume(name: str = "h") -> ResumeSubscription:
    return ResumeSubscription(0, name)


def wake_id_of(name: str, generation: int) -> str:
    return f"w_{name}_{generation}"


# ---- the machine ---------------------------------------------------------------------------------


class WakeMachine(TxnMachine):
    """A machine that issues the wakes that are due after each command."""

    def __init__(self, limits: MachineLimits | None = None) -> None:
        super().__init__(limits)
        self.issues = True

    def execute(self, command: EngineCommand) -> Outcome:
        outcome = super().execute(command)
        while self.issues and self.state.subscriptions.due:
            self.issue(min(self.state.subscriptions.due))
        return outcome

    def issue(self, name: str) -> None:
        """Issue the next wake of a subscription, if it needs one."""
        subscription = self.state.subscriptions.by_id.get(name)
        generation = 0 if subscription is None else subscription.wake.generation
        super().execute(IssueWake(0, name, wake_id_of(name, generation + 1)))

    def subscription(self, name: str = "h") -> Subscription:
        return self.state.subscriptions.by_id[name]

    def wake(self, name: str = "h") -> WakeRow:
        return self.subscription(name).wake

    def links(self, name: str = "h") -> dict[str, tuple[int, int]]:
        """Return (acked, kinds) of each link of a subscription, by the path of the stream."""
        links = self.subscription(name).links
        by_number = self.state.by_number
        return {by_number[n].row.path: (row.acked, row.kinds) for n, row in links.items()}

    def pending(self, name: str = "h") -> set[str]:
        return {self.state.by_number[n].row.path for n in self.subscription(name).pending}


def wake_machine(*commands: EngineCommand, limits: MachineLimits | None = None) -> WakeMachine:
    """Return a machine with the text streams s and r, and the wake stream w, after commands."""
    machine = WakeMachine(limits)
    for command in (create("s"), create("r"), create("w", kind=JSON), *commands):
        outcome = machine.execute(command)
        assert not isinstance(outcome, Refusal), (command, outcome)
    return machine


# ---- what must hold ------------------------------------------------------------------------------


def check_derived(state: State) -> None:
    """Check what the state derives from the rows of subscriptions, computed from scratch."""
    subscriptions = state.subscriptions
    for name, each in subscriptions.by_id.items():
        assert each.links == {
            number: LinkRow(row.acked, _kinds_of(state, number, each))
            for number, row in each.links.items()
        }
        pending = {
            number
            for number, row in each.links.items()
            if is_pending(row, state.by_number[number].tail)
        }
        assert each.pending == pending, name
    assert subscriptions.due == {
        name for name, each in subscriptions.by_id.items() if each.pending and not each.wake.wake_id
    }
    for number, stream in state.by_number.items():
        expected = {
            name for name, each in subscriptions.by_id.items() if _kinds_of(state, number, each)
        }
        assert (stream.links or set()) == expected, stream.row.path
        waiting = {name for name in expected if number in subscriptions.by_id[name].pending}
        assert (stream.watchers or set()) == expected - waiting, stream.row.path
    _check_watched(subscriptions)


def _kinds_of(state: State, number: int, subscription: Subscription) -> int:
    """Return the kinds of the link that a stream must have with a subscription, 0 for none."""
    stream, row = state.by_number[number], subscription.row
    path = stream.row.path
    if stream.tail.is_deleted or is_topic(stream.row) or is_of_server(path):
        return 0
    kinds = NAMED if path in row.names else 0
    if row.pattern is not None and Pattern(row.pattern).matches(path) and path != row.wake_stream:
        kinds |= MATCHED
    return kinds


def _check_watched(subscriptions: Subscriptions) -> None:
    named: dict[str, set[str]] = {}
    patterns: dict[str, set[str]] = {}
    for name, each in subscriptions.by_id.items():
        for path in each.row.names:
            named.setdefault(path, set()).add(name)
        if each.row.pattern is not None:
            patterns.setdefault(each.row.pattern, set()).add(name)
    assert subscriptions.by_name == named
    assert {text: each.users for text, each in subscriptions.patterns.items()} == patterns
    indexed = subscriptions._index._by_parent
    assert {text for group in indexed.values() for text in group} == set(patterns)
    assert all(indexed.values())
