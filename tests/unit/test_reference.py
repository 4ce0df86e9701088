"""The reference model against `machine.md`, about one test per row."""

import pytest
from msgspec.structs import replace

from semel.model import commands as ask
from semel.model import outcomes as out
from semel.model.commands import DENSE, SPARSE, Append, Batch, Create, ForkRequest, ProducerTag
from semel.model.limits import FORK_DEPTH_MAX, NUMBER_MAX, SESSIONS_REMEMBERED
from semel.model.outcomes import Outcome
from tests.sim.reference import Model
from tests.sim.reference_producers import was_stored
from tests.unit.machine.builders import (
    DAY_MS,
    JSON,
    KEY_HOURS,
    TEXT,
    append,
    create,
    dense,
    fork,
    hours,
    json_batch,
    sparse,
)


def model_of(*commands: ask.Command, receipts: int = 64) -> Model:
    model = Model(receipts=receipts)
    for command in commands:
        assert not isinstance(model.execute(command), out.Refusal), command
    return model


def unchanged(model: Model, command: ask.Command) -> Outcome:
    """Execute a command that must not change the state, and return its outcome."""
    before, streams = model.view(), list(model.streams)
    messages = [model.messages(path) for path in streams]
    outcome = model.execute(command)
    assert model.view() == before
    assert [model.messages(path) for path in streams] == messages
    return outcome


def bodies(model: Model, path: str = "s") -> list[bytes]:
    return [body for _, body in model.messages(path)]


# ---- create --------------------------------------------------------------------------------------


def test_create_makes_an_empty_stream_with_the_next_number() -> None:
    model = model_of(create("a"))
    answer = model.execute(create("b", kind=None))
    assert answer == out.Created("i-b-0", "application/octet-stream", 0, False, True)
    assert [model.streams[path].number for path in "ab"] == [1, 2]


def test_create_stores_its_body_and_may_close_at_once() -> None:
    model = Model()
    answer = model.execute(create(kind=JSON, batch=json_batch(b"1", b"22", b"3"), closed=True))
    assert answer == out.Created("i-s-0", JSON, 3, True, True)
    assert model.messages("s") == [(0, b"1"), (1, b"22"), (2, b"3")]


def test_create_over_a_soft_deleted_stream_is_a_conflict() -> None:
    model = model_of(create(), fork(), ask.Delete("s", 0))
    assert unchanged(model, create()) == out.ConfigConflict("deleted")


def test_create_again_with_an_equal_configuration_ignores_the_body() -> None:
    model = model_of(create(now=5), append())
    again = create(now=9, kind="Text/Plain; charset=utf-8", batch=Batch(b"y"), error="bad")
    assert unchanged(model, again) == out.Created("i-s-5", TEXT, 1, False, False)


@pytest.mark.parametrize(
    ("again", "field"),
    [
        (create(kind=JSON, ttl=1), "content_type"),
        (create(kind=None), "content_type"),
        (create(ttl=8, expires_at=9), "ttl"),
        (create(ttl=7, expires_at=9, closed=True), "expires_at"),
        (create(ttl=7, closed=True, fork=ForkRequest("z")), "closed"),
        (create(ttl=7, fork=ForkRequest("z")), "fork"),
    ],
)
def test_create_again_names_the_first_field_that_differs(again: Create, field: str) -> None:
    assert unchanged(model_of(create(ttl=7)), again) == out.ConfigConflict(field)


@pytest.mark.parametrize("offset", [None, 1])
def test_a_fork_created_again_may_omit_its_offset(offset: int | None) -> None:
    model = model_of(create(ttl=7), append(), fork(), append())
    answer = unchanged(model, fork(offset=offset))
    assert isinstance(answer, out.Created)
    assert not answer.is_new


@pytest.mark.parametrize(
    "again", [fork(offset=0), fork(source="t"), fork(offset=1, sub=1), create("f")]
)
def test_a_fork_created_again_from_elsewhere_is_a_conflict(again: Create) -> None:
    model = model_of(create(), append(), fork(offset=1))
    assert unchanged(model, again) == out.ConfigConflict("fork")


def test_a_fork_with_its_own_expiry_does_not_match_one_that_omits_it() -> None:
    model = model_of(create(ttl=7), fork(ttl=9))
    assert unchanged(model, fork()) == out.ConfigConflict("ttl")
    assert not isinstance(unchanged(model, fork(ttl=9)), out.Refusal)


def test_a_fork_needs_a_source() -> None:
    assert unchanged(Model(), fork()) == out.NotFound()


def test_a_fork_of_a_soft_deleted_source_is_refused() -> None:
    model = model_of(create(), fork(), ask.Delete("s", 0))
    assert unchanged(model, fork("g")) == out.ForkSourceGone()


def test_a_fork_of_another_media_type_is_refused() -> None:
    wanted = create("f", kind=JSON, fork=ForkRequest("s", 99))
    assert unchanged(model_of(create()), wanted) == out.ContentTypeConflict(TEXT)


def test_a_fork_beyond_the_tail_is_refused() -> None:
    model = model_of(create(), append())
    assert unchanged(model, fork(offset=2)) == out.OffsetBeyondTail(1)


def test_a_fork_below_the_head_is_refused() -> None:
    model = model_of(create(), append(), append(), ask.Trim("s", 0, 1))
    assert unchanged(model, fork(offset=0)) == out.OffsetTrimmed(1)


@pytest.mark.parametrize(("offset", "sub"), [(None, 1), (1, 1), (0, 4)])
def test_a_sub_offset_needs_a_stored_append_with_enough_bytes(offset: int | None, sub: int) -> None:
    model = model_of(create(), append(b"abc"))
    assert unchanged(model, fork(offset=offset, sub=sub)) == out.SubOffsetInvalid()


