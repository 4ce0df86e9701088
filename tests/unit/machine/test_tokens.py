"""Tokens and owners in the state: what changes them, and that owners go with their things."""

from unittest.mock import patch

import msgspec
import pytest
from msgspec.structs import replace

from semel.machine import tokens
from semel.machine.access_events import OwnersChanged, TokenCreated, TokensRevoked, TokensUsed
from semel.machine.decide import decide
from semel.machine.rows import OutcomeRow, OwnedKey, TokenRow
from semel.machine.state import STATE_TABLES, set_owner
from semel.machine.tokens import exists, is_valid, owned_key
from semel.model.access_commands import ChangeOwner, CreateToken, NoteTokenUses, RevokeToken
from semel.model.commands import (
    Delete,
    EngineCommand,
    ForgetProducer,
    ProducerOwner,
    Register,
    SinkTag,
    SwitchDedup,
    TxnOutcome,
    TxnResult,
)
from semel.model.outcomes import InvalidRequest, LimitReached, Refusal
from semel.model.outcomes_access import (
    OwnerSet,
    TokenEnded,
    TokenStored,
    UnknownThing,
    UnknownToken,
    UsesNoted,
)
from semel.model.policies import SetPolicy
from semel.model.producer_commands import (
    DropTombstones,
    ExpireRegistration,
    RetiredProducer,
    RetireProducers,
    Tombstone,
)
from semel.model.rights import ALL_RIGHTS, PRODUCER, SINK, TRANSACTION
from semel.model.sink_commands import ForgetSink
from tests.unit.machine.builders import (
    Machine,
    append,
    bury,
    create,
    dense,
    fork,
    hours,
    machine_of,
    reloaded,
    rows_of,
    unchanged,
)
from tests.unit.machine.txn_builders import (
    TxnMachine,
    abort,
    begin,
    by,
    commit,
    one_shot,
    prepare,
    publish,
    sunk,
    txn_machine,
)

HASH = bytes(range(32))
SINK_TAG = SinkTag("app", "query", 1)


def token_id(number: int) -> str:
    return f"{number:012}"


def token(
    number: int = 1,
    *,
    now: int = 0,
    expires: int | None = None,
    issuer: int | None = None,
    principal: str = "till",
) -> CreateToken:
    made_with = "" if issuer is None else token_id(issuer)
    return CreateToken(
        now, token_id(number), HASH, principal, ALL_RIGHTS, expires, "of a test", made_with
    )


def revoke(number: int = 1, *, now: int = 0, children: bool = False) -> RevokeToken:
    return RevokeToken(now, token_id(number), children)


def live(machine: Machine, now_ms: int = 0) -> list[int]:
    return [int(name) for name, row in machine.state.tokens.items() if is_valid(row, now_ms)]


def same_after_reload(machine: Machine) -> bool:
    """Return True if a checkpoint of all rows and a replay of all frames both give this state."""
    replayed = TxnMachine(machine.state.limits)
    for written in machine.journal:
        replayed.replay(written)
    assert rows_of(replayed.state) == rows_of(machine.state)
    return rows_of(reloaded(machine.state)) == rows_of(machine.state)


# ---- tokens --------------------------------------------------------------------------------------


# T1, T2
def test_a_token_is_stored_with_the_hash_of_its_secret_and_all_its_fields() -> None:
    machine = Machine()
    assert machine.execute(token(1, now=5, expires=9, issuer=7)) == TokenStored(token_id(1))
    row = TokenRow(HASH, "till", ALL_RIGHTS, 5, 9, "of a test", token_id(7))
    assert machine.journal[-1].event == TokenCreated(token_id(1), row)
    assert machine.state.tokens == {token_id(1): row}
    assert machine.state.dirty.tokens == {token_id(1): row}
    assert (row.revoked_ms, row.used_ms) == (None, 0)
    assert same_after_reload(machine)


