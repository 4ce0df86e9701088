"""The guard on a broker: the audit record, the command and the owner, in this order, or nothing.

Rule numbers are those of `docs/reference/access.md`.
"""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from semel.broker.broker import ReadDone
from semel.broker.guard import (
    AUDIT,
    AUDIT_RECORD_BYTES_MAX,
    AUDIT_RECORDS_MAX,
    AuditRecord,
    create_audit,
    describe,
    encode_record,
)
from semel.journal.appender import WriteGroup
from semel.journal.frame import checksum_seed, decode
from semel.machine.access_events import OwnersChanged, TokenCreated, TokensRevoked
from semel.machine.events import StreamAppended
from semel.machine.rows import OwnedKey
from semel.model.access_commands import ChangeOwner, CreateToken, RevokeToken
from semel.model.commands import (
    AbortTxn,
    AddStreams,
    Append,
    Begin,
    CommitTxn,
    Delete,
    EngineCommand,
    FenceTxn,
    ForgetProducer,
    ProducerOwner,
    ProducerTag,
    Register,
    SwitchDedup,
)
from semel.model.errors import ReadFailed
from semel.model.group_commands import JoinGroup
from semel.model.outcomes import Appended, BatchTooLarge, DiskFull, Duplicate, Outcome, Refusal
from semel.model.outcomes_access import Forbidden, ReservedPath, TokenEnded, Unauthenticated
from semel.model.policies import DeletePolicy, SetPolicy
from semel.model.rights import (
    ADMIN,
    ALL_RIGHTS,
    PRODUCER,
    SINK,
    STREAM,
    TRANSACTION,
    WRITE,
    Caller,
    Scope,
    make_caller,
    parse_scope,
)
from semel.model.sink_commands import ForgetSink, RebindSink
from semel.model.steps import finish
from semel.model.subscription_commands import (
    PULL_WAKE,
    WEBHOOK,
    CreateSubscription,
    DeleteSubscription,
    ResumeSubscription,
)
from tests.unit.broker.bed import Bed

SEED = checksum_seed(bytes(16))
SECRET_HASH = bytes(range(100, 132))
ID = "0123456789ab"
ALMOST_FULL = 1_700  # bytes of the payloads that fill a segment of 4 KiB


def frames(group: WriteGroup) -> list[object]:
    """Return the records of a write group's frames."""
    found: list[object] = []
    for part in group.parts:
        data, at = b"".join(part.buffers), 0
        while at < len(data):
            frame = decode(data, at, lsn=part.start + at, seed=SEED)
            found.append(frame.record)
            at = frame.end - part.start
    return found


class GuardBed(Bed):
    """A bed with the audit stream and the stream s, whose commands have callers."""

    def __init__(self, *, segment_bytes: int = 4096, has_audit: bool = True) -> None:
        super().__init__(segment_bytes=segment_bytes)
        if has_audit:
            self.execute(create_audit(self.now_ms, "i"))
        self.execute(self.create())
        self.groups: list[list[object]] = []

    def flush(self) -> None:
        """Write all pending groups, and keep the records of each."""
        while (group := self.broker.next_group()) is not None:
            if group.is_synced and hasattr(self, "groups"):
                self.groups.append(frames(group))
            self.writer.write(group)
            self.broker.written(group)
            if self.broker.needs_room:
                self.broker.set_room(self.writer.make_room())

    def ask(self, command: EngineCommand, caller: Caller) -> list[Outcome]:
        """Submit a command of a caller without flushing."""
        answers: list[Outcome] = []
        self.broker.submit(command, answers.append, caller)
        return answers

    def run(self, command: EngineCommand, caller: Caller) -> Outcome:
        answers = self.ask(command, caller)
        self.flush()
        (answer,) = answers
        return answer

    def audited(self) -> list[dict[str, Any]]:
        """Return all records of the audit."""
        records: list[dict[str, Any]] = []
        offset: int | None = None
        while True:
            found: list[object] = []
            self.broker.read(AUDIT, offset, now_ms=self.now_ms, reply=found.append)
            (done,) = found
            assert isinstance(done, ReadDone)
            records += [json.loads(bytes(m)) for piece in done.slices for m in piece.messages()]
            if offset == done.next_offset:
                return records
            offset = done.next_offset

    @property
    def owners(self) -> dict[OwnedKey, str]:
        return self.broker.state.owners

    def by_p(self, seq: int = 0, path: str = "s") -> Append:
        return replace(self.append(path=path), producer=ProducerTag("p", seq, seq, 0))

    def token(self, token_id: str = ID, principal: str = "till") -> CreateToken:
        return CreateToken(self.now_ms, token_id, SECRET_HASH, principal, ALL_RIGHTS)