@pytest.mark.parametrize(("offset", "sub"), [(0, 4), (1, 3), (2, 2), (3, 2)])
def test_a_json_sub_offset_stays_within_one_append(offset: int, sub: int) -> None:
    first, second = json_batch(b"0", b"1", b"2"), json_batch(b"3")
    model = model_of(create(kind=JSON), append(first, kind=JSON), append(second, kind=JSON))
    assert unchanged(model, fork(offset=offset, sub=sub)) == out.SubOffsetInvalid()
    assert not isinstance(model.execute(fork(offset=offset, sub=sub - 1)), out.Refusal)
    assert model.streams["f"].tail == offset + sub - 1


def test_a_sub_offset_of_a_fork_reaches_only_what_the_fork_inherited() -> None:
    batch = json_batch(b"0", b"1", b"2", b"3")
    model = model_of(create(kind=JSON), append(batch, kind=JSON), fork(offset=2))
    assert unchanged(model, fork("g", "f", 1, 2)) == out.SubOffsetInvalid()
    model.execute(fork("g", "f", 1, 1))
    assert bodies(model, "g") == [b"0", b"1"]


def test_a_byte_sub_offset_copies_the_beginning_of_the_message() -> None:
    model = model_of(create(), append(b"ab"), append(b"cdef"))
    model.execute(fork(offset=1, sub=2, batch=Batch(b"own")))
    model.execute(fork("g", offset=1, sub=4))
    assert model.messages("f") == [(0, b"ab"), (1, b"cd"), (2, b"own")]
    assert model.messages("g") == [(0, b"ab"), (1, b"cdef")]


def test_the_chain_of_sources_has_at_most_64_streams() -> None:
    model = model_of(create("0"))
    for i in range(FORK_DEPTH_MAX):
        assert not isinstance(model.execute(fork(str(i + 1), str(i))), out.Refusal)
    last = fork("over", str(FORK_DEPTH_MAX), error="bad")
    assert unchanged(model, last) == out.LimitReached("fork_depth", FORK_DEPTH_MAX)


def test_a_bad_body_is_refused_before_the_limit_of_streams() -> None:
    model = Model(streams_max=0)
    assert unchanged(model, create(error="no")) == out.BadBody("no")
    assert unchanged(model, create()) == out.LimitReached("streams", 0)


def test_soft_deleted_streams_count_as_streams() -> None:
    model = Model(streams_max=2)
    for command in (create(), fork(), ask.Delete("s", 0)):
        model.execute(command)
    assert unchanged(model, create("t")) == out.LimitReached("streams", 2)


def test_a_fork_inherits_messages_type_and_expiry_but_no_producer_key_or_stream_seq() -> None:
    model = model_of(create(ttl=7), append(by=dense(0), stream_seq="a"), append(key="k"))
    model.execute(append(None, close=True))
    answer = model.execute(fork(now=3))
    assert answer == out.Created("i-f-3", TEXT, 2, False, True)
    child = model.streams["f"]
    assert (child.ttl_ms, child.written_ms, child.stream_seq) == (7, 3, None)
    assert (child.producers, child.keys) == ({}, {})


def test_a_fork_of_a_trimmed_source_starts_at_its_head() -> None:
    model = model_of(create(), append(b"a"), append(b"b"), ask.Trim("s", 0, 1), fork())
    assert model.messages("f") == [(1, b"b")]


def test_inherited_messages_outlive_a_trim_and_the_end_of_the_source() -> None:
    model = model_of(create(), append(b"a"), append(b"b"), fork(), append(b"c", path="f"))
    model.execute(ask.Trim("s", 0, 2))
    assert bodies(model, "s") == []
    model.execute(ask.Delete("s", 0))
    assert model.messages("f") == [(0, b"a"), (1, b"b"), (2, b"c")]
    model.execute(ask.Trim("f", 0, 1))
    assert model.messages("f") == [(1, b"b"), (2, b"c")]


# ---- append: the order of checks -----------------------------------------------------------------


def test_append_finds_no_stream_or_a_deleted_one() -> None:
    model = model_of(create(), fork(), ask.Delete("s", 0))
    assert unchanged(model, append(path="none")) == out.NotFound()
    assert unchanged(model, append()) == out.Gone()


def test_append_takes_the_next_offsets() -> None:
    model = model_of(create(kind=JSON), append(b"1", kind=JSON))
    answer = model.execute(append(json_batch(b"2", b"3"), kind="application/json;v=1"))
    assert answer == out.Appended(1, 3, False)
    assert model.messages("s") == [(0, b"1"), (1, b"2"), (2, b"3")]


def test_closing_again_is_answered_and_writes_nothing() -> None:
    model = model_of(create(), append(), append(None, close=True))
    again = append(None, close=True, now=9, stream_seq="a", if_match=7)
    assert unchanged(model, again) == out.Appended(1, 1, True)


@pytest.mark.parametrize(
    "late",
    [
        append(kind=JSON),
        append(None, error="bad", close=True),
        append(None, close=True, key="k"),
        append(None, close=True, by=dense(9)),
        append(by=dense(0, session="new")),
    ],
)
def test_a_closed_stream_refuses_everything_else(late: Append) -> None:
    model = model_of(create(), append(b"a", by=dense(0)), append(None, close=True))
    assert unchanged(model, late) == out.StreamClosed(1)


def test_a_repeat_is_recognised_on_a_closed_stream() -> None:
    last = append(b"a", close=True, by=dense(0, epoch=1))
    model = model_of(create(), last)
    assert unchanged(model, last) == out.Duplicate(0, 1, True, 1, 0)


