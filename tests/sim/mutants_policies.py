"""Seeded bugs in policies: settings that are lost, hold elsewhere, or take effect too early."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from semel.journal import checkpoint, recovery
from semel.machine import append, policies, streams
from semel.machine import apply as machine_apply
from semel.machine.events import PolicyChanged, StreamConfigured
from semel.machine.state import NO_EFFECTS, Dirty, Effects, State, Stream
from semel.model.outcomes import Created


def forget_policies_in_a_replay() -> Any:
    """Recovery does not apply the frames of policies."""
    real = machine_apply

    def apply(state: State, event: Any, *rest: Any) -> Effects:
        return NO_EFFECTS if isinstance(event, PolicyChanged) else real(state, event, *rest)

    return patch.object(recovery, "apply", apply)


def checkpoint_without_policies() -> Any:
    """The checkpoint omits the policies."""
    return _changed_rows(lambda dirty: dirty.policies.clear())


def checkpoint_without_own_settings() -> Any:
    """The checkpoint omits whether a setting is the stream's own."""

    def change(dirty: Dirty) -> None:
        for number, row in dirty.tails.items():
            dirty.tails[number] = replace(row, dedup_own=None)

    return _changed_rows(change)


def match_prefixes_by_bytes() -> Any:
    """A policy of `s` also holds for `s2`."""

    def prefixes(path: str) -> Iterator[str]:
        return (path[:end] for end in range(len(path), -1, -1))

    return patch.object(policies, "prefixes_of", prefixes)


def let_the_shortest_prefix_win() -> Any:
    """The policy of the root wins over one of a longer prefix."""
    real = policies.prefixes_of
    return patch.object(policies, "prefixes_of", lambda path: reversed(list(real(path))))


def switch_under_an_open_transaction() -> Any:
    """A policy takes effect on a stream in which a transaction has messages."""

    def due(state: State, stream: Stream) -> bool | None:
        return None if policies.is_settled(state, stream) else stream.tail.dedup_from is None

    return patch.object(append, "due_switch", due)


def let_policies_override_own_settings() -> Any:
    """A policy switches a stream whose setting is its own."""

    def is_settled(state: State, stream: Stream) -> bool:
        tail = stream.tail
        wanted, _ = policies.find_dedup(state.policies, stream.row.path)
        return tail.is_closed or wanted == (tail.dedup_from is not None)

    return _patched_settled(is_settled)


def note_agreement_too_early() -> Any:
    """An append that a transaction keeps from switching counts as a comparison for good."""
    module = importlib.import_module("semel.machine.apply")
    return patch.object(module, "is_settled", lambda state, stream: True)


def switch_after_the_append() -> Any:
    """The offset from which duplicates are recognised is that after the append."""
    module = importlib.import_module("semel.machine.apply")
    real = module._APPLIERS[StreamConfigured]

    def configured(state: State, event: StreamConfigured, sections: Any, *rest: Any) -> Effects:
        if event.append is not None and event.dedup_from is not None:
            count = sum(section.count for section in sections)
            event = replace(event, dedup_from=event.dedup_from + count)
        effects: Effects = real(state, event, sections, *rest)
        return effects

    return patch.dict(module._APPLIERS, {StreamConfigured: configured})


def report_that_a_new_stream_recognises_duplicates() -> Any:
    """The response to the creation of a stream without duplicate detection says that it has it."""

    def created(*values: Any, **named: Any) -> Created:
        return Created(*values, **named | {"dedup_from": named["dedup_from"] or 0})

    return patch.object(streams, "Created", created)


def _changed_rows(change: Callable[[Dirty], None]) -> Any:
    """Change the rows of each checkpoint before they are stored."""
    real = checkpoint._put_rows

    def put(tables: Any, dirty: Dirty) -> None:
        change(dirty)
        real(tables, dirty)

    return patch.object(checkpoint, "_put_rows", put)


@contextmanager
def _patched_settled(is_settled: Any) -> Iterator[None]:
    module = importlib.import_module("semel.machine.apply")
    with ExitStack() as stack:
        for owner in (policies, module):
            stack.enter_context(patch.object(owner, "is_settled", is_settled))
        yield


POLICY_MUTANTS = (
    forget_policies_in_a_replay,
    checkpoint_without_policies,
    checkpoint_without_own_settings,
    match_prefixes_by_bytes,
    let_the_shortest_prefix_win,
    switch_under_an_open_transaction,
    let_policies_override_own_settings,
    note_agreement_too_early,
    switch_after_the_append,
    report_that_a_new_stream_recognises_duplicates,
)
