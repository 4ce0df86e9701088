"""Rights in the reference model: scopes, and what each command needs.

Written from `docs/reference/access.md`. The letters and numbers in comments are its rules.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote

from semel.model import access_commands as access_ask
from semel.model import commands as ask
from semel.model import group_commands as group_ask
from semel.model import outcomes as out
from semel.model import outcomes_access as access_out
from semel.model import outcomes_groups as group_out
from semel.model import outcomes_subscriptions as sub_out
from semel.model import outcomes_topics as topic_out
from semel.model import outcomes_txn as txn_out
from semel.model import sink_commands as sink_ask
from semel.model import subscription_commands as sub_ask
from semel.model import topic_commands as topic_ask
from semel.model.commands import Append, Create, EngineCommand, Owner, ProducerOwner
from semel.model.outcomes import Refusal
from semel.model.policies import DeletePolicy, SetPolicy
from semel.model.producer_commands import RetireProducers
from semel.model.rights import Scope

if TYPE_CHECKING:
    from tests.sim.reference import Model

RESERVED = "__semel/"
OF_GROUPS = ("dead", "retry", "replay")
Key = tuple[str, int, str]  # kind, number of the stream of a producer or 0, name


class Who(NamedTuple):
    """A caller: its principal and scopes, its token if it has one, and settings of the server."""

    principal: str
    scopes: tuple[Scope, ...]
    token: str | None = None
    expires_ms: int | None = None
    is_strict: bool = False
    denies_unowned: bool = False
    has_ended: bool = False  # the rules for its JWT or certificate were loaded again


class Need(NamedTuple):
    """A right that a command needs; `absent` is the outcome if there is no such thing.

    With `is_all`, it is needed on everything whose name begins with `name`.
    """

    kind: str
    name: str
    right: str
    absent: Refusal | None = None
    is_all: bool = False


class Mine(NamedTuple):
    """A thing that must be the caller's.

    `path` is the stream of a producer; `absent` is the outcome if there is no such thing. Without
    `is_use`, a thing without an owner is nobody's; O9.
    """

    key: Key
    path: str | None = None
    absent: Refusal | None = None
    is_use: bool = True


# ---- scopes --------------------------------------------------------------------------------------


def has(scopes: Iterable[Scope], kind: str, name: str, right: str) -> bool:
    """Return whether one of the scopes grants a right; R1 and R2."""
    for scope in scopes:
        if scope.kind == "cluster" and "admin" in scope.rights:
            return True
        is_named = name[: len(scope.name)] == scope.name if scope.is_prefix else name == scope.name
        if scope.kind != kind or not is_named:
            continue
        if right == "describe" or right in scope.rights or "admin" in scope.rights:
            return True
    return False


def is_admin(scopes: Iterable[Scope]) -> bool:
    """Return whether one of the scopes is `admin` on the cluster."""
    return any(scope.kind == "cluster" and "admin" in scope.rights for scope in scopes)


def has_all(maker: tuple[Scope, ...], wanted: Iterable[Scope]) -> bool:
    """Return whether scopes grant everything that the scopes `wanted` grant; T4."""
    for scope in wanted:
        wide = [each for each in maker if each.is_prefix or each.kind == "cluster"]
        by = wide if scope.is_prefix else maker
        if not all(has(by, scope.kind, scope.name, right) for right in scope.rights):
            return False
    return True


def is_same_or_below(principal: str, maker: str) -> bool:
    """Return whether a maker may choose a principal without `admin` on the cluster; T4."""
    return principal == maker or principal.startswith(maker + "/")


def group_of(path: str) -> str | None:
    """Return the group to which a reserved name belongs: its dead letters, retries or replays."""
    parts = path.split("/")
    if len(parts) != 3 or f"{parts[0]}/" != RESERVED or parts[1] not in OF_GROUPS:
        return None
    name = unquote(parts[2])
    encoded = {".": "%2E", "..": "%2E%2E"}.get(name) or quote(name, safe="")
    return name if name and encoded == parts[2] else None


def is_reserved(path: str) -> bool:
    """Return whether a path is the server's. Those of groups can be used with their rights."""
    return path.startswith(RESERVED) and group_of(path) is None