@pytest.mark.parametrize("kind", [JSON, None])
def test_a_body_of_another_media_type_is_refused_before_its_sequence(kind: str | None) -> None:
    late = append(kind=kind, by=dense(5))
    assert unchanged(model_of(create()), late) == out.ContentTypeConflict(TEXT)


def test_a_body_error_counts_as_a_body() -> None:
    late = append(None, kind=JSON, error="bad")
    assert unchanged(model_of(create()), late) == out.ContentTypeConflict(TEXT)


def test_close_only_needs_no_media_type_and_takes_a_sequence_but_no_offset() -> None:
    model = model_of(create(), append(by=dense(0, epoch=3)))
    last = append(None, kind=None, close=True, by=dense(1, epoch=3), stream_seq="z")
    assert model.execute(last) == out.Appended(1, 1, True, 3, 1)
    assert model.streams["s"].stream_seq == "z"
    assert unchanged(model, last) == out.Duplicate(1, 1, True, 3, 1)


def test_a_sequence_is_refused_before_stream_seq() -> None:
    model = model_of(create(), append(stream_seq="b"))
    late = append(by=dense(1), stream_seq="a")
    assert unchanged(model, late) == out.SequenceGap(0, 1)


@pytest.mark.parametrize("seq", ["a", "b", "B", "aé"])
def test_stream_seq_must_grow_byte_by_byte(seq: str) -> None:
    model = model_of(create(), append(stream_seq="b"))
    assert unchanged(model, append(stream_seq=seq, if_match=9)) == out.StreamSeqConflict("b")


def test_stream_seq_is_kept_by_an_append_without_one() -> None:
    model = model_of(create(), append(stream_seq="b"), append(), append(stream_seq="é"))
    assert model.streams["s"].stream_seq == "é"


def test_if_match_must_name_the_tail() -> None:
    model = model_of(create(), append())
    assert unchanged(model, append(if_match=0, error="bad")) == out.PreconditionFailed(1)
    assert model.execute(append(if_match=1)) == out.Appended(1, 2, False)


def test_a_bad_body_speaks_after_every_precondition() -> None:
    model = model_of(create())
    assert unchanged(model, append(None, error="bad", if_match=0)) == out.BadBody("bad")


def test_a_stream_has_a_limit_of_producers_and_tombstones_do_not_count() -> None:
    model = Model(producers_max=1)
    for command in (create(), append(by=dense(0)), ask.ExpireProducer("s", 0, "p", 0)):
        model.execute(command)
    assert unchanged(model, append(None, error="bad", by=dense(0, name="q"))) == out.BadBody("bad")
    assert model.execute(append(by=dense(0, name="q"))) == out.Appended(1, 2, False, 1, 0)
    again = append(b"y", by=dense(0))
    assert unchanged(model, again) == out.LimitReached("producers_per_stream", 1)


def test_a_refused_append_does_not_advance_its_producer() -> None:
    model = model_of(create(), append(b"a", by=dense(0, epoch=1)))
    assert isinstance(unchanged(model, append(by=dense(1, epoch=1), if_match=9)), out.Refusal)
    assert model.execute(append(by=dense(1, epoch=1))) == out.Appended(1, 2, False, 1, 1)


# ---- time, delete, trim, expire ------------------------------------------------------------------


def test_time_never_runs_backwards() -> None:
    model = model_of(create(now=50), append(now=10))
    assert model.streams["s"].written_ms == 50
    assert model.time_ms == 50


def test_delete_removes_a_stream_and_its_path_begins_anew() -> None:
    model = model_of(create(), append(by=dense(0)))
    assert model.execute(ask.Delete("s", 0)) == out.Deleted(is_soft=False)
    assert unchanged(model, ask.Delete("s", 9)) == out.NotFound()
    model.execute(create(now=1))
    assert (model.streams["s"].number, model.streams["s"].producers) == (2, {})
    assert model.messages("s") == []


def test_delete_with_forks_is_soft_and_nothing_reads_it() -> None:
    model = model_of(create(), append(), fork())
    assert model.execute(ask.Delete("s", 0)) == out.Deleted(is_soft=True)
    assert unchanged(model, ask.Delete("s", 9)) == out.Gone()
    assert model.messages("s") == []


def test_the_last_fork_takes_its_soft_deleted_sources_along() -> None:
    model = model_of(create("a"), create("b", fork=ForkRequest("a")))
    model.execute(fork("c", "b"))
    assert model.execute(ask.Delete("b", 0)) == out.Deleted(is_soft=True)
    assert model.execute(ask.Delete("a", 0)) == out.Deleted(is_soft=True)
    assert model.execute(ask.Delete("c", 0)) == out.Deleted(is_soft=False)
    assert model.streams == {}


def test_a_source_stays_while_it_is_undeleted_or_has_another_fork() -> None:
    model = model_of(create(), fork("f"), fork("g"), fork("h", "g"))
    model.execute(ask.Delete("f", 0))
    model.execute(ask.Delete("s", 0))
    model.execute(ask.Delete("h", 0))
    assert sorted(model.streams) == ["g", "s"]


def test_trim_gives_up_what_lies_before() -> None:
    model = model_of(create(), append(b"a"), append(b"b"))
    assert model.execute(ask.Trim("s", 7, 1)) == out.Trimmed(1)
    assert model.messages("s") == [(1, b"b")]
    assert (model.streams["s"].written_ms, model.time_ms) == (0, 7)