def test_the_time_of_a_token_is_that_of_its_frame() -> None:
    machine = machine_of(create(now=100), token(1, now=7))
    assert machine.state.tokens[token_id(1)].created_ms == 100
    assert machine.execute(revoke(1, now=8)) == TokenEnded(token_id(1), 100, 1)
    assert machine.state.tokens[token_id(1)].revoked_ms == 100


# T2
def test_a_token_is_not_changed_by_another_with_its_id() -> None:
    machine = machine_of(token(1))
    assert unchanged(machine, token(1, principal="other")) == InvalidRequest("id")


def test_an_invalid_token_is_refused() -> None:
    assert unchanged(Machine(), replace(token(), hash=b"short")) == InvalidRequest("hash")


# T3
@pytest.mark.parametrize(
    ("row", "now_ms", "expected"),
    [
        (None, 0, False),
        (TokenRow(HASH, "p", (), 0), 2**53, True),
        (TokenRow(HASH, "p", (), 0, expires_ms=10), 9, True),
        (TokenRow(HASH, "p", (), 0, expires_ms=10), 10, False),
        (TokenRow(HASH, "p", (), 0, revoked_ms=5), 0, False),
        (TokenRow(HASH, "p", (), 0, expires_ms=10, revoked_ms=5), 1, False),
    ],
)
def test_a_token_is_valid_until_it_is_revoked_or_expires(
    row: TokenRow | None, now_ms: int, expected: bool
) -> None:
    assert is_valid(row, now_ms) is expected


# T6
def test_a_revoked_token_stays_revoked_since_the_first_revocation() -> None:
    machine = machine_of(token(1), token(2))
    assert machine.execute(revoke(1, now=5)) == TokenEnded(token_id(1), 5, 1)
    assert machine.journal[-1].event == TokensRevoked((token_id(1),))
    assert unchanged(machine, revoke(1, now=9)) == TokenEnded(token_id(1), 5, 0)
    assert live(machine) == [2]
    assert same_after_reload(machine)


def test_an_unknown_token_is_not_revoked() -> None:
    assert unchanged(machine_of(token(1)), revoke(2)) == UnknownToken()
    assert unchanged(machine_of(token(1)), RevokeToken(0, "")) == InvalidRequest("id")


# T6
def test_a_revocation_with_children_ends_all_that_were_made_with_it_in_one_frame() -> None:
    machine = machine_of(
        token(1), token(2, issuer=1), token(3, issuer=2), token(4, issuer=1), token(5), token(6)
    )
    machine.execute(token(7, issuer=6))
    machine.execute(revoke(2))
    before = len(machine.journal)
    assert machine.execute(revoke(1, now=9, children=True)) == TokenEnded(token_id(1), 9, 3)
    assert len(machine.journal) == before + 1
    event = machine.journal[-1].event
    assert isinstance(event, TokensRevoked)
    assert sorted(event.ids) == [token_id(1), token_id(3), token_id(4)]
    assert live(machine) == [5, 6, 7]
    assert unchanged(machine, revoke(1, children=True)) == TokenEnded(token_id(1), 9, 0)


def test_without_children_only_the_token_itself_is_revoked() -> None:
    machine = machine_of(token(1), token(2, issuer=1))
    assert machine.execute(revoke(1)) == TokenEnded(token_id(1), 0, 1)
    assert live(machine) == [2]
    assert machine.execute(revoke(1, now=4, children=True)) == TokenEnded(token_id(1), 0, 1)
    assert live(machine) == []


# T7
def test_every_change_of_tokens_changes_the_version_with_which_callers_are_compared() -> None:
    machine = Machine()
    versions = [machine.state.access_version]
    for command in (token(1), token(2), revoke(1)):
        machine.execute(command)
        versions.append(machine.state.access_version)
    assert versions == sorted(set(versions))
    machine.execute(NoteTokenUses(0, ((token_id(2), 5),)))
    assert machine.state.access_version == versions[-1]


