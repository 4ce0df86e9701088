"""Seeded bugs in groups that share: two owners, an owner that is refused, a stream without one."""

import importlib
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from semel.broker import broker as broker_module
from semel.broker import memberships
from semel.broker.endings import Endings
from semel.broker.memberships import Memberships
from semel.journal import checkpoint, frame, recovery
from semel.machine import Decision, generations, groups, positions, topics
from semel.machine import apply as real_apply
from semel.machine.assignment import AssignmentStep, plan
from semel.machine.events import PositionsNamedByMembers
from semel.machine.rows import NamedPosition
from semel.machine.shared_events import Assigned, GroupChanged
from semel.machine.state import NO_EFFECTS, Dirty, Effects, State, Stream
from semel.machine.txn import apply_end
from semel.model.commands import EngineCommand, PositionMove
from semel.model.group_commands import DeleteGroup
from semel.model.outcomes import Outcome, Refusal
from semel.model.outcomes_groups import GroupIsShared, IllegalGeneration

Subscriptions = Mapping[str, Set[int]]
Owners = Mapping[int, str]


# ---- who may commit ------------------------------------------------------------------------------


def compare_one_epoch_of_the_whole_group() -> Any:
    """A member is refused after any stream of its group was given to somebody."""
    real = generations.refuse_generation

    def refuse(state: State, stream: Stream, move: Any, **how: Any) -> Refusal | None:
        refusal = real(state, stream, move, **how)
        share = state.shares.get(move.group)
        if refusal is not None or share is None or move.member is None:
            return refusal
        newest = max(row.epoch for row in share.streams.values())
        if move.member_epoch == newest:
            return None
        return IllegalGeneration(move.group, stream.row.path, newest, move.member_epoch)

    return patch.object(positions, "refuse_generation", refuse)


def compare_the_owner_only_when_naming() -> Any:
    """A commit does not check whether the member has lost the stream since it named it."""
    real = generations.refuse_generation

    def refuse(
        state: State, stream: Stream, move: PositionMove | NamedPosition, **how: Any
    ) -> Refusal | None:
        return None if isinstance(move, NamedPosition) else real(state, stream, move, **how)

    return _all(
        patch.object(positions, "refuse_generation", refuse),
        patch.object(positions, "_name", _with(positions, "refuse_generation", real)),
    )


def let_anybody_move_a_shared_position() -> Any:
    """A move without a member is accepted although a member owns the stream."""
    return _patched_generation(lambda refusal: isinstance(refusal, GroupIsShared))


def compare_no_epochs() -> Any:
    """The owner of a stream may commit what it read when it had the stream before."""
    real = generations.refuse_generation

    def refuse(state: State, stream: Stream, move: Any, **how: Any) -> Refusal | None:
        refusal = real(state, stream, move, **how)
        share = state.shares.get(move.group)
        row = None if share is None else share.streams.get(stream.row.number)
        is_owner = row is not None and move.member is not None and row.owner == move.member
        return None if is_owner else refusal

    return patch.object(positions, "refuse_generation", refuse)


def _patched_generation(is_ignored: Callable[[Refusal | None], bool]) -> Any:
    real = generations.refuse_generation

    def refuse(state: State, stream: Stream, move: Any, **how: Any) -> Refusal | None:
        refusal = real(state, stream, move, **how)
        return None if is_ignored(refusal) else refusal

    return patch.object(positions, "refuse_generation", refuse)


# ---- who owns what -------------------------------------------------------------------------------


def keep_the_epoch_of_the_owner_before() -> Any:
    """A stream that is given to another member keeps its epoch."""
    real = groups._Change._assigned

    def assigned(self: Any, number: int, member: str) -> Assigned:
        made = real(self, number, member)
        return replace(made, epoch=max(1, made.epoch - 1))

    return patch.object(groups._Change, "_assigned", assigned)


def give_a_stream_before_it_is_released() -> Any:
    """A stream goes to another member at once, and not when its owner has released it."""

    def change(result: AssignmentStep, subscriptions: Subscriptions, owned: Owners) -> None:
        for stream in result.revoked:
            others = [name for name in sorted(subscriptions) if stream in subscriptions[name]]
            result.given += [(stream, name) for name in others if name != owned[stream]][:1]
        result.revoked = []

    return _patched_plan(change)