def test_trim_below_the_head_changes_nothing() -> None:
    model = model_of(create(), append(), ask.Trim("s", 0, 1))
    assert unchanged(model, ask.Trim("s", 9, 0)) == out.Trimmed(1)
    assert unchanged(model, ask.Trim("s", 9, 2)) == out.OffsetBeyondTail(1)
    assert unchanged(model, ask.Trim("t", 9, 2)) == out.NotFound()


def test_a_stream_expires_at_its_date() -> None:
    model = model_of(create(expires_at=10))
    assert unchanged(model, ask.Expire("s", 9, 0)) == out.StillAlive()
    assert model.execute(ask.Expire("s", 10, 0)) == out.Expired()
    assert unchanged(model, ask.Expire("s", 11, 0)) == out.NotFound()


def test_a_stream_expires_when_unused_for_its_time() -> None:
    model = model_of(create(ttl=10), append(now=3), ask.Trim("s", 8, 1))
    assert unchanged(model, ask.Expire("s", 10**9, 9)) == out.StillAlive()
    assert model.execute(ask.Expire("s", 0, 10)) == out.Expired()


def test_a_stream_without_expiry_never_expires_and_one_with_forks_goes_softly() -> None:
    model = model_of(create(ttl=1), fork(expires_at=99), create("t"))
    assert unchanged(model, ask.Expire("t", 98, 98)) == out.StillAlive()
    assert model.execute(ask.Expire("s", 98, 1)) == out.Expired()
    assert unchanged(model, ask.Expire("s", 99, 0)) == out.Gone()
    assert model.execute(ask.Expire("f", 99, 0)) == out.Expired()
    assert list(model.streams) == ["t"]


# ---- producers: identity -------------------------------------------------------------------------


def test_identity_a_an_all_digit_id_must_have_been_given_out() -> None:
    model = model_of(create())
    assert unchanged(model, append(by=dense(0, name="1"))) == out.UnknownProducer()
    model.execute(ask.Register(0))
    assert model.execute(append(by=dense(0, name="1"))) == out.Appended(0, 1, False, 0, 0)


def test_identity_b_the_mode_is_fixed_also_by_a_tombstone() -> None:
    model = model_of(create(), append(by=dense(0)))
    assert unchanged(model, append(by=sparse(1, epoch=9))) == out.ModeConflict(DENSE)
    model.execute(ask.ExpireProducer("s", 0, "p", 0))
    assert unchanged(model, append(by=sparse(1, epoch=9))) == out.ModeConflict(DENSE)


def test_identity_c_the_registry_fences_streams_the_producer_never_wrote() -> None:
    model = model_of(create(), ask.Register(0, "p"), ask.Register(0, "p"))
    assert unchanged(model, append(by=dense(0, epoch=0))) == out.StaleEpoch(1, 0)


@pytest.mark.parametrize(
    ("tag", "epoch"), [(dense(0), 6), (dense(0, session="s"), 6), (dense(0, epoch=8), 8)]
)
def test_identity_d_a_successor_of_a_tombstone_begins_anew(tag: ProducerTag, epoch: int) -> None:
    first = dense(0, epoch=5, session="old", cursor=b"c")
    model = model_of(create(), append(by=first), ask.ExpireProducer("s", 0, "p", 0))
    assert model.execute(append(b"y", by=tag)) == out.Appended(1, 2, False, epoch, 0)
    producer = model.streams["s"].producers["p"]
    assert (producer.session, producer.older_sessions) == (tag.session, ("old",))
    assert (producer.cursor, producer.is_tombstone) == (b"c", False)
    assert [receipt.first_offset for receipt in producer.receipts] == [1]


@pytest.mark.parametrize("tag", [dense(0, epoch=5), dense(1, epoch=6), dense(1), dense(0, epoch=4)])
def test_identity_e_a_tombstone_refuses_everyone_else(tag: ProducerTag) -> None:
    model = model_of(create(), append(by=dense(0, epoch=5)), ask.ExpireProducer("s", 0, "p", 0))
    assert unchanged(model, append(by=tag)) == out.ProducerStateExpired(5)


@pytest.mark.parametrize("session", ["a", "b"])
@pytest.mark.parametrize("mode", [DENSE, SPARSE])
def test_identity_e_a_tombstone_refuses_the_sessions_it_knows(mode: str, session: str) -> None:
    tags = [ProducerTag("p", 0, 0, 1, "a", mode), ProducerTag("p", 0, 0, 2, "b", mode)]
    tags[1] = tags[1] if mode == DENSE else replace(tags[1], first_seq=1, last_seq=1)
    model = model_of(create(), *[append(by=tag) for tag in tags])
    model.execute(ask.ExpireProducer("s", 0, "p", 0))
    late = replace(tags[1], epoch=None, session=session)
    assert unchanged(model, append(by=late)) == out.ProducerStateExpired(2)
    named = replace(late, epoch=3, first_seq=late.first_seq * 9, last_seq=late.last_seq * 9)
    assert not isinstance(model.execute(append(by=named)), out.Refusal)


def test_a_tombstone_keeps_the_time_of_the_last_append_and_the_cursor() -> None:
    model = model_of(create(), append(now=5, by=dense(0, session="a", cursor=b"c")))
    before = model.streams["s"].producers["p"]
    model.execute(ask.ExpireProducer("s", 9, "p", 0))
    buried = before._replace(is_tombstone=True, hour=0, order=1, ended_ms=9)
    assert model.streams["s"].producers["p"] == buried


def test_a_sparse_successor_of_a_tombstone_takes_an_overtaking_registered_epoch() -> None:
    model = model_of(create(), append(by=sparse(0)), *[ask.Register(0, "p")] * 4)
    model.execute(ask.ExpireProducer("s", 0, "p", 0))
    assert model.execute(append(by=sparse(1))) == out.Appended(1, 2, False, 5, 1)