# T8
def test_a_full_table_replaces_the_oldest_token_that_is_not_valid() -> None:
    machine = machine_of(
        token(1, now=1), token(2, now=2), token(3, now=3, expires=50), token(4, now=4)
    )
    machine.execute(revoke(4, now=5))
    with patch.object(tokens, "TOKENS_MAX", 4):
        assert machine.execute(token(5, now=60)) == TokenStored(token_id(5))
        event = machine.journal[-1].event
        assert isinstance(event, TokenCreated)
        assert event.replaced == (token_id(3),)
        assert machine.state.dirty.tokens[token_id(3)] is None
        assert machine.execute(token(6, now=61)) == TokenStored(token_id(6))
        assert set(machine.state.tokens) == {token_id(n) for n in (1, 2, 5, 6)}
        assert unchanged(machine, token(7, now=62)) == LimitReached("tokens", 4)
    assert same_after_reload(machine)


# T6, T8
def test_the_children_of_a_replaced_token_are_revoked_with_its_issuer() -> None:
    machine = machine_of(
        token(1), token(2, issuer=1), token(3, issuer=2), token(4, issuer=2), token(5)
    )
    machine.execute(revoke(2))
    machine.state.take_dirty()
    with patch.object(tokens, "TOKENS_MAX", 5):
        machine.execute(token(6))
    assert token_id(2) not in machine.state.tokens
    issuers = {int(name): row.issuer for name, row in machine.state.tokens.items()}
    assert issuers == {1: "", 3: token_id(1), 4: token_id(1), 5: "", 6: ""}
    assert set(machine.state.dirty.tokens) == {token_id(n) for n in (2, 3, 4, 6)}
    assert same_after_reload(machine)
    machine.execute(revoke(1, children=True))
    assert live(machine) == [5, 6]


def test_tokens_that_were_created_at_the_same_time_are_replaced_in_the_order_of_their_ids() -> None:
    machine = machine_of(token(2, expires=1), token(1, expires=1))
    with patch.object(tokens, "TOKENS_MAX", 2):
        machine.execute(token(3, now=5))
    assert set(machine.state.tokens) == {token_id(2), token_id(3)}


def test_the_limit_of_tokens_is_ten_thousand() -> None:
    machine = machine_of(*[token(number) for number in range(10_000)])
    assert unchanged(machine, token(10_000)) == LimitReached("tokens", 10_000)


def test_only_a_new_token_needs_space_on_a_full_disk() -> None:
    machine = machine_of(token(1))
    assert decide(machine.state, token(2)).grows
    assert not decide(machine.state, revoke(1)).grows
    assert not decide(machine.state, NoteTokenUses(0, ((token_id(1), 5),))).grows


# T10
def test_the_last_use_is_stored_and_never_goes_back() -> None:
    machine = machine_of(token(1), token(2), token(3))
    uses = ((token_id(1), 50), (token_id(2), 70), (token_id(9), 80))
    assert machine.execute(NoteTokenUses(90, uses)) == UsesNoted()
    assert machine.journal[-1].event == TokensUsed(uses[:2])
    older = NoteTokenUses(91, ((token_id(1), 50), (token_id(2), 69)))
    assert unchanged(machine, older) == UsesNoted()
    assert [row.used_ms for row in machine.state.tokens.values()] == [50, 70, 0]
    assert live(machine) == [1, 2, 3]
    assert same_after_reload(machine)


# ---- owners --------------------------------------------------------------------------------------


def own(machine: Machine, *keys: OwnedKey, owner: str = "till") -> None:
    """Store an owner of things that exist."""
    for key in keys:
        assert exists(machine.state, key), key
        set_owner(machine.state, key, owner)
    machine.state.take_dirty()


