"""Access in the reference model: tokens, the check of callers, and owners.

Written from `docs/reference/access.md`. The letters and numbers in comments are its rules.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from semel.model import access_commands as access_ask
from semel.model import commands as ask
from semel.model import outcomes as out
from semel.model import outcomes_access as access_out
from semel.model.commands import Append, EngineCommand
from semel.model.outcomes import Outcome, Refusal
from semel.model.rights import Scope
from semel.model.subscription_commands import CreateSubscription
from semel.model.topic_commands import AppendTopic
from tests.sim.reference_rights import (
    Key,
    Mine,
    Need,
    Rights,
    Who,
    has_all,
    is_admin,
    is_reserved,
    is_same_or_below,
    key_of,
    may,
    written_paths,
)

if TYPE_CHECKING:
    from tests.sim.reference import Model

DAY_MS = 86_400_000
Rows = dict[int, object]  # the producers of each stream


class Token(NamedTuple):
    """A stored token."""

    hash: bytes
    principal: str
    scopes: tuple[Scope, ...]
    created_ms: int
    expires_ms: int | None
    description: str
    issuer: str
    revoked_ms: int | None = None
    used_ms: int = 0

    @property
    def ended_ms(self) -> int | None:
        """Return when the token ends or has ended, or None."""
        ends = [ms for ms in (self.revoked_ms, self.expires_ms) if ms is not None]
        return min(ends, default=None)

    def is_valid(self, now_ms: int) -> bool:
        """T3. CHOICE: the time is that of the clock, as for every date, and not frame time."""
        is_over = self.expires_ms is not None and now_ms >= self.expires_ms
        return self.revoked_ms is None and not is_over


class TakeOwners(NamedTuple):
    """The second frame of a command: these things get an owner; O7."""

    now_ms: int
    owner: str | None
    keys: tuple[Key, ...]


class Before(NamedTuple):
    """What there was before a command."""

    owners: frozenset[Key]  # the things that had one
    rows: Rows
    pending: dict[str, tuple[int, int]]  # number and epoch of each transaction, by id


class Access:
    """The tokens and owners, and the rules of access."""

    def __init__(self, model: "Model", tokens_max: int, tokens_per_principal: int) -> None:
        self.model, self.tokens_max = model, tokens_max
        self.tokens_per_principal = tokens_per_principal
        self.rights = Rights(model)
        self.tokens: dict[str, Token] = {}  # in the order of their creation
        # CHOICE: each transaction has its own owner. While none with its id is pending, the id has
        # the owner of the newest retained outcome.
        self.owners: dict[Key, str] = {}
        self.ended: dict[tuple[str, int], str] = {}  # owners of ended transactions: id and epoch
        self.due: TakeOwners | None = None  # what the second frame of the last command must be

    def copy(self, model: "Model") -> "Access":
        twin = Access(model, self.tokens_max, self.tokens_per_principal)
        twin.tokens, twin.owners = dict(self.tokens), dict(self.owners)
        twin.ended = dict(self.ended)
        return twin

    # ---- the check -------------------------------------------------------------------------------

    def judge(self, c: EngineCommand, who: Who) -> Refusal | None:
        """Return the refusal of a command that a caller may not execute, or None."""
        if not self.is_live(who, c.now_ms):
            return access_out.Unauthenticated()
        if isinstance(c, access_ask.CreateToken):
            return self._judge_new_token(c, who)
        if isinstance(c, access_ask.RevokeToken):
            return self._judge_revocation(c.id, who)
        needs = self.rights.needs(c, who)
        if needs is None:
            return access_out.Forbidden("admin", "cluster", "")  # R1
        for need in needs:
            refusal = self._missing(need, who) if isinstance(need, Need) else self._mine(need, who)
            if refusal is not None:
                return refusal
        is_refused = any(map(is_reserved, written_paths(c)))
        return access_out.ReservedPath() if is_refused else None

    def is_live(self, who: Who, now_ms: int) -> bool:
        """Return whether a caller is valid; T3 and T7."""
        if who.token is None:
            return not who.has_ended and (who.expires_ms is None or now_ms < who.expires_ms)
        token = self.tokens.get(who.token)
        return token is not None and token.is_valid(now_ms)

    def _missing(self, need: Need, who: Who) -> Refusal | None:
        scopes = who.scopes
        if need.is_all:
            scopes = tuple(each for each in scopes if each.is_prefix or each.kind == "cluster")
        if may(who._replace(scopes=scopes), need.kind, need.name, need.right):
            return None
        if need.absent is not None and not may(who, need.kind, need.name, "describe"):
            return need.absent
        return access_out.Forbidden(need.right, need.kind, need.name)

    def _mine(self, need: Mine, who: Who) -> Refusal | None:
        """O1, O3, O9. CHOICE: who has no right on the thing is refused as if it were not there."""
        kind, _, name = need.key
        owner = self.owner(need.key)
        if owner is None:
            is_nobodys = who.denies_unowned or not need.is_use
            is_free = not (is_nobodys and self.exists(need.key))
        else:
            is_free = owner == who.principal
        is_stream_admin = need.path is not None and may(who, "stream", need.path, "admin")
        if is_free or is_stream_admin:
            return None
        return self._missing(Need(kind, name, "admin", need.absent), who)

    def owner(self, key: Key) -> str | None:
        """Return the owner of a thing, or None."""
        kind, _, name = key
        if kind == "transaction" and name not in self.model.txns.open:
            notes = self.model.txns.notes_of(name)
            return self.ended.get((name, notes[-1].epoch)) if notes else None
        return self.owners.get(key)

    # ---- tokens ----------------------------------------------------------------------------------

    def _judge_new_token(self, c: access_ask.CreateToken, who: Who) -> Refusal | None:
        """T4 and T11. CHOICE: the refusal always names the right that is enough for every token.

        CHOICE: T11 is checked first.
        """
        if not is_admin(who.scopes):
            count = sum(
                is_same_or_below(token.principal, who.principal)
                and (token.ended_ms is None or c.now_ms < token.ended_ms + DAY_MS)
                for token in self.tokens.values()
            )
            if count >= self.tokens_per_principal:
                return out.LimitReached("tokens_per_principal", self.tokens_per_principal)
        is_wider = not has_all(who.scopes, c.scopes)
        is_longer = who.expires_ms is not None and (
            c.expires_ms is None or c.expires_ms > who.expires_ms
        )
        is_foreign = not (is_admin(who.scopes) or is_same_or_below(c.principal, who.principal))
        if is_wider or is_longer or is_foreign:
            return access_out.Forbidden("admin", "cluster", "")
        return None

    def may_show(self, who: Who, token_id: str) -> bool:
        """Return whether a caller may show a token; T5."""
        token = self.tokens.get(token_id)
        if token is None:
            return False
        is_below = is_same_or_below(token.principal, who.principal)
        return is_admin(who.scopes) or is_below or token_id == who.token

    def _judge_revocation(self, token_id: str, who: Who) -> Refusal | None:
        """T5. CHOICE: the refusal names the right that is enough for every token."""
        if not self.may_show(who, token_id):
            return access_out.UnknownToken()
        if token_id == who.token or has_all(who.scopes, self.tokens[token_id].scopes):
            return None
        return access_out.Forbidden("admin", "cluster", "")

    def execute(self, c: access_ask.AccessCommand) -> Outcome:
        """Execute a command on tokens or owners that the caller may send."""
        match c:
            case access_ask.CreateToken():
                return self._create(c)
            case access_ask.RevokeToken():
                return self._revoke(c)
            case access_ask.NoteTokenUses():
                return self._note_uses(c)
            case access_ask.ChangeOwner():
                return self._change_owner(c)

    def _create(self, c: access_ask.CreateToken) -> Outcome:
        if c.id in self.tokens:
            return out.InvalidRequest("id")
        if len(self.tokens) >= self.tokens_max:  # T8
            over = [name for name, t in self.tokens.items() if not t.is_valid(c.now_ms)]
            if not over:
                return out.LimitReached("tokens", self.tokens_max)
            self._replace(over[0])
        now = self.model.write(c)
        self.tokens[c.id] = Token(
            c.hash, c.principal, c.scopes, now, c.expires_ms, c.description, c.issuer
        )
        return access_out.TokenStored(c.id)

    def _replace(self, name: str) -> None:
        """Drop a token. Those that were made with it get its issuer; T8."""
        issuer = self.tokens.pop(name).issuer
        for child, token in self.tokens.items():
            if token.issuer == name:
                self.tokens[child] = token._replace(issuer=issuer)

    def _revoke(self, c: access_ask.RevokeToken) -> Outcome:
        """T6."""
        if c.id not in self.tokens:
            return access_out.UnknownToken()
        names = [c.id, *(self.made_with(c.id) if c.children else ())]
        live = [name for name in names if self.tokens[name].revoked_ms is None]
        for name in live:
            revoked = self.tokens[name]._replace(revoked_ms=self.model.write(c))
            self.tokens[name] = revoked
        revoked_ms = self.tokens[c.id].revoked_ms
        assert revoked_ms is not None
        return access_out.TokenEnded(c.id, revoked_ms, len(live))

    def made_with(self, token_id: str) -> list[str]:
        """Return the tokens that were made with a token, directly or not."""
        found: list[str] = []
        for name, token in self.tokens.items():
            issuer = token.issuer
            while issuer in self.tokens and issuer != token_id:
                issuer = self.tokens[issuer].issuer
            if issuer == token_id:
                found.append(name)
        return found

    def _note_uses(self, c: access_ask.NoteTokenUses) -> Outcome:
        for name, used_ms in c.uses:
            token = self.tokens.get(name)
            if token is not None and used_ms > token.used_ms:
                self.model.write(c)
                self.tokens[name] = token._replace(used_ms=used_ms)
        return access_out.UsesNoted()

    # ---- owners ----------------------------------------------------------------------------------

    def exists(self, key: Key) -> bool:
        """Return whether there is a thing. CHOICE: a transaction is there while it is pending."""
        kind, number, name = key
        if kind == "sink":
            return name in self.model.commits.sinks
        if kind == "subscription":
            return name in self.model.subscriptions.by_id
        if kind == "transaction":
            return name in self.model.txns.open
        if number == 0:
            return name in self.model.registry
        rows = [s.producers for s in self.model.streams.values() if s.number == number]
        return any(name in producers for producers in rows)

    def _change_owner(self, c: access_ask.ChangeOwner) -> Outcome:
        stream = None if c.path is None else self.model.streams.get(c.path)
        if c.path is not None and stream is None:
            return access_out.UnknownThing()
        key = (c.kind, 0 if stream is None else stream.number, c.name)
        if not self.exists(key):
            return access_out.UnknownThing()
        previous = self.owners.get(key)
        if previous != c.owner:
            self.model.write(c)
            self._set_owner(key, c.owner)
        return access_out.OwnerSet(c.owner, previous)

    def _set_owner(self, key: Key, owner: str | None) -> None:
        if owner is None:
            self.owners.pop(key, None)
        else:
            self.owners[key] = owner

    def before(self) -> Before:
        """Return what is needed to find out what a command removes."""
        if not (self.owners or self.ended):
            return Before(frozenset(), {}, {})
        rows: Rows = {stream.number: stream.producers for stream in self.model.streams.values()}
        pending = {name: (t.number, t.epoch) for name, t in self.model.txns.open.items()}
        return Before(frozenset(self.owners), rows, pending)

    def drop_orphans(self, before: Before) -> None:
        """O5: drop the owners of things that a command has removed."""
        if not (self.owners or self.ended):
            return
        after = self.before()
        for name, (number, epoch) in before.pending.items():
            if after.pending.get(name) != (number, epoch):
                owner = self.owners.pop(("transaction", 0, name), None)
                self.ended.pop((name, epoch), None)  # of an outcome that is no longer retained
                if owner is not None:
                    self.ended[name, epoch] = owner
        for key in [key for key in self.owners if key in before.owners]:
            _, number, _ = key
            is_emptied = number and before.rows.get(number) is not after.rows.get(number)
            if is_emptied or not self.exists(key):
                del self.owners[key]

    def note_use(self, c: EngineCommand, who: Who, outcome: Outcome) -> None:
        """O2: compute which things get the caller as their owner."""
        if isinstance(outcome, Refusal):
            return
        free = [key for key in self._used(c, outcome) if key not in self.owners]
        taken = [key for key in dict.fromkeys(free) if self.exists(key)]
        if taken:
            self.due = TakeOwners(c.now_ms, who.principal, tuple(taken))

    def _used(self, c: EngineCommand, outcome: Outcome) -> Iterator[Key]:
        """Yield what a command uses, if it is one of those that give owners; O2."""
        if isinstance(c, Append | AppendTopic):
            if c.producer is not None:
                yield self._row(c.path, c.producer.id)
            if c.transaction is not None:
                yield "transaction", 0, c.transaction.id
        elif isinstance(c, ask.ClaimProducer):
            yield self._row(c.path, c.producer_id)
        elif isinstance(outcome, out.Registered):
            yield "producer", 0, outcome.producer_id
        elif isinstance(c, ask.Commit):
            if c.producer_id is not None:
                yield "producer", 0, c.producer_id
            if c.sink is not None:
                yield "sink", 0, c.sink.app
            yield from (("transaction", 0, listed.id) for listed in c.transactions)
        elif isinstance(c, CreateSubscription):
            yield "subscription", 0, c.id
        else:
            yield from self._used_by_call(c)

    def _used_by_call(self, c: EngineCommand) -> Iterator[Key]:
        if isinstance(c, ask.Begin):
            yield "transaction", 0, c.id
            yield key_of(c.owner)
        elif isinstance(c, ask.AddStreams | ask.AddPositions | ask.Prepare) and not c.by_operator:
            yield "transaction", 0, c.id

    def _row(self, path: str, name: str) -> Key:
        return "producer", self.model.streams[path].number, name

    def take(self, c: TakeOwners) -> None:
        """Store the owners of the second frame."""
        self.model.time_ms = max(c.now_ms, self.model.time_ms)
        for key in c.keys:
            self._set_owner(key, c.owner)

    def view(self) -> dict[str, object]:
        """Dump tokens and owners, without those of ended transactions."""
        return {"tokens": dict(sorted(self.tokens.items())), "owners": dict(self.owners)}
