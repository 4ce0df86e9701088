"""Seeded bugs of the producer's core. A property must find each of them."""

from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from semel.client.producer.batches import DedupCheck, ProducerBatch
from semel.client.producer.core import ProducerCore
from semel.client.producer.identity import ProducerIdentity
from tests.unit.client import test_producer_properties as properties

Mutant = Callable[[pytest.MonkeyPatch], None]


def the_second_batch_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    """Send several batches of a new session before the first response (rule 3)."""
    patch.setattr(
        ProducerIdentity, "is_established", property(lambda _: True, lambda *_: None), raising=False
    )


def nobody_looks_for_dedup(patch: pytest.MonkeyPatch) -> None:
    """Send a batch again without knowing that the stream recognises duplicates (rule 2)."""
    patch.setattr(DedupCheck, "require", lambda _: None)


def a_switch_since_the_batch_was_sent_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """Send a batch again that may be stored before duplicates were recognised (rule 2)."""
    patch.setattr(
        DedupCheck, "stored_until", property(lambda _: "9", lambda *_: None), raising=False
    )


def a_forgotten_producer_takes_nothing_for_stored(patch: pytest.MonkeyPatch) -> None:
    """Renumber batches that may be stored, when the server has forgotten the producer (rule 6)."""
    end = ProducerCore._end_stall

    def reckless(core: ProducerCore) -> None:
        if core._expiry is not None:
            for batch in core._unsettled:
                batch.is_indeterminate = False
        end(core)

    patch.setattr(ProducerCore, "_end_stall", reckless)
    patch.setattr(
        ProducerCore,
        "_is_renewable",
        lambda core, error, _: type(error).__name__ == "ProducerExpired",
    )


def a_close_that_was_not_made_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Take a duplicate of the last messages for the close of the stream (rule 7)."""

    def forget(_core: ProducerCore, batch: ProducerBatch, _now: float) -> None:
        batch.is_closing = False

    patch.setattr(ProducerCore, "_close_later", forget)


def a_new_epoch_goes_on_with_the_old_sequences(patch: pytest.MonkeyPatch) -> None:
    """Move to a higher epoch without beginning at sequence 0 (rule 6)."""
    patch.setattr(ProducerCore, "_renew_after_idleness", lambda core, _now: core._identity.renew())


actions, batching = properties.actions, properties.batching
MUTANTS: Final[dict[Mutant, tuple[Any, tuple[Any, ...]]]] = {
    the_second_batch_does_not_wait: (
        properties.test_a_new_session_begins_with_its_first_batch_behind_an_earlier_instance,
        (actions, actions, batching, st.booleans()),
    ),
    nobody_looks_for_dedup: (
        properties.test_without_dedup_nothing_is_sent_again_that_may_be_stored,
        (actions, properties.identities, batching),
    ),
    a_switch_since_the_batch_was_sent_is_ignored: (
        properties.test_nothing_is_stored_twice_while_dedup_is_switched_off_and_on,
        (
            st.lists(st.tuples(actions, st.integers(1, 2)), max_size=4),
            properties.identities,
            batching,
        ),
    ),
    a_forgotten_producer_takes_nothing_for_stored: (
        properties.test_a_forgotten_producer_goes_on_or_tells_what_is_unknown,
        (properties.lives, batching, st.just({})),
    ),
    a_close_that_was_not_made_is_forgotten: (
        properties.test_a_sparse_producer_closes_a_stream_that_an_earlier_one_filled,
        (actions, actions, batching),
    ),
    a_new_epoch_goes_on_with_the_old_sequences: (
        properties.test_a_producer_that_is_forgotten_while_it_is_idle_never_fails,
        (
            st.lists(st.tuples(actions, st.booleans(), st.integers(0, 20)), max_size=5),
            batching,
            st.just({}),
        ),
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_property_finds_every_seeded_bug(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    checked, strategies = MUTANTS[mutant]
    mutant(monkeypatch)

    @settings(max_examples=500, phases=[Phase.generate], database=None, derandomize=True)
    @given(st.tuples(*strategies))
    def check(arguments: tuple[Any, ...]) -> None:
        checked.hypothesis.inner_test(*arguments)

    with pytest.raises(AssertionError):
        check()