def dropped(machine: Machine, *commands: EngineCommand) -> list[OwnedKey]:
    """Execute commands. Return the things that lost their owner, which must no longer exist."""
    before = dict(machine.state.owners)
    for command in commands:
        outcome = machine.execute(command)
        assert not isinstance(outcome, Refusal), (command, outcome)
    lost = [key for key in before if key not in machine.state.owners]
    assert {key: machine.state.dirty.owners[key] for key in lost} == dict.fromkeys(lost)
    assert not any(exists(machine.state, key) for key in lost)
    assert all(exists(machine.state, key) for key in machine.state.owners)
    assert rows_of(reloaded(machine.state)) == rows_of(machine.state)
    return lost


IN_S, IN_R, REGISTERED = (PRODUCER, 1, "p"), (PRODUCER, 2, "p"), (PRODUCER, 0, "p")
OTHER_IN_S = (PRODUCER, 1, "q")


def producers() -> Machine:
    """Return a machine in which the producers p and q in s, p in r and the registered p are owned.

    The registration has no owner of its own in a stream, and the streams have different numbers.
    """
    machine = machine_of(
        create(),
        create("r"),
        Register(0, "p"),
        append(by=dense(0)),
        append(by=dense(0, name="q")),
        append(path="r", by=dense(0)),
    )
    own(machine, IN_S, IN_R, OTHER_IN_S, REGISTERED)
    return machine


# O5
def test_an_owner_goes_with_a_forgotten_producer() -> None:
    assert dropped(producers(), ForgetProducer("s", 0, "p")) == [IN_S]


# O5
def test_an_owner_stays_with_a_tombstone_and_goes_with_it() -> None:
    machine = producers()
    assert dropped(machine, bury()) == []
    drop = DropTombstones(0, (Tombstone(1, "p"),), hours=0)
    assert dropped(machine, *hours(2), drop) == [IN_S]


# O5
def test_owners_go_when_duplicates_are_no_longer_recognised() -> None:
    assert dropped(producers(), SwitchDedup("s", 0, False)) == [IN_S, OTHER_IN_S]


# O5
def test_owners_go_with_the_append_that_a_policy_switches_off() -> None:
    machine = producers()
    assert dropped(machine, SetPolicy(0, "s", False)) == []
    assert dropped(machine, append()) == [IN_S, OTHER_IN_S]


# O5
@pytest.mark.parametrize("is_forked", [False, True])
def test_owners_go_with_a_deleted_stream(is_forked: bool) -> None:
    machine = producers()
    if is_forked:  # then the stream is only soft-deleted
        machine.execute(fork())
    assert dropped(machine, Delete("s", 0)) == [IN_S, OTHER_IN_S]


# O5
def test_an_owner_goes_with_a_registration() -> None:
    machine = machine_of(Register(0, "p", expires_ms=60_000), Register(0))
    assigned = (PRODUCER, 0, "1")
    own(machine, REGISTERED, assigned)
    retire = RetireProducers(0, (RetiredProducer("1", epoch=0),))
    assert dropped(machine, retire) == [assigned]
    assert dropped(machine, ExpireRegistration(0, "p", 60_000)) == []
    drop = DropTombstones(0, (Tombstone(0, "p"),), hours=0)
    assert dropped(machine, *hours(400), drop) == [REGISTERED]


# O5
def test_an_owner_goes_with_a_forgotten_sink() -> None:
    machine = txn_machine(one_shot(sink=SINK_TAG))
    key = (SINK, 0, "app")
    own(machine, key)
    assert dropped(machine, ForgetSink(0, "app")) == [key]


# O5
@pytest.mark.parametrize("end", [commit(), abort()])
def test_the_owner_of_a_transaction_goes_into_its_outcome(end: EngineCommand) -> None:
    machine = txn_machine(begin(), begin("u", by("q")), publish())
    key = (TRANSACTION, 0, "t")
    own(machine, key)
    assert dropped(machine, end, commit("u")) == [key]
    assert machine.outcomes["t", 1].principal == "till"
    assert machine.outcomes["u", 1].principal is None


