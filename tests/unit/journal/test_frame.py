"""The frame codec, and the bytes of format version 1, which must never change.

`tests/data/frame_v1.bin` holds at least one frame of every kind, one after another. It stands for
existing journals: when `test_version_1_has_the_bytes_it_always_had` fails, the code is wrong and
the file is right. Only frames that version 1 did not have may be added, at the end of
`CASES`, by running from the root of the repository:

    python -c "from tests.unit.journal.test_frame import *; GOLDEN.write_bytes(golden_bytes(CASES))"

`tests/data/frame_v1_extras.bin`, `frame_v1_claims.bin`, `frame_v1_transactions.bin`,
`frame_v1_positions.bin`, `frame_v1_policies.bin`, `frame_v1_lives.bin`, `frame_v1_metadata.bin`,
`frame_v1_access.bin`, `frame_v1_topics.bin` and `frame_v1_subscriptions.bin` do the same for later
additions: sections with extras, claims, transactions, positions named by transactions, policies,
ends of producers, metadata of positions, tokens and owners, topics and members of groups, and
subscriptions.
"""

import struct
from pathlib import Path
from typing import NamedTuple, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from semel.journal import frame as codec
from semel.journal.frame import (
    ALIGN,
    HEADER_BYTES,
    KINDS,
    SECTION_BYTES,
    BadFrame,
    Frame,
    Record,
    SegmentEnded,
    SegmentStarted,
    UnknownVersion,
    WatermarkMoved,
    peek_length,
)
from semel.machine import access_events, events, shared_events, subscription_events
from semel.machine.events import ProducerStamp, Section
from semel.machine.rows import (
    ForkRow,
    MemberRow,
    NewPosition,
    NewStream,
    PolicyRow,
    SnapshotRow,
    StreamRow,
    TokenRow,
)
from semel.machine.subscription_events import SubscriptionRow
from semel.machine.txn.draft import pack_extent
from semel.model.checksum import crc32c
from semel.model.commands import ProducerOwner, SinkOwner, SnapshotRange
from semel.model.limits import NUMBER_MAX
from semel.model.messages import encode_extras
from semel.model.rights import ALL_RIGHTS, Scope

DATA = Path(__file__).resolve().parents[2] / "data"
GOLDEN = DATA / "frame_v1.bin"
GOLDEN_EXTRAS = DATA / "frame_v1_extras.bin"
GOLDEN_CLAIMS = DATA / "frame_v1_claims.bin"
GOLDEN_TXN = DATA / "frame_v1_transactions.bin"
GOLDEN_POSITIONS = DATA / "frame_v1_positions.bin"
GOLDEN_HOURS = DATA / "frame_v1_hours.bin"
GOLDEN_POLICIES = DATA / "frame_v1_policies.bin"
GOLDEN_LIVES = DATA / "frame_v1_lives.bin"
GOLDEN_METADATA = DATA / "frame_v1_metadata.bin"
GOLDEN_ACCESS = DATA / "frame_v1_access.bin"
GOLDEN_TOPICS = DATA / "frame_v1_topics.bin"
GOLDEN_SUBSCRIPTIONS = DATA / "frame_v1_subscriptions.bin"
SEED = codec.checksum_seed(b"sixteen bytes id")


class Case(NamedTuple):
    record: Record
    sections: tuple[Section, ...] = ()


def encode(
    case: Case, *, lsn: int = 0, watermark: int = 0, time_ms: int = 0, previous_crc: int = 0
) -> bytes:
    meta = codec.encode_meta(case.record)
    encoded = codec.encode(
        KINDS[type(case.record)],
        meta,
        case.sections,
        length=codec.frame_bytes(meta, case.sections),
        lsn=lsn,
        watermark=watermark,
        time_ms=time_ms,
        previous_crc=previous_crc,
        seed=SEED,
    )
    data = b"".join(encoded.buffers)
    assert len(data) == encoded.length
    assert struct.unpack_from("<I", data, 4)[0] == encoded.crc
    return data


