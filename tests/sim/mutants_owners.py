"""Seeded bugs in owners: owners that are lost, and things that others can use or end."""

import importlib
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from semel.broker import guard
from semel.broker.broker import Reply
from semel.machine import Decision, State, access, lifetimes, needs
from semel.machine import state as state_module
from semel.machine.access_events import OwnersChanged
from semel.machine.txn import apply_end
from semel.model.commands import EngineCommand
from semel.model.outcomes import Outcome
from semel.model.outcomes_access import UsesNoted
from semel.model.rights import Caller
from tests.sim.mutants_access import all_of, changed_rows, not_replayed


def lose_owners_in_a_replay() -> Any:
    """Recovery does not apply the frames of owners."""
    return not_replayed(OwnersChanged)


def checkpoint_without_owners() -> Any:
    """The checkpoint omits the owners."""
    return changed_rows(lambda dirty: dirty.owners.clear())


def keep_the_owner_of_a_dropped_producer() -> Any:
    """The owner of a producer stays when the producer is dropped, and owns the next one."""
    module = importlib.import_module("semel.machine.apply")
    return all_of(
        patch.object(lifetimes, "drop_owner", lambda state, key: None),
        patch.object(module, "drop_owner", lambda state, key: None),
    )


def forget_who_owned_an_ended_transaction() -> Any:
    """After its end, everybody may use the id of a transaction."""
    real = state_module.drop_owner

    def drop(state: State, key: Any) -> None:
        real(state, key)

    return patch.object(apply_end, "drop_owner", drop)


def take_by_a_refused_command() -> Any:
    """A command that is refused makes its caller the owner."""
    real = access.decide_owners

    def decide(state: State, command: EngineCommand, by: Caller, _outcome: Outcome) -> Any:
        return real(state, command, by, UsesNoted())

    return patch.object(guard, "decide_owners", decide)


def take_nothing_by_a_repeat() -> Any:
    """A command that repeats an earlier one does not make its caller the owner."""
    real = guard.Guard._store_owners

    def store(self: Any, caller: Caller, command: EngineCommand, decision: Decision) -> bool:
        return decision.event is None or real(self, caller, command, decision)

    return patch.object(guard.Guard, "_store_owners", store)


def answer_before_the_owner_is_stored() -> Any:
    """The response to a repeat does not wait for the frame with the owner."""
    real = guard.Guard.commit

    def commit(self: Any, by: Caller, command: EngineCommand, made: Decision, reply: Reply) -> bool:
        if made.event is not None:
            return real(self, by, command, made, reply)
        self._commit(made, command.now_ms, reply, 0)
        self._store_owners(by, command, made)
        return True

    return patch.object(guard.Guard, "commit", commit)


def use_what_others_own() -> Any:
    """Everybody may use the producers, transactions and sinks of others."""
    return patch.object(access, "_is_own", lambda *_: True)


def use_what_nobody_owns() -> Any:
    """With --unowned deny, too, everybody may use what has no owner."""
    real = access._is_own

    def is_own(state: State, check: Any, caller: Caller, ended: Any) -> bool:
        return real(state, check, replace(caller, denies_unowned=False), ended)

    return patch.object(access, "_is_own", is_own)


def write_with_the_registered_id_of_others() -> Any:
    """The registration of a producer id does not matter in a stream."""
    real = needs._uses_producer

    def uses(*rest: Any) -> Any:
        return (check for check in real(*rest) if check.path)

    return patch.object(needs, "_uses_producer", uses)


def take_a_registration_by_an_append() -> Any:
    """An append makes its caller the owner of the registration of its producer id, too."""
    real = needs._uses_producer

    def uses(*rest: Any) -> Any:
        return (replace(check, is_taken=True) for check in real(*rest))

    return patch.object(needs, "_uses_producer", uses)


def end_what_nobody_owns() -> Any:
    """What has no owner can be retired, forgotten, rebound, fenced and given away by everybody."""
    real = access._is_own

    def is_own(state: State, check: Any, caller: Caller, ended: Any) -> bool:
        return real(state, replace(check, is_use=True), caller, ended)

    return patch.object(access, "_is_own", is_own)


def call_what_nobody_owns() -> Any:
    """A pending transaction without an owner can be called without a right on its streams."""
    return patch.object(needs, "_streams_of", lambda *_: iter(()))


def share_a_sink_before_its_first_commit() -> Any:
    """Everybody can begin transactions for a sink that has no commit yet."""
    real = needs._uses_sink

    def uses(*rest: Any) -> Any:
        return (check for check in real(*rest) if check.key is not None)

    return patch.object(needs, "_uses_sink", uses)


OWNER_MUTANTS = (
    lose_owners_in_a_replay,
    checkpoint_without_owners,
    keep_the_owner_of_a_dropped_producer,
    forget_who_owned_an_ended_transaction,
    take_by_a_refused_command,
    take_nothing_by_a_repeat,
    answer_before_the_owner_is_stored,
    use_what_others_own,
    use_what_nobody_owns,
    write_with_the_registered_id_of_others,
    take_a_registration_by_an_append,
    end_what_nobody_owns,
    call_what_nobody_owns,
    share_a_sink_before_its_first_commit,
)