def release_while_prepared() -> Any:
    """A stream is freed although a prepared transaction holds its position."""
    return patch.object(groups, "refuse_held", lambda *_: None)


def leave_loads_uneven() -> Any:
    """A new member gets nothing while all streams have owners."""
    return _patched_plan(lambda result, *_: result.revoked.clear())


def move_more_than_necessary() -> Any:
    """All streams are asked back at each change."""

    def change(result: AssignmentStep, _subscriptions: Subscriptions, owned: Owners) -> None:
        result.revoked = sorted(owned)

    return _patched_plan(change)


def keep_two_members_of_one_instance() -> Any:
    """A member that joins under the name of an instance does not replace the older one."""
    return patch.object(groups, "_find_instance", lambda members, instance: ())


def count_departures_as_crashes() -> Any:
    """A stream that its owner has given up, or released too late, counts as after a crash."""
    real = groups._Change.free

    def free(self: Any, number: int, **how: Any) -> None:
        real(self, number, **how | {"is_crash": True})

    return patch.object(groups._Change, "free", free)


def count_crashes_over_a_move() -> Any:
    """The number of crashes is kept when the position moves."""

    def starts_of(self: Any, number: int, *, is_crash: bool, **_how: Any) -> int:
        row = self._rows[number]
        return int(row.starts) + is_crash

    return patch.object(groups._Change, "_starts_of", starts_of)


def begin_every_stream_at_its_end() -> Any:
    """A member that begins at the end also skips what is in streams created later."""
    real = groups._Change._first_position

    def first(self: Any, number: int, member: Any) -> Any:
        share = self._share
        if share is None:
            yield from real(self, number, member)
            return
        row = replace(share.row, next_stream=self._state.next_stream)
        with patch.object(share, "row", row):
            yield from real(self, number, member)

    return patch.object(groups._Change, "_first_position", first)


def _patched_plan(change: Callable[[AssignmentStep, Subscriptions, Owners], None]) -> Any:
    def changed(subscriptions: Subscriptions, owned: Owners, *rest: Any) -> AssignmentStep:
        result = plan(subscriptions, owned, *rest)
        if subscriptions:
            change(result, subscriptions, owned)
        return result

    return patch.object(groups, "plan", changed)


# ---- frames and the checkpoint -------------------------------------------------------------------


@contextmanager
def compute_the_owners_in_apply() -> Iterator[None]:
    """`apply` computes the owners, and a later version computes others from the same journal."""
    machine_apply = importlib.import_module("semel.machine.apply")
    real = machine_apply._APPLIERS[GroupChanged]
    is_replay = [False]

    def later_version(state: State, event: GroupChanged) -> GroupChanged:
        joined = () if event.joined is None else (event.joined.id,)
        share = state.shares.get(event.group)
        members = sorted({*joined, *(() if share is None else share.members)} - {*event.left})
        assigned = tuple(
            replace(each, member=members[at % len(members)])
            for at, each in enumerate(event.assigned)
        )
        return replace(event, assigned=assigned)

    def changed(state: State, event: GroupChanged, *rest: Any) -> Any:
        return real(state, later_version(state, event) if is_replay[0] else event, *rest)

    def replay(*arguments: Any) -> Effects:
        is_replay[0] = True
        try:
            return real_apply(*arguments)
        finally:
            is_replay[0] = False

    with (
        patch.dict(machine_apply._APPLIERS, {GroupChanged: changed}),
        patch.object(recovery, "apply", replay),
    ):
        yield


def lose_epochs_in_a_restart() -> Any:
    """The checkpoint omits the epochs of streams."""

    def change(dirty: Dirty) -> None:
        for key, row in dirty.shares.items():
            if row is not None:
                dirty.shares[key] = replace(row, epoch=0)

    return _changed_rows(change)