def test_the_owner_of_a_staged_transaction_goes_into_the_outcome_that_a_commit_gives_it() -> None:
    machine = txn_machine(begin("t", sunk(), kind="staged"), prepare())
    own(machine, (TRANSACTION, 0, "t"))
    assert dropped(machine, one_shot(sink=SINK_TAG, listed=(("t", 1),))) == [(TRANSACTION, 0, "t")]
    assert machine.outcomes["t", 1].principal == "till"


def test_an_outcome_of_an_older_version_has_no_owner() -> None:
    outcome = TxnOutcome("t", 1, "committed", "", 0, TxnResult((), ()))
    row = OutcomeRow(1, 0, ProducerOwner("p", 0), outcome, 3, "till")
    elements = msgspec.msgpack.decode(msgspec.msgpack.encode(row))
    assert elements.pop() == "till"
    older = msgspec.msgpack.encode(elements)
    assert msgspec.msgpack.decode(older, type=OutcomeRow) == replace(row, principal=None)


# ---- changes of owners ---------------------------------------------------------------------------


# O6
def test_a_thing_gets_another_owner_or_none() -> None:
    machine = producers()
    change = ChangeOwner(0, PRODUCER, "p", "s", "other")
    assert machine.execute(change) == OwnerSet("other", "till")
    assert machine.journal[-1].event == OwnersChanged("other", (IN_S,))
    assert unchanged(machine, change) == OwnerSet("other", "other")
    assert machine.state.owners[IN_S] == "other"
    assert machine.state.owners[REGISTERED] == machine.state.owners[IN_R] == "till"
    nobody = replace(change, owner=None)
    assert machine.execute(nobody) == OwnerSet(None, "other")
    assert unchanged(machine, nobody) == OwnerSet(None, None)
    assert machine.state.owners.keys() == {IN_R, OTHER_IN_S, REGISTERED}
    assert machine.state.dirty.owners == {IN_S: None}
    assert rows_of(reloaded(machine.state)) == rows_of(machine.state)


# O6
@pytest.mark.parametrize(
    ("change", "key"),
    [
        (ChangeOwner(0, PRODUCER, "p", owner="a"), REGISTERED),
        (ChangeOwner(0, TRANSACTION, "t", owner="a"), (TRANSACTION, 0, "t")),
        (ChangeOwner(0, SINK, "app", owner="a"), (SINK, 0, "app")),
    ],
)
def test_every_kind_of_thing_can_get_an_owner(change: ChangeOwner, key: OwnedKey) -> None:
    machine = txn_machine(Register(0, "p"), begin(), one_shot(sink=SINK_TAG))
    assert machine.execute(change) == OwnerSet("a", None)
    assert machine.state.owners == {key: "a"}
    assert same_after_reload(machine)


@pytest.mark.parametrize(
    "change",
    [
        ChangeOwner(0, PRODUCER, "p", "missing", "a"),
        ChangeOwner(0, PRODUCER, "x", "s", "a"),
        ChangeOwner(0, PRODUCER, "q", owner="a"),
        ChangeOwner(0, TRANSACTION, "p", owner="a"),
        ChangeOwner(0, SINK, "p", owner="a"),
    ],
)
def test_what_does_not_exist_gets_no_owner(change: ChangeOwner) -> None:
    assert unchanged(producers(), change) == UnknownThing()


def test_the_key_of_a_producer_in_a_missing_stream_is_that_of_nothing() -> None:
    machine = producers()
    key = owned_key(machine.state, ChangeOwner(0, PRODUCER, "p", "missing"))
    assert key == (PRODUCER, -1, "p")
    assert not exists(machine.state, key)


def test_an_owner_is_stored_under_the_key_that_the_checkpoint_reads() -> None:
    codec = STATE_TABLES["owners"].key
    for key in (IN_S, REGISTERED, (TRANSACTION, 0, "é"), (SINK, 0, "app")):
        assert codec.decode(codec.encode(key)) == key