def root(**more: Any) -> Caller:
    return make_caller("root", ALL_RIGHTS, **more)


def writer(principal: str = "me") -> Caller:
    return make_caller(principal, (parse_scope("stream:*:write"),))


# ---- owners --------------------------------------------------------------------------------------


# O2, O7
@pytest.mark.parametrize("wait_for_room", [False, True])
def test_the_owner_follows_its_command_in_the_same_write_group(wait_for_room: bool) -> None:
    bed = GuardBed()
    if wait_for_room:
        bed.submit(bed.append(b"x" * ALMOST_FULL))
    answers = bed.ask(bed.by_p(), writer())
    assert answers == []
    bed.flush()
    assert isinstance(answers[0], Appended)
    assert bed.owners == {(PRODUCER, 2, "p"): "me"}
    group = next(group for group in bed.groups if any(type(r) is OwnersChanged for r in group))
    index = next(i for i, record in enumerate(group) if type(record) is OwnersChanged)
    before = group[index - 1]
    assert isinstance(before, StreamAppended)
    assert before.stamp is not None
    bed.restart()
    assert bed.owners == {(PRODUCER, 2, "p"): "me"}


# O7
def test_a_crash_between_the_two_frames_leaves_a_thing_without_owner() -> None:
    bed = GuardBed()
    bed.ask(bed.by_p(), writer())
    group = bed.broker.next_group()
    assert group is not None
    appended = frames(group)
    assert [type(record) for record in appended[-2:]] == [StreamAppended, OwnersChanged]
    (part,) = group.parts
    part.buffers[-1] = bytes(len(part.buffers[-1]))
    bed.writer.write(group)
    bed.restart()
    assert bed.owners == {}
    assert isinstance(bed.run(bed.by_p(), writer("other")), Duplicate)
    assert bed.owners == {(PRODUCER, 2, "p"): "other"}


# O2, O7
def test_a_repeat_that_takes_an_owner_is_answered_when_the_owner_is_durable() -> None:
    bed = GuardBed()
    bed.execute(bed.by_p())
    answers = bed.ask(bed.by_p(), writer())
    assert (answers, bed.owners) == ([], {(PRODUCER, 2, "p"): "me"})
    bed.flush()
    assert isinstance(answers[0], Duplicate)
    again = bed.ask(bed.by_p(), writer())
    assert isinstance(again[0], Duplicate), "nothing is stored, so nothing has to be waited for"


# O7
def test_wherever_a_segment_ends_every_command_has_its_owner_and_one_record() -> None:
    """The journal can lack room for the command or for what is stored with it."""
    recorded, waited = 0, {"token": 0, "append": 0}
    for fill in range(0, 1_900, 8):
        bed = GuardBed()
        for size in (1_500, 1_500, 1_900, fill):  # the third one begins the spare segment
            bed.submit(bed.append(b"x" * size))
        audit = bed.broker.state.by_path[AUDIT]
        if fill % 16:
            answers = bed.ask(bed.by_p(), writer())
            waited["append"] += bed.owners == {}
            bed.flush()
            assert isinstance(answers[0], Appended)
            assert bed.owners == {(PRODUCER, 2, "p"): "me"}, fill
        else:
            answers = bed.ask(bed.token(), root())
            waited["token"] += ID not in bed.broker.state.tokens
            recorded += ID not in bed.broker.state.tokens and audit.tail.tail == 1
            bed.flush()
            assert not isinstance(answers[0], Refusal)
            assert len(bed.audited()) == 1, fill
            kinds = [type(record) for group in bed.groups for record in group]
            assert kinds.count(TokenCreated) == 1
    assert waited["token"] > recorded > 0, "some records were stored before their commands waited"
    assert waited["append"] > 0