def decode(data: bytes, at: int = 0, *, lsn: int = 0) -> Frame:
    return codec.decode(data, at, lsn=lsn, seed=SEED)


def forged(
    kind: int,
    meta: bytes,
    tail: bytes = b"",
    *,
    sections: int = 0,
    meta_bytes: int | None = None,
    version: int = codec.VERSION,
) -> bytes:
    """Return a frame that no encoder writes, with a correct checksum."""
    length = (HEADER_BYTES + len(meta) + len(tail) + ALIGN - 1) & -ALIGN
    claimed = len(meta) if meta_bytes is None else meta_bytes
    rest = struct.pack("<BBHIIIQQQ", version, kind, sections, length, claimed, 0, 0, 0, 0)
    body = (rest + meta + tail).ljust(length - 8, b"\0")
    return struct.pack("<4sI", codec.MAGIC, crc32c(body, SEED)) + body


# ---- the bytes of version 1 ----------------------------------------------------------------------

PLAIN = NewStream(1, "logs/a", "inc-1", "application/json", 1_700_000_000_000)
FORK = NewStream(
    2, "é/f", "inc-2", "text/plain", 1_700_000_000_001, 60_000, None, True, ForkRow(1, "s", 3, 2, 5)
)
DATED = NewStream(3, "d", "inc-3", "text/plain", 5, None, NUMBER_MAX)
DENSE_MARK = ProducerStamp("p", "dense", 7, None, 4, 4, 2**64 - 1, None)
SPARSE_MARK = ProducerStamp("12", "sparse", NUMBER_MAX, "session", 5, 9, 1, b"\x00\xffcursor")
JOINED = Section(1, 0, 2, b'{"a":1},22', struct.pack("<II", 7, 2), is_joined=True)

CASES = (
    Case(SegmentStarted(64 * 1024 * 1024)),
    Case(WatermarkMoved()),
    Case(events.StreamCreated(PLAIN, 0, False), (JOINED,)),
    Case(events.StreamCreated(FORK, 1, True), (Section(2, 5, 1, b"ab"), Section(2, 6, 1, b"own"))),
    Case(events.StreamCreated(DATED, 0, False)),
    Case(events.StreamAppended(1), (Section(1, 2, 1, b""),)),
    Case(events.StreamAppended(1, True, "ÿ", DENSE_MARK), (Section(1, 3, 1, b"payload"),)),
    Case(events.StreamAppended(1, False, None, SPARSE_MARK)),
    Case(events.StreamAppended(1, True, None, None, "key", 2**64 - 1)),
    Case(events.StreamDeleted(1)),
    Case(events.StreamExpired(2)),
    Case(events.StreamTrimmed(1, NUMBER_MAX)),
    Case(events.ProducerRegistered("12", 0, True)),
    Case(events.ProducerRegistered("p", 8, False)),
    Case(events.ProducerForgotten(1, "p")),
    Case(events.ProducerExpired(1, "12")),
    Case(SegmentEnded()),
    Case(events.DedupSwitched(1, None)),
    Case(events.DedupSwitched(1, NUMBER_MAX)),
    Case(events.UnguardedCreated(PLAIN, 0, False), (JOINED,)),
)


KEYED = encode_extras(2, keys=[b"k\0", None])
FULL = encode_extras(1, keys=[b""], headers=[[("trace", b"\xff"), ("é", b"")]], timestamps=[-1])

EXTRAS_CASES = (
    Case(events.StreamAppended(1), (replace(JOINED, extras=KEYED),)),
    Case(events.StreamAppended(1, stamp=DENSE_MARK), (Section(1, 2, 1, b"one", extras=FULL),)),
    Case(
        events.StreamCreated(FORK, 1, False),
        (Section(2, 5, 1, b"ab"), Section(2, 6, 2, b"cd", struct.pack("<II", 1, 1), extras=KEYED)),
    ),
)

CLAIMS_CASES = (
    Case(events.ProducerClaimed(1, "p", "dense", 1, "session")),
    Case(events.ProducerClaimed(NUMBER_MAX, "é", "sparse", NUMBER_MAX, "ÿ")),
)

