"""Verification of tokens and owners in a checkpoint: planted damage is found and reported."""

import re

import msgspec
import pytest
from msgspec.structs import replace

from semel.journal.frame import encode_meta
from semel.journal.verify import verify
from semel.machine.access_events import TokensRevoked
from semel.machine.rows import OWNED_KINDS, OWNER_KEY, OwnedKey, OwnerRow, TokenRow
from semel.model.access_commands import ChangeOwner, CreateToken, NoteTokenUses, RevokeToken
from semel.model.commands import TXN_STAGED, Commit, EngineCommand, ProducerTag, SinkTag
from semel.model.outcomes import Refusal
from semel.model.rights import (
    ALL_RIGHTS,
    PRODUCER,
    READ,
    SINK,
    STREAM,
    SUBSCRIPTION,
    TRANSACTION,
    Scope,
)
from semel.model.sink_commands import ForgetSink
from semel.model.subscription_commands import WEBHOOK, CreateSubscription
from tests.unit.broker.test_transactions import TxnBed
from tests.unit.journal.test_verify_txns import Plant, damaged_rows, planted

encode = msgspec.msgpack.encode
ROOT_ID, CHILD_ID = "0123456789ab", "zyxwvutsrqpo"
TOKEN = TokenRow(bytes(32), "till", ALL_RIGHTS, 1)
IN_S: OwnedKey = (PRODUCER, 1, "p")
THINGS: tuple[OwnedKey, ...] = (
    IN_S,
    (PRODUCER, 0, "p"),
    (TRANSACTION, 0, "t"),
    (SINK, 0, "app"),
    (SUBSCRIPTION, 0, "sub"),
)


def rich_bed() -> TxnBed:
    """Return a bed with a checkpoint of two tokens, one of them revoked, and five owners."""
    bed = TxnBed()
    appended = replace(bed.append(), producer=ProducerTag("p", 0, 0, 0))
    bed.begin(kind=TXN_STAGED)  # this also registers p
    commands: list[EngineCommand] = [
        appended,
        Commit(bed.now_ms, sink=SinkTag("app", "query", 1)),
        CreateSubscription(bed.now_ms, "sub", WEBHOOK, streams=("s",), url="https://example.com"),
        CreateToken(bed.now_ms, ROOT_ID, bytes(32), "admin", ALL_RIGHTS),
        CreateToken(
            bed.now_ms,
            CHILD_ID,
            bytes(32),
            "till",
            (Scope(STREAM, "é/", True, (READ,)),),
            expires_ms=bed.now_ms + 5,
            description="é",
            issuer=ROOT_ID,
        ),
        RevokeToken(bed.now_ms, CHILD_ID),
        NoteTokenUses(bed.now_ms, ((ROOT_ID, bed.now_ms),)),
        *(
            ChangeOwner(bed.now_ms, kind, name, "s" if number else None, "till")
            for kind, number, name in THINGS
        ),
    ]
    for command in commands:
        assert not isinstance(bed.execute(command), Refusal), command
    bed.checkpoint()
    return bed


def stored_token(row: TokenRow, key: bytes = b"AAAAAAAAAAAA") -> Plant:
    return lambda tables: tables.put("tokens", key, encode(row))


def stored_owner(key: bytes, principal: str = "till") -> Plant:
    return lambda tables: tables.put("owners", key, encode(OwnerRow(principal)))


def owner_key(key: OwnedKey) -> bytes:
    return OWNER_KEY.encode(key)


def test_tokens_and_owners_are_sound() -> None:
    bed = rich_bed()
    assert bed.broker.state.owners.keys() == set(THINGS)
    report = verify(bed.disk, bed.store)
    assert (report.is_sound, report.findings) == (True, [])


def test_tokens_and_owners_are_loaded_from_the_checkpoint_and_from_frames() -> None:
    bed = rich_bed()
    bed.execute(RevokeToken(bed.now_ms + 5, ROOT_ID))
    bed.execute(ChangeOwner(bed.now_ms, SINK, "app", owner="other"))
    before = dict(bed.broker.state.tokens), dict(bed.broker.state.owners)
    bed.restart()
    assert (bed.broker.state.tokens, bed.broker.state.owners) == before
    assert before[1][SINK, 0, "app"] == "other"
    assert all(row.revoked_ms is not None for row in before[0].values())
    bed.checkpoint()
    bed.restart()
    assert (bed.broker.state.tokens, bed.broker.state.owners) == before