def test_a_frame_that_is_too_large_stores_no_owner() -> None:
    bed = GuardBed()
    command = replace(bed.by_p(), batch=bed.append(b"x" * 4_000).batch)
    assert isinstance(bed.run(command, writer()), BatchTooLarge)
    assert bed.owners == {}


# T7
def test_a_command_that_waited_is_checked_with_the_tokens_as_they_are_then() -> None:
    bed = GuardBed()
    bed.execute(bed.token())
    bed.execute(bed.create("r"))
    holder = make_caller("till", ALL_RIGHTS, version=1, token=ID)
    assert isinstance(bed.run(bed.append(), holder), Appended)
    for _ in range(6):  # the rest has to wait for room
        bed.submit(bed.append(b"x" * 1_500))
    before = bed.ask(bed.append(), holder)
    revoked = bed.ask(RevokeToken(bed.now_ms, ID), root())
    after = [bed.ask(bed.append(path=path), holder) for path in ("s", "r")]
    assert bed.broker.state.tokens[ID].revoked_ms is None
    bed.flush()
    assert isinstance(before[0], Appended)
    assert isinstance(revoked[0], TokenEnded)
    assert after == [[Unauthenticated()], [Unauthenticated()]]
    assert holder.version == -1


def test_a_refused_command_is_reported_and_stores_nothing() -> None:
    bed = GuardBed()
    seen: list[tuple[str, Refusal]] = []
    bed.broker.guard.on_refusal = lambda caller, refusal: seen.append((caller.principal, refusal))
    end = bed.broker.end
    reader = make_caller("reader", (Scope(STREAM, "s", False, ("read",)),))
    forbidden = Forbidden(WRITE, STREAM, "s")
    assert bed.run(bed.by_p(), reader) == forbidden
    assert bed.run(bed.append(path=AUDIT), root()) == ReservedPath()
    assert bed.run(bed.append(path=AUDIT), root()) == ReservedPath(), "also the second time"
    assert bed.run(Delete(AUDIT, bed.now_ms), root()) == ReservedPath()
    assert seen == [("reader", forbidden), *[("root", ReservedPath())] * 3]
    assert (bed.broker.end, bed.owners) == (end, {})


def test_a_full_disk_refuses_a_new_token_and_accepts_a_revocation_with_its_record() -> None:
    bed = GuardBed(segment_bytes=65_536)
    bed.execute(bed.token())
    bed.broker.is_full = True
    assert bed.run(bed.token("AAAAAAAAAAAA"), root()) == DiskFull()
    bed.broker.is_full = True
    assert isinstance(bed.run(RevokeToken(bed.now_ms, ID), root()), TokenEnded)
    assert [record["action"] for record in bed.audited()] == ["token_revoke"]
    assert bed.broker.state.tokens.keys() == {ID}


# ---- who owns what -------------------------------------------------------------------------------


# O5
def test_the_owner_of_a_transaction_is_known_before_and_after_its_end() -> None:
    bed = GuardBed()
    guard = bed.broker.guard
    owner = ProducerOwner("p", 0)
    begin = Begin(bed.now_ms, "t", owner, "inline", 60_000, ("s",))
    bed.run(begin, writer())
    assert guard.owner_of(TRANSACTION, "t") == guard.owner_of(PRODUCER, "p") == "me"
    assert guard.is_owner(writer(), TRANSACTION, "t")
    bed.run(AbortTxn(bed.now_ms, "t", 1, "p", 0), writer())
    assert (TRANSACTION, 0, "t") not in bed.owners
    assert guard.owner_of(TRANSACTION, "t") == "me"
    assert guard.owner_of(TRANSACTION, "missing") is guard.owner_of(SINK, "t") is None
    assert not guard.is_owner(writer("other"), TRANSACTION, "t")
    taken = bed.run(begin, writer("other"))
    assert taken == Forbidden(ADMIN, TRANSACTION, "t")
    bed.checkpoint()
    bed.restart()
    guard = bed.broker.guard
    assert guard.owner_of(TRANSACTION, "t") == "me", "the outcome is in the checkpoint"
    damaged = bed.store.write()
    for key, sealed in list(damaged.scan("outcomes")):
        damaged.put("outcomes", key, sealed[:-1] + bytes([sealed[-1] ^ 1]))
    damaged.commit()
    with pytest.raises(ReadFailed):
        guard.owner_of(TRANSACTION, "t")
    assert not guard.is_owner(writer(), TRANSACTION, "t")