PRODUCED = ProducerOwner("p", 7)
SUNK = SinkOwner("app", 17, 3)
CONTROLLED = Section(1, 9, 1, b"", kind=events.SECTION_CONTROL)
PINNED = SnapshotRow(4, (SnapshotRange("é", "inc", 3, NUMBER_MAX),), "sha256:x")
ENDED = (events.Ended(1, True, "", ((1, 9),)), events.Ended(2, False, "fenced"))

TXN_CASES = (
    Case(events.TxnBegun(1, "t", 1, "inline", PRODUCED, True, 60_000, (1, 2))),
    Case(events.TxnBegun(2, "ü", 2, "staged", SUNK, False, None, (), ENDED), (CONTROLLED,)),
    Case(events.TxnExtended(1, (3,), (("g", 1, 5),))),
    Case(events.TxnPublished(1, events.StreamAppended(1, stamp=DENSE_MARK)), (JOINED,)),
    Case(events.ChunkStaged(2, 0), (replace(JOINED, kind=events.SECTION_STAGED, extras=KEYED),)),
    Case(events.TxnPrepared(2)),
    Case(
        events.Decided(
            ENDED,
            pack_extent(512, 1, 7, 2),
            (("g", 1, 5),),
            events.CommitStamp("p", 7, 3, 9),
            None,
            True,
        ),
        (JOINED, CONTROLLED),
    ),
    Case(events.Decided(sink=events.SinkStamp("app", "q", 17, None))),
    Case(
        events.ProducerRaised(ENDED, events.StreamAppended(1, stamp=DENSE_MARK)),
        (JOINED, CONTROLLED),
    ),
    Case(events.ProducerRaised(ENDED, None, events.ProducerRegistered("p", 8, False))),
    Case(events.ProducerRaised(ENDED, claimed=events.ProducerClaimed(1, "p", "dense", 8, "c"))),
    Case(events.PositionsMoved((("g", 1, NUMBER_MAX),))),
    Case(events.SnapshotPinned("g", PINNED)),
    Case(events.SinkRebound("app", "q", 3)),
    Case(events.SinkForgotten("app")),
)

NAMED = NewPosition("é", 1, NUMBER_MAX, 3, 7, 3)
POSITIONS_CASES = (Case(events.PositionsNamed(1, (NAMED, NewPosition("g", NUMBER_MAX, 0)))),)

HOURS_CASES = (Case(events.HourPassed()),)

POLICIES_CASES = (
    Case(events.PolicyChanged("", PolicyRow(False, 1_700_000_000_000))),
    Case(events.PolicyChanged("é/f", PolicyRow(True, 5))),
    Case(events.PolicyChanged("é/f", None)),
    Case(events.StreamConfigured(1, NUMBER_MAX, True)),
    Case(events.StreamConfigured(1, None, False, events.StreamCreated(PLAIN, 0, False)), (JOINED,)),
    Case(
        events.StreamConfigured(
            1, 2, False, append=events.StreamAppended(1, stamp=DENSE_MARK), ended=ENDED
        ),
        (JOINED, CONTROLLED),
    ),
    Case(
        events.StreamConfigured(
            1,
            2,
            False,
            append=events.StreamAppended(1, stamp=DENSE_MARK),
            expires_ms=60_000,
        ),
        (JOINED,),
    ),
)

REGISTERED = events.ProducerRegistered("12", 0, True)
CLAIMED = events.ProducerClaimed(3, "é", "dense", 4, "session")
LIVES_CASES = (
    Case(events.ProducersRetired(((1, "p"), (NUMBER_MAX, "é"), (0, "12")))),
    Case(events.TombstonesDropped(((1, "p"), (0, "till-1")))),
    Case(
        events.ProducerDeclared(60_000, events.StreamAppended(1, False, None, DENSE_MARK)),
        (Section(1, 3, 1, b"payload"),),
    ),
    Case(
        events.ProducerDeclared(
            604_800_000,
            published=events.TxnPublished(7, events.StreamAppended(1, stamp=DENSE_MARK)),
        ),
        (Section(1, 4, 1, b"inside"),),
    ),
    Case(events.ProducerDeclared(60_000, claimed=CLAIMED)),
    Case(events.ProducerDeclared(60_000, registered=REGISTERED)),
    Case(
        events.ProducerDeclared(
            60_000,
            raised=events.ProducerRaised((events.Ended(7, False, "fenced"),), claimed=CLAIMED),
        )
    ),
)