def may(who: Who, kind: str, name: str, right: str) -> bool:
    """Return whether a caller has a right; R6, and R3 for the two rights on the cluster.

    What belongs to a group is read by whoever may read as the group, and needs `write` otherwise.
    The retries can be deleted by whoever may delete the group.
    """
    group = group_of(name) if kind in ("stream", "group") else None
    if group is not None:
        wanted = right if right in ("read", "describe") else "write"
        if right == "delete" and name.split("/")[1] == "retry":
            return any(has(who.scopes, "group", group, each) for each in ("write", "delete"))
        return has(who.scopes, "group", group, wanted)
    if kind == "stream" and is_reserved(name):
        return is_admin(who.scopes)
    if right in ("IdempotentWrite", "TransactionalWrite") and not who.is_strict:
        for scope in who.scopes:
            is_writer = "write" in scope.rights or "admin" in scope.rights
            if scope.kind in ("stream", "topic") and is_writer:
                return True
    return has(who.scopes, kind, name, right)


def is_worker(who: Who) -> bool:
    """Return whether a caller commits as a worker without a right on the cluster; R3."""
    groups = [set(scope.rights) for scope in who.scopes if scope.kind == "group"]
    return not who.is_strict and any(rights & {"write", "admin"} for rights in groups)


# ---- what commands need --------------------------------------------------------------------------

IDEMPOTENT = Need("cluster", "", "IdempotentWrite")
TRANSACTIONAL = Need("cluster", "", "TransactionalWrite")
NOT_FOUND = out.NotFound()
Needs = Iterator[Need | Mine]


def key_of(owner: Owner) -> Key:
    """Return the registration or the sink to which a transaction belongs."""
    if isinstance(owner, ProducerOwner):
        return "producer", 0, owner.id
    return "sink", 0, owner.app


def _registration(name: str) -> Mine:
    return Mine(("producer", 0, name))


def _transaction(name: str, *, is_use: bool = True) -> Mine:
    return Mine(("transaction", 0, name), None, txn_out.UnknownTransaction(), is_use)


def _listed(path: str, right: str) -> Need:
    """Return the need of a stream that a command lists."""
    return Need("stream", path, right, txn_out.StreamRefused(path, NOT_FOUND))


def _of_group(c: group_ask.GroupCommand) -> Needs | None:
    """CHOICE: what is ended or computed by the server only has no rule."""
    match c:
        case group_ask.JoinGroup():
            return _of_join(c)
        case group_ask.ReleaseStreams() | group_ask.LeaveGroup():
            return iter([Need("group", c.group, "write")])
        case group_ask.DeleteGroup():
            return iter([Need("group", c.group, "delete", group_out.UnknownGroup())])
        case _:
            return None


def _of_join(c: group_ask.JoinGroup) -> Needs:
    """A topic is read with the right on its partitions, a pattern with that on all it can match."""
    yield Need("group", c.group, "write")
    yield from (_listed(path, "read") for path in c.streams)
    for path in c.topics:
        absent = txn_out.StreamRefused(path, topic_out.TopicNotFound())
        yield Need("stream", f"{path}/", "read", absent, is_all=True)
    for pattern in c.patterns:
        yield from _of_pattern(pattern)


def _of_pattern(pattern: str) -> Needs:
    """All that begins as the pattern does before its first `*`; and `a` too, if it is `a/**`."""
    start, star, _ = pattern.partition("*")
    end = pattern.removeprefix(start)
    if start and set(end.split("/")) <= {"", "**"}:
        yield Need("stream", start.rstrip("/"), "read")
    if star:
        yield Need("stream", start, "read", is_all=True)