def test_the_owner_of_a_producer_in_a_stream_is_known_by_its_number() -> None:
    bed = GuardBed()
    bed.run(bed.by_p(), writer())
    assert bed.broker.guard.owner_of(PRODUCER, "p", 2) == "me"
    assert bed.broker.guard.owner_of(PRODUCER, "p") is None


# ---- the audit -----------------------------------------------------------------------------------


def test_the_record_comes_before_the_event_in_the_same_write_group() -> None:
    bed = GuardBed()
    caller = root(token=ID, version=0)
    bed.execute(bed.token())
    caller.route, caller.address = "tokens.create", "10.0.0.7"
    bed.run(bed.token("AAAAAAAAAAAA", "till/7"), caller)
    group = bed.groups[-1]
    assert [type(record) for record in group] == [StreamAppended, TokenCreated]
    bed.run(RevokeToken(bed.now_ms, "AAAAAAAAAAAA"), caller)
    assert [type(record) for record in bed.groups[-1]] == [StreamAppended, TokensRevoked]
    created, revoked = bed.audited()
    assert created == {
        "time_ms": bed.now_ms,
        "action": "token_create",
        "outcome": "ok",
        "principal": "root",
        "token": ID,
        "address": "10.0.0.7",
        "route": "tokens.create",
        "target": "token AAAAAAAAAAAA of till/7",
        "detail": "cluster:admin",
    }
    assert (revoked["action"], revoked["outcome"]) == ("token_revoke", "ok")


def test_what_changes_nothing_has_no_record() -> None:
    bed = GuardBed()
    for _ in range(2):
        bed.run(SetPolicy(bed.now_ms, "a", dedup=False), root())
    assert bed.run(RevokeToken(bed.now_ms, "missing"), root()) is not None
    bed.run(bed.append(), root())
    assert [record["action"] for record in bed.audited()] == ["policy_set"]


def test_without_the_audit_stream_commands_work_and_nothing_is_recorded() -> None:
    bed = GuardBed(has_audit=False)
    assert not isinstance(bed.run(bed.token(), root()), Refusal)
    bed.broker.guard.audit([b"{}"], bed.now_ms)
    assert AUDIT not in bed.broker.state.by_path


NOW = 5
TOKEN = CreateToken(NOW, ID, SECRET_HASH, "till", ALL_RIGHTS, description="of the till")


@pytest.mark.parametrize(
    ("command", "described"),
    [
        (TOKEN, ("token_create", f"token {ID} of till", "cluster:admin")),
        (RevokeToken(NOW, ID), ("token_revoke", f"token {ID}", "")),
        (RevokeToken(NOW, ID, True), ("token_revoke", f"token {ID}", "with children")),
        (
            ChangeOwner(NOW, PRODUCER, "p", "s", "till"),
            ("owner_change", "producer p in s", "to till"),
        ),
        (ChangeOwner(NOW, SINK, "app"), ("owner_change", "sink app", "to nobody")),
        (SetPolicy(NOW, "a", dedup=False), ("policy_set", "policy a", "dedup False")),
        (DeletePolicy(NOW, "a"), ("policy_delete", "policy a", "")),
        (SwitchDedup("s", NOW, True), ("dedup_set", "stream s", "True")),
        (ForgetProducer("s", NOW, "p"), ("producer_forget", "producer p in s", "")),
        (ForgetSink(NOW, "app"), ("sink_forget", "sink app", "")),
        (RebindSink(NOW, "app", "q", 3), ("sink_rebind", "sink app", "to q")),
        (
            CreateSubscription(NOW, "b", PULL_WAKE, "a/*", wake_stream="w"),
            ("subscription_create", "subscription b", "pull-wake by w"),
        ),
        *(
            (
                CreateSubscription(NOW, "b", WEBHOOK, "a/*", url=url),
                ("subscription_create", "subscription b", f"webhook to {host}"),
            )
            for url, host in (
                ("https://user:secret@example.com:8080/in?key=secret", "example.com"),
                ("https:///in?key=secret", "no host"),
                ("https://[x/in?key=secret", "an invalid host"),
            )
        ),
        (DeleteSubscription(NOW, "b"), ("subscription_delete", "subscription b", "")),
        (ResumeSubscription(NOW, "b"), ("subscription_resume", "subscription b", "")),
        (
            CommitTxn(NOW, "t", 2, by_operator=True),
            ("transaction_commit", "transaction t", "epoch 2"),
        ),
        (
            AbortTxn(NOW, "t", 2, by_operator=True),
            ("transaction_abort", "transaction t", "epoch 2"),
        ),
        (FenceTxn(NOW, "t", 2), ("transaction_fence", "transaction t", "epoch 2")),
        (
            AddStreams(NOW, "t", 2, by_operator=True, streams=()),
            ("transaction_add_streams", "transaction t", "epoch 2"),
        ),
    ],
)
def test_changes_of_tokens_policies_and_owners_and_operator_acts_are_described(
    command: EngineCommand, described: tuple[str, str, str]
) -> None:
    assert describe(command) == described