METADATA = (("é", "ü"), ("offset", -(2**63)), ("n", 2**63 - 1))
METADATA_CASES = (
    Case(events.PositionsMovedWithMetadata((("g", 1, 5), ("h", 1, 0)), (METADATA, ()))),
    Case(events.PositionsNamedWithMetadata(1, (NAMED,), (METADATA,))),
    Case(
        events.DecidedWithMetadata(
            ENDED,
            pack_extent(512, 1, 7, 2),
            (("g", 1, 5),),
            events.CommitStamp("p", 7, 3, 9),
            metadata=(METADATA,),
        ),
        (JOINED, CONTROLLED),
    ),
)

ROOT_TOKEN = TokenRow(bytes(range(32)), "admin", ALL_RIGHTS, 1_700_000_000_000)
SCOPES = (
    Scope("stream", "é/", True, ("read", "write")),
    Scope("cluster", "", False, ("IdempotentWrite",)),
)
CHILD_TOKEN = TokenRow(b"\xff" * 32, "é/1", SCOPES, 5, NUMBER_MAX, "till", "0123456789ab", 7, 6)
ACCESS_CASES = (
    Case(access_events.TokenCreated("0123456789ab", ROOT_TOKEN)),
    Case(access_events.TokenCreated("zyxwvutsrqpo", CHILD_TOKEN, ("0123456789ab", "AAAAAAAAAAAA"))),
    Case(access_events.TokensRevoked(("0123456789ab", "zyxwvutsrqpo"))),
    Case(access_events.TokensUsed((("0123456789ab", 0), ("zyxwvutsrqpo", NUMBER_MAX)))),
    Case(access_events.OwnersChanged("é/1", (("producer", NUMBER_MAX, "p"), ("sink", 0, "app")))),
    Case(access_events.OwnersChanged(None, (("producer", 0, "12"), ("transaction", 0, "ü")))),
)

TOPIC = StreamRow(7, "orders", "inc-7", "application/json", 1_700_000_000_000, topic=7)
TIMED_TOPIC = StreamRow(10, "é", "inc-10", "text/plain", 5, 60_000, NUMBER_MAX, topic=10)
MEMBER = MemberRow(
    "m1", ("a", "é"), ("orders",), ("a/*", "**"), 1_000, 2_000, "host-1", "latest", 5
)
SHORT_MEMBER = MemberRow("m2", ("a",), (), (), 1_800_000, 1_800_000, None, "earliest", NUMBER_MAX)
TO_PARTITIONS = (
    replace(JOINED, stream=8, extras=KEYED),
    Section(9, 4, 1, b"one", extras=FULL),
)
TOPICS_CASES = (
    Case(shared_events.TopicAdded(TOPIC, "crc32", 2)),
    Case(shared_events.TopicAdded(TIMED_TOPIC, "murmur2", 1_000, None, True, (0, 999))),
    Case(shared_events.PartitionsAdded(7, 3, "inc-8", (0, NUMBER_MAX))),
    Case(shared_events.PartitionsAdded(7, 1_000, "é", (1, 2, 3), (3, 999))),
    Case(shared_events.PartitionsClosed(7)),
    Case(shared_events.TopicRemoved(7)),
    Case(shared_events.TopicRemoved(NUMBER_MAX, True)),
    Case(shared_events.GroupChanged("é", MEMBER, assigned=(shared_events.Assigned(8, "m1", 1),))),
    Case(
        shared_events.GroupChanged(
            "g",
            SHORT_MEMBER,
            ("m1", "m0"),
            ((8, 0), (NUMBER_MAX, 3)),
            (9,),
            ((8, NUMBER_MAX),),
            (
                shared_events.Assigned(8, "m2", NUMBER_MAX, 2),
                shared_events.Assigned(11, "m2", 1),
            ),
            True,
        )
    ),
    Case(shared_events.GroupForgotten("é")),
    Case(
        events.PositionsNamedByMembers(
            1, (NAMED, NewPosition("g", 2, 5)), (METADATA, ()), (("m1", NUMBER_MAX), None)
        )
    ),
    Case(events.PositionsNamedByMembers(1, (NAMED,), members=(("m1", 1),))),
    # Kinds that were there before, with a section for each partition of a topic.
    Case(events.StreamAppended(7, stamp=DENSE_MARK), TO_PARTITIONS),
    Case(events.TxnPublished(1, events.StreamAppended(7)), TO_PARTITIONS),
    Case(
        events.ChunkStaged(2, 0),
        tuple(replace(each, kind=events.SECTION_STAGED) for each in TO_PARTITIONS),
    ),
)

