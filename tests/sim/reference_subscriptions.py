"""Subscriptions in the reference model: links, wakes, claims and acks.

Written from `docs/reference/subscriptions.md`; the comments name its rules. Nothing is indexed:
whether a pattern matches a stream is found by comparing paths, and whether a subscription is
pending by a look at all of its streams, each time.
"""

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from semel.model import outcomes as out
from semel.model import outcomes_access as access_out
from semel.model import outcomes_subscriptions as sub_out
from semel.model import outcomes_topics as topic_out
from semel.model import outcomes_txn as txn_out
from semel.model import subscription_commands as sub_ask
from semel.model.commands import Batch
from semel.model.outcomes import Outcome, Refusal
from semel.model.subscription_commands import PULL_WAKE, WEBHOOK, SubscriptionCommand, WakeAck
from tests.sim.reference_groups import RESERVED, is_match
from tests.sim.reference_rights import is_reserved
from tests.sim.reference_streams import Stream, media_type

if TYPE_CHECKING:
    from tests.sim.reference import Model


class Configuration(NamedTuple):
    """What a subscription was created with."""

    type: str
    pattern: str | None
    streams: tuple[str, ...]  # sorted, each once
    url: str | None
    wake_stream: str | None
    lease_ms: int
    description: str | None

    def matches(self, path: str) -> bool:
        """Return whether the pattern matches a path; U3 and U4."""
        if self.pattern is None or path == self.wake_stream or path.startswith(RESERVED):
            return False
        return is_match(self.pattern, path)


class Wake(NamedTuple):
    """A wake in flight."""

    id: str
    issued_ms: int
    snapshot: tuple[tuple[int, int], ...]  # the number of each stream, and its stable offset
    worker: str = ""
    attempts: int = 0
    error: str = ""
    next_stream: int = 0  # the number of the first stream that was created afterwards


class Link(NamedTuple):
    """How far a stream was processed; `acked` is None before the first ack."""

    acked: int | None
    is_named: bool
    is_matched: bool


@dataclass
class Subscription:
    configuration: Configuration
    created_ms: int
    names: set[str]
    generation: int = 0
    wake: Wake | None = None
    last: int = 0  # the stream after which the next snapshot begins
    is_suspended: bool = False
    links: dict[int, Link] = field(default_factory=dict)  # by the number of the stream

    @property
    def attempts(self) -> int:
        """Return how many deliveries of the wake have failed in a row."""
        return 0 if self.wake is None else self.wake.attempts