def test_identity_f_an_older_epoch_is_stale() -> None:
    model = model_of(create(), append(by=dense(0, epoch=5)))
    assert unchanged(model, append(by=dense(0, epoch=4))) == out.StaleEpoch(5, 4)


def test_identity_g_two_sessions_cannot_share_an_epoch() -> None:
    model = model_of(create(), append(by=dense(0, epoch=5, session="a")))
    late = append(by=dense(0, epoch=5, session="b"))
    assert unchanged(model, late) == out.SessionConflict(5)
    assert not isinstance(model.execute(append(by=dense(1, epoch=5))), out.Refusal)
    assert model.streams["s"].producers["p"].session == "a"


def test_identity_h_an_older_session_is_stale_while_remembered() -> None:
    count = SESSIONS_REMEMBERED + 2
    sessions = [append(by=dense(0, session=f"n{i}")) for i in range(count)]
    model = model_of(create(), *sessions)
    assert unchanged(model, append(by=dense(0, session="n1"))) == out.StaleSession(count)
    assert model.execute(sessions[0]) == out.Appended(count, count + 1, False, count + 1, 0)


@pytest.mark.parametrize("tag", [dense(1, session="a"), dense(0, session="a"), dense(1)])
def test_identity_i_an_overtaken_epoch_is_stale_without_being_named(tag: ProducerTag) -> None:
    model = model_of(create(), append(by=dense(0, session="a")), ask.Register(0, "p"))
    assert unchanged(model, append(by=tag)) == out.StaleEpoch(2)


def test_identity_i_lets_a_bare_start_restart_at_the_registered_epoch() -> None:
    model = model_of(create(), append(b"a", by=dense(0)), *[ask.Register(0, "p")] * 4)
    assert unchanged(model, append(b"a", by=dense(0))) == out.Duplicate(0, 1, False, 1, 0)
    assert model.execute(append(b"b", by=dense(0))) == out.Appended(1, 2, False, 5, 0)


# ---- producers: epochs and sessions --------------------------------------------------------------


def test_a_first_append_runs_under_its_own_the_registered_or_the_first_epoch() -> None:
    model = model_of(create(), ask.Register(0, "r"))
    assert model.execute(append(by=dense(0, name="a"))) == out.Appended(0, 1, False, 1, 0)
    assert model.execute(append(by=dense(0, name="r"))) == out.Appended(1, 2, False, 0, 0)
    assert model.execute(append(by=dense(0, name="b", epoch=7))) == out.Appended(2, 3, False, 7, 0)


def test_an_accepted_higher_epoch_raises_the_registry() -> None:
    model = model_of(create(), ask.Register(0, "p"), append(by=dense(0, epoch=9)))
    assert model.registry == {"p": 9}
    model.execute(append(by=dense(0, session="b")))
    assert model.registry == {"p": 10}


@pytest.mark.parametrize("tag", [dense(0), dense(0, session="b"), sparse(9, session="b")])
def test_an_epoch_cannot_pass_the_largest_number(tag: ProducerTag) -> None:
    first = ProducerTag("p", 0, 0, NUMBER_MAX, "a", tag.mode)
    model = model_of(create(), append(b"a", by=first))
    assert unchanged(model, append(b"b", by=tag)) == out.EpochExhausted(NUMBER_MAX)
    model.execute(ask.ExpireProducer("s", 0, "p", 0))
    assert unchanged(model, append(b"b", by=tag)) == out.EpochExhausted(NUMBER_MAX)


def test_a_raised_epoch_without_a_session_has_none_and_keeps_the_cursor() -> None:
    model = model_of(create(), append(by=dense(0, epoch=1, session="a", cursor=b"c")))
    model.execute(append(by=dense(0, epoch=2)))
    producer = model.streams["s"].producers["p"]
    assert (producer.session, producer.older_sessions, producer.cursor) == (None, ("a",), b"c")


def test_a_raised_epoch_with_the_same_session_replaces_nothing() -> None:
    model = model_of(create(), append(by=dense(0, epoch=1, session="a")))
    model.execute(append(by=dense(0, epoch=2, session="a")))
    producer = model.streams["s"].producers["p"]
    assert (producer.session, producer.older_sessions) == ("a", ())


def test_a_session_that_comes_back_leaves_the_older_ones() -> None:
    model = model_of(create(), append(by=dense(0, session="a")), append(by=dense(0, session="b")))
    model.execute(append(by=dense(0, epoch=9, session="a")))
    producer = model.streams["s"].producers["p"]
    assert (producer.session, producer.older_sessions) == ("a", ("b",))
    assert model.execute(append(by=dense(1, session="a"))) == out.Appended(3, 4, False, 9, 1)


@pytest.mark.parametrize(
    ("late", "answer"),
    [
        (sparse(3, session="b"), out.SequenceHole(5)),
        (sparse(4, 6, session="b"), out.BatchOverlap(5)),
        (sparse(6, session="b"), out.EpochExhausted(NUMBER_MAX)),
    ],
)
def test_an_exhausted_epoch_is_the_last_to_speak(late: ProducerTag, answer: Outcome) -> None:
    model = model_of(create(), append(by=sparse(5, epoch=NUMBER_MAX)))
    assert unchanged(model, append(by=late)) == answer


# ---- producers: dense ----------------------------------------------------------------------------


def test_dense_1_a_new_producer_begins_at_zero() -> None:
    assert unchanged(model_of(create()), append(by=dense(3, epoch=1))) == out.SequenceGap(0, 3)