HOOK = SubscriptionRow(
    "webhook",
    "orders/**",
    ("a", "é"),
    "https://example.com/in?a=1",
    None,
    30_000,
    "é",
    1_700_000_000_000,
    ("a", "b", "é"),
)
PULL = SubscriptionRow("pull-wake", None, ("a",), None, "wakes", 1_000, None, NUMBER_MAX)
WAKE_MESSAGE = b'{"type":"wake","subscription_id":"s","stream":"a","generation":1,"ts":2}'
SUBSCRIPTIONS_CASES = (
    Case(subscription_events.Subscribed("é", HOOK, ((1, 0, 3), (NUMBER_MAX, NUMBER_MAX, 2)))),
    Case(subscription_events.Subscribed("s", PULL)),
    Case(subscription_events.Unsubscribed("é")),
    Case(subscription_events.Linked("s", ("a", "é"), ((1, 0), (2, -1)))),
    Case(subscription_events.Linked("s", ("none",))),
    Case(subscription_events.Unlinked("s", "a", NUMBER_MAX)),
    Case(subscription_events.Unlinked("s", "é")),
    Case(subscription_events.WakeIssued("é", "w_1", NUMBER_MAX, ((1, 5), (2, NUMBER_MAX)))),
    Case(
        subscription_events.WakeIssued("s", "w_2", 1, ((1, 1),)),
        (Section(3, 7, 1, WAKE_MESSAGE),),
    ),
    Case(subscription_events.Claimed("s", "é")),
    Case(subscription_events.Acked("s", ((1, 5), (2, NUMBER_MAX)), False)),
    Case(subscription_events.Acked("s", (), True)),
    Case(subscription_events.WakeEnded("s", False)),
    Case(subscription_events.WakeEnded("s", True)),
    Case(subscription_events.DeliveryNoted("é", 3, "503", False, False, 3_600_000)),
    Case(subscription_events.DeliveryNoted("é", NUMBER_MAX, "no answer: é", True)),
    Case(subscription_events.DeliveryNoted("é", 0, is_resumed=True)),
    Case(subscription_events.DeliveryNoted("é", 0)),
    Case(
        events.DecidedWithAcks(
            (events.Ended(4, True, "", ((2, 9),)),),
            wakes=(subscription_events.Acked("s", ((1, 5),), True),),
        )
    ),
    Case(
        events.DecidedWithAcks(
            (),
            b"",
            (("g", 1, 5),),
            events.CommitStamp("p", 1, 0, 7),
            None,
            False,
            (METADATA,),
            (
                subscription_events.Acked("s", ((1, 5),), False),
                subscription_events.Acked("é", (), True),
            ),
        ),
        (Section(1, 5, 1, b"x"),),
    ),
)