def lose_free_epochs_in_a_restart() -> Any:
    """The checkpoint omits the streams that nobody owns, and with them their epochs."""

    def change(dirty: Dirty) -> None:
        for key, row in dirty.shares.items():
            if row is not None and row.owner is None:
                dirty.shares[key] = None

    return _changed_rows(change)


def checkpoint_without_owners_of_streams() -> Any:
    """The checkpoint omits who owns a stream."""
    return _changed_rows(lambda dirty: dirty.shares.clear())


def checkpoint_without_members() -> Any:
    """The checkpoint omits the members of groups."""
    return _changed_rows(lambda dirty: dirty.members.clear())


def checkpoint_members_that_have_left() -> Any:
    """The checkpoint keeps the rows of members that have left."""

    def change(dirty: Dirty) -> None:
        dirty.members = {key: row for key, row in dirty.members.items() if row is not None}

    return _changed_rows(change)


def checkpoint_without_crashes() -> Any:
    """The checkpoint omits how often a stream was taken from crashed members."""

    def change(dirty: Dirty) -> None:
        for key, row in dirty.shares.items():
            if row is not None:
                dirty.shares[key] = replace(row, starts=0)

    return _changed_rows(change)


def checkpoint_without_the_owner_of_a_named_position() -> Any:
    """The checkpoint omits which member has named a position in a transaction."""

    def change(dirty: Dirty) -> None:
        for number, row in dirty.transactions.items():
            named = tuple(replace(n, member=None, member_epoch=None) for n in row.positions)
            dirty.transactions[number] = replace(row, positions=named)

    return _changed_rows(change)


def forget_groups_in_a_replay() -> Any:
    """Recovery does not apply the frames of groups."""

    def replay(state: State, event: Any, *rest: Any) -> Effects:
        is_left_out = isinstance(event, GroupChanged)
        return NO_EFFECTS if is_left_out else real_apply(state, event, *rest)

    return patch.object(recovery, "apply", replay)


def write_no_requests_to_release() -> Any:
    """The frame of a change omits which streams must be released."""
    return _changed_event(lambda event: replace(event, revoking=()))


def write_no_crashes() -> Any:
    """The frame of a change omits how often a stream was taken from crashed members."""

    def change(event: GroupChanged) -> GroupChanged:
        freed = tuple((number, 0) for number, _ in event.freed)
        assigned = tuple(replace(each, starts=0) for each in event.assigned)
        return replace(event, freed=freed, assigned=assigned)

    return _changed_event(change)


def write_no_first_positions() -> Any:
    """The frame of a change omits that a group begins at the end of a stream."""
    return _changed_event(lambda event: replace(event, positions=()))


def name_without_the_member() -> Any:
    """The frame that names positions in a transaction omits the member."""
    real = frame.encode_meta

    def encode(event: Any) -> bytes:
        if isinstance(event, PositionsNamedByMembers):
            event = replace(event, members=(None,) * len(event.members))
        return real(event)

    return patch.object(broker_module, "encode_meta", encode)


def _changed_event(change: Callable[[GroupChanged], GroupChanged]) -> Any:
    real = frame.encode_meta

    def encode(event: Any) -> bytes:
        return real(change(event) if isinstance(event, GroupChanged) else event)

    return patch.object(broker_module, "encode_meta", encode)


def _changed_rows(change: Callable[[Dirty], None]) -> Any:
    real = checkpoint._put_rows

    def put(tables: Any, dirty: Dirty) -> None:
        change(dirty)
        real(tables, dirty)

    return patch.object(checkpoint, "_put_rows", put)


# ---- times, and what follows from other changes --------------------------------------------------


def revive_an_expired_member() -> Any:
    """A heartbeat that comes after the session timeout renews the session."""

    def renew(self: Any, key: Any) -> None:
        if key in self._leases:
            self._leases[key].since_ms = self._monotonic_ms()

    return _all(
        patch.object(memberships.Leases, "renew", renew),
        patch.object(Endings, "expire_member", lambda *_: True),
    )


def hear_only_heartbeats() -> Any:
    """The commits of a member do not renew its session."""

    def note(self: Endings, command: EngineCommand, outcome: Outcome) -> None:
        self._wakes.note_outcome(command, outcome)

    return patch.object(Endings, "note_heard", note)