def test_dense_2_a_raised_epoch_begins_at_zero() -> None:
    model = model_of(create(), append(by=dense(0, epoch=1)))
    assert unchanged(model, append(by=dense(1, epoch=2))) == out.EpochMustStartAtZero(1)


@pytest.mark.parametrize("seq", [1, 2, 9])
def test_dense_3_a_new_session_begins_at_zero(seq: int) -> None:
    model = model_of(create(), *[append(by=dense(n, session="a")) for n in range(2)])
    assert unchanged(model, append(by=dense(seq, session="b"))) == out.SessionUnknown(1, 1)


def test_dense_4_a_bare_start_with_the_same_payload_is_a_retry() -> None:
    starts = [append(b"%d" % n, by=dense(n)) for n in range(5)]
    model = model_of(create(), *starts, receipts=2)
    assert unchanged(model, starts[0]) == out.Duplicate(0, 1, False, 1, 4)


def test_dense_4_a_bare_start_is_a_retry_over_a_tombstone_too() -> None:
    model = model_of(create(), append(b"a", by=dense(0)), append(b"b", by=dense(1)))
    model.execute(ask.ExpireProducer("s", 0, "p", 0))
    assert unchanged(model, append(b"a", by=dense(0))) == out.Duplicate(0, 1, False, 1, 1)
    named = append(b"a", by=dense(0, session="new"))
    assert model.execute(named) == out.Appended(2, 3, False, 2, 0)


def test_dense_5_a_bare_start_with_another_payload_is_a_restart() -> None:
    model = model_of(create(), append(b"a", by=dense(0)), append(b"b", by=dense(1)))
    assert model.execute(append(b"c", by=dense(0))) == out.Appended(2, 3, False, 2, 0)
    assert unchanged(model, append(b"d", by=dense(2))) == out.SequenceGap(1, 2)


@pytest.mark.parametrize(("epoch", "session"), [(1, None), (None, "a"), (1, "a")])
def test_dense_6_a_repeat_gets_its_first_offsets(epoch: int | None, session: str | None) -> None:
    sends = [append(b"%d" % n, by=dense(n, epoch=epoch, session=session)) for n in range(3)]
    model = model_of(create(), *sends)
    assert unchanged(model, sends[1]) == out.Duplicate(1, 2, False, 1, 2)
    assert unchanged(model, sends[0]) == out.Duplicate(0, 1, False, 1, 2)


def test_dense_6_a_bare_repeat_with_the_same_payload_is_a_duplicate() -> None:
    model = model_of(create(), append(b"a", by=dense(0)), append(b"b", by=dense(1)))
    assert unchanged(model, append(b"b", by=dense(1))) == out.Duplicate(1, 2, False, 1, 1)


def test_dense_7_another_payload_is_told_apart() -> None:
    model = model_of(create(), append(b"a", by=dense(0)), append(b"b", by=dense(1)))
    assert unchanged(model, append(b"c", by=dense(1))) == out.RestartAmbiguous(1, 1)
    strict = append(b"c", by=dense(1, epoch=1, strict=True))
    assert unchanged(model, strict) == out.PayloadMismatch()
    lenient = unchanged(model, append(b"c", by=dense(1, epoch=1)))
    assert lenient == out.Duplicate(1, 2, False, 1, 1, is_mismatch=True)


def test_dense_7_a_bad_body_equals_no_stored_payload_not_even_the_empty_one() -> None:
    model = model_of(create(), append(b"a", by=dense(0)), append(None, close=True, by=dense(1)))
    late = append(None, error="bad", by=dense(1, epoch=1))
    assert unchanged(model, late) == out.Duplicate(1, 1, True, 1, 1, is_mismatch=True)


def test_dense_8_without_a_receipt_there_are_no_offsets() -> None:
    model = model_of(create(), *[append(by=dense(n)) for n in range(5)], receipts=2)
    assert unchanged(model, append(by=dense(2))) == out.RestartAmbiguous(1, 4)
    known = append(by=dense(2, epoch=1, strict=True))
    assert unchanged(model, known) == out.Duplicate(None, None, False, 1, 4)


def test_dense_9_a_gap_is_refused() -> None:
    model = model_of(create(), append(by=dense(0, epoch=1)))
    assert unchanged(model, append(by=dense(2, epoch=1))) == out.SequenceGap(1, 2)
    assert unchanged(model, append(by=dense(2))) == out.SequenceGap(1, 2)


@pytest.mark.parametrize("tag", [dense(0, epoch=7), dense(0, session="b")])
def test_dense_10_a_raise_or_restart_begins_anew(tag: ProducerTag) -> None:
    model = model_of(create(), *[append(b"a", by=dense(n, session="a")) for n in range(3)])
    answer = model.execute(append(b"a", by=tag))
    assert answer == out.Appended(3, 4, False, tag.epoch or 2, 0)
    assert unchanged(model, append(by=dense(0, session="a"))) == out.StaleSession(tag.epoch or 2)


def test_dense_receipts_are_the_last_ones_and_that_of_zero() -> None:
    model = model_of(create(), *[append(by=dense(n)) for n in range(5)], receipts=2)
    held = model.streams["s"].producers["p"].receipts
    assert [receipt.first_seq for receipt in held] == [0, 3, 4]


# ---- producers: sparse ---------------------------------------------------------------------------


def test_sparse_1_any_first_sequence_and_any_higher_one_is_accepted() -> None:
    model = model_of(create())
    assert model.execute(append(by=sparse(7, 9))) == out.Appended(0, 1, False, 1, 9)
    assert model.execute(append(by=sparse(20))) == out.Appended(1, 2, False, 1, 20)