def _of_subscription(c: sub_ask.SubscriptionCommand) -> Needs | None:
    """CHOICE: what the server does by itself has no rule. A token of the wake is checked before."""
    match c:
        case sub_ask.CreateSubscription():
            return _of_creation(c)
        case sub_ask.LinkStreams():
            reads = (Need("stream", path, "read") for path in c.streams)
            return chain(_on_subscription(c.id, "write"), reads)
        case sub_ask.UnlinkStream() | sub_ask.ClaimWake() | sub_ask.ResumeSubscription():
            return _on_subscription(c.id, "write")
        case sub_ask.DeleteSubscription():
            return _on_subscription(c.id, "delete")
        case sub_ask.AckWake() | sub_ask.ReleaseWake():
            return iter(())
        case _:
            return None


def _of_creation(c: sub_ask.CreateSubscription) -> Needs:
    yield Need("subscription", c.id, "create")
    yield Mine(("subscription", 0, c.id))
    yield from (Need("stream", path, "read") for path in c.streams)
    if c.pattern is not None:
        yield from _of_pattern(c.pattern)
    if c.wake_stream is not None:
        absent = sub_out.WakeStreamRefused(c.wake_stream, "")
        yield Need("stream", c.wake_stream, "write", absent)


def _on_subscription(name: str, right: str, unknown: str = "") -> Needs:
    yield Need("subscription", name, right, sub_out.UnknownSubscription(unknown))
    yield Mine(("subscription", 0, name))


def _acks(wakes: Iterable[sub_ask.WakeAck]) -> Needs:
    """Yield the needs of the acks in a commit that have no token of their wake."""
    for ack in wakes:
        if not ack.is_permitted:
            yield from _on_subscription(ack.id, "write", ack.id)


def _moves(moves: Iterable[ask.PositionMove]) -> Needs:
    for move in moves:
        yield _listed(move.path, "read")
        yield Need("group", move.group, "write")


