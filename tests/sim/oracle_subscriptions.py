"""Checks of subscriptions that do not use the rules of the reference model.

`WakeHistory` is a second record of what the frames say about wakes: which is in flight, which have
ended, and how far each stream is acked. Each frame is checked against the frames before it.
"""

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from semel.machine import Event, Section, State
from semel.machine.subscribers import Subscription
from semel.machine.subscription_events import (
    MATCHED,
    NAMED,
    NEVER_ACKED,
    Acked,
    Claimed,
    DeliveryNoted,
    Linked,
    LinkRow,
    Subscribed,
    Unsubscribed,
    WakeEnded,
    WakeIssued,
)
from semel.model import subscription_commands as sub_ask
from semel.model.commands import Commit, CommitTxn, EngineCommand
from semel.model.subscription_commands import PULL_WAKE, WakeAck
from tests.sim.demands import demand, demand_equal
from tests.sim.reference import Model
from tests.sim.reference_streams import Stream
from tests.sim.wake_leases import acks_of


def subscriptions_view(state: State) -> dict[str, object]:
    """Dump the subscriptions of the engine in the form of the reference model."""
    known = state.subscriptions
    return {
        name: _view(known.by_id[name], is_due=name in known.due) for name in sorted(known.by_id)
    }


def _view(subscription: Subscription, *, is_due: bool) -> dict[str, object]:
    row, wake = subscription.row, subscription.wake
    in_flight = (wake.wake_id, wake.issued_ms, wake.snapshot, wake.worker, wake.attempts)
    return {
        "configuration": (
            row.type,
            row.pattern,
            row.streams,
            row.url,
            row.wake_stream,
            row.lease_ms,
            row.description,
        ),
        "created_ms": row.created_ms,
        "names": sorted(row.names),
        "generation": wake.generation,
        "wake": (*in_flight, wake.error, wake.next_stream) if wake.wake_id else None,
        "last": wake.last,
        "is_suspended": wake.is_suspended,
        "links": {number: _link_view(link) for number, link in subscription.links.items()},
        "pending": sorted(subscription.pending),
        "is_due": is_due,
    }


def _link_view(link: LinkRow) -> tuple[int | None, bool, bool]:
    acked = None if link.acked == NEVER_ACKED else link.acked
    return acked, bool(link.kinds & NAMED), bool(link.kinds & MATCHED)


# ---- the frames, one after the other -------------------------------------------------------------


class Message(NamedTuple):
    """A message about a wake, in the wake stream with this number."""

    stream: int
    offset: int
    subscription: str
    generation: int


@dataclass
class Known:
    """What the frames have said about a subscription since it was created."""

    is_pull: bool
    generation: int = 0
    wake_id: str | None = None
    worker: str | None = None
    acked: dict[int, int] = field(default_factory=dict)


def count_wakes(counts: Counter[str], event: Event, sections: tuple[Section, ...]) -> None:
    """Count what a frame changes about wakes."""
    if isinstance(event, WakeIssued):
        counts["wakes issued"] += 1
        counts["messages about wakes"] += len(sections)
    elif isinstance(event, DeliveryNoted):
        counts["suspensions"] += event.is_suspended
        counts["suspensions ended"] += event.is_resumed
    elif not isinstance(event, Acked):
        counts["acks in commits"] += len(_acks_in(event))