@pytest.mark.parametrize("tag", [sparse(7, 9), sparse(7, 9, session="new"), sparse(7, 9, epoch=5)])
def test_sparse_2_a_repeat_of_exactly_that_range_gets_its_offsets(tag: ProducerTag) -> None:
    model = model_of(create(), append(b"a", by=sparse(7, 9)), append(b"b", by=sparse(20)))
    assert unchanged(model, append(b"a", by=tag)) == out.Duplicate(0, 1, False, 1, 20)


def test_sparse_2_a_bare_repeat_with_another_payload_is_a_flagged_duplicate() -> None:
    model = model_of(create(), append(b"a", by=sparse(7)))
    late = unchanged(model, append(b"z", by=sparse(7)))
    assert late == out.Duplicate(0, 1, False, 1, 7, is_mismatch=True)
    assert unchanged(model, append(b"z", by=sparse(7, strict=True))) == out.PayloadMismatch()


@pytest.mark.parametrize("late", [sparse(7, 10), sparse(5, 12), sparse(9, 11)])
def test_sparse_3_a_range_over_the_last_sequence_overlaps(late: ProducerTag) -> None:
    model = model_of(create(), append(by=sparse(7, 9)))
    assert unchanged(model, append(by=late)) == out.BatchOverlap(9)


@pytest.mark.parametrize("late", [sparse(7, 8), sparse(8), sparse(1, 7), sparse(1, 15)])
def test_sparse_4_a_range_that_meets_a_receipt_overlaps(late: ProducerTag) -> None:
    model = model_of(create(), append(by=sparse(7, 9)), append(by=sparse(20)))
    assert unchanged(model, append(by=late)) == out.BatchOverlap(20)


@pytest.mark.parametrize("late", [sparse(14, 16), sparse(10, 19), sparse(0, 15)])
def test_sparse_4_a_range_half_of_which_is_forgotten_overlaps(late: ProducerTag) -> None:
    spans = [(10, 14), (20, 29), (30, 39)]
    model = model_of(create(), *[append(by=sparse(a, b)) for a, b in spans], receipts=2)
    assert unchanged(model, append(by=late)) == out.BatchOverlap(39)


def test_sparse_5_a_forgotten_run_is_a_duplicate_without_offsets() -> None:
    model = model_of(create(), *[append(by=sparse(n)) for n in (9, 10, 20, 30)], receipts=2)
    assert unchanged(model, append(by=sparse(10))) == out.Duplicate(None, None, False, 1, 30)
    assert unchanged(model, append(by=sparse(9, 10))) == out.Duplicate(None, None, False, 1, 30)
    assert unchanged(model, append(by=sparse(7, 9))) == out.ReceiptExpired(30, 10)
    assert unchanged(model, append(by=sparse(11))) == out.SequenceHole(30)


def test_sparse_6_before_a_gap_nothing_is_confirmed() -> None:
    spans = [(1, 1), (4, 4), (5, 7), (8, 8), (20, 20), (30, 30)]
    model = model_of(create(), *[append(by=sparse(a, b)) for a, b in spans], receipts=2)
    known = model.streams["s"].producers["p"]
    assert (known.forgotten, known.stored_from) == (8, 8)
    for tag, is_stored in ((sparse(1), True), (sparse(2), False), (sparse(5, 7), True)):
        assert unchanged(model, append(by=tag)) == out.ReceiptExpired(30, 8)
        assert was_stored(known, tag) == is_stored
    assert not was_stored(known, sparse(6))
    assert not was_stored(known, sparse(30, 31))


def test_sparse_5_nothing_is_forgotten_while_every_receipt_is_held() -> None:
    model = model_of(create(), *[append(by=sparse(n)) for n in (10, 20)], receipts=2)
    assert model.streams["s"].producers["p"].forgotten == -1
    assert unchanged(model, append(by=sparse(5))) == out.SequenceHole(20)


def test_sparse_5_what_is_forgotten_stays_so_across_epochs() -> None:
    sends = [append(by=sparse(n, epoch=n)) for n in (1, 2, 3, 4)]
    model = model_of(create(), *sends, receipts=2)
    assert model.streams["s"].producers["p"].forgotten == 2
    assert unchanged(model, append(by=sparse(2))) == out.Duplicate(None, None, False, 4, 4)


def test_sparse_7_a_skipped_sequence_is_never_confirmed() -> None:
    model = model_of(create(), append(by=sparse(10)), append(by=sparse(20)))
    assert unchanged(model, append(by=sparse(5))) == out.SequenceHole(20)
    assert unchanged(model, append(by=sparse(15))) == out.SequenceHole(20)


@pytest.mark.parametrize(("epoch", "session"), [(2, None), (None, "b")])
def test_a_sparse_raise_or_restart_fences_but_keeps_what_is_known(
    epoch: int | None, session: str | None
) -> None:
    model = model_of(create(), append(b"a", by=sparse(5, epoch=1, session="a")))
    late = append(b"b", by=sparse(3, epoch=epoch, session=session))
    assert unchanged(model, late) == out.SequenceHole(5)
    fresh = append(b"b", by=sparse(6, epoch=epoch, session=session))
    assert model.execute(fresh) == out.Appended(1, 2, False, 2, 6)
    assert unchanged(model, append(b"a", by=sparse(5))) == out.Duplicate(0, 1, False, 2, 6)
    assert unchanged(model, append(by=sparse(7, epoch=1))) == out.StaleEpoch(2, 1)