def test_an_owner_that_was_dropped_is_gone_from_the_checkpoint() -> None:
    bed = rich_bed()
    bed.execute(ForgetSink(bed.now_ms, "app"))
    bed.checkpoint()
    with bed.store.read() as view:
        assert view.get("owners", owner_key((SINK, 0, "app"))) is None
        assert view.get("owners", owner_key(IN_S)) is not None
    assert verify(bed.disk, bed.store).is_sound


CASES: list[tuple[str, Plant]] = [
    ("the key is not an id of 12 characters", stored_token(TOKEN, b"short")),
    ("the key is not an id of 12 characters", stored_token(TOKEN, "éééééé".encode())),
    ("the field `hash` of the token is invalid", stored_token(replace(TOKEN, hash=bytes(31)))),
    ("the field `principal` of the token", stored_token(replace(TOKEN, principal=""))),
    ("the field `scopes` of the token", stored_token(replace(TOKEN, scopes=()))),
    (
        "the field `scopes` of the token",
        stored_token(replace(TOKEN, scopes=(Scope("door", "a", False, (READ,)),))),
    ),
    ("the field `expires_at` of the token", stored_token(replace(TOKEN, expires_ms=-1))),
    ("the field `description` of the token", stored_token(replace(TOKEN, description="\n"))),
    ("the field `issuer` of the token", stored_token(replace(TOKEN, issuer="x" * 13))),
    ("the token has an invalid issuer", stored_token(replace(TOKEN, issuer="short"))),
    ("the token has an invalid issuer", stored_token(replace(TOKEN, issuer="A" * 12))),
    ("the token has an invalid time", stored_token(replace(TOKEN, created_ms=-1))),
    ("the token has an invalid time", stored_token(replace(TOKEN, used_ms=-1))),
    ("revoked before it was made", stored_token(replace(TOKEN, revoked_ms=0))),
    ("cannot be decoded", lambda tables: tables.put("tokens", b"A" * 12, encode(1))),
    ("cannot be decoded", lambda tables: tables.put("owners", owner_key(IN_S), encode(1))),
    ("the owner is not a principal", stored_owner(owner_key(IN_S), "")),
    ("the key does not name a thing", stored_owner(b"x" + bytes(8) + b"p")),
    ("the key does not name a thing", stored_owner(b"p" + bytes(5))),
    ("the key does not name a thing", stored_owner(b"p" + bytes(8) + b"\xff")),
    ("the key does not name a thing", stored_owner(b"p" + bytes(8))),
    ("the key does not name a thing", stored_owner(owner_key((SINK, 1, "app")))),
    ("a producer that does not exist: q", stored_owner(owner_key((PRODUCER, 1, "q")))),
    ("a producer that does not exist: p", stored_owner(owner_key((PRODUCER, 77, "p")))),
    ("a producer that does not exist: q", stored_owner(owner_key((PRODUCER, 0, "q")))),
    ("a transaction that does not exist: x", stored_owner(owner_key((TRANSACTION, 0, "x")))),
    ("a sink that does not exist: other", stored_owner(owner_key((SINK, 0, "other")))),
    ("a sink that does not exist: app", lambda tables: tables.delete("sinks", b"app")),
]


@pytest.mark.parametrize(("message", "plant"), CASES)
def test_planted_damage_is_found(message: str, plant: Plant) -> None:
    findings = planted(rich_bed(), plant)
    assert len(findings) == 1, findings
    assert message in findings[0]
    assert re.match(r"table (tokens|owners), row [0-9a-f]+: ", findings[0])


@pytest.mark.parametrize("table", ["tokens", "owners"])
def test_a_damaged_or_missing_row_is_found(table: str) -> None:
    for findings in damaged_rows(rich_bed, table):
        assert len(findings) == 1, findings
        assert findings[0].startswith(f"table {table}")


def test_every_kind_that_can_have_an_owner_is_among_the_things() -> None:
    assert {kind for kind, _, _ in THINGS} == set(OWNED_KINDS)


def test_a_revocation_of_all_tokens_is_one_frame_that_fits_into_a_segment() -> None:
    ids = tuple(f"{number:012}" for number in range(10_000))
    assert len(encode_meta(TokensRevoked(ids))) < 256 * 1024
