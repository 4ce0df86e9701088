"""The guard of the broker: rights and owners of commands, and the records of the audit.

The audit is the stream `__semel/audit`. Each of its messages is a JSON object (see `AuditRecord`).
Only the newest AUDIT_RECORDS_MAX messages are retained. With at most AUDIT_RECORD_BYTES_MAX bytes
for each, the stream never needs more than 64 MiB, so that nobody can fill the disk with it.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from semel.broker.lookups import Lookups
from semel.machine import Decision, State
from semel.machine.access import decide_owners, may_take, refuse
from semel.machine.append import decide_append
from semel.machine.groups import shared_streams_max
from semel.machine.needs import refuse_reserved
from semel.machine.streams import decide_trim
from semel.machine.subscriptions import MATCHED_MAX
from semel.model.access_commands import ChangeOwner, CreateToken, RevokeToken
from semel.model.commands import (
    Append,
    Batch,
    Create,
    EngineCommand,
    FenceTxn,
    ForgetProducer,
    SwitchDedup,
    Trim,
    TxnCall,
)
from semel.model.errors import ReadFailed
from semel.model.group_commands import JoinGroup
from semel.model.limits import KIB, MIB
from semel.model.outcomes import Outcome, Refusal
from semel.model.policies import DeletePolicy, SetPolicy
from semel.model.rights import ADMIN, CLUSTER, RESERVED, TRANSACTION, Caller, Scope, print_scope
from semel.model.sink_commands import ForgetSink, RebindSink
from semel.model.steps import Steps
from semel.model.subscription_commands import (
    CreateSubscription,
    DeleteSubscription,
    ResumeSubscription,
)
from semel.model.validation import find_invalid_field

Reply = Callable[[Outcome], None]
AUDIT: Final = f"{RESERVED}audit"
AUDIT_TYPE: Final = "application/json"
AUDIT_BYTES_MAX: Final = 64 * MIB
AUDIT_RECORD_BYTES_MAX: Final = 1 * KIB
AUDIT_RECORDS_MAX: Final = AUDIT_BYTES_MAX // AUDIT_RECORD_BYTES_MAX
_SCOPES_TEXT_MAX: Final = 100
_LATE_MAX: Final = 1_024  # how many records wait until the journal has room
_TRIM_RECORDS: Final = 1_024  # how many records are trimmed at once
_WORD: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
_TEXT_MAX: Final = 120  # characters of a name in a record; longer names are cut
_SHORT_TEXT_MAX: Final = 40  # ASCII characters of each text, if the record would be too long
# The longest frame that stores owners: a command has at most two things that get one, and each name
# and the principal have at most 256 bytes.
_OWNERS_FRAME_BYTES_MAX: Final = 1 * KIB


def ignore(_outcome: Outcome) -> None:
    """Receive the outcome of a command that no client has sent."""


class AuditRecord(Struct, frozen=True, omit_defaults=True):
    """One record of the audit: who did what, by which address of the API, and the outcome.

    `right` is the right that was missing, if the outcome is `forbidden`. `count` is how many equal
    refusals the record covers. There are no payloads and no secrets.
    """

    time_ms: int
    action: str
    outcome: str
    principal: str = ""
    token: str = ""  # the public id
    address: str = ""
    route: str = ""
    target: str = ""
    right: str = ""
    detail: str = ""
    count: int = 1


def encode_record(record: AuditRecord) -> bytes:
    """Return a record as JSON with at most AUDIT_RECORD_BYTES_MAX bytes. Long texts are cut."""
    texts = {
        name: value if len(value) <= _TEXT_MAX else f"{value[: _TEXT_MAX - 1]}…"
        for name, value in msgspec.structs.asdict(record).items()
        if isinstance(value, str)
    }
    encoded = msgspec.json.encode(msgspec.structs.replace(record, **texts))
    if len(encoded) <= AUDIT_RECORD_BYTES_MAX:
        return encoded
    ascii_texts = {name: ascii(value)[1:-1][:_SHORT_TEXT_MAX] for name, value in texts.items()}
    return msgspec.json.encode(msgspec.structs.replace(record, **ascii_texts))


class Guard:
    """Checks the commands of callers, stores owners, and makes the records of the audit.

    `commit` is that of the broker: its last argument is how many bytes must have room after the
    frame. `end` returns the LSN at which the journal ends.
    """

    def __init__(
        self,
        state: State,
        lookups: Lookups,
        commit: Callable[[Decision, int, Reply, int], bool],
        end: Callable[[], int],
    ) -> None:
        self._state = state
        self._lookups = lookups
        self._commit = commit
        self._end = end
        self.on_refusal: Callable[[Caller, Refusal], None] = lambda _caller, _refusal: None
        self._late: list[bytes] = []
        # The command whose record is stored, while the command itself has to wait.
        self._recorded: EngineCommand | None = None

    def commit(
        self, caller: Caller, command: EngineCommand, decision: Decision, reply: Reply
    ) -> bool:
        """Do what `Broker._commit` does, with an audit record before and owners after the event.

        All are in one write group, so the reply waits for all of them (O7). Return False if the
        command has to wait.
        """
        now_ms = command.now_ms
        if decision.event is None:
            is_stored = self._store_owners(caller, command, decision)
            return is_stored and self._commit(decision, now_ms, reply, 0)
        record = self._record(command, caller, decision)
        if record is not None:
            if not self._commit(record, now_ms, ignore, 0):
                return False
            self._recorded = command
        end, more = self._end(), _OWNERS_FRAME_BYTES_MAX if may_take(command) else 0
        if not self._commit(decision, now_ms, reply, more):
            return False
        self._recorded = None
        if self._end() != end:  # otherwise the disk is full, or the frame is too large
            self._store_owners(caller, command, decision)
        return True

    def _store_owners(self, caller: Caller, command: EngineCommand, decision: Decision) -> bool:
        """Store the caller as owner of what a command has used first (O2).

        Return False if the journal has no room yet. On a full disk, no owner is stored.
        """
        owners = decide_owners(self._state, command, caller, decision.outcome)
        return owners is None or self._commit(owners, command.now_ms, ignore, 0)

    def refuse(self, command: EngineCommand, caller: Caller) -> Refusal | None:
        """Return the refusal if a caller may not execute a command. Raises ReadFailed."""
        ended = self._lookups.ended_owners(command)
        refusal = refuse(self._state, command, caller, ended) or refuse_reserved(command)
        if refusal is not None:
            self.on_refusal(caller, refusal)
        return refusal

    def search_steps(self, command: EngineCommand, caller: Caller | None) -> Steps[None] | None:
        """Return the steps that find the streams which the patterns of a command match.

        Return None if it has no patterns, if their streams are known, or if it will be refused.
        """
        state = self._state
        patterns, count_max = _searched_by(state, command)
        if not patterns or find_invalid_field(command) or not state.patterns.must_search(patterns):
            return None
        if caller is not None and refuse(state, command, caller, {}) is not None:
            return None
        return state.patterns.search_steps(patterns, count_max)

    def is_owner(self, caller: Caller, kind: str, name: str) -> bool:
        """Return True if a caller owns a registration, a transaction id or a sink."""
        try:
            return self.owner_of(kind, name) == caller.principal
        except ReadFailed:
            return False

    def owner_of(self, kind: str, name: str, number: int = 0) -> str | None:
        """Return the owner of a thing, or None. Raises ReadFailed.

        `number` is that of the stream in which a producer is, and 0 for a registration and for
        other things. The owner of a transaction id that is not pending is that of its newest
        retained outcome.
        """
        if kind == TRANSACTION and name not in self._state.transactions:
            return self._lookups.last_owner(name)
        return self._state.owners.get((kind, number, name))

    def _record(
        self, command: EngineCommand, caller: Caller, decision: Decision
    ) -> Decision | None:
        """Return the decision that stores the audit record of a command, or None if it has none.

        The record is stored before the event of the command. So if a crash separates the two, there
        is a record of something that was not done, and never the other way round.
        """
        if self._recorded is command or AUDIT not in self._state.by_path:
            return None
        described = describe(command)
        if described is None:
            return None
        action, target, detail = described
        record = AuditRecord(
            command.now_ms,
            action,
            decision.outcome.code,
            principal=caller.principal,
            token=caller.token or "",
            address=caller.address,
            route=caller.route,
            target=target,
            detail=detail,
        )
        return msgspec.structs.replace(
            decide_append(self._state, _append(encode_record(record), 1, command.now_ms)),
            grows=decision.grows,  # as the command: a token can be revoked on a full disk
        )

    def audit(self, records: list[bytes], now_ms: int) -> None:
        """Append encoded records to the audit, and drop its oldest records.

        If the journal has no room yet, the next call appends them. On a full disk, they are lost.
        """
        stream = self._state.by_path.get(AUDIT)
        if stream is None:
            return
        records, self._late = self._late + records, []
        if records:
            payload, sizes = b",".join(records), tuple(map(len, records))
            append = _append(payload, len(records), now_ms, sizes)
            if not self._commit(decide_append(self._state, append), now_ms, ignore, 0):
                self._late = records[-_LATE_MAX:]
        before = stream.tail.tail - AUDIT_RECORDS_MAX
        if before - stream.tail.head >= _TRIM_RECORDS:
            trim = Trim(AUDIT, now_ms, before)
            self._commit(decide_trim(self._state, stream, trim), now_ms, ignore, 0)


def _searched_by(state: State, command: EngineCommand) -> tuple[tuple[str, ...], int]:
    """Return the patterns of a command, and how many streams each may match."""
    if isinstance(command, JoinGroup):
        return command.patterns, shared_streams_max(state)
    if isinstance(command, CreateSubscription) and command.pattern is not None:
        is_new = command.id not in state.subscriptions.by_id
        return (command.pattern,) if is_new else (), MATCHED_MAX
    return (), 0


def create_audit(now_ms: int, incarnation: str) -> Create:
    """Return the command that creates the audit stream."""
    return Create(AUDIT, now_ms, incarnation, AUDIT_TYPE, dedup=False)


def _append(payload: bytes, count: int, now_ms: int, sizes: tuple[int, ...] = ()) -> Append:
    lengths = b"" if count == 1 else b"".join(size.to_bytes(4, "little") for size in sizes)
    return Append(AUDIT, now_ms, AUDIT_TYPE, Batch(payload, count, lengths))


def describe(command: EngineCommand) -> tuple[str, str, str] | None:
    """Return the action, the target and a detail of an audited command, or None for the others."""
    if isinstance(command, TxnCall):
        if not command.by_operator and not isinstance(command, FenceTxn):
            return None
        name = _WORD.sub("_", type(command).__name__.removesuffix("Txn")).lower()
        return f"transaction_{name}", f"transaction {command.id}", f"epoch {command.epoch}"
    describer = _DESCRIBERS.get(type(command))
    return None if describer is None else describer(command)


def _token(command: CreateToken) -> tuple[str, str, str]:
    return "token_create", f"token {command.id} of {command.principal}", _scopes(command.scopes)


def _scopes(scopes: tuple[Scope, ...]) -> str:
    """Return scopes as text, the widest first. If they are too long, say how many are left out."""
    widest = sorted(scopes, key=lambda each: (each.kind != CLUSTER, ADMIN not in each.rights))
    texts = [print_scope(scope) for scope in widest]
    shown = 0
    while shown < len(texts) and len(" ".join(texts[: shown + 1])) <= _SCOPES_TEXT_MAX:
        shown += 1
    left = len(texts) - shown
    return " ".join([*texts[:shown], *([f"+{left} more"] if left else [])])


def _owner(command: ChangeOwner) -> tuple[str, str, str]:
    where = "" if command.path is None else f" in {command.path}"
    owner = "nobody" if command.owner is None else command.owner
    return "owner_change", f"{command.kind} {command.name}{where}", f"to {owner}"


def _subscription(command: CreateSubscription) -> tuple[str, str, str]:
    """Describe a new subscription. Of a URL only the host, because the rest can have a secret."""
    if command.url is None:
        detail = f"pull-wake by {command.wake_stream}"
    else:
        detail = f"webhook to {_host_of(command.url)}"
    return "subscription_create", f"subscription {command.id}", detail


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or "no host"
    except ValueError:
        return "an invalid host"


_DESCRIBERS: Final[Mapping[type, Callable[[Any], tuple[str, str, str]]]] = {
    CreateToken: _token,
    RevokeToken: lambda command: (
        "token_revoke",
        f"token {command.id}",
        "with children" if command.children else "",
    ),
    ChangeOwner: _owner,
    SetPolicy: lambda command: ("policy_set", f"policy {command.prefix}", f"dedup {command.dedup}"),
    DeletePolicy: lambda command: ("policy_delete", f"policy {command.prefix}", ""),
    SwitchDedup: lambda command: ("dedup_set", f"stream {command.path}", f"{command.dedup}"),
    ForgetProducer: lambda command: (
        "producer_forget",
        f"producer {command.producer_id} in {command.path}",
        "",
    ),
    ForgetSink: lambda command: ("sink_forget", f"sink {command.app}", ""),
    RebindSink: lambda command: ("sink_rebind", f"sink {command.app}", f"to {command.query_id}"),
    CreateSubscription: _subscription,
    DeleteSubscription: lambda command: ("subscription_delete", f"subscription {command.id}", ""),
    ResumeSubscription: lambda command: ("subscription_resume", f"subscription {command.id}", ""),
}
