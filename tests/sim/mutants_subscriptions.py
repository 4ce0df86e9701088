"""Seeded bugs in subscriptions: work that is forgotten or repeated, and workers that come late."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from semel.broker import broker as broker_module
from semel.broker import wakes
from semel.broker.broker import Broker
from semel.broker.wakes import Wakes
from semel.journal import frame
from semel.machine import (
    Decision,
    subscribers,
    subscription_changes,
    subscription_needs,
    subscriptions,
)
from semel.machine.events import DecidedWithAcks
from semel.machine.rows import TailRow
from semel.machine.state import Dirty, State, Stream
from semel.machine.subscribers import Subscription
from semel.machine.subscription_events import (
    Acked,
    LinkRow,
    SubscriptionEvent,
    WakeEnded,
    WakeIssued,
    WakeRow,
)
from semel.machine.txn import apply_end
from semel.model.commands import Append, Batch
from semel.model.outcomes import Refusal
from semel.model.subscription_commands import AckWake, IssueWake, WakeAck
from tests.sim.mutants_access import all_of, changed_rows, not_replayed

_machine_apply = importlib.import_module("semel.machine.apply")
_decisions = importlib.import_module("semel.machine.decide")


# ---- what is pending -----------------------------------------------------------------------------


def wake_for_open_transactions() -> Any:
    """Pending looks at the tail and not at the stable offset."""

    def is_pending(link: LinkRow, tail: TailRow) -> bool:
        return tail.tail > max(link.acked, tail.head)

    return _pending_as(is_pending)


def wake_for_what_was_trimmed() -> Any:
    """A stream is pending although everything in it was trimmed."""
    return _pending_as(lambda link, tail: tail.stable > link.acked)


def keep_a_trimmed_stream_pending() -> Any:
    """A trim does not change what is pending."""
    streams = importlib.import_module("semel.machine.streams")
    return patch.object(streams, "note_moved", lambda *_: None)


def link_new_streams_at_their_end() -> Any:
    """The first messages of a new stream wake nobody, if they come with its creation."""

    def note(state: State, stream: Stream) -> None:
        real(state, stream)
        for name in stream.links or ():
            link = state.subscriptions.by_id[name].links[stream.row.number]
            at_end = replace(link, acked=stream.tail.stable)
            subscribers.put_link(state, name, stream, at_end)

    real = subscribers.note_linked_stream
    topics = importlib.import_module("semel.machine.topics")
    modules = [m for m in (_machine_apply, topics) if hasattr(m, "note_linked_stream")]
    return all_of(*(patch.object(module, "note_linked_stream", note) for module in modules))


def drop_a_matched_link_with_its_name() -> Any:
    """A stream that is unlinked is followed no longer, although the pattern matches it."""
    real = subscription_changes._apply_unlinked

    def unlinked(state: State, event: Any, *rest: Any) -> None:
        real(state, event, *rest)
        if event.stream in subscription_changes._find(state, event.id).links:
            subscribers.drop_link(state, event.id, state.by_number[event.stream])

    return _applied(unlinked, "Unlinked")


def keep_the_links_of_a_deleted_stream() -> Any:
    """A stream that is deleted keeps its links."""
    topics = importlib.import_module("semel.machine.topics")
    modules = [m for m in (_machine_apply, topics) if hasattr(m, "note_unlinked_stream")]
    return all_of(
        *(patch.object(module, "note_unlinked_stream", lambda *_: None) for module in modules)
    )


# ---- the next wake -------------------------------------------------------------------------------


def forget_the_next_wake_after_a_lease() -> Any:
    """A wake that ends by its lease is not followed by another one."""
    return _ended_for_ever(lambda event: isinstance(event, WakeEnded))


def forget_the_next_wake_after_an_ack() -> Any:
    """A wake that is done is not followed by another one, although something is pending."""
    return _ended_for_ever(lambda event: isinstance(event, Acked) and event.is_done)


def issue_a_wake_one_group_later() -> Any:
    """A wake is issued in the write group after that which has made it necessary."""
    real = Broker.next_group

    def next_group(self: Broker) -> Any:
        due, self.state.subscriptions.due = self.state.subscriptions.due, set()
        group = real(self)
        self.state.subscriptions.due |= due
        return group

    return patch.object(Broker, "next_group", next_group)


def reuse_a_generation_after_a_lease() -> Any:
    """The generation is not raised after a lease has expired."""
    real = subscription_changes._apply_ended

    def ended(state: State, event: WakeEnded, *rest: Any) -> None:
        real(state, event, *rest)
        if event.is_expired:
            wake = state.subscriptions.by_id[event.id].wake
            subscribers.put_wake(state, event.id, replace(wake, generation=wake.generation - 1))

    return _applied(ended, "WakeEnded")


def name_wakes_by_their_generation() -> Any:
    """A wake has no random id, so that a subscription that is created again has old wakes."""

    def issue(self: Wakes, name: str, now_ms: int) -> bool:
        generation = self._state.subscriptions.by_id[name].wake.generation + 1
        return self._execute(IssueWake(now_ms, name, f"{name}:{generation}"))

    return patch.object(Wakes, "_issue", issue)


def begin_every_snapshot_with_the_first_streams() -> Any:
    """Streams that are always pending keep the others out of all snapshots."""

    def next_streams(subscription: Subscription, count: int) -> list[int]:
        return sorted(subscription.pending)[:count]

    return patch.object(subscriptions, "next_streams", next_streams)


def write_no_message_about_a_wake() -> Any:
    """The frame of a wake has no message for the wake stream."""

    def decide(state: State, command: IssueWake) -> Decision:
        return replace(real(state, command), sections=())

    real = subscriptions.decide_issue
    return patch.dict(_decisions._DECIDERS, {IssueWake: decide})


@contextmanager
def write_the_message_in_a_frame_of_its_own() -> Iterator[None]:
    """The message about a wake is appended after the frame of the wake."""
    real, real_issue = subscriptions.decide_issue, Wakes._issue

    def decide(state: State, command: IssueWake) -> Decision:
        return replace(real(state, command), sections=())

    def issue(self: Wakes, name: str, now_ms: int) -> bool:
        is_done = real_issue(self, name, now_ms)
        path = self._state.subscriptions.by_id[name].row.wake_stream
        if is_done and path in self._state.by_path:
            message = Batch(b'{"type":"wake"}')
            self._execute(Append(path, now_ms, "application/json", message))
        return is_done

    with (
        patch.dict(_decisions._DECIDERS, {IssueWake: decide}),
        patch.object(Wakes, "_issue", issue),
    ):
        yield


# ---- acks ----------------------------------------------------------------------------------------


def ack_without_fence() -> Any:
    """An ack is accepted whatever wake it names."""
    return _unfenced("decide_ack")


def commit_acks_without_fence() -> Any:
    """The acks in a commit are accepted whatever wake they name."""
    real = subscriptions.find_commit_acks
    modules = [importlib.import_module(f"semel.machine.{name}") for name in _WITH_COMMIT_ACKS]
    return all_of(
        *(patch.object(each, "find_commit_acks", _without_fence(real)) for each in modules)
    )


def compare_the_generation_only() -> Any:
    """A wake is compared by its generation, and not by its id."""
    real = subscriptions._find_wake

    def find(
        state: State, name: str, _wake_id: str, generation: int, *rest: Any, **how: Any
    ) -> Any:
        subscription = state.subscriptions.by_id.get(name)
        wake_id = "" if subscription is None else subscription.wake.wake_id
        return real(state, name, wake_id or "none", generation, *rest, **how)

    return patch.object(subscriptions, "_find_wake", find)


def apply_acks_before_a_refusal() -> Any:
    """The pairs before the first invalid one are applied, and then the ack is refused."""
    real = subscriptions.decide_ack

    def decide(state: State, command: AckWake) -> Decision:
        decision = real(state, command)
        for count in range(len(command.ack.acks) - 1, 0, -1):
            ack = replace(command.ack, acks=command.ack.acks[:count], done=False)
            part = real(state, replace(command, ack=ack))
            if isinstance(decision.outcome, Refusal) and part.event is not None:
                return Decision(decision.outcome, part.event)
        return decision

    return patch.dict(_decisions._DECIDERS, {AckWake: decide})


def let_acks_go_back() -> Any:
    """An ack can move a stream back."""
    real = subscriptions._check_acks

    def check(state: State, subscription: Subscription, ack: WakeAck) -> Any:
        links = {n: replace(each, acked=-1) for n, each in subscription.links.items()}
        return real(state, replace(subscription, links=links), ack)

    return patch.object(subscriptions, "_check_acks", check)


def ack_the_present_end() -> Any:
    """A delivery that is done acks also what was appended after its snapshot."""

    def acks(state: State, subscription: Subscription) -> tuple[tuple[int, int], ...]:
        links, by_number = subscription.links, state.by_number
        return tuple(
            (number, by_number[number].tail.stable)
            for number, _ in subscription.wake.snapshot
            if number in links and by_number[number].tail.stable > links[number].acked
        )

    return patch.object(subscriptions, "_snapshot_acks", acks)


def commit_outputs_without_acks() -> Any:
    """A commit applies its outputs, but not its acks."""
    return patch.object(apply_end, "apply_all_acked", lambda *_: None)


def write_a_commit_without_its_acks() -> Any:
    """The frame of a commit omits the acks."""

    def change(event: Any) -> Any:
        return replace(event, wakes=()) if isinstance(event, DecidedWithAcks) else event

    return _changed_event(change)


def ack_in_commits_without_a_right() -> Any:
    """A commit can ack the wakes of every subscription."""
    modules = [importlib.import_module(f"semel.machine.{name}") for name in ("needs",)]
    modules.append(subscription_needs)
    return all_of(
        *(patch.object(m, "acks_of", lambda *_: iter(())) for m in modules if hasattr(m, "acks_of"))
    )


# ---- leases and deliveries -----------------------------------------------------------------------


def revive_an_expired_lease() -> Any:
    """A worker whose lease has expired renews it by an ack that comes before the sweep."""
    return patch.object(Wakes, "end_expired", lambda self, command: True)


def never_end_a_lease() -> Any:
    """A wake whose worker is not heard any more stays in flight."""
    return patch.object(Wakes, "due", lambda self, now_ms, count_max: iter(()))


def renew_no_lease_by_a_heartbeat() -> Any:
    """Acks that write no frame do not renew the lease."""
    return patch.object(Wakes, "note_outcome", lambda self, command, outcome: None)


def deliver_before_the_wake_is_durable() -> Any:
    """A wake is delivered as soon as it is decided."""
    real = Wakes.note

    def note(self: Wakes, event: Any) -> Any:
        notices = real(self, event)
        for call, name in notices:
            call(name)
        return []

    return patch.object(Wakes, "note", note)


def deliver_again_at_once() -> Any:
    """A failed delivery is repeated without a delay."""
    return patch.object(wakes, "retry_ms", lambda name, attempts: 1)


def forget_deliveries_in_a_restart() -> Any:
    """After a restart, a wake of a webhook that was in flight is not delivered again."""
    real = Wakes._resume

    def resume(self: Wakes, name: str, subscription: Subscription) -> None:
        if subscription.wake.worker:
            real(self, name, subscription)

    return patch.object(Wakes, "_resume", resume)


def drop_the_wake_of_a_suspended_subscription() -> Any:
    """A suspension ends the wake, so that its receiver is fenced."""
    real = subscription_changes._apply_noted

    def noted(state: State, event: Any, *rest: Any) -> None:
        real(state, event, *rest)
        if event.is_suspended:
            generation = state.subscriptions.by_id[event.id].wake.generation
            subscribers.put_wake(state, event.id, WakeRow(generation, is_suspended=True))

    return _applied(noted, "DeliveryNoted")


# ---- restarts ------------------------------------------------------------------------------------


def give_a_claimed_wake_away_after_a_restart() -> Any:
    """The checkpoint omits which worker has claimed a wake."""
    return _changed_wakes(lambda row: replace(row, worker=""))


def checkpoint_without_generations() -> Any:
    """The checkpoint omits the generation while no wake is in flight."""
    return _changed_wakes(lambda row: row if row.wake_id else WakeRow())


def checkpoint_without_the_last_stream_of_a_snapshot() -> Any:
    """The checkpoint omits the stream after which the next snapshot begins."""
    return _changed_wakes(lambda row: replace(row, last=0))


def checkpoint_without_links() -> Any:
    """The checkpoint omits how far streams are acked."""
    return changed_rows(lambda dirty: dirty.links.clear())


def forget_wakes_in_a_replay() -> Any:
    """Recovery does not apply the frames that issue wakes."""
    return not_replayed(WakeIssued)


# ---- tools ---------------------------------------------------------------------------------------

_WITH_COMMIT_ACKS = ("commits", "txn.decide_end")


def _pending_as(is_pending: Callable[[LinkRow, TailRow], bool]) -> Any:
    return all_of(
        patch.object(subscribers, "is_pending", is_pending),
        patch.object(subscriptions, "is_pending", is_pending),
    )


def _applied(apply: Callable[..., None], name: str) -> Any:
    """Patch what is done with one kind of event."""
    kinds = {kind.__name__: kind for kind in SubscriptionEvent.__args__}
    return patch.dict(_machine_apply._APPLIERS, {kinds[name]: apply})


def _ended_for_ever(is_end: Callable[[Any], bool]) -> Any:
    """Patch the ends of wakes so that no other one is issued."""

    def wrap(real: Callable[..., None]) -> Callable[..., None]:
        def apply(state: State, event: Any, *rest: Any) -> None:
            real(state, event, *rest)
            if is_end(event):
                state.subscriptions.due.discard(event.id)

        return apply

    kinds = (Acked, WakeEnded)
    appliers = {kind: wrap(_machine_apply._APPLIERS[kind]) for kind in kinds}
    return patch.dict(_machine_apply._APPLIERS, appliers)


def _unfenced(name: str) -> Any:
    real = getattr(subscriptions, name)
    return patch.dict(_decisions._DECIDERS, {AckWake: _without_fence(real)})


def _without_fence(real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a decision that accepts any wake, if one is in flight."""
    real_find = subscriptions._find_wake

    def find(state: State, name: str, _id: str, _number: int, *rest: Any, **how: Any) -> Any:
        subscription = state.subscriptions.by_id.get(name)
        wake = WakeRow() if subscription is None else subscription.wake
        return real_find(state, name, wake.wake_id or "none", wake.generation, *rest, **how)

    def decide(*arguments: Any) -> Any:
        with patch.object(subscriptions, "_find_wake", find):
            return real(*arguments)

    return decide


