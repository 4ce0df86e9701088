"""The broker alone: what waits, what readers see, and which segments are deleted."""

import struct
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from semel.broker import broker as broker_module
from semel.broker import durable_view
from semel.broker.broker import ReadDone
from semel.broker.durable_view import ReadTooLong, stop_waiting
from semel.model import outcomes as out
from semel.model.commands import (
    READ_UNCOMMITTED,
    Append,
    Batch,
    Commit,
    CommitAppend,
    Delete,
    ForkRequest,
    ProducerTag,
    Register,
    Trim,
)
from semel.model.limits import READ_FRAMES_MAX
from semel.model.messages import encode_extras, keys_of, timestamps_of
from semel.model.outcomes import Outcome
from semel.model.outcomes_txn import CommitDone
from tests.unit.broker.bed import SEGMENT_BYTES, Bed


@pytest.fixture
def bed() -> Bed:
    bed = Bed()
    bed.execute(bed.create())
    return bed


def read(bed: Bed, path: str = "s", offset: int | None = None) -> Outcome:
    answers: list[Outcome] = []
    bed.broker.read(path, offset, now_ms=bed.now_ms, reply=answers.append)
    return answers[0]


def bodies(outcome: Outcome) -> list[bytes]:
    assert isinstance(outcome, ReadDone)
    return [message for piece in outcome.slices for message in piece.messages()]


def test_an_answer_waits_until_its_frame_is_durable(bed: Bed) -> None:
    answers = bed.submit(bed.append())
    assert not answers
    bed.flush()
    assert answers == [out.Appended(0, 1, is_closed=False)]


# rows: P13, P22
def test_a_refusal_waits_for_the_facts_it_reveals(bed: Bed) -> None:
    bed.submit(Delete("s", 0))
    refused = bed.submit(bed.append())
    assert not refused
    bed.flush()
    assert refused == [out.NotFound()]


# rows: P13, P22
def test_a_refusal_waits_for_a_group_that_is_being_written(bed: Bed) -> None:
    bed.submit(Delete("s", 0))
    group = bed.broker.next_group()
    assert group is not None
    refused = bed.submit(bed.append())
    assert not refused
    bed.writer.write(group)
    bed.broker.written(group)
    assert refused == [out.NotFound()]


def test_a_refusal_on_durable_state_leaves_at_once(bed: Bed) -> None:
    assert bed.submit(bed.append(path="nowhere")) == [out.NotFound()]


def test_a_read_sees_only_what_is_durable(bed: Bed) -> None:
    bed.execute(bed.append(b"a"))
    bed.submit(bed.append(b"b"))
    assert bodies(read(bed)) == [b"a"]
    bed.flush()
    assert bodies(read(bed)) == [b"a", b"b"]


def test_a_read_of_a_deleted_stream_waits_for_the_deletion(bed: Bed) -> None:
    bed.execute(bed.append(b"a"))
    bed.submit(Delete("s", 0))
    answers: list[Outcome] = []
    bed.broker.read("s", None, now_ms=bed.now_ms, reply=answers.append)
    assert not answers
    bed.flush()
    assert answers == [out.NotFound()]


def test_offsets_before_the_head_and_past_the_tail_are_refused(bed: Bed) -> None:
    for body in (b"a", b"b", b"c"):
        bed.execute(bed.append(body))
    bed.execute(Trim("s", 0, 2))
    assert read(bed, offset=1) == out.OffsetTrimmed(2)
    assert read(bed, offset=4) == out.OffsetBeyondTail(3)
    assert bodies(read(bed)) == [b"c"]
    assert bodies(read(bed, offset=3)) == []


