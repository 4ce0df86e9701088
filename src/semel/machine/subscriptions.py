"""Subscriptions: the decisions on streams that are followed, and on wakes.

The comment at a check names its row in `docs/reference/subscriptions.md`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from semel.machine.checks import section_of
from semel.machine.events import Decision
from semel.machine.state import State, Stream
from semel.machine.streams import find_stream
from semel.machine.subscribers import Subscription, is_pending, next_streams
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
    SubscriptionRow,
    Unlinked,
    Unsubscribed,
    WakeEnded,
    WakeIssued,
)
from semel.model.commands import Batch
from semel.model.limits import (
    SUBSCRIPTION_LINKS_MAX,
    SUBSCRIPTION_NAMES_MAX,
    SUBSCRIPTIONS_MAX,
    SUBSCRIPTIONS_PER_STREAM_MAX,
    WAKE_STREAMS_MAX,
)
from semel.model.messages import JSON_MEDIA_TYPE, is_json
from semel.model.outcomes import (
    DiskFull,
    InvalidRequest,
    LimitReached,
    Refusal,
    StillAlive,
)
from semel.model.outcomes_access import ReservedPath
from semel.model.outcomes_subscriptions import (
    NO_WAKE_STREAM,
    AlreadyClaimed,
    Fenced,
    InvalidOffset,
    LinksChanged,
    NoPendingWork,
    SubscriptionCreated,
    SubscriptionDeleted,
    SubscriptionExists,
    TokenInvalid,
    UnknownSubscription,
    WakeAcked,
    WakeChanged,
    WakeClaimed,
    WakeStreamRefused,
    WrongType,
)
from semel.model.outcomes_topics import IsTopic
from semel.model.outcomes_txn import StreamRefused
from semel.model.rights import RESERVED, is_of_server
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
    shorten_error,
)

# How many streams a pattern can match. One of them can be the wake stream, which is not linked.
MATCHED_MAX: Final = SUBSCRIPTION_LINKS_MAX + 1
_UNCHANGED: Final = Decision(WakeChanged())


def _find(state: State, name: str) -> Subscription | None:
    return state.subscriptions.by_id.get(name)


# ---- subscriptions and their streams -------------------------------------------------------------


def decide_subscribe(state: State, command: CreateSubscription) -> Decision:
    """Return the decision on a command that creates a subscription."""
    row = SubscriptionRow(
        command.type,
        command.pattern,
        tuple(sorted(set(command.streams))),
        command.url,
        command.wake_stream,
        command.lease_ms,
        description=command.description or None,
        created_ms=state.frame_time(command.now_ms),
        names=tuple(sorted(set(command.streams))),
    )
    existing = _find(state, command.id)
    if existing is not None:
        return _confirm(command.id, existing, row)  # U1
    if len(state.subscriptions.by_id) >= SUBSCRIPTIONS_MAX:
        return Decision(LimitReached("subscriptions", SUBSCRIPTIONS_MAX))  # U2
    refusal = _refuse_wake_stream(state, row.wake_stream) or _refuse_names(state, row.names)
    if refusal is not None:
        return Decision(refusal)
    refusal = _refuse_crowd(state, row.names, row.pattern)
    if refusal is not None:
        return Decision(refusal)
    links = _find_links(state, row)
    if links is None:
        return Decision(LimitReached("subscription_streams", SUBSCRIPTION_LINKS_MAX))
    event = Subscribed(command.id, row, links)
    return Decision(SubscriptionCreated(command.id, is_new=True), event, grows=True)  # U5


def _confirm(name: str, existing: Subscription, row: SubscriptionRow) -> Decision:
    old = existing.row
    same = msgspec.structs.replace(row, created_ms=old.created_ms, names=old.names)
    if same != old:
        return Decision(SubscriptionExists())
    outcome = SubscriptionCreated(name, is_new=False)
    if existing.wake.is_suspended:
        return Decision(outcome, DeliveryNoted(name, 0, is_resumed=True))
    return Decision(outcome)


def _refuse_wake_stream(state: State, path: str | None) -> Refusal | None:
    """Refuse a stream to which no message about a wake can be appended (U3)."""
    if path is None:
        return None
    stream, reason = state.by_path.get(path), ""
    if stream is None or stream.tail.is_deleted:
        reason = NO_WAKE_STREAM
    elif stream.row.topic:
        reason = "it is a topic, or a partition of one"
    elif path.startswith(RESERVED):
        reason = f"it is below {RESERVED}"
    elif not is_json(stream.row.content_type):
        reason = f"its content type is {stream.row.content_type}, and not application/json"
    elif stream.tail.is_closed:
        reason = "it is closed"
    return WakeStreamRefused(path, reason) if reason else None


def _refuse_names(state: State, names: Iterable[str]) -> Refusal | None:
    """Refuse to name a topic, or a stream of the server (U4)."""
    for path in names:
        stream = state.by_path.get(path)
        if is_of_server(path):
            return StreamRefused(path, ReservedPath())
        if stream is not None and stream.topic is not None:
            return StreamRefused(path, IsTopic())
    return None


def _present(state: State, path: str) -> Stream | None:
    stream = find_stream(state, path)
    return stream if isinstance(stream, Stream) else None


def _refuse_crowd(state: State, names: Iterable[str], pattern: str | None) -> Refusal | None:
    """Refuse a subscription if too many others perhaps follow the same new streams (U2)."""
    subscriptions, maximum = state.subscriptions, SUBSCRIPTIONS_PER_STREAM_MAX
    is_full = pattern is not None and subscriptions.count_beside(pattern) >= maximum
    if is_full or any(subscriptions.count_naming(path) >= maximum for path in names):
        return LimitReached("subscriptions_per_stream", maximum)
    return None


def _find_links(state: State, row: SubscriptionRow) -> tuple[tuple[int, int, int], ...] | None:
    """Return the links of a new subscription: the number, the stable offset and the kinds of each.

    Return None if there are too many.
    """
    matched = _find_matched(state, row)
    if matched is None:
        return None
    streams = (_present(state, path) for path in row.names)
    named = {stream.row.number for stream in streams if stream is not None}
    numbers, by_number = sorted(matched | named), state.by_number
    if len(numbers) > SUBSCRIPTION_LINKS_MAX:
        return None
    if not named:
        return tuple([(number, by_number[number].tail.stable, MATCHED) for number in numbers])
    kinds = {number: NAMED | MATCHED if number in matched else NAMED for number in named}
    return tuple(
        [(number, by_number[number].tail.stable, kinds.get(number, MATCHED)) for number in numbers]
    )


def _find_matched(state: State, row: SubscriptionRow) -> set[int] | None:
    """Return the streams that the pattern of a new subscription matches, or None for too many."""
    if row.pattern is None:
        return set()
    if not state.patterns.search((row.pattern,), MATCHED_MAX):
        return None
    matched = state.patterns.known(row.pattern)
    wake_stream = state.by_path.get(row.wake_stream or "")
    return matched if wake_stream is None else matched - {wake_stream.row.number}


def decide_unsubscribe(state: State, command: DeleteSubscription) -> Decision:
    """Return the decision on a command that deletes a subscription (U9)."""
    if _find(state, command.id) is None:
        return Decision(UnknownSubscription())
    return Decision(SubscriptionDeleted(), Unsubscribed(command.id))


def decide_link(state: State, command: LinkStreams) -> Decision:
    """Return the decision on a command by which a subscription names more streams."""
    subscription = _find(state, command.id)
    if subscription is None:
        return Decision(UnknownSubscription())
    if subscription.row.wake_stream in command.streams:
        return Decision(InvalidRequest("streams"))
    refusal = _refuse_names(state, command.streams)
    if refusal is not None:
        return Decision(refusal)
    old = subscription.row.names
    names = sorted(set(command.streams).difference(old))
    if not names:
        return Decision(LinksChanged())  # U7
    if len(old) + len(names) > SUBSCRIPTION_NAMES_MAX:
        return Decision(LimitReached("subscription_names", SUBSCRIPTION_NAMES_MAX))
    refusal = _refuse_crowd(state, names, None)
    if refusal is not None:
        return Decision(refusal)
    links = []
    for stream in (_present(state, path) for path in names):
        if stream is not None:
            link = subscription.links.get(stream.row.number)
            acked = stream.tail.stable if link is None else link.acked
            links.append((stream.row.number, acked))
    return Decision(LinksChanged(), Linked(command.id, tuple(names), tuple(links)), grows=True)


def decide_unlink(state: State, command: UnlinkStream) -> Decision:
    """Return the decision on a command by which a subscription names a stream no longer."""
    subscription = _find(state, command.id)
    if subscription is None:
        return Decision(UnknownSubscription())
    if command.path not in subscription.row.names:
        return Decision(LinksChanged())  # U7
    stream = _present(state, command.path)
    number = 0 if stream is None else stream.row.number
    return Decision(LinksChanged(), Unlinked(command.id, command.path, number))


# ---- wakes ---------------------------------------------------------------------------------------


def decide_issue(state: State, command: IssueWake) -> Decision:
    """Return the decision on a command that issues a wake, if the subscription needs one (W1)."""
    subscription = _find(state, command.id)
    if subscription is None or subscription.wake.wake_id or not subscription.pending:
        return _UNCHANGED
    numbers = next_streams(subscription, min(WAKE_STREAMS_MAX, state.limits.txn_streams))
    snapshot = tuple((number, state.by_number[number].tail.stable) for number in numbers)
    generation = subscription.wake.generation + 1
    event = WakeIssued(command.id, command.wake_id, generation, snapshot)
    stream = _present(state, subscription.row.wake_stream or "")
    if stream is None or _refuse_wake_stream(state, stream.row.path) is not None:
        return Decision(WakeChanged(), event, grows=True)
    message = {
        "type": "wake",
        "subscription_id": command.id,
        "stream": state.by_number[numbers[0]].row.path,
        "generation": generation,
        "ts": state.frame_time(command.now_ms),
    }
    batch = Batch(msgspec.json.encode(message))
    section = section_of(stream.row.number, stream.tail.tail, batch, JSON_MEDIA_TYPE)
    return Decision(WakeChanged(), event, (section,), grows=True)  # W2


def decide_claim_wake(state: State, command: ClaimWake) -> Decision:
    """Return the decision on a command by which a worker claims a wake (W4)."""
    subscription = _find(state, command.id)
    if subscription is None:
        return Decision(UnknownSubscription())
    wake = subscription.wake
    if subscription.row.type != PULL_WAKE:
        return Decision(WrongType(subscription.row.type))
    if wake.worker:
        return Decision(AlreadyClaimed(wake.worker, wake.generation))
    if not wake.wake_id:  # the broker has tried to issue one before
        return Decision(DiskFull() if subscription.pending else NoPendingWork())
    outcome = WakeClaimed(wake.wake_id, wake.generation)
    return Decision(outcome, Claimed(command.id, command.worker), grows=True)


def _find_wake(
    state: State, name: str, wake_id: str, generation: int, type_: str | None, *, has_token: bool
) -> Subscription | Refusal:
    """Return the subscription whose wake is in flight, or a refusal (W5)."""
    subscription = _find(state, name)
    if subscription is None:
        return UnknownSubscription()
    row, wake = subscription.row, subscription.wake
    if type_ not in (None, row.type):
        return WrongType(row.type)
    if not has_token:
        return TokenInvalid()
    is_current = wake.wake_id == wake_id and wake.generation == generation
    is_held = row.type == WEBHOOK or bool(wake.worker)
    return subscription if is_current and is_held else Fenced(name, wake.generation)


def decide_ack(state: State, command: AckWake) -> Decision:
    """Return the decision on a command that acks a wake."""
    ack = command.ack
    found = _find_wake(
        state, ack.id, ack.wake_id, ack.generation, command.type, has_token=command.has_token
    )
    if isinstance(found, Refusal):
        return Decision(found)
    if command.by_snapshot:
        acks = _snapshot_acks(state, found)
    else:
        checked = _check_acks(state, found, ack)
        if isinstance(checked, Refusal):
            return Decision(checked)
        acks = checked
    if not (acks or ack.done or found.wake.attempts):
        return Decision(WakeAcked(next_wake=False))  # W6: a heartbeat
    outcome = WakeAcked(next_wake=ack.done and _is_left(state, found, dict(acks)))
    return Decision(outcome, Acked(ack.id, acks, ack.done))


Acks = tuple[tuple[int, int], ...]


def _check_acks(state: State, subscription: Subscription, ack: WakeAck) -> Acks | Refusal:
    """Return the acks that change something, by the numbers of streams, or a refusal (W5)."""
    acks: dict[int, int] = {}
    snapshot = {number for number, _ in subscription.wake.snapshot}
    for path, offset in ack.acks:
        stream = state.by_path.get(path)
        link = None if stream is None else subscription.links.get(stream.row.number)
        if stream is None or link is None or stream.row.number in acks:
            return InvalidOffset(ack.id, path)
        if stream.row.number not in snapshot and _can_be_newer(subscription, stream, link):
            return InvalidOffset(ack.id, path)  # perhaps it has taken the place of another one
        if not max(link.acked, 0) <= offset <= stream.tail.tail:
            return InvalidOffset(ack.id, path)
        acks[stream.row.number] = offset
    return tuple(
        (number, offset)
        for number, offset in sorted(acks.items())
        if offset != subscription.links[number].acked
    )


def _can_be_newer(subscription: Subscription, stream: Stream, link: LinkRow) -> bool:
    """Return True if a stream can be newer than what a worker has read."""
    return link.acked == NEVER_ACKED or stream.row.number >= subscription.wake.next_stream


def _snapshot_acks(state: State, subscription: Subscription) -> Acks:
    """Return the acks of all that the snapshot has (W7)."""
    links = subscription.links
    return tuple(
        (number, offset)
        for number, offset in subscription.wake.snapshot
        if number in links and offset > links[number].acked
    )


def _is_left(state: State, subscription: Subscription, acks: Mapping[int, int]) -> bool:
    """Return True if the subscription is pending after these acks."""
    return any(
        number not in acks or is_pending(LinkRow(acks[number], NAMED), state.by_number[number].tail)
        for number in subscription.pending
    )


def find_commit_acks(state: State, wakes: Iterable[WakeAck]) -> tuple[Acked, ...] | Refusal:
    """Return the acks of a commit, or the refusal of the first that is not allowed (W12)."""
    found: dict[str, Acked] = {}
    for wake in wakes:
        if wake.id in found:
            return InvalidRequest("subscriptions")
        subscription = _find_wake(
            state, wake.id, wake.wake_id, wake.generation, None, has_token=True
        )
        if isinstance(subscription, UnknownSubscription):
            return UnknownSubscription(wake.id)
        if isinstance(subscription, Refusal):
            return subscription
        acks = _check_acks(state, subscription, wake)
        if isinstance(acks, Refusal):
            return acks
        found[wake.id] = Acked(wake.id, acks, wake.done)
    return tuple(found.values())


def decide_release_wake(state: State, command: ReleaseWake) -> Decision:
    """Return the decision on a command by which a worker gives up its wake (W8)."""
    found = _find_wake(
        state,
        command.id,
        command.wake_id,
        command.generation,
        PULL_WAKE,
        has_token=command.has_token,
    )
    if isinstance(found, Refusal):
        return Decision(found)
    return Decision(WakeChanged(), WakeEnded(command.id, is_expired=False))


def decide_expire_wake(state: State, command: ExpireWake) -> Decision:
    """Return the decision on a command that ends a wake whose lease has expired (W9)."""
    subscription = _find(state, command.id)
    if subscription is None:
        return Decision(UnknownSubscription())
    wake = subscription.wake
    if not wake.wake_id or wake.generation != command.generation:
        return Decision(Fenced(command.id, wake.generation))
    if command.elapsed_ms < subscription.row.lease_ms:
        return Decision(StillAlive())
    return Decision(WakeChanged(), WakeEnded(command.id, is_expired=True))


# ---- deliveries ----------------------------------------------------------------------------------


def decide_note_delivery(state: State, command: NoteDelivery) -> Decision:
    """Return the decision on a command that records a delivery (W10)."""
    subscription = _find(state, command.id)
    if subscription is None:
        return Decision(UnknownSubscription())
    row, wake = subscription.row, subscription.wake
    if row.type != WEBHOOK:
        return Decision(WrongType(row.type))
    is_current = wake.generation == command.generation and command.wake_id in (None, wake.wake_id)
    if not wake.wake_id or not is_current:
        return Decision(Fenced(command.id, wake.generation))
    if command.error is None:
        event = DeliveryNoted(command.id, 0) if wake.attempts else None
        return Decision(WakeChanged(), event)
    attempts = wake.attempts + 1
    return Decision(
        WakeChanged(),
        DeliveryNoted(
            command.id,
            attempts,
            shorten_error(command.error),
            is_suspended=attempts >= command.attempts_max,
            retry_after_ms=command.retry_after_ms,
        ),
        grows=True,
    )


def decide_resume(state: State, command: ResumeSubscription) -> Decision:
    """Return the decision on a command that ends a suspension (W10)."""
    subscription = _find(state, command.id)
    if subscription is None:
        return Decision(UnknownSubscription())
    if not subscription.wake.is_suspended:
        return _UNCHANGED
    return Decision(WakeChanged(), DeliveryNoted(command.id, 0, is_resumed=True))


SUBSCRIPTION_DECIDERS: Final[Mapping[type, Callable[[State, Any], Decision]]] = {
    CreateSubscription: decide_subscribe,
    DeleteSubscription: decide_unsubscribe,
    LinkStreams: decide_link,
    UnlinkStream: decide_unlink,
    IssueWake: decide_issue,
    ClaimWake: decide_claim_wake,
    AckWake: decide_ack,
    ReleaseWake: decide_release_wake,
    ExpireWake: decide_expire_wake,
    NoteDelivery: decide_note_delivery,
    ResumeSubscription: decide_resume,
}