def test_the_widest_scopes_of_a_token_are_recorded_first_and_none_is_left_out_silently() -> None:
    narrow = [parse_scope(f"stream:{number:030}:read") for number in range(9)]
    wide = [parse_scope("stream:a*:admin"), parse_scope("cluster:describe"), *ALL_RIGHTS]
    described = describe(replace(TOKEN, scopes=(*narrow, *wide)))
    assert described is not None
    detail = described[2]
    assert detail.split(" ")[:3] == ["cluster:admin", "cluster:describe", "stream:a*:admin"]
    assert detail.endswith(" +8 more"), "one more has room"
    two = describe(replace(TOKEN, scopes=(*narrow[:1], *wide[:1])))
    assert two is not None
    assert two[2] == f"stream:a*:admin stream:{0:030}:read"
    long = describe(replace(TOKEN, scopes=(parse_scope(f"stream:{'x' * 200}:read"),)))
    assert long is not None
    assert long[2] == "+1 more"


@pytest.mark.parametrize(
    "command",
    [
        CommitTxn(NOW, "t", 2),
        AbortTxn(NOW, "t", 2),
        AddStreams(NOW, "t", 2, streams=()),
        Register(NOW),
        Append("s", NOW),
        Delete("s", NOW),
    ],
)
def test_what_clients_do_all_day_is_not_audited(command: EngineCommand) -> None:
    assert describe(command) is None


def test_no_secret_is_recorded() -> None:
    bed = GuardBed()
    bed.run(bed.token(), root())
    (record,) = bed.audited()
    assert "hash" not in record
    assert SECRET_HASH.decode("latin-1") not in json.dumps(record, ensure_ascii=False)
    assert SECRET_HASH.hex() not in json.dumps(record)


# ---- the size of the audit -----------------------------------------------------------------------