def test_a_batch_larger_than_half_a_segment_is_refused(bed: Bed) -> None:
    answer = bed.execute(bed.append(bytes(SEGMENT_BYTES // 2)))
    assert answer == out.BatchTooLarge(SEGMENT_BYTES // 2)
    assert bodies(read(bed)) == []


def test_commands_wait_in_order_while_there_is_no_spare_segment(bed: Bed) -> None:
    answers = [bed.submit(bed.append(bytes(900) + b"%d" % i)) for i in range(12)]
    assert bed.broker.is_congested
    bed.flush()
    assert [a[0].first_offset for a in answers if isinstance(a[0], out.Appended)] == [*range(12)]
    assert not bed.broker.is_congested


def test_too_many_waiting_commands_are_refused_at_once(bed: Bed) -> None:
    with patch.object(broker_module, "PARKED_COMMANDS_MAX", 1):
        answers = [bed.submit(bed.append(bytes(1500))) for _ in range(7)]
    assert [out.Overloaded()] in answers
    bed.flush()
    kept = [answer for answer in answers if answer != [out.Overloaded()]]
    assert [a[0].first_offset for a in kept if isinstance(a[0], out.Appended)] == [
        *range(len(kept))
    ]


def test_on_a_full_disk_growth_stops_and_everything_else_goes_on() -> None:
    bed = Bed(reserve_bytes=SEGMENT_BYTES)
    bed.execute(bed.create())
    first = replace(bed.append(), producer=ProducerTag("p", 0, 0, epoch=1))
    bed.execute(first)
    bed.disk.capacity_bytes = sum(map(len, bed.disk.files().values()))
    answers = [bed.execute(bed.append(bytes(1000))) for _ in range(12)]
    assert answers[-1] == out.DiskFull()
    assert isinstance(bed.execute(first), out.Duplicate)
    assert isinstance(bed.execute(Delete("s", 0)), out.Deleted)
    bed.checkpoint()
    for _ in range(3):
        bed.broker.set_room(bed.writer.make_room())
    assert isinstance(bed.execute(bed.create("t")), out.Created), "appends resume without a restart"


def test_a_waiter_is_woken_once_by_durable_data(bed: Bed) -> None:
    woken: list[int] = []
    assert (
        bed.broker.durable_view.wait("s", 0, lambda: woken.append(1), READ_UNCOMMITTED) is not None
    )
    bed.submit(bed.append())
    assert not woken
    bed.flush()
    bed.execute(bed.append())
    assert woken == [1]


def test_a_waiter_behind_the_tail_has_nothing_to_wait_for(bed: Bed) -> None:
    bed.execute(bed.append())
    assert bed.broker.durable_view.wait("s", 0, lambda: None, READ_UNCOMMITTED) is None
    assert bed.broker.durable_view.wait("nowhere", 0, lambda: None, READ_UNCOMMITTED) is None


def test_a_waiter_that_gave_up_is_not_woken(bed: Bed) -> None:
    woken: list[int] = []
    waiting = bed.broker.durable_view.wait("s", 0, lambda: woken.append(1), READ_UNCOMMITTED)
    assert waiting is not None
    stop_waiting(*waiting)
    bed.execute(bed.append())
    assert not woken


def test_an_expired_stream_is_gone_for_writers_and_readers() -> None:
    bed = Bed()
    bed.execute(bed.create(ttl_ms=50))
    bed.now_ms += 49
    assert isinstance(bed.execute(bed.append()), out.Appended)
    bed.now_ms += 50
    assert bed.execute(bed.append()) == out.NotFound()
    assert read(bed) == out.NotFound()


def test_a_read_prolongs_a_sliding_window_and_a_restart_begins_it_anew() -> None:
    bed = Bed()
    bed.execute(bed.create(ttl_ms=50))
    bed.now_ms += 40
    assert bodies(read(bed)) == []
    bed.now_ms += 40
    assert isinstance(bed.execute(bed.append()), out.Appended)
    bed.now_ms += 49
    bed.restart()
    bed.now_ms += 49
    assert bodies(read(bed)) == [b"x"]


def test_the_sweeper_ends_streams_nobody_asks_for() -> None:
    bed = Bed()
    bed.execute(bed.create(ttl_ms=50))
    bed.now_ms += 49
    assert bed.sweep(count_max=10) == 0
    bed.now_ms += 1
    assert bed.sweep(count_max=10) == 1
    bed.flush()
    assert "s" not in bed.broker.durable_view.by_path


def test_a_question_is_answered_when_the_state_it_saw_is_durable(bed: Bed) -> None:
    answers: list[int] = []
    bed.submit(bed.append())
    bed.broker.ask(lambda state: state.by_path["s"].tail.tail, answers.append)
    assert not answers
    bed.flush()
    assert answers == [1]


def test_a_segment_sealed_right_at_a_checkpoint_is_given_up_when_it_is_dead(bed: Bed) -> None:
    for _ in range(8):
        bed.execute(bed.append(bytes(250)))
    bed.checkpoint()
    bed.execute(bed.append(bytes(1700)))
    bed.restart()
    for _ in range(30):
        bed.execute(bed.append(bytes(250)))
    bed.execute(Delete("s", 0))
    assert 0 in bed.checkpoint()


def test_a_clock_that_is_behind_after_a_restart_ends_no_stream_early() -> None:
    bed = Bed()
    bed.execute(bed.create(ttl_ms=1_000))
    bed.now_ms += 900
    assert bodies(read(bed)) == []
    bed.now_ms -= 5_000
    bed.restart()
    bed.now_ms += 999
    assert isinstance(bed.execute(bed.append()), out.Appended)


def test_streams_that_came_and_went_leave_nothing_in_the_queue_of_ends() -> None:
    bed = Bed()
    for _ in range(1_500):
        bed.execute(bed.create(ttl_ms=10**9))
        bed.execute(Delete("s", bed.now_ms))
        bed.execute(replace(bed.create(), expires_at_ms=10**9))
        bed.execute(Delete("s", bed.now_ms))
    expiry = bed.broker._expiry
    assert (len(expiry._ttls) < 1_100, len(expiry._dates) < 1_100, not expiry.uses) == (True,) * 3


def test_a_deleted_source_gives_up_what_no_fork_reads(bed: Bed) -> None:
    for _ in range(12):
        bed.execute(bed.append(bytes(1500)))
    bed.execute(replace(bed.create("f"), fork=ForkRequest("s", 1)))
    bed.execute(Delete("s", 0))
    before = len(bed.broker._segments.firsts)
    bed.checkpoint()
    assert len(bed.broker._segments.firsts) < before - 3
    assert bodies(read(bed, "f")) == [bytes(1500)]


def test_a_fork_inside_an_empty_message_is_refused_while_others_write(bed: Bed) -> None:
    bed.execute(bed.append(b""))
    bed.submit(bed.append(b"b"))
    answers = bed.submit(replace(bed.create("f"), fork=ForkRequest("s", 0, 1)))
    bed.flush()
    assert answers == [out.SubOffsetInvalid()]


def test_a_read_of_many_small_appends_ends_early_and_goes_on(bed: Bed) -> None:
    for _ in range(READ_FRAMES_MAX + 5):
        bed.execute(bed.append())
    first = read(bed)
    assert isinstance(first, ReadDone)
    assert first.next_offset == READ_FRAMES_MAX
    assert len(bodies(read(bed, offset=first.next_offset))) == 5


def test_a_read_of_few_bytes_in_long_frames_ends_early_and_goes_on(bed: Bed) -> None:
    bed.restart(segment_bytes=65_536)
    bed.execute(bed.create("other"))
    bed.execute(Register(bed.now_ms, "p", 0))
    long = CommitAppend("other", "text/plain", Batch(bytes(1_000)))
    for seq in range(6):
        short = [CommitAppend("s", "text/plain", Batch(b"%d%d" % (seq, each))) for each in (0, 1)]
        done = bed.execute(Commit(bed.now_ms, "p", 0, seq, appends=(short[0], long, short[1])))
        assert isinstance(done, CommitDone)
    found, offset = [], 0
    with patch.object(durable_view, "READ_JOURNAL_BYTES_MAX", 2_000):
        while offset < 12:
            part: list[Outcome] = []
            bed.broker.read("s", offset, now_ms=bed.now_ms, reply=part.append, bytes_max=1_500)
            (done,) = part
            assert isinstance(done, ReadDone)
            found.append(bodies(done))
            offset = done.next_offset
    # A read looks at two frames of more than 1,000 bytes, and takes all that they have.
    assert found == [
        [b"00", b"01", b"10", b"11"],
        [b"20", b"21", b"30", b"31"],
        [b"40", b"41", b"50", b"51"],
    ]


def test_a_read_from_the_middle_of_an_append_has_the_right_keys_and_its_producer(bed: Bed) -> None:
    extras = encode_extras(3, keys=[b"a", b"b", None], timestamps=[None, 2, 3])
    batch = Batch(b"xyz", 3, struct.pack("<3I", 1, 1, 1), extras)
    tag = ProducerTag("p", 0, 0, epoch=7)
    bed.execute(Append("s", bed.now_ms, "text/plain", batch, producer=tag))
    bed.restart()
    for offset in range(3):
        found = read(bed, offset=offset)
        assert isinstance(found, ReadDone)
        (piece,) = found.slices
        assert keys_of(piece.extras, piece.count) == [b"a", b"b", None][offset:]
        assert timestamps_of(piece.extras, piece.count) == [None, 2, 3][offset:]
        assert piece.producer is not None
        assert (piece.producer.id, piece.producer.epoch) == ("p", 7)


def test_a_short_read_ends_before_a_long_append(bed: Bed) -> None:
    for text in (b"a", b"b", b"c" * 1_000, b"d"):
        bed.execute(Append("s", bed.now_ms, "text/plain", Batch(text)))

    def short_read(offset: int) -> Outcome:
        got: list[Outcome] = []
        options = {"now_ms": bed.now_ms, "bytes_max": 500, "is_short": True}
        bed.broker.read("s", offset, reply=got.append, **options)  # type: ignore[arg-type]
        return got[0]

    for _ in range(2):  # the second time, the frames are read from the window in memory
        first = short_read(0)
        assert isinstance(first, ReadDone)
        assert (first.next_offset, bodies(first)) == (2, [b"a", b"b"])
        assert short_read(2) == ReadTooLong()
        last = short_read(3)
        assert isinstance(last, ReadDone)
        assert (last.next_offset, bodies(last)) == (4, [b"d"])
        assert len(bodies(read(bed))) == 4


def test_extras_count_towards_the_size_of_a_read(bed: Bed) -> None:
    bed.restart(segment_bytes=65_536)
    batch = Batch(b"x", extras=encode_extras(1, keys=[bytes(1_000)]))
    for _ in range(4):
        bed.execute(Append("s", bed.now_ms, "text/plain", batch))
    got: list[Outcome] = []
    bed.broker.read("s", None, now_ms=bed.now_ms, reply=got.append, bytes_max=2_000)
    assert isinstance(got[0], ReadDone)
    assert got[0].next_offset == 2


def test_a_new_segment_size_takes_over_an_empty_segment() -> None:
    bed = Bed(segment_bytes=4096)
    bed.restart(segment_bytes=65_536)
    bed.execute(bed.create())
    bed.execute(bed.append(bytes(20_000)))
    bed.restart(segment_bytes=65_536)
    assert bodies(read(bed)) == [bytes(20_000)]


def test_the_next_group_forms_while_one_is_written(bed: Bed) -> None:
    with patch.object(broker_module, "GROUP_BYTES_MAX", 100):
        answers = [bed.submit(bed.append()) for _ in range(3)]
        group = bed.broker.next_group()
        assert group is not None
        assert not bed.broker.is_congested, "pending appends are already in the next group"
        bed.writer.write(group)
        bed.broker.written(group)
        bed.flush()
    assert all(answers)