def _changed_event(change: Callable[[Any], Any]) -> Any:
    real = frame.encode_meta
    return patch.object(broker_module, "encode_meta", lambda event: real(change(event)))


def _changed_wakes(change: Callable[[WakeRow], WakeRow]) -> Any:
    def changed(dirty: Dirty) -> None:
        for name, row in dirty.wakes.items():
            dirty.wakes[name] = None if row is None else change(row)

    return changed_rows(changed)


SUBSCRIPTION_MUTANTS: tuple[Callable[[], Any], ...] = (
    wake_for_open_transactions,
    wake_for_what_was_trimmed,
    keep_a_trimmed_stream_pending,
    link_new_streams_at_their_end,
    drop_a_matched_link_with_its_name,
    keep_the_links_of_a_deleted_stream,
    forget_the_next_wake_after_a_lease,
    forget_the_next_wake_after_an_ack,
    issue_a_wake_one_group_later,
    reuse_a_generation_after_a_lease,
    name_wakes_by_their_generation,
    begin_every_snapshot_with_the_first_streams,
    write_no_message_about_a_wake,
    write_the_message_in_a_frame_of_its_own,
    ack_without_fence,
    commit_acks_without_fence,
    compare_the_generation_only,
    apply_acks_before_a_refusal,
    let_acks_go_back,
    ack_the_present_end,
    commit_outputs_without_acks,
    write_a_commit_without_its_acks,
    ack_in_commits_without_a_right,
    revive_an_expired_lease,
    never_end_a_lease,
    renew_no_lease_by_a_heartbeat,
    deliver_before_the_wake_is_durable,
    deliver_again_at_once,
    forget_deliveries_in_a_restart,
    drop_the_wake_of_a_suspended_subscription,
    give_a_claimed_wake_away_after_a_restart,
    checkpoint_without_generations,
    checkpoint_without_the_last_stream_of_a_snapshot,
    checkpoint_without_links,
    forget_wakes_in_a_replay,
)
