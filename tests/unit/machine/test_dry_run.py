"""Dry runs return the outcome that an append would have, without appending."""

from zlib import crc32

import pytest
from msgspec.structs import replace

from semel.machine.decide import DryRun, dry_run
from semel.model.commands import Delete, ProducerTag
from semel.model.outcomes import (
    Appended,
    Duplicate,
    Gone,
    InvalidRequest,
    NotFound,
    RestartAmbiguous,
    SequenceGap,
    StaleEpoch,
)
from semel.model.outcomes_topics import TopicStored
from tests.unit.machine.builders import (
    Machine,
    append,
    create,
    dense,
    fork,
    machine_of,
    snapshot,
    sparse,
)
from tests.unit.machine.topic_builders import append_topic, stored, topic_machine


def asked(machine: Machine, tag: ProducerTag, path: str = "s") -> DryRun:
    before = snapshot(machine.state)
    found = dry_run(machine.state, path, tag, now_ms=0)
    assert snapshot(machine.state) == before
    return found


def test_a_new_producer_would_be_stored() -> None:
    machine = machine_of(create())
    assert asked(machine, dense(0, epoch=4)) == DryRun(Appended(0, 1, False, 4, 0))
    assert asked(machine, dense(2, epoch=4)) == DryRun(SequenceGap(0, 2))


# rows: P18
def test_a_repeat_is_told_for_the_same_payload_and_for_another() -> None:
    machine = machine_of(create(), append(b"a", by=dense(0, epoch=1)))
    same, other = Duplicate(0, 1, False, 1, 0), Duplicate(0, 1, False, 1, 0, True)
    assert asked(machine, dense(0, epoch=1)) == DryRun(same, other)
    assert asked(machine, dense(1, epoch=1)) == DryRun(Appended(1, 2, False, 1, 1))
    assert asked(machine, dense(0, epoch=0)) == DryRun(StaleEpoch(1, 0)), (
        "the same for every payload"
    )


def test_a_bare_repeat_is_a_retry_a_restart_or_ambiguous() -> None:
    machine = machine_of(create(), append(b"a", by=dense(0)), append(b"b", by=dense(1)))
    assert asked(machine, dense(0)) == DryRun(
        Duplicate(0, 1, False, 1, 1), Appended(2, 3, False, 2, 0)
    )
    assert asked(machine, dense(1)) == DryRun(Duplicate(1, 2, False, 1, 1), RestartAmbiguous(1, 1))


def test_a_sparse_repeat_needs_the_very_range() -> None:
    machine = machine_of(create(), append(b"a", by=sparse(3, 5)))
    assert asked(machine, sparse(3, 5)) == DryRun(
        Duplicate(0, 1, False, 1, 5), Duplicate(0, 1, False, 1, 5, True)
    )
    assert asked(machine, sparse(3, 4)).other is None
    assert asked(machine, sparse(0, 1)).other is None
    assert asked(machine, sparse(6)) == DryRun(Appended(1, 2, False, 1, 6))


def test_a_stream_that_is_not_there_or_recognises_nothing_says_so() -> None:
    machine = machine_of(create(), append(by=dense(0, epoch=0)), fork(), Delete("s", 0))
    assert asked(machine, dense(0, epoch=0)) == DryRun(Gone())
    assert asked(machine, dense(0, epoch=0), "none") == DryRun(NotFound())
    unguarded = machine_of(replace(create(), dedup=False), append(by=dense(0, epoch=0)))
    answer = asked(unguarded, dense(0, epoch=0))
    assert answer == DryRun(Appended(1, 2, False, 0, 0, is_unguarded=True))


def test_an_append_to_a_topic_is_tried_too() -> None:
    machine = topic_machine(append_topic((b"k", b"1"), by=dense(0, epoch=1)))
    assert isinstance(asked(machine, dense(1, epoch=1), "t").outcome, TopicStored)
    assert asked(machine, dense(5, epoch=1), "t") == DryRun(SequenceGap(1, 5))
    assert asked(machine, dense(0, epoch=0), "t") == DryRun(StaleEpoch(1, 0))
    same = stored((crc32(b"k") % 4, 0, 1), epoch=1, seq=0, is_duplicate=True)
    found = asked(machine, dense(0, epoch=1), "t")
    assert found == DryRun(same, replace(same, is_mismatch=True))


@pytest.mark.parametrize("name", ["", "p" * 257])
def test_a_claim_out_of_bounds_is_invalid(name: str) -> None:
    machine = machine_of(create(), append(by=dense(0)))
    assert asked(machine, dense(0, name=name)) == DryRun(InvalidRequest("producer_id"))
