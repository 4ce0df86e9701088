"""Policies: which one decides a setting of a stream, and the decisions that change settings.

A policy changes no stream by itself, so that it costs the same however many streams there are. A
stream compares one number with each append outside transactions: the version of the policies that
it was last compared with.
"""

from collections.abc import Collection, Iterator, Mapping

from msgspec.structs import replace

from semel.machine.checks import holding_txn
from semel.machine.events import (
    Decision,
    DedupSwitched,
    PolicyChanged,
    Sections,
    StreamConfigured,
)
from semel.machine.rows import PolicyRow, TailRow
from semel.machine.state import State, Stream
from semel.model.commands import SwitchDedup
from semel.model.limits import POLICIES_MAX
from semel.model.outcomes import LimitReached, PolicyDeleted, PolicySet, Switched, UnknownPolicy
from semel.model.outcomes_topics import StreamInTopic
from semel.model.policies import BUILT_IN_DEDUP, DedupSource, DeletePolicy, SetPolicy

Policies = Mapping[str, PolicyRow]


# ---- which policy decides ------------------------------------------------------------------------


def prefixes_of(path: str) -> Iterator[str]:
    """Yield the prefixes whose policies hold for a path. The longest comes first, the root last."""
    while path:
        yield path
        path = path.rpartition("/")[0]
    yield ""


def find_dedup(policies: Policies, path: str) -> tuple[bool, str | None]:
    """Return whether a stream without an own setting must detect duplicates, and who decides it.

    The second value is the prefix of the policy that decides, or None for the built-in setting.
    """
    if policies:
        for prefix in prefixes_of(path):
            row = policies.get(prefix)
            if row is not None and row.dedup is not None:
                return row.dedup, prefix
    return BUILT_IN_DEDUP, None


def dedup_source(policies: Policies, path: str, tail: TailRow) -> DedupSource:
    """Return where the setting of the stream with this path and tail row comes from."""
    if tail.dedup_own:
        return DedupSource(is_own=True)
    wanted, prefix = find_dedup(policies, path)
    is_pending = wanted != (tail.dedup_from is not None) and not tail.is_closed
    return DedupSource(prefix=prefix, pending=wanted if is_pending else None)


def is_settled(state: State, stream: Stream) -> bool:
    """Return True if no append has to switch the stream until a policy or its setting changes."""
    tail = stream.tail
    if tail.dedup_own or tail.is_closed:
        return True
    return find_dedup(state.policies, stream.row.path)[0] == (tail.dedup_from is not None)


def due_switch(state: State, stream: Stream) -> bool | None:
    """Return the value to which the stream's next append must switch duplicate detection.

    Return None if it must not switch: the setting is the stream's own, or the stream has this value
    already, or it is closed, or an inline transaction has messages there.
    """
    if is_settled(state, stream) or open_txns(state, stream):
        return None
    return stream.tail.dedup_from is None


def open_txns(state: State, stream: Stream) -> Collection[int]:
    """Return the pending inline transactions with messages in a stream, or in a topic."""
    if stream.topic is None:
        return stream.open or ()
    partitions = (state.by_number[number] for number in stream.topic.partitions)
    return {number for partition in partitions for number in partition.open or ()}


# ---- the own setting of a stream -----------------------------------------------------------------


def decide_switch(state: State, stream: Stream, command: SwitchDedup) -> Decision:
    """Return the decision on a command that sets a stream's own setting, or removes it.

    No event is stored if the setting stays the same or a pending transaction prevents the change. A
    stream that loses its own setting is switched by its next append, if a policy requires it.
    """
    if stream.row.partition >= 0:
        return Decision(StreamInTopic(state.by_number[stream.row.topic].row.path))
    old, number, is_own = stream.tail, stream.row.number, command.dedup is not None
    since = old.dedup_from
    event: StreamConfigured | DedupSwitched | None = None
    if is_own and command.dedup != (since is not None):
        pending = open_txns(state, stream)
        if pending and not command.dedup:
            return Decision(holding_txn(state, pending))
        since = old.tail if command.dedup else None
        is_on = command.dedup
        event = StreamConfigured(number, since, True) if is_on else DedupSwitched(number, None)
    elif is_own != old.dedup_own:
        event = StreamConfigured(number, since, is_own)
    new = replace(old, dedup_from=since, dedup_own=is_own)
    source = dedup_source(state.policies, stream.row.path, new)
    return Decision(Switched(since, old.tail, source), event)


# ---- set, delete ---------------------------------------------------------------------------------


def decide_set_policy(state: State, command: SetPolicy) -> Decision:
    """Return the decision on a command that sets the policy of a prefix."""
    prefix, old = command.prefix, state.policies.get(command.prefix)
    if old is not None and old.dedup == command.dedup:
        return Decision(PolicySet(prefix, old.dedup, old.changed_ms, is_new=False))
    others = len(state.policies) - ("" in state.policies)
    if old is None and prefix and others >= POLICIES_MAX:
        return Decision(LimitReached("policies", POLICIES_MAX))
    row = PolicyRow(command.dedup, state.frame_time(command.now_ms))
    outcome = PolicySet(prefix, row.dedup, row.changed_ms, is_new=old is None)
    return Decision(outcome, PolicyChanged(prefix, row))


def decide_delete_policy(state: State, command: DeletePolicy) -> Decision:
    """Return the decision on a command that deletes the policy of a prefix."""
    if command.prefix not in state.policies:
        return Decision(UnknownPolicy())
    return Decision(PolicyDeleted(), PolicyChanged(command.prefix, None))


def apply_policy(state: State, event: PolicyChanged, _sections: Sections, _time_ms: int) -> None:
    """Set or delete the policy of a prefix. No stream is changed.

    The mapping is replaced and not changed, so that readers can keep the durable one.
    """
    policies = dict(state.policies)
    if event.row is None:
        del policies[event.prefix]
    else:
        policies[event.prefix] = event.row
    state.policies = policies
    state.policy_version += 1
    state.dirty.policies[event.prefix] = event.row