class WakeHistory:
    """A fold over the frames of subscriptions."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}
        self._wake_ids: set[str] = set()  # of all wakes that were ever issued
        self._messages: list[Message] = []

    def copy(self) -> "WakeHistory":
        twin = WakeHistory()
        twin._known = {n: replace(each, acked=dict(each.acked)) for n, each in self._known.items()}
        twin._wake_ids, twin._messages = set(self._wake_ids), list(self._messages)
        return twin

    def fold(self, event: Event, sections: tuple[Section, ...]) -> None:
        """Record a frame."""
        match event:
            case Subscribed():
                acked = {number: offset for number, offset, _ in event.links}
                self._known[event.id] = Known(event.row.type == PULL_WAKE, acked=acked)
            case Unsubscribed():
                del self._known[event.id]
            case Linked():
                self._known[event.id].acked |= dict(event.links)
            case WakeIssued():
                known = self._known[event.id]
                known.generation, known.wake_id = event.generation, event.wake_id
                known.worker = None
                self._wake_ids.add(event.wake_id)
                for section in sections:
                    place = (section.stream, section.base)
                    self._messages.append(Message(*place, event.id, event.generation))
            case Claimed():
                self._known[event.id].worker = event.worker
            case WakeEnded():
                self._end(event.id)
            case _:
                for acked_now in _acks_in(event):
                    self._fold_acks(acked_now)

    def _fold_acks(self, event: Acked) -> None:
        self._known[event.id].acked |= dict(event.acks)
        if event.is_done:
            self._end(event.id)

    def _end(self, name: str) -> None:
        self._known[name].wake_id = self._known[name].worker = None

    # ---- each frame, before it is recorded -------------------------------------------------------

    def demand_allowed(
        self,
        command: EngineCommand,
        event: Event,
        sections: tuple[Section, ...],
        model: Model,
    ) -> None:
        """Check a frame. The model has executed the command."""
        match event:
            case WakeIssued():
                self._demand_needed(event, model)
                self._demand_message(event, sections, model)
            case Claimed():
                known = self._in_flight(event.id, command)
                demand(known.worker is None, f"{command} takes the wake from {known.worker}")
            case WakeEnded() | DeliveryNoted():
                self._demand_not_late(event, command)
            case _:
                self._demand_acks(command, event, model)

    def _in_flight(self, name: str, command: EngineCommand) -> Known:
        known = self._known[name]
        demand(known.wake_id is not None, f"no wake is in flight, but changed by {command}")
        return known

    def _demand_needed(self, event: WakeIssued, model: Model) -> None:
        """Check that a wake is new, and that each of its streams has something to process.

        The stable offset is that of the model: the first offset of the oldest transaction that is
        still open. So a wake for messages of an open transaction is found here.
        """
        known = self._known[event.id]
        demand(known.wake_id is None, f"{event} while {known.wake_id} is in flight")
        is_next = event.generation == known.generation + 1
        demand(is_next, f"{event} after generation {known.generation}")
        demand(event.wake_id not in self._wake_ids, f"the id of {event} was used before")
        demand(event.snapshot, f"{event} without work")
        numbers = [number for number, _ in event.snapshot]
        demand(numbers == sorted(set(numbers)), f"the streams of {event} are not in order")
        for number, offset in event.snapshot:
            _, stream = model.txns.by_number(number)
            stable = model.txns.stable(stream)
            demand(offset == stable, f"{event}: {number} is stable up to {stable}")
            acked = known.acked.get(number, 0)
            demand(offset > acked, f"{event}: {number} is acked up to {acked}")
            demand(offset > stream.head, f"{event}: {number} begins at {stream.head}")

    def _demand_message(
        self, event: WakeIssued, sections: tuple[Section, ...], model: Model
    ) -> None:
        """Check that the message is in the frame of its wake, if the wake stream can have it."""
        path = model.subscriptions.by_id[event.id].configuration.wake_stream
        stream = None if path is None else model.streams.get(path)
        if stream is None or not _can_have_messages(stream):
            demand(not sections, f"{event} has a message, although it has no wake stream")
            return
        demand(len(sections) == 1, f"{event} has no message in its frame")
        (section,) = sections
        demand(section.stream == stream.number, f"the message of {event} is elsewhere")
        demand(section.count == 1, f"{event} has {section.count} messages")
        found = json.loads(bytes(section.payload))
        first, _ = model.txns.by_number(event.snapshot[0][0])
        named = {"subscription_id": event.id, "generation": event.generation}
        expected = {"type": "wake", **named, "stream": first, "ts": found.get("ts")}
        demand_equal(found, expected, f"the message of {event}")

    def _demand_not_late(self, event: WakeEnded | DeliveryNoted, command: EngineCommand) -> None:
        """Check that a command which ends a wake, or records a delivery, names that wake."""
        known = self._known[event.id]
        if isinstance(command, sub_ask.ReleaseWake):
            self._demand_current(WakeAck(command.id, command.wake_id, command.generation), command)
        elif isinstance(command, sub_ask.ExpireWake | sub_ask.NoteDelivery):
            self._in_flight(event.id, command)
            is_late = command.generation != known.generation
            demand(not is_late, f"{command} changes generation {known.generation}")
            if isinstance(command, sub_ask.NoteDelivery) and command.wake_id is not None:
                demand(command.wake_id == known.wake_id, f"{command} changes {known.wake_id}")

    def _demand_current(self, ack: WakeAck, command: EngineCommand) -> None:
        known = self._in_flight(ack.id, command)
        found, current = (ack.wake_id, ack.generation), (known.wake_id, known.generation)
        demand(found == current, f"{command} is late: the wake in flight is {current}")
        demand(known.worker or not known.is_pull, f"{command} for a wake that is not claimed")

    def _demand_acks(self, command: EngineCommand, event: Event, model: Model) -> None:
        """Check that acks are those of the wake in flight, move forward, and are all there."""
        acks = {ack.id: ack for ack in acks_of(command)}
        found = _acks_in(event)
        if isinstance(command, Commit | CommitTxn | sub_ask.AckWake):
            demand_equal({each.id for each in found}, {*acks}, f"acks in the frame of {command}")
        for each in found:
            ack, known = acks[each.id], self._known[each.id]
            self._demand_current(ack, command)
            demand(each.is_done == ack.done, f"{command} is done: {each.is_done}")
            moved = dict(each.acks)
            for number, offset in moved.items():
                before, (_, stream) = known.acked.get(number, 0), model.txns.by_number(number)
                is_forward = before <= offset <= stream.tail
                demand(is_forward, f"{command} moves {number} from {before} to {offset}")
            for path, offset in ack.acks:
                number = model.streams[path].number
                at = moved.get(number, known.acked.get(number))
                demand(at == offset, f"{command} leaves {path} at {at}")

    # ---- after a recovery, and at the end --------------------------------------------------------

    def demand_kept(self, state: State) -> None:
        """Check that a state has all of it: generations, wakes, workers and acks."""
        found = state.subscriptions.by_id
        demand_equal({*found}, {*self._known}, "subscriptions after a recovery")
        for name, known in self._known.items():
            wake = found[name].wake
            is_same = wake.generation == known.generation and wake.wake_id == (known.wake_id or "")
            demand(is_same, f"{name} had {known} and has {wake}")
            demand(wake.worker == (known.worker or ""), f"{name} was with {known.worker}: {wake}")
            for number, link in found[name].links.items():
                expected = known.acked.get(number, NEVER_ACKED)
                demand(link.acked == expected, f"{name}: {number} was {expected}, is {link.acked}")

    def demand_messages(self, model: Model) -> None:
        """Check that each wake stream has the message of each wake once, in their order."""
        streams = {s.number: s for s in model.streams.values() if not s.is_deleted}
        for number in {message.stream for message in self._messages} & {*streams}:
            stream = streams[number]
            found = []
            for each in stream.messages if stream.topic is None else ():
                fields = {} if each.is_control else _fields_of(each.body)
                if fields.get("type") == "wake":
                    name, generation = fields["subscription_id"], fields["generation"]
                    found.append(Message(number, each.offset, name, generation))
            of_stream = [each for each in self._messages if each.stream == number]
            expected = [each for each in of_stream if each.offset >= stream.head]
            demand_equal(found, expected, f"the messages about wakes in {number}")


def _acks_in(event: Event) -> tuple[Acked, ...]:
    """Return the acks in a frame: of an ack, or of a commit."""
    return (event,) if isinstance(event, Acked) else getattr(event, "wakes", ())


def _can_have_messages(stream: Stream) -> bool:
    is_plain = stream.topic is None and not stream.topic_number
    return stream.is_json and is_plain and not (stream.is_closed or stream.is_deleted)


def _fields_of(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


# ---- nothing pending is forgotten ----------------------------------------------------------------


def demand_awake(state: State) -> None:
    """Check that each subscription which has something to process has a wake in flight.

    Every stream is compared with its link; the engine's own record of what is pending is not used.
    """
    for name, subscription in state.subscriptions.by_id.items():
        wake = subscription.wake
        behind = [
            number
            for number, link in subscription.links.items()
            if state.by_number[number].tail.stable
            > max(link.acked, state.by_number[number].tail.head)
        ]
        is_awake = bool(wake.wake_id) or wake.is_suspended
        demand(is_awake or not behind, f"{name} is forgotten: {behind} are pending")
