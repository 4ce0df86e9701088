"""The callers of the simulated clients, and their commands on tokens and owners.

Tokens are made by nobody (as `semel tokens create` does), by administrators and by other tokens.
A caller is kept after its token was revoked, as the connection of a client is.
"""

import hashlib
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from semel.broker.guard import create_audit
from semel.machine import State
from semel.model import commands as ask
from semel.model.access_commands import ChangeOwner, CreateToken, NoteTokenUses, RevokeToken
from semel.model.commands import Create, EngineCommand
from semel.model.policies import SetPolicy
from semel.model.producer_commands import CountHour, DropTombstones, ExpireRegistration
from semel.model.rights import NEVER, Caller, Scope, Source, make_caller, parse_scope
from semel.model.subscription_commands import ExpireWake, IssueWake, NoteDelivery
from tests.sim.demands import demand
from tests.sim.reference_audit import AUDIT
from tests.sim.reference_rights import Who, is_reserved, written_paths

if TYPE_CHECKING:
    from tests.sim.reference import Model

PRINCIPALS = ("ann", "ann/job", "ann/job/2", "anna", "bob", "bob", "carl")
# What most clients get: enough for most of their commands.
ROLES = (
    "cluster:admin",
    "stream:*:read,write,create,delete group:*:write policy:*:write,delete",
    "stream:*:read,write,create,delete group:*:write subscription:*:write,create,delete "
    "cluster:IdempotentWrite,TransactionalWrite",
    "stream:s*:read,write,create group:g0:write subscription:a:write cluster:IdempotentWrite",
    "stream:*:admin group:g*:admin producer:*:write subscription:b*:admin",
    "stream:*:read,write group:*:write subscription:*:write,create transaction:*:admin "
    "sink:a*:admin producer:q*:admin",
)
# These are drawn one by one, also for tokens that are made with tokens.
SCOPES = (
    "stream:*:read",
    "stream:*:write",
    "stream:s:write",
    "stream:s/a:read,write",
    "stream:s/a*:write,create,delete",
    "stream:s/*:describe,read",
    "stream:a*:write",
    "stream:t:admin",
    "stream:s2:delete",
    "group:g0:write",
    "group:g1:read",
    "group:*:describe",
    "producer:p*:admin",
    "producer:p0:write",
    "producer:1:admin",
    "transaction:t*:admin",
    "transaction:t0:describe",
    "sink:a0:admin",
    "sink:*:describe",
    "policy:s*:write",
    "policy:*:delete",
    "policy:u:describe",
    "topic:*:write",
    "subscription:a:write",
    "subscription:*:create",
    "subscription:b*:admin",
    "cluster:describe",
    "cluster:IdempotentWrite",
    "cluster:TransactionalWrite",
)
# The broker sends these by itself.
INTERNAL = (
    ask.Expire,
    ask.ExpireProducer,
    ask.ExpireTxn,
    CountHour,
    DropTombstones,
    ExpireRegistration,
    NoteTokenUses,
    ExpireWake,
    IssueWake,
    NoteDelivery,
)
SHARE = 0.05  # of the commands, those on tokens and owners
HOUR_MS = 3_600_000


class Names(NamedTuple):
    """The names that the commands of a run use."""

    paths: tuple[str, ...]
    ids: tuple[str, ...]  # of producers
    producers: tuple[str, ...]  # of those that have transactions
    transactions: tuple[str, ...]
    apps: tuple[str, ...]
    subscriptions: tuple[str, ...]


def who_of(caller: Caller) -> Who:
    """Return a caller in the form of the reference model."""
    return Who(
        caller.principal,
        caller.scopes,
        caller.token,
        None if caller.expires_ms == NEVER else caller.expires_ms,
        caller.is_strict,
        caller.denies_unowned,
        caller.source is not None and caller.source.has_ended,
    )


def parse_scopes(text: str) -> tuple[Scope, ...]:
    """Return the scopes of a text, which are separated by spaces."""
    return tuple(parse_scope(each) for each in text.split())