class Rights:
    """What each command needs. CHOICE: the order of the needs, where the rules leave it open."""

    def __init__(self, model: "Model") -> None:
        self._model = model

    def needs(self, c: EngineCommand, who: Who) -> Needs | None:
        """Return what a command needs, or None if there is no rule; R1."""
        match c:
            case Append() | Create() | ask.ClaimProducer():
                return self._of_write(c, who)
            case ask.Delete() | ask.Trim():
                return iter([Need("stream", c.path, "delete", NOT_FOUND)])
            case ask.SwitchDedup():
                return iter([self._at(c.path, "admin", NOT_FOUND)])
            case ask.Register():
                return self._of_register(c, who)
            case RetireProducers():
                listed = [self._of_end(each.path, each.id) for each in c.producers]
                return chain.from_iterable(listed)
            case ask.ForgetProducer():
                return self._of_end(c.path, c.producer_id)
            case SetPolicy():
                return iter([Need("policy", c.prefix, "write")])
            case DeletePolicy():
                return iter([Need("policy", c.prefix, "delete", out.UnknownPolicy())])
            case access_ask.ChangeOwner():
                return self._of_change(c)
            case _:
                return self._of_txn(c, who)

    def _of_write(self, c: Append | Create | ask.ClaimProducer, who: Who) -> Needs:
        if isinstance(c, Create):
            yield Need("stream", c.path, "create")
            if c.batch is not None:
                yield Need("stream", c.path, "write")
            if c.fork is not None:
                yield Need("stream", c.fork.source, "read", NOT_FOUND)
            return
        if isinstance(c, ask.ClaimProducer):
            yield self._at(c.path, "write", NOT_FOUND)
            yield IDEMPOTENT
            yield from self._row(c.path, c.producer_id)
            return
        yield Need("stream", c.path, "write", NOT_FOUND)
        yield from self._of_append(c, who)

    def _of_append(self, c: Append | topic_ask.AppendTopic, who: Who) -> Needs:
        if c.transaction is not None:
            yield IDEMPOTENT
            yield from self._uses_transaction(c.transaction.id)
        if c.producer is not None:
            yield IDEMPOTENT
            yield from self._row(c.path, c.producer.id, who.principal)

    def _at(self, path: str, right: str, absent: Refusal | None) -> Need:
        """Return the need of a topic if there is one at the path, otherwise that of a stream."""
        stream = self._model.streams.get(path)
        is_topic = stream is not None and stream.topic is not None
        return Need("topic" if is_topic else "stream", path, right, absent)

    def _written(self, path: str) -> Need:
        return self._at(path, "write", txn_out.StreamRefused(path, NOT_FOUND))

    def _of_topic(self, c: topic_ask.OnTopic, who: Who) -> Needs:
        absent = topic_out.TopicNotFound()
        match c:
            case topic_ask.CreateTopic():
                yield Need("topic", c.path, "create")
            case topic_ask.GrowTopic():
                yield Need("topic", c.path, "admin", absent)
            case topic_ask.AppendTopic():
                yield Need("topic", c.path, "write", absent)
                yield from self._of_append(c, who)
            case _:
                yield Need("topic", c.path, "delete", absent)

    def _row(self, path: str, name: str, appender: str | None = None) -> Needs:
        """Yield that a producer in a stream must be the caller's, and its registration; O4."""
        stream = self._model.streams.get(path)
        if stream is None:
            return
        key = ("producer", stream.number, name)
        yield Mine(key, path)
        if appender is None or self._model.access.owners.get(key) != appender:
            yield _registration(name)

    def _uses_transaction(self, name: str) -> Needs:
        """Yield the needs of a call of a transaction."""
        yield _transaction(name)
        yield from self._streams_of(name, txn_out.UnknownTransaction())

    def _streams_of(self, name: str, absent: Refusal) -> Needs:
        """Yield what a pending transaction without an owner needs; O9.

        CHOICE: the streams are checked in the order of their creation. Who has no right on one of
        them is refused as if the transaction were not there.
        """
        model = self._model
        if name in model.txns.open and ("transaction", 0, name) not in model.access.owners:
            numbers = model.txns.open[name].streams
            paths = {s.number: path for path, s in model.streams.items() if s.number in numbers}
            yield from (self._at(paths[n], "write", absent) for n in sorted(paths))

    def _uses_sink(self, app: str, who: Who) -> Needs:
        """Yield the needs of a sink; O10 if it has no row yet.

        CHOICE: `admin` on the sink is enough, as if it had a row.
        """
        yield Mine(("sink", 0, app))
        model = self._model
        pending = [txn for txn in model.txns.open.values() if key_of(txn.owner) == ("sink", 0, app)]
        owners = {model.access.owners.get(("transaction", 0, txn.id)) for txn in pending}
        allowed = {who.principal} if who.denies_unowned else {who.principal, None}
        if pending and app not in model.commits.sinks and not owners & allowed:
            yield Need("sink", app, "admin")

    def _of_register(self, c: ask.Register, who: Who) -> Needs:
        if c.producer_id is None:
            if not is_worker(who):
                yield IDEMPOTENT
            return
        yield IDEMPOTENT
        if who.is_strict:
            yield Need("producer", c.producer_id, "write")  # R4
        yield from self._registers(c.producer_id, who)

    def _registers(self, name: str, who: Who) -> Needs:
        """Yield the needs of the first registration of an id, or of a use of it; O4."""
        yield _registration(name)
        if name not in self._model.registry:
            if who.is_strict:
                yield Need("producer", name, "write")  # R4
            for stream in self._model.streams.values():
                if name in stream.producers:
                    yield Mine(("producer", stream.number, name))

    def _of_end(self, path: str | None, name: str) -> Needs:
        """CHOICE: a producer of a stream on which the caller has no right is not found."""
        if path is None:
            yield Mine(("producer", 0, name), is_use=False)
            return
        yield self._at(path, "describe", NOT_FOUND)
        yield from self._row_to_end(path, name)

    def _row_to_end(self, path: str, name: str) -> Needs:
        if path in self._model.streams:
            number = self._model.streams[path].number
            yield Mine(("producer", number, name), path, is_use=False)

    def _of_change(self, c: access_ask.ChangeOwner) -> Needs:
        if c.path is not None:
            yield self._at(c.path, "describe", NOT_FOUND)
            yield from self._row_to_end(c.path, c.name)
        elif c.kind != "transaction" or c.name in self._model.txns.open:
            yield Mine((c.kind, 0, c.name), None, access_out.UnknownThing(), is_use=False)

    def _of_txn(self, c: EngineCommand, who: Who) -> Needs | None:
        match c:
            case ask.Begin():
                return self._of_begin(c, who)
            case ask.TxnCall():
                return self._of_call(c)
            case ask.Commit():
                return self._of_commit(c, who)
            case ask.SetPositions():
                return self._of_set(c)
            case ask.PinSnapshot():
                first = Need("group", c.group, "write")
                return iter([first, *(_listed(span.path, "read") for span in c.ranges)])
            case sink_ask.RebindSink() | sink_ask.ForgetSink():
                return iter([Mine(("sink", 0, c.app), None, txn_out.UnknownSink(), is_use=False)])
            case topic_ask.OnTopic():
                return self._of_topic(c, who)
            case _ if isinstance(c, sub_ask.SubscriptionCommand):
                return _of_subscription(c)
            case _:
                return _of_group(c) if isinstance(c, group_ask.GroupCommand) else None

    def _of_set(self, c: ask.SetPositions) -> Needs:
        yield from _moves(c.positions)
        if c.by_operator:
            yield from (Need("group", move.group, "admin") for move in c.positions)

    def _of_begin(self, c: ask.Begin, who: Who) -> Needs:
        yield IDEMPOTENT
        yield from (self._written(path) for path in c.streams)
        yield Mine(("transaction", 0, c.id))
        yield from self._streams_of(c.id, access_out.Forbidden("admin", "transaction", c.id))
        if isinstance(c.owner, ProducerOwner):
            yield from self._registers(c.owner.id, who)
        else:
            yield from self._uses_sink(c.owner.app, who)

    def _of_call(self, c: ask.TxnCall) -> Needs:
        if c.by_operator:
            yield Need("transaction", c.id, "admin", txn_out.UnknownTransaction())
        else:
            yield IDEMPOTENT
            yield from self._uses_transaction(c.id)
            if isinstance(c, ask.FenceTxn):
                yield _transaction(c.id, is_use=False)
        if isinstance(c, ask.Prepare):
            yield TRANSACTIONAL
        if isinstance(c, ask.AddStreams):
            yield from (self._written(path) for path in c.streams)
        if isinstance(c, ask.AddPositions):
            yield from _moves(c.positions)
        if isinstance(c, ask.CommitTxn):
            yield from _acks(c.wakes)

    def _of_commit(self, c: ask.Commit, who: Who) -> Needs:
        if c.sink is not None or c.transactions or not is_worker(who):
            yield IDEMPOTENT
        yield from (self._written(append.path) for append in c.appends)
        yield from _moves(c.positions)
        yield from (_listed(path, "describe") for path, _ in c.expects)
        if c.producer_id is not None:
            yield from self._registers(c.producer_id, who)
        if c.sink is not None:
            yield from self._uses_sink(c.sink.app, who)
        for listed in c.transactions:
            yield from self._uses_transaction(listed.id)
        yield from _acks(c.wakes)


def written_paths(c: EngineCommand) -> Iterable[str]:
    """Return the paths of the streams that a command writes to or configures.

    For a policy it is the prefix as a path that ends with a slash.
    """
    match c:
        case Append() | Create() | ask.Delete() | ask.Trim() | ask.SwitchDedup():
            return [c.path]
        case ask.ClaimProducer() | topic_ask.OnTopic():
            return [c.path]
        case ask.Begin() | ask.AddStreams():
            return c.streams
        case ask.Commit():
            return [append.path for append in c.appends]
        case SetPolicy() | DeletePolicy():
            return [f"{c.prefix}/"]
        case _:
            return []