def hear_nothing() -> Any:
    """Heartbeats do not renew the session of a member."""
    return patch.object(Memberships, "hear", lambda self, *_: None)


def never_end_a_member() -> Any:
    """A member that is not heard any more keeps its streams."""
    return patch.object(Memberships, "due", lambda self, now_ms, count_max: iter(()))


def never_take_a_stream() -> Any:
    """A member that does not release a stream keeps it."""
    return patch.object(Memberships, "_await_releases", lambda self, group, numbers: None)


def forget_a_new_stream() -> Any:
    """A group does not notice a new stream that its members want."""
    machine_apply = importlib.import_module("semel.machine.apply")
    return _all(
        patch.object(machine_apply, "note_new_stream", lambda state, stream: None),
        patch.object(topics, "note_new_stream", lambda state, stream: None),
    )


def forget_a_stream_that_was_held() -> Any:
    """A group does not notice that the transaction has ended which held a position."""
    real = apply_end._end

    def end(state: State, *rest: Any) -> Any:
        unsettled = set(state.unsettled)
        outcome = real(state, *rest)
        state.unsettled &= unsettled
        return outcome

    return patch.object(apply_end, "_end", end)


def settle_only_what_is_small() -> Any:
    """A change that does not fit into one frame is not continued."""
    machine_apply = importlib.import_module("semel.machine.apply")
    real = machine_apply._APPLIERS[GroupChanged]

    def changed(state: State, event: GroupChanged, *rest: Any) -> Any:
        return real(state, replace(event, is_partial=False), *rest)

    return patch.dict(machine_apply._APPLIERS, {GroupChanged: changed})


def delete_a_group_with_members() -> Any:
    """A group can be deleted while members share its streams."""
    real = groups.decide_delete_group

    def decide(state: State, command: Any) -> Decision:
        share = state.shares.get(command.group)
        if share is None:
            return real(state, command)
        with patch.object(share, "members", {}):
            return real(state, command)

    decisions = importlib.import_module("semel.machine.decide")
    return patch.dict(decisions._DECIDERS, {DeleteGroup: decide})


def join_without_a_check() -> Any:
    """A member can join with streams that do not exist."""
    return patch.object(groups, "_refuse_names", lambda state, command: None)


def _with(module: Any, name: str, value: Any) -> Callable[..., Any]:
    """Return the module's `_name` that runs with a value of before."""
    real = module._name

    def named(*arguments: Any, **how: Any) -> Outcome | NamedPosition:
        with patch.object(module, name, value):
            result: Outcome | NamedPosition = real(*arguments, **how)
            return result

    return named


@contextmanager
def _all(*patches: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        yield


GROUP_MUTANTS: tuple[Callable[[], Any], ...] = (
    compare_one_epoch_of_the_whole_group,
    compare_the_owner_only_when_naming,
    let_anybody_move_a_shared_position,
    compare_no_epochs,
    keep_the_epoch_of_the_owner_before,
    give_a_stream_before_it_is_released,
    release_while_prepared,
    leave_loads_uneven,
    move_more_than_necessary,
    keep_two_members_of_one_instance,
    count_departures_as_crashes,
    count_crashes_over_a_move,
    begin_every_stream_at_its_end,
    compute_the_owners_in_apply,
    lose_epochs_in_a_restart,
    lose_free_epochs_in_a_restart,
    checkpoint_without_owners_of_streams,
    checkpoint_without_members,
    checkpoint_members_that_have_left,
    checkpoint_without_crashes,
    checkpoint_without_the_owner_of_a_named_position,
    forget_groups_in_a_replay,
    write_no_requests_to_release,
    write_no_crashes,
    write_no_first_positions,
    name_without_the_member,
    revive_an_expired_member,
    hear_only_heartbeats,
    hear_nothing,
    never_end_a_member,
    never_take_a_stream,
    forget_a_new_stream,
    forget_a_stream_that_was_held,
    settle_only_what_is_small,
    delete_a_group_with_members,
    join_without_a_check,
)