class AccessWorkload:
    """A seeded choice of callers, and a generator of commands on tokens and owners.

    With `is_off`, access is always off. Otherwise it can be off until a restart.
    """

    def __init__(self, rng: Random, names: Names, *, is_off: bool) -> None:
        self._rng, self._names = rng, names
        self._is_off = is_off
        self._is_late = rng.random() < 0.4  # access is off until the first restart
        self._has_audit = rng.random() < 0.5
        self._starts = 0
        self._count = 0
        self._callers: dict[str, Caller] = {}  # by token
        self._foreign: list[Caller] = []  # without a token, as with a JWT
        self._source = Source()  # of those
        self.is_on = self.is_strict = self.denies_unowned = False

    def restart(self) -> None:
        """Draw the settings of a new process, which has no callers yet."""
        rng = self._rng
        self._starts += 1
        is_first = self._starts == 1
        self.is_on = not (self._is_off or (is_first and self._is_late) or rng.random() < 0.1)
        self.is_strict, self.denies_unowned = rng.random() < 0.3, rng.random() < 0.25
        self._callers, self._foreign, self._source = {}, [], Source()

    # ---- callers ---------------------------------------------------------------------------------

    def caller(self, model: "Model", state: State, command: EngineCommand) -> Caller | None:
        """Choose who sends a command: mostly somebody who may, sometimes anybody."""
        if not self.is_on:
            return None
        rng = self._rng
        if isinstance(command, Create) and command.path == AUDIT:
            return None  # the server itself
        if isinstance(command, INTERNAL):
            return self._any(model, state, command.now_ms) if rng.random() < 0.05 else None
        if rng.random() < 0.1:
            return None
        tries = 4 if rng.random() < 0.8 else 1
        for _ in range(tries):
            caller = self._any(model, state, command.now_ms)
            if caller is None or model.access.judge(command, who_of(caller)) is None:
                break
        if isinstance(command, CreateToken) and caller is not None and rng.random() < 0.5:
            return None  # as `semel tokens create`
        return caller

    def is_reserved(self, command: EngineCommand) -> bool:
        """Return whether only the server may send a command, and this is another one."""
        if isinstance(command, Create) and command.path == AUDIT:
            return False
        return any(map(is_reserved, written_paths(command)))

    def _any(self, model: "Model", state: State, now_ms: int) -> Caller | None:
        """Choose a caller: one that was there before, or a new one with a valid token."""
        rng = self._rng
        if rng.random() < 0.05:
            return self._without_token(state, now_ms)
        names = list(model.access.tokens) or list(self._callers)
        if not names:
            return None
        name = rng.choice(names)
        if name in self._callers and rng.random() < 0.97:
            return self._callers[name]
        return self._enter(model, state, name, now_ms) or rng.choice(
            [*self._callers.values(), None]
        )

    def _enter(self, model: "Model", state: State, name: str, now_ms: int) -> Caller | None:
        """Do what the server does with a token: find its row, and make a caller."""
        row, token = state.tokens.get(name), model.access.tokens[name]
        assert row is not None
        is_over = row.expires_ms is not None and now_ms >= row.expires_ms
        is_valid = row.revoked_ms is None and not is_over
        demand(is_valid == token.is_valid(now_ms), f"the token {name} is {row}")
        if not is_valid:
            return None
        self._callers[name] = make_caller(
            row.principal,
            row.scopes,
            version=state.access_version,
            expires_ms=NEVER if row.expires_ms is None else row.expires_ms,
            token=name,
            is_strict=self.is_strict,
            denies_unowned=self.denies_unowned,
        )
        return self._callers[name]

    def _without_token(self, state: State, now_ms: int) -> Caller:
        rng = self._rng
        if rng.random() < 0.02:  # as SIGHUP
            self._source.has_ended, self._source = True, Source()
            state.access_version += 1
        if not self._foreign or rng.random() < 0.05:
            expires_ms = NEVER if rng.random() < 0.5 else now_ms + rng.choice([0, 50, HOUR_MS])
            made = make_caller(
                rng.choice(PRINCIPALS),
                self._scopes(),
                version=state.access_version,
                expires_ms=expires_ms,
                is_strict=self.is_strict,
                denies_unowned=self.denies_unowned,
                source=self._source,
            )
            self._foreign.append(made)
        return rng.choice(self._foreign)

    # ---- commands --------------------------------------------------------------------------------

    def draw(self, model: "Model", now_ms: int) -> EngineCommand | None:
        """Return a command on tokens or owners, or None for a command of another kind."""
        rng = self._rng
        if self._is_off or not (self.is_on or self._is_late):
            return None
        if self.is_on and self._has_audit and AUDIT not in model.streams:
            return create_audit(now_ms, f"audit{self._starts}")
        tokens = model.access.tokens
        if self.is_on and len(tokens) < 4 and rng.random() < 0.3:
            return self._create(model, now_ms)
        if rng.random() >= SHARE:
            return None
        luck = rng.random()
        if luck < 0.04:
            return self._reserved(now_ms)
        if not tokens or luck < 0.4:
            return self._create(model, now_ms)
        if luck < 0.6:
            return RevokeToken(now_ms, rng.choice([*tokens, "nobody"]), rng.random() < 0.4)
        if luck < 0.7:
            uses = [(name, now_ms - rng.choice([0, HOUR_MS])) for name in self._some([*tokens])]
            return NoteTokenUses(now_ms, tuple(uses))
        return self._change_owner(model, now_ms)

    def _reserved(self, now_ms: int) -> EngineCommand:
        """Draw a command on a stream that only the server writes to."""
        path = self._rng.choice(["__semel/x", AUDIT])
        match self._rng.randrange(5):
            case 4:
                return SetPolicy(now_ms, self._rng.choice(["__semel", "__semel/x"]), True)
            case 0:
                return Create("__semel/x", now_ms, "i", "text/plain")
            case 1:
                return ask.Append(path, now_ms, "text/plain", ask.Batch(b"m"))
            case 2:
                return ask.Delete(path, now_ms)
            case _:
                return ask.SwitchDedup(path, now_ms, True)

    def _some(self, items: Sequence[str]) -> list[str]:
        return self._rng.sample(items, min(len(items), self._rng.randint(1, 3)))

    def _scopes(self) -> tuple[Scope, ...]:
        rng = self._rng
        text = rng.choices(ROLES, [3, 4, 4, 2, 2, 2])[0]
        if rng.random() < 0.35:
            text = " ".join(self._some(SCOPES))
        elif self.is_strict and "cluster" not in text and rng.random() < 0.7:
            text += " cluster:IdempotentWrite,TransactionalWrite"
        return parse_scopes(text)

    def _create(self, model: "Model", now_ms: int) -> CreateToken:
        """Draw a token, by itself or with what another token has."""
        rng = self._rng
        self._count += 1
        name = f"{self._starts:03d}{self._count:09d}"
        principal, scopes, issuer = rng.choice(PRINCIPALS), self._scopes(), ""
        expires_ms = rng.choice([None, None, None, now_ms + rng.choice([0, 60, 3_000, HOUR_MS])])
        makers = [*model.access.tokens]
        if makers and rng.random() < 0.6:
            issuer = rng.choice(makers[-4:])
            maker = model.access.tokens[issuer]
            below = rng.choice(["", "/job", "/job/2", "x"])
            principal = (maker.principal + below)[:40] if rng.random() < 0.8 else principal
            scopes = self._narrowed(maker.scopes) if rng.random() < 0.8 else scopes
            if rng.random() < 0.7:
                expires_ms = maker.expires_ms
        return CreateToken(
            now_ms,
            name,
            hashlib.sha256(name.encode()).digest(),
            principal,
            scopes,
            expires_ms,
            rng.choice(["", "for tests"]),
            issuer,
        )

    def _narrowed(self, scopes: tuple[Scope, ...]) -> tuple[Scope, ...]:
        """Return some of the scopes, mostly narrower, sometimes wider in one way."""
        rng = self._rng
        scope = rng.choice(scopes)
        kind, name, is_prefix, rights = scope.kind, scope.name, scope.is_prefix, scope.rights
        if kind == "cluster":
            return (scope,) if "admin" not in rights or rng.random() < 0.3 else self._scopes()
        luck = rng.random()
        if luck < 0.3 and is_prefix:
            name, is_prefix = name + "s", rng.random() < 0.5
        elif luck < 0.45:
            is_prefix = True
        elif luck < 0.55:
            rights = (*rights, rng.choice(["read", "write", "admin"]))
        elif luck < 0.75:
            rights = (rng.choice([*rights, "describe"]),)
        made = Scope(kind, name, is_prefix, tuple(sorted(set(rights))))
        return (made,) if rng.random() < 0.7 else (*scopes, made)

    def _change_owner(self, model: "Model", now_ms: int) -> ChangeOwner:
        rng, names = self._rng, self._names
        owner = rng.choice([None, *PRINCIPALS])
        kind = rng.choice(["row", "row", "producer", "transaction", "sink", "subscription"])
        if kind == "row":
            path, name = rng.choice(names.paths), rng.choice([*names.ids, *names.producers])
            stream = model.streams.get(path)
            if stream is not None and stream.producers:
                name = rng.choice([*stream.producers, name])
            return ChangeOwner(now_ms, "producer", name, path, owner)
        if kind == "producer":
            name = rng.choice([*names.ids, *names.producers, "1", "99"])
        elif kind == "transaction":
            name = rng.choice([*names.transactions, *model.txns.open])
        else:
            name = rng.choice(names.apps if kind == "sink" else names.subscriptions)
        return ChangeOwner(now_ms, kind, name, None, owner)