TEXTS = st.text(
    st.one_of(
        st.sampled_from("\"\\'\x00\x1f\x7f\u2028😀"),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=600,
)
NAMES = ("action", "outcome", "principal", "token", "address", "route", "target", "right", "detail")


@settings(max_examples=300)
@given(st.fixed_dictionaries(dict.fromkeys(NAMES, TEXTS)), st.integers(0, 2**63 - 1))
def test_a_record_never_has_more_than_1024_bytes(texts: dict[str, str], number: int) -> None:
    fields: dict[str, Any] = dict(texts)
    record = AuditRecord(time_ms=number, count=number, **fields)
    encoded = encode_record(record)
    assert len(encoded) <= AUDIT_RECORD_BYTES_MAX == 1_024
    assert json.loads(encoded)["time_ms"] == number


@pytest.mark.parametrize("character", ["x", '"', "\\", "'", "é", "😀", "\x00", "\u2028"])
def test_the_longest_texts_are_cut(character: str) -> None:
    fields: dict[str, Any] = dict.fromkeys(NAMES, character * 5_000)
    record = AuditRecord(NOW, **fields)
    encoded = encode_record(record)
    assert len(encoded) <= AUDIT_RECORD_BYTES_MAX
    shown = json.loads(encoded)
    assert len({shown[name] for name in NAMES}) == 1
    assert 0 < len(shown["target"]) <= 120


def test_a_long_name_is_cut_and_short_ones_stay_as_they_are() -> None:
    record = AuditRecord(NOW, "token_create", "forbidden", "till", ID, target="x" * 200)
    shown = json.loads(encode_record(record))
    assert shown["target"] == "x" * 119 + "…"
    assert (shown["principal"], shown["token"]) == ("till", ID)
    assert shown.keys() == {"time_ms", "action", "outcome", "principal", "token", "target"}
    exact = json.loads(encode_record(replace(record, target="x" * 120)))
    assert exact["target"] == "x" * 120
    long = dict.fromkeys(("address", "route", "target", "right", "detail"), "😀" * 120)
    shown = json.loads(encode_record(replace(record, **long)))
    assert (shown["principal"], shown["outcome"]) == ("till", "forbidden")
    assert shown["route"] == "\\U0001f600" * 4


def records(first: int, count: int) -> list[bytes]:
    return [msgspec.json.encode({"n": number}) for number in range(first, first + count)]


def numbers(bed: GuardBed) -> list[int]:
    return [record["n"] for record in bed.audited()]


def test_records_of_the_server_are_appended_together() -> None:
    bed = GuardBed()
    for first, count in ((0, 1), (1, 3)):
        bed.broker.guard.audit(records(first, count), bed.now_ms)
    bed.broker.guard.audit([], bed.now_ms)
    bed.flush()
    assert numbers(bed) == [0, 1, 2, 3]
    bed.restart()
    assert numbers(bed) == [0, 1, 2, 3]


def test_the_audit_keeps_the_newest_65536_records() -> None:
    bed = GuardBed(segment_bytes=1 << 20)
    guard, step = bed.broker.guard, 4_096

    def head() -> int:
        return bed.broker.state.by_path[AUDIT].tail.head

    assert AUDIT_RECORDS_MAX == 65_536 == 64 * 1_048_576 // AUDIT_RECORD_BYTES_MAX
    for first in range(0, AUDIT_RECORDS_MAX, step):
        guard.audit(records(first, step), bed.now_ms)
        bed.flush()
    guard.audit(records(AUDIT_RECORDS_MAX, 1_023), bed.now_ms)
    assert head() == 0
    guard.audit(records(AUDIT_RECORDS_MAX + 1_023, 1), bed.now_ms)
    bed.flush()
    assert head() == 1_024
    assert numbers(bed) == list(range(1_024, AUDIT_RECORDS_MAX + 1_024))


# ---- searches before a command with a pattern ----------------------------------------------------


def test_a_join_is_preceded_by_a_search_if_it_needs_one_and_is_allowed() -> None:
    bed = Bed()
    bed.execute(bed.create("a/1"))
    guard = bed.broker.guard
    command = JoinGroup(bed.now_ms, "g", "m", patterns=("a/*",))
    reader = make_caller("r", (parse_scope("stream:a/*:read"), parse_scope("group:g:write")))
    assert guard.search_steps(replace(command, patterns=("a//b",)), None) is None
    assert guard.search_steps(replace(command, patterns=("b/*",)), reader) is None
    assert guard.search_steps(command, reader) is not None
    steps = guard.search_steps(command, None)
    assert steps is not None
    finish(steps)
    assert bed.broker.state.patterns.known("a/*") == {1}
    assert guard.search_steps(command, None) is None
    assert guard.search_steps(replace(command, streams=("a/1",), patterns=()), None) is None


def test_a_new_subscription_is_preceded_by_a_search_if_it_needs_one_and_is_allowed() -> None:
    bed = Bed()
    bed.execute(bed.create("a/1"))
    guard = bed.broker.guard
    command = CreateSubscription(bed.now_ms, "h", WEBHOOK, "a/*", url="https://example.com")
    scopes = (parse_scope("stream:a/*:read"), parse_scope("subscription:h:create"))
    reader = make_caller("r", scopes)
    assert guard.search_steps(replace(command, lease_ms=1), None) is None
    assert guard.search_steps(replace(command, pattern="b/*"), reader) is None
    assert guard.search_steps(replace(command, pattern=None, streams=("a/1",)), None) is None
    assert guard.search_steps(bed.create("b"), None) is None
    assert guard.search_steps(command, reader) is not None
    steps = guard.search_steps(command, None)
    assert steps is not None
    finish(steps)
    assert bed.broker.state.patterns.known("a/*") == {1}
    assert guard.search_steps(command, None) is None
    bed.execute(command)
    assert guard.search_steps(replace(command, pattern="b/*"), None) is None, "it exists already"