def test_a_sparse_tombstone_confirms_what_it_stored_without_offsets() -> None:
    model = model_of(create(), append(b"a", by=sparse(5)), ask.ExpireProducer("s", 0, "p", 0))
    confirmed = out.Duplicate(None, None, False, 1, 5)
    assert unchanged(model, append(b"a", by=sparse(5))) == confirmed
    skipped = unchanged(model, append(b"a", by=sparse(4, epoch=9)))
    assert skipped == out.ReceiptExpired(5, 5)
    assert unchanged(model, append(b"a", by=sparse(5, 6))) == out.BatchOverlap(5)
    assert model.execute(append(b"b", by=sparse(8))) == out.Appended(1, 2, False, 2, 8)
    assert unchanged(model, append(b"a", by=sparse(5))) == out.Duplicate(None, None, False, 2, 8)
    assert unchanged(model, append(b"a", by=sparse(5, 6))) == out.BatchOverlap(8)
    assert unchanged(model, append(b"a", by=sparse(6))) == out.SequenceHole(8)


def test_the_view_tells_what_a_sparse_producer_has_forgotten() -> None:
    model = model_of(create(), append(by=sparse(5)), append(by=dense(0, name="q")))
    model.execute(ask.ExpireProducer("s", 0, "p", 0))
    streams = model.view()["streams"]
    assert isinstance(streams, dict)
    producers = streams["s"]["producers"]
    assert producers["p"]["forgotten"] == 5
    assert "forgotten" not in producers["q"]


# ---- registry ------------------------------------------------------------------------------------


def test_register_counts_identities_and_raises_known_ones() -> None:
    model = Model()
    assert model.execute(ask.Register(0)) == out.Registered("1", 0)
    assert model.execute(ask.Register(0)) == out.Registered("2", 0)
    assert model.execute(ask.Register(0, "1")) == out.Registered("1", 1)
    assert model.execute(ask.Register(0, "p")) == out.Registered("p", 0)
    assert unchanged(model, ask.Register(0, "3")) == out.UnknownProducer()


def test_register_stops_at_the_largest_epoch() -> None:
    model = model_of(create(), ask.Register(0, "p"), append(by=dense(0, epoch=NUMBER_MAX)))
    assert unchanged(model, ask.Register(0, "p")) == out.EpochExhausted(NUMBER_MAX)


def test_forget_drops_a_producer_or_its_tombstone() -> None:
    model = model_of(create(), append(by=dense(0)), ask.ExpireProducer("s", 0, "p", 0))
    assert model.execute(ask.ForgetProducer("s", 0, "p")) == out.Forgotten()
    assert unchanged(model, ask.ForgetProducer("s", 0, "p")) == out.UnknownProducer()
    assert unchanged(model, ask.ForgetProducer("t", 0, "p")) == out.NotFound()
    assert model.execute(append(by=dense(0))) == out.Appended(1, 2, False, 1, 0)


def test_only_an_idle_producer_becomes_a_tombstone() -> None:
    model = model_of(create(), append(now=5, by=dense(0)))
    assert unchanged(model, ask.ExpireProducer("s", 99, "p", 10, 9)) == out.StillAlive()
    assert model.execute(ask.ExpireProducer("s", 0, "p", 10, 10)) == out.Forgotten()
    assert unchanged(model, ask.ExpireProducer("s", 99, "p", 10)) == out.UnknownProducer()
    assert unchanged(model, ask.ExpireProducer("s", 99, "q", 10)) == out.UnknownProducer()


# ---- idempotency keys ----------------------------------------------------------------------------


def test_a_key_answers_with_its_first_offsets() -> None:
    model = model_of(create(), append(b"a", key="k"), append())
    assert unchanged(model, append(b"a", key="k")) == out.Duplicate(0, 1, False)
    assert unchanged(model, append(b"b", key="k")) == out.KeyReused()
    assert unchanged(model, append(None, error="bad", key="k")) == out.KeyReused()


def test_a_key_lasts_24_hours_and_then_begins_anew() -> None:
    model = model_of(create(), append(b"a", key="k"), *hours(KEY_HOURS - 1))
    late = append(b"a", key="k", now=3_650 * DAY_MS)
    assert unchanged(model, late) == out.Duplicate(0, 1, False)
    (hour,) = hours(1)
    assert model.execute(hour) == out.HourCounted()
    assert model.execute(append(b"a", key="k")) == out.Appended(1, 2, False)


def test_a_key_is_forgotten_after_so_many_newer_ones() -> None:
    model = Model(keys_max=2)
    for command in (create(), append(b"a", key="a"), append(b"b", key="b")):
        model.execute(command)
    assert unchanged(model, append(b"a", key="a")) == out.Duplicate(0, 1, False)
    model.execute(append(b"c", key="c"))
    assert model.execute(append(b"a", key="a")) == out.Appended(3, 4, False)


def test_a_close_may_have_a_key() -> None:
    model = model_of(create(), append(None, close=True, key="k"))
    assert unchanged(model, append(None, close=True, key="k")) == out.Duplicate(0, 0, True)
    assert unchanged(model, append(None, close=True, key="other")) == out.StreamClosed(0)


# ---- copies --------------------------------------------------------------------------------------


def test_a_copy_lives_by_itself() -> None:
    model = model_of(create(), ask.Register(0, "p"), append(by=dense(0)), append(key="k"))
    before, twin = model.view(), model.copy()
    assert twin.view() == before
    for command in (
        append(by=dense(1)),
        append(key="l"),
        ask.Trim("s", 9, 2),
        ask.Register(9),
        ask.Delete("s", 9),
    ):
        assert not isinstance(twin.execute(command), out.Refusal)
    assert model.view() == before
    assert len(model.messages("s")) == 2