class Subscriptions:
    """All subscriptions, and the rules for them."""

    def __init__(self, model: "Model") -> None:
        self._model = model
        self.by_id: dict[str, Subscription] = {}

    def copy(self, model: "Model") -> "Subscriptions":
        twin = Subscriptions(model)
        for name, old in self.by_id.items():
            twin.by_id[name] = replace(old, names=set(old.names), links=dict(old.links))
        return twin

    # ---- lookups ---------------------------------------------------------------------------------

    def pending(self, subscription: Subscription) -> list[tuple[int, int]]:
        """Return the numbers of the pending streams, in order, with their stable offsets."""
        by_number = {s.number: s for s in self._model.streams.values()} if self.by_id else {}
        found = []
        for number, link in sorted(subscription.links.items()):
            stream = by_number[number]
            if stream.tail > stream.head:
                stable = self._model.txns.stable(stream)
                if stable > stream.head and (link.acked is None or stable > link.acked):
                    found.append((number, stable))
        return found

    def is_due(self, subscription: Subscription) -> bool:
        """Return whether a wake must be issued; W1."""
        is_free = subscription.wake is None and not subscription.is_suspended
        return is_free and bool(self.pending(subscription))

    def link_of(self, subscription: Subscription, path: str) -> tuple[int, Link] | None:
        """Return the number of the stream at a path with its link, or None."""
        stream = self._model.streams.get(path)
        link = None if stream is None else subscription.links.get(stream.number)
        return None if stream is None or link is None else (stream.number, link)

    # ---- streams: U1 to U9 -----------------------------------------------------------------------

    def execute(self, c: SubscriptionCommand) -> Outcome:
        """Execute a command; return its outcome."""
        if isinstance(c, sub_ask.CreateSubscription):
            return self._create(c)
        name = c.ack.id if isinstance(c, sub_ask.AckWake) else c.id
        subscription = self.by_id.get(name)
        if subscription is None:
            return sub_out.UnknownSubscription()  # U9
        match c:
            case sub_ask.DeleteSubscription():
                self._model.write(c)
                del self.by_id[c.id]
                return sub_out.SubscriptionDeleted()
            case sub_ask.LinkStreams():
                return self._link(subscription, c)
            case sub_ask.UnlinkStream():
                return self._unlink(subscription, c)
            case sub_ask.ResumeSubscription():
                self._resume(subscription, c)
                return sub_out.WakeChanged()
            case _:
                return self._execute_on_wake(subscription, c)

    def _create(self, c: sub_ask.CreateSubscription) -> Outcome:
        if c.wake_stream in c.streams:
            return out.InvalidRequest("streams")  # U3
        wanted = Configuration(
            c.type,
            c.pattern,
            tuple(sorted(set(c.streams))),
            c.url,
            c.wake_stream,
            c.lease_ms,
            c.description,
        )
        known = self.by_id.get(c.id)
        if known is not None:  # U1
            if known.configuration != wanted:
                return sub_out.SubscriptionExists()
            self._resume(known, c)
            return sub_out.SubscriptionCreated(c.id, is_new=False)
        bounds = self._model.bounds
        if len(self.by_id) >= bounds.subscriptions:
            return out.LimitReached("subscriptions", bounds.subscriptions)  # U2
        # CHOICE: the rules are checked in the order of their numbers.
        refusal = self._refuse_wake_stream(c.wake_stream) or self._refuse_names(wanted.streams)
        if refusal is not None:
            return refusal
        made = Subscription(wanted, self._model.now(c), set(wanted.streams))
        for path, stream in self._alive():
            if path in made.names or wanted.matches(path):
                self._add_link(made, path, stream, self._model.txns.stable(stream))  # U5
        if len(made.links) > bounds.subscription_links:
            return out.LimitReached("subscription_streams", bounds.subscription_links)
        self._model.write(c)
        self.by_id[c.id] = made
        return sub_out.SubscriptionCreated(c.id, is_new=True)

    def _alive(self) -> list[tuple[str, Stream]]:
        """Return the streams that can be linked: no topic, and nothing that is deleted; U6, U8."""
        streams = self._model.streams.items()
        return [(path, s) for path, s in streams if not s.is_deleted and s.topic is None]

    def _refuse_names(self, names: tuple[str, ...]) -> Refusal | None:
        """U4."""
        for path in names:
            stream = self._model.streams.get(path)
            if is_reserved(path):
                return txn_out.StreamRefused(path, access_out.ReservedPath())
            # CHOICE: also that of a topic of which only partitions are kept, for forks.
            if stream is not None and stream.topic is not None:
                return txn_out.StreamRefused(path, topic_out.IsTopic())
        return None

    def _refuse_wake_stream(self, path: str | None) -> Refusal | None:
        """U3. The reason is free."""
        is_reserved = path is not None and path.startswith(RESERVED)
        is_fit = path is None or (self._wake_stream(path) is not None and not is_reserved)
        return None if is_fit else sub_out.WakeStreamRefused(path or "", "")

    def _wake_stream(self, path: str) -> Stream | None:
        """Return the stream to which messages of wakes can be appended, or None."""
        stream = self._model.streams.get(path)
        if stream is None or stream.is_deleted or stream.is_closed:
            return None
        is_fit = media_type(stream.content_type) == "application/json"
        return stream if is_fit and stream.topic is None and not stream.topic_number else None

    def _add_link(
        self, subscription: Subscription, path: str, stream: Stream, acked: int | None
    ) -> None:
        is_matched = subscription.configuration.matches(path)
        link = Link(acked, path in subscription.names, is_matched)
        subscription.links[stream.number] = link

    def _link(self, subscription: Subscription, c: sub_ask.LinkStreams) -> Outcome:
        """U7."""
        if subscription.configuration.wake_stream in c.streams:
            return out.InvalidRequest("streams")
        if (refusal := self._refuse_names(c.streams)) is not None:
            return refusal
        names, maximum = subscription.names | set(c.streams), self._model.bounds.subscription_names
        if len(names) > maximum:
            return out.LimitReached("subscription_names", maximum)
        fresh = names - subscription.names
        if fresh:
            self._model.write(c)
        subscription.names = names
        for path, stream in self._alive():
            if path in fresh:
                link = subscription.links.get(stream.number)
                acked = self._model.txns.stable(stream) if link is None else link.acked  # U5
                self._add_link(subscription, path, stream, acked)
        return sub_out.LinksChanged()

    def _unlink(self, subscription: Subscription, c: sub_ask.UnlinkStream) -> Outcome:
        """U7."""
        if c.path in subscription.names:
            self._model.write(c)
            subscription.names.remove(c.path)
            linked = self.link_of(subscription, c.path)
            if linked is not None:
                number, link = linked
                subscription.links[number] = link._replace(is_named=False)
                if not link.is_matched:
                    del subscription.links[number]
        return sub_out.LinksChanged()

    def link_new_stream(self, path: str) -> None:
        """Link a stream in the frame that creates it; U6."""
        for subscription in self.by_id.values():
            if path in subscription.names or subscription.configuration.matches(path):
                self._add_link(subscription, path, self._model.streams[path], None)

    def drop_stream(self, number: int) -> None:
        """Remove the links of a stream in the frame of its end; U8."""
        for subscription in self.by_id.values():
            subscription.links.pop(number, None)

    # ---- wakes: W1 to W12 ------------------------------------------------------------------------

    def _execute_on_wake(self, subscription: Subscription, c: SubscriptionCommand) -> Outcome:
        match c:
            case sub_ask.IssueWake():
                self._issue(subscription, c)
                return sub_out.WakeChanged()
            case sub_ask.ClaimWake():
                return self._claim(subscription, c)
            case sub_ask.AckWake():
                return self._ack(subscription, c)
            case sub_ask.ReleaseWake():
                return self._release(subscription, c)
            case sub_ask.ExpireWake():
                return self._expire(subscription, c)
            case sub_ask.NoteDelivery():
                return self._note_delivery(subscription, c)
        raise AssertionError(c)

    def _issue(self, subscription: Subscription, c: sub_ask.IssueWake) -> None:
        """W1 and W2."""
        if not self.is_due(subscription):
            return
        model, now = self._model, self._model.write(c)
        most = min(model.bounds.wake_streams, model.bounds.streams)  # as fit into a frame
        pending, last = self.pending(subscription), subscription.last
        chosen = [each for each in pending if each[0] > last]
        chosen = [*chosen, *(each for each in pending if each[0] <= last)][:most]
        snapshot = sorted(chosen)
        subscription.last = chosen[-1][0] if len(pending) > most else 0
        subscription.generation += 1
        wake = Wake(c.wake_id, now, tuple(snapshot), next_stream=model.next_stream)
        subscription.wake = wake
        path = subscription.configuration.wake_stream
        stream = None if path is None else self._wake_stream(path)
        if stream is not None:
            first, _ = model.txns.by_number(snapshot[0][0])
            message = {
                "type": "wake",
                "subscription_id": c.id,
                "stream": first,
                "generation": subscription.generation,
                "ts": now,
            }
            body = json.dumps(message, separators=(",", ":"), ensure_ascii=False)
            stream.store(Batch(body.encode()))
            stream.written_ms = now

    def _claim(self, subscription: Subscription, c: sub_ask.ClaimWake) -> Outcome:
        """W4."""
        wake, generation = subscription.wake, subscription.generation
        if subscription.configuration.type != PULL_WAKE:
            return sub_out.WrongType(subscription.configuration.type)
        if wake is not None and wake.worker:
            return sub_out.AlreadyClaimed(wake.worker, generation)
        if wake is None:
            # The broker has issued a wake before, unless the disk is full.
            is_pending = bool(self.pending(subscription))
            return out.DiskFull() if is_pending else sub_out.NoPendingWork()
        self._model.write(c)
        subscription.wake = wake._replace(worker=c.worker)
        return sub_out.WakeClaimed(wake.id, generation)

    def _fence(self, subscription: Subscription, ack: WakeAck) -> Refusal | None:
        """W5: whether a call names the wake in flight, and a worker has claimed it."""
        wake, is_pull = subscription.wake, subscription.configuration.type == PULL_WAKE
        is_mine = wake is not None and (wake.id, subscription.generation) == (
            ack.wake_id,
            ack.generation,
        )
        if is_mine and wake is not None and (wake.worker or not is_pull):
            return None
        return sub_out.Fenced(ack.id, subscription.generation)

    def _refuse_acks(self, subscription: Subscription, ack: WakeAck) -> Refusal | None:
        """W5: all pairs, before any of them is applied."""
        paths: set[str] = set()
        wake = subscription.wake
        read = [] if wake is None else [number for number, _ in wake.snapshot]
        for path, offset in ack.acks:
            linked = self.link_of(subscription, path)
            if linked is None or path in paths:
                return sub_out.InvalidOffset(ack.id, path)
            acked, tail = linked[1].acked, self._model.streams[path].tail
            is_newer = wake is not None and linked[0] >= wake.next_stream
            if (acked is None or is_newer) and linked[0] not in read:
                return sub_out.InvalidOffset(ack.id, path)
            if not (0 if acked is None else acked) <= offset <= tail:
                return sub_out.InvalidOffset(ack.id, path)
            paths.add(path)
        return None

    def _ack(self, subscription: Subscription, c: sub_ask.AckWake) -> Outcome:
        """W5 to W7."""
        ack = c.ack
        if c.type not in (None, subscription.configuration.type):
            return sub_out.WrongType(subscription.configuration.type)
        if not c.has_token:
            return sub_out.TokenInvalid()
        refusal = self._fence(subscription, ack) or self._refuse_acks(subscription, ack)
        if refusal is not None:
            return refusal
        if c.by_snapshot:
            ack = self._with_snapshot(subscription, ack)
        if self._moves(subscription, ack) or ack.done or subscription.attempts:
            self._model.write(c)
        return sub_out.WakeAcked(self.apply_ack(subscription, ack))

    def _with_snapshot(self, subscription: Subscription, ack: WakeAck) -> WakeAck:
        """Return the ack of everything in the snapshot that is not acked yet; W7."""
        assert subscription.wake is not None
        paths = {s.number: path for path, s in self._model.streams.items()}
        left = [
            (paths[number], offset)
            for number, offset in subscription.wake.snapshot
            if number in subscription.links and offset > (subscription.links[number].acked or 0)
        ]
        return WakeAck(ack.id, ack.wake_id, ack.generation, tuple(left), ack.done)

    def _moves(self, subscription: Subscription, ack: WakeAck) -> bool:
        """Return whether one of the pairs changes something."""
        links = [self.link_of(subscription, path) for path, _ in ack.acks]
        offsets = [offset for _, offset in ack.acks]
        return any(
            linked is not None and linked[1].acked != offset
            for linked, offset in zip(links, offsets, strict=True)
        )

    def apply_ack(self, subscription: Subscription, ack: WakeAck) -> bool:
        """Apply an ack that is not refused; return whether the next wake is due."""
        for path, offset in ack.acks:
            number = self._model.streams[path].number
            subscription.links[number] = subscription.links[number]._replace(acked=offset)
        if ack.done:
            self._end_wake(subscription)
        else:
            self._heard(subscription)
        return ack.done and bool(self.pending(subscription))

    def _release(self, subscription: Subscription, c: sub_ask.ReleaseWake) -> Outcome:
        """W8."""
        if subscription.configuration.type != PULL_WAKE:
            return sub_out.WrongType(subscription.configuration.type)
        if not c.has_token:
            return sub_out.TokenInvalid()
        refusal = self._fence(subscription, WakeAck(c.id, c.wake_id, c.generation))
        if refusal is not None:
            return refusal
        self._model.write(c)
        self._end_wake(subscription)
        return sub_out.WakeChanged()

    def _expire(self, subscription: Subscription, c: sub_ask.ExpireWake) -> Outcome:
        """W9. Which wakes have a lease is checked by `oracle_subscriptions.py`."""
        wake = subscription.wake
        if wake is None or c.generation != subscription.generation:
            return sub_out.Fenced(c.id, subscription.generation)
        if c.elapsed_ms < subscription.configuration.lease_ms:
            return out.StillAlive()
        self._model.write(c)
        self._end_wake(subscription)
        return sub_out.WakeChanged()

    def _note_delivery(self, subscription: Subscription, c: sub_ask.NoteDelivery) -> Outcome:
        """W10."""
        wake = subscription.wake
        if subscription.configuration.type != WEBHOOK:
            return sub_out.WrongType(subscription.configuration.type)
        is_other = wake is not None and c.wake_id not in (None, wake.id)
        if wake is None or is_other or c.generation != subscription.generation:
            return sub_out.Fenced(c.id, subscription.generation)
        if c.error is None:
            if wake.attempts:
                self._model.write(c)
                self._heard(subscription)
            return sub_out.WakeChanged()
        self._model.write(c)
        attempts = wake.attempts + 1
        subscription.wake = wake._replace(attempts=attempts, error=c.error)
        subscription.is_suspended = attempts >= c.attempts_max
        return sub_out.WakeChanged()

    def _resume(
        self,
        subscription: Subscription,
        c: sub_ask.CreateSubscription | sub_ask.ResumeSubscription,
    ) -> None:
        if subscription.is_suspended:
            self._model.write(c)
            self._heard(subscription)

    def _heard(self, subscription: Subscription) -> None:
        """The receiver has responded, or the operator says that it will; W10."""
        if subscription.wake is not None:
            subscription.wake = subscription.wake._replace(attempts=0, error="")
        subscription.is_suspended = False

    def _end_wake(self, subscription: Subscription) -> None:
        subscription.wake, subscription.is_suspended = None, False

    # ---- commits: W12 ----------------------------------------------------------------------------

    def refuse_commit(self, wakes: tuple[WakeAck, ...]) -> Refusal | None:
        """Return the refusal of the acks in a commit."""
        # CHOICE: one after the other; the second of two acks of one subscription is refused.
        names: set[str] = set()
        for ack in wakes:
            if ack.id in names:
                return out.InvalidRequest("subscriptions")
            names.add(ack.id)
            subscription = self.by_id.get(ack.id)
            if subscription is None:
                return sub_out.UnknownSubscription(ack.id)
            refusal = self._fence(subscription, ack) or self._refuse_acks(subscription, ack)
            if refusal is not None:
                return refusal
        return None

    def apply_commit(self, wakes: tuple[WakeAck, ...]) -> None:
        """Apply the acks of a commit, in its frame."""
        for ack in wakes:
            self.apply_ack(self.by_id[ack.id], ack)

    # ---- inspection ------------------------------------------------------------------------------

    def view(self) -> dict[str, object]:
        """Dump the subscriptions."""
        return {name: self._view(each) for name, each in sorted(self.by_id.items())}

    def _view(self, subscription: Subscription) -> dict[str, object]:
        return {
            "configuration": tuple(subscription.configuration),
            "created_ms": subscription.created_ms,
            "names": sorted(subscription.names),
            "generation": subscription.generation,
            "wake": None if subscription.wake is None else tuple(subscription.wake),
            "last": subscription.last,
            "is_suspended": subscription.is_suspended,
            "links": {number: tuple(link) for number, link in subscription.links.items()},
            "pending": [number for number, _ in self.pending(subscription)],
            "is_due": self.is_due(subscription),
        }