GOLDENS = pytest.mark.parametrize(
    ("path", "cases"),
    [
        (GOLDEN, CASES),
        (GOLDEN_EXTRAS, EXTRAS_CASES),
        (GOLDEN_CLAIMS, CLAIMS_CASES),
        (GOLDEN_TXN, TXN_CASES),
        (GOLDEN_POSITIONS, POSITIONS_CASES),
        (GOLDEN_HOURS, HOURS_CASES),
        (GOLDEN_POLICIES, POLICIES_CASES),
        (GOLDEN_LIVES, LIVES_CASES),
        (GOLDEN_METADATA, METADATA_CASES),
        (GOLDEN_ACCESS, ACCESS_CASES),
        (GOLDEN_TOPICS, TOPICS_CASES),
        (GOLDEN_SUBSCRIPTIONS, SUBSCRIPTIONS_CASES),
    ],
    ids=lambda value: value.stem if isinstance(value, Path) else "cases",
)


def golden_frames(cases: tuple[Case, ...]) -> list[bytes]:
    frames: list[bytes] = []
    lsn = crc = 0
    for number, case in enumerate(cases):
        time_ms = 1_700_000_000_000 + number
        data = encode(case, lsn=lsn, watermark=lsn // 2, time_ms=time_ms, previous_crc=crc)
        frames.append(data)
        lsn, crc = lsn + len(data), decode(data, lsn=lsn).crc
    return frames


def golden_bytes(cases: tuple[Case, ...]) -> bytes:
    return b"".join(golden_frames(cases))


@GOLDENS
def test_version_1_has_the_bytes_it_always_had(path: Path, cases: tuple[Case, ...]) -> None:
    assert golden_bytes(cases) == path.read_bytes()


@GOLDENS
def test_a_journal_of_version_1_reads_as_it_was_written(
    path: Path, cases: tuple[Case, ...]
) -> None:
    data = path.read_bytes()
    at = crc = 0
    for number, case in enumerate(cases):
        frame = decode(data, at, lsn=at)
        assert (frame.record, frame.sections) == case
        assert (frame.lsn, frame.watermark, frame.previous_crc) == (at, at // 2, crc)
        assert frame.time_ms == 1_700_000_000_000 + number
        at, crc = frame.end, frame.crc
    assert at == len(data)


def test_every_kind_of_frame_is_among_the_golden_ones() -> None:
    assert {
        type(case.record)
        for cases in (
            CASES,
            CLAIMS_CASES,
            TXN_CASES,
            POSITIONS_CASES,
            HOURS_CASES,
            POLICIES_CASES,
            LIVES_CASES,
            METADATA_CASES,
            ACCESS_CASES,
            TOPICS_CASES,
            SUBSCRIPTIONS_CASES,
        )
        for case in cases
    } == set(KINDS)
    assert set(get_args(events.Event)) < set(KINDS)


# ---- round trips ---------------------------------------------------------------------------------

numbers = st.integers(0, NUMBER_MAX)
names = st.text(max_size=8)
digests = st.integers(0, 2**64 - 1)
plain_sections = st.builds(
    Section,
    numbers,
    numbers,
    st.integers(0, 2**32 - 1),
    st.binary(max_size=40),
    st.binary(max_size=12),
    st.booleans(),
)
# In a section with extras, the number of messages gives the number of lengths.
rich_sections = st.integers(1, 4).flatmap(
    lambda count: st.builds(
        Section,
        numbers,
        numbers,
        st.just(count),
        st.binary(max_size=40),
        st.just(bytes(4 * count if count > 1 else 0)),
        st.booleans(),
        st.binary(min_size=1, max_size=20),
    )
)
sections = plain_sections | rich_sections
maybe_numbers = st.none() | numbers
forks = st.builds(ForkRow, numbers, names, numbers, numbers, numbers)
rows = st.builds(
    NewStream,
    numbers,
    names,
    names,
    names,
    numbers,
    maybe_numbers,
    maybe_numbers,
    st.booleans(),
    st.none() | forks,
)
marks = st.builds(
    ProducerStamp,
    names,
    st.sampled_from(["dense", "sparse"]),
    numbers,
    st.none() | names,
    numbers,
    numbers,
    digests,
    st.none() | st.binary(max_size=8),
)
appended = st.builds(
    events.StreamAppended,
    numbers,
    st.booleans(),
    st.none() | names,
    st.none() | marks,
    st.none() | names,
    digests,
)
records: st.SearchStrategy[Record] = st.one_of(
    st.builds(SegmentStarted, numbers),
    st.builds(WatermarkMoved),
    st.builds(events.StreamCreated, rows, numbers, st.booleans()),
    appended,
    st.builds(events.StreamDeleted, numbers),
    st.builds(events.StreamExpired, numbers),
    st.builds(events.StreamTrimmed, numbers, numbers),
    st.builds(events.DedupSwitched, numbers, maybe_numbers),
    st.builds(events.UnguardedCreated, rows, numbers, st.booleans()),
    st.builds(
        events.PolicyChanged,
        names,
        st.none() | st.builds(PolicyRow, st.none() | st.booleans(), numbers),
    ),
    st.builds(
        events.StreamConfigured,
        numbers,
        maybe_numbers,
        st.booleans(),
        st.none() | st.builds(events.StreamCreated, rows, numbers, st.booleans()),
        st.none() | appended,
    ),
    st.builds(events.ProducerRegistered, names, numbers, st.booleans()),
    st.builds(events.ProducerForgotten, numbers, names),
    st.builds(events.ProducerExpired, numbers, names),
    st.builds(events.HourPassed),
    st.builds(events.ProducerClaimed, numbers, names, names, numbers, names),
)
cases = st.builds(Case, records, st.lists(sections, max_size=3).map(tuple))


@given(cases, numbers, numbers, numbers, st.integers(0, 2**32 - 1), st.binary(max_size=20))
def test_a_frame_reads_back_as_it_was_written(
    case: Case, lsn: int, watermark: int, time_ms: int, previous_crc: int, before: bytes
) -> None:
    data = encode(case, lsn=lsn, watermark=watermark, time_ms=time_ms, previous_crc=previous_crc)
    frame = decode(before + data + b"after", len(before), lsn=lsn)
    assert (frame.record, frame.sections) == case
    assert (frame.lsn, frame.end) == (lsn, lsn + len(data))
    assert (frame.watermark, frame.time_ms) == (watermark, time_ms)
    assert frame.previous_crc == previous_crc
    assert len(data) % ALIGN == 0


@pytest.mark.parametrize("size", [16_000, 16_384, 1_000_000])
def test_a_large_payload_is_handed_on_uncopied_and_reads_the_same(size: int) -> None:
    payload = bytes(range(256)) * (size // 256)
    case = Case(events.StreamAppended(1), (Section(1, 0, 1, payload),))
    assert decode(encode(case)).sections == case.sections
    meta = codec.encode_meta(case.record)
    length = codec.frame_bytes(meta, case.sections)
    encoded = codec.encode(
        17,
        meta,
        case.sections,
        length=length,
        lsn=0,
        watermark=0,
        time_ms=0,
        previous_crc=0,
        seed=SEED,
    )
    assert any(buffer is payload for buffer in encoded.buffers) == (size > 16_000)


# ---- invalid frames ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES + EXTRAS_CASES, ids=lambda case: type(case.record).__name__)
def test_no_beginning_of_a_frame_is_a_frame(case: Case) -> None:
    data = encode(case)
    for size in range(len(data)):
        with pytest.raises(BadFrame):
            decode(data[:size])


@pytest.mark.parametrize("case", CASES + EXTRAS_CASES, ids=lambda case: type(case.record).__name__)
def test_every_flipped_bit_is_noticed(case: Case) -> None:
    data = encode(case) + bytes(64)
    for bit in range(8 * (len(data) - 64)):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadFrame):
            decode(bytes(broken))


@given(st.binary(max_size=200), st.integers(0, 210))
def test_random_bytes_are_no_frame(data: bytes, at: int) -> None:
    with pytest.raises(BadFrame):
        decode(data, at)


@given(st.binary(min_size=40, max_size=200), st.integers(0, 30))
def test_random_bytes_behind_a_fair_beginning_are_no_frame(noise: bytes, blocks: int) -> None:
    data = bytearray(codec.MAGIC + noise)
    struct.pack_into("<I", data, 12, ALIGN * blocks)
    with pytest.raises(BadFrame):
        decode(bytes(data))


def test_a_frame_stands_at_its_own_position_only() -> None:
    data = encode(CASES[0], lsn=64)
    assert decode(data, lsn=64).lsn == 64
    with pytest.raises(BadFrame, match="written for a different position, LSN 64"):
        decode(data, lsn=128)


def test_a_frame_of_another_directory_is_no_frame() -> None:
    data = encode(CASES[0])
    with pytest.raises(BadFrame, match="checksum"):
        codec.decode(data, 0, lsn=0, seed=codec.checksum_seed(b"another identity"))


def test_a_newer_version_or_kind_is_told_from_damage() -> None:
    meta = codec.encode_meta(WatermarkMoved())
    with pytest.raises(UnknownVersion, match="version 2"):
        decode(forged(2, meta, version=2))
    with pytest.raises(UnknownVersion, match="kind 250"):
        decode(forged(250, meta))


@pytest.mark.parametrize("flags", [16, events.SECTION_CONTROL | events.SECTION_STAGED])
def test_unknown_section_flags_are_told_from_damage(flags: int) -> None:
    section = struct.pack("<QQIIII", 1, 0, 1, 1, 0, flags) + b"x"
    meta = codec.encode_meta(events.StreamAppended(1))
    with pytest.raises(UnknownVersion, match=f"flags {flags}"):
        decode(forged(KINDS[events.StreamAppended], meta, section, sections=1))


@pytest.mark.parametrize(("count", "room"), [(1, 0), (2, 0), (2, 7), (2, 8), (2**32 - 1, 8)])
def test_extras_that_are_claimed_and_not_there_are_damage(count: int, room: int) -> None:
    section = struct.pack("<QQIIII", 1, 0, count, 0, room, 2) + bytes(room)
    meta = codec.encode_meta(events.StreamAppended(1))
    with pytest.raises(BadFrame, match="extras"):
        decode(forged(KINDS[events.StreamAppended], meta, section, sections=1))


@pytest.mark.parametrize("meta", [b"", b"\xc1", b"\x91", b"\x91\xa1x", b"\x91\x01\x01", b"\x90"])
def test_a_meta_that_does_not_decode_is_damage(meta: bytes) -> None:
    with pytest.raises(BadFrame, match="meta"):
        decode(forged(KINDS[events.StreamDeleted], meta))


def test_a_name_that_is_no_utf_8_is_damage() -> None:
    with pytest.raises(BadFrame):
        decode(forged(KINDS[events.ProducerForgotten], b"\x92\x01\xa1\xff"))


def test_a_meta_that_reaches_past_the_frame_is_damage() -> None:
    claims_two = forged(KINDS[events.StreamDeleted], b"", meta_bytes=2)
    with pytest.raises(BadFrame):
        decode(claims_two + b"\x91\x05")


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        bytes(SECTION_BYTES - 8),
        struct.pack("<QQIIII", 1, 0, 1, 9, 0, 0),
        struct.pack("<QQIIII", 1, 0, 1, 0, 2**32 - 1, 0),
    ],
    ids=["absent", "cut", "payload-past-the-end", "lengths-past-the-end"],
)
def test_a_section_that_reaches_past_the_frame_is_damage(tail: bytes) -> None:
    meta = codec.encode_meta(events.StreamAppended(1))
    with pytest.raises(BadFrame, match="section"):
        decode(forged(KINDS[events.StreamAppended], meta, tail, sections=1) + bytes(64))


def test_the_length_of_a_header_is_read_without_trusting_it() -> None:
    data = encode(CASES[0])
    assert peek_length(data, 0) == len(data)
    assert peek_length(data[:47], 0) is None
    assert peek_length(data, 8) is None
    for absurd in (0, 40, 49, 52):
        changed = bytearray(data)
        struct.pack_into("<I", changed, 12, absurd)
        assert peek_length(bytes(changed), 0) is None
