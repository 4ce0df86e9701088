"""The commands of those who create subscriptions, and of the workers and receivers of wakes.

A worker mostly knows the wake in flight. Sometimes it is a late one, which has the id or the
generation of an earlier wake, or of one of a subscription that was deleted and created again.
"""

from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from msgspec.structs import replace

from semel.model import commands as ask
from semel.model import subscription_commands as sub_ask
from semel.model.commands import Commit, CommitAppend, CommitTxn, Create, EngineCommand
from semel.model.subscription_commands import PULL_WAKE, WEBHOOK, WakeAck
from tests.sim.letters import is_of_letters
from tests.sim.reference import Model
from tests.sim.reference_subscriptions import Subscription

JSON = "application/json"
TEXT = "text/plain"
IDS = ("a", "b/1", "ü", "d")
WAKE_STREAMS = ("w/1", "w/2")
PATTERNS = ("**", "s/*", "s/**", "*", "**/s", "s/**/b", "w/*", "o/*", "s/o/**", "none/*")
URLS = ("https://a.example/hook", "https://b.example/hook")
LEASES_MS = (1_000, 1_000, 5_000, 30_000, 600_000)
ATTEMPTS_MAX = (1, 2, 3, 3, 1_000)
SHARE = 0.14  # of the commands, in runs with subscriptions
IN_COMMITS = 0.5  # of the commits, while a wake is in flight

Weights = dict[Callable[[Model, int, str], EngineCommand], float]


class SubscriptionWorkload:
    """A seeded generator of commands on subscriptions; with `is_off`, of none."""

    def __init__(
        self,
        rng: Random,
        paths: Sequence[str],
        batch: Callable[[bool], ask.Batch],
        *,
        is_off: bool,
    ) -> None:
        self._rng, self._paths, self._batch, self.is_off = rng, list(paths), batch, is_off
        self._count = 0
        self.ids = IDS[: rng.randint(2, len(IDS))]
        # Wakes that somebody has got: id of the subscription, id of the wake, generation.
        self._past: deque[tuple[str, str, int]] = deque(maxlen=30)
        self._created: deque[sub_ask.CreateSubscription] = deque(maxlen=8)
        self._weights: Weights = {
            self._ack: 34,
            self._claim: 22,
            self._commit: 14,
            self._release: 5,
            self._link: 6,
            self._unlink: 5,
            self._create: 7,
            self._delete: 2.5,
            self._resume: 3,
            self._expire: 2,
            self._disturb: 2,
        }

    def draw(self, model: Model, now_ms: int) -> EngineCommand | None:
        """Return a command on a subscription, or None for a command of another kind."""
        rng = self._rng
        if self.is_off or rng.random() >= SHARE:
            return None
        self._count += 1
        missing = [path for path in WAKE_STREAMS if path not in model.streams]
        if missing and rng.random() < 0.4:
            return self._create_wake_stream(missing[0], now_ms)
        name = rng.choice(self.ids)
        known = list(model.subscriptions.by_id)
        if name not in known and (len(known) < 2 or rng.random() < 0.3):
            return self._create(model, now_ms, name)
        make = rng.choices(list(self._weights), list(self._weights.values()))[0]
        return make(model, now_ms, rng.choice(known) if known and rng.random() < 0.97 else name)

    def late(self, model: Model, now_ms: int) -> EngineCommand | None:
        """Sometimes issue a wake, end one or record a delivery, as the broker does by itself."""
        rng = self._rng
        if self.is_off or rng.random() > 0.2:
            return None
        self._count += 1
        due = [n for n, s in model.subscriptions.by_id.items() if model.subscriptions.is_due(s)]
        if due and rng.random() < 0.9:
            return sub_ask.IssueWake(now_ms, rng.choice(due), f"w_{self._count}")
        if not model.subscriptions.by_id or rng.random() < 0.7:
            return None
        name = rng.choice(list(model.subscriptions.by_id))
        if rng.random() < 0.3:
            return self._expire(model, now_ms, name)
        return self._note(model, now_ms, name)

    def acked(self, model: Model, command: EngineCommand) -> EngineCommand:
        """Return a commit with the acks of some wakes, if some are in flight."""
        rng = self._rng
        if self.is_off or not isinstance(command, Commit | CommitTxn):
            return command
        known = model.subscriptions.by_id
        flying = [name for name, each in known.items() if each.wake is not None]
        if not flying or command.wakes or rng.random() > IN_COMMITS:
            return command
        names = rng.sample(flying, min(len(flying), rng.choice([1, 1, 1, 2])))
        return replace(command, wakes=self._wakes(model, names))

    # ---- subscriptions ---------------------------------------------------------------------------

    def _create_wake_stream(self, path: str, now_ms: int) -> Create:
        rng = self._rng
        kind = JSON if rng.random() < 0.95 else TEXT
        ttl_ms = rng.choice([None] * 9 + [4_000])
        is_closed = rng.random() < 0.03
        return Create(path, now_ms, f"wake{self._count}", kind, ttl_ms, None, is_closed)

    def _path(self, model: Model) -> str:
        """Choose a path: mostly that of a stream, sometimes one that nothing or a topic has."""
        live = [path for path, s in model.streams.items() if not s.is_deleted and s.topic is None]
        if live and self._rng.random() < 0.7:
            return self._rng.choice(live)
        return self._rng.choice([*self._paths, *self._paths, "o", "s/o/1", "x/new", "__semel/x"])

    def _output(self, model: Model) -> str:
        """Choose the stream of an output: none of those whose messages have a form of their own."""
        path = self._path(model)
        return self._paths[0] if is_of_letters(path) or path in WAKE_STREAMS else path

    def _names(self, model: Model, most: int) -> tuple[str, ...]:
        return tuple(self._path(model) for _ in range(self._rng.randint(1, most)))

    def _create(self, model: Model, now_ms: int, name: str) -> sub_ask.CreateSubscription:
        """Draw a creation; of what exists mostly the same again, with at most one difference."""
        rng = self._rng
        again = [c for c in self._created if c.id == name]
        if name in model.subscriptions.by_id and again and rng.random() < 0.9:
            same = replace(again[-1], now_ms=now_ms, streams=again[-1].streams[::-1])
            luck = rng.random()
            if luck < 0.15:
                return replace(same, lease_ms=LEASES_MS[-1])
            return replace(same, description="other") if luck < 0.3 else same
        pattern = rng.choice(PATTERNS) if rng.random() < 0.7 else None
        streams: tuple[str, ...] = ()
        if pattern is None or rng.random() < 0.4:
            streams = self._names(model, 3)
        is_webhook = rng.random() < 0.4
        fit = [path for path, s in model.streams.items() if s.is_json and not is_of_letters(path)]
        wake_stream = rng.choice([*WAKE_STREAMS, self._output(model), *fit, *fit])
        command = sub_ask.CreateSubscription(
            now_ms,
            name,
            WEBHOOK if is_webhook else PULL_WAKE,
            pattern,
            streams,
            rng.choice(URLS) if is_webhook else None,
            None if is_webhook else wake_stream,
            rng.choice(LEASES_MS),
            rng.choice([None, "for tests"]),
        )
        self._created.append(command)
        return command

    def _delete(self, model: Model, now_ms: int, name: str) -> EngineCommand:
        self._remember(model, name)
        return sub_ask.DeleteSubscription(now_ms, name)

    def _link(self, model: Model, now_ms: int, name: str) -> EngineCommand:
        return sub_ask.LinkStreams(now_ms, name, self._names(model, 3))

    def _unlink(self, model: Model, now_ms: int, name: str) -> EngineCommand:
        known = model.subscriptions.by_id.get(name)
        names = sorted(known.names) if known is not None else []
        path = self._rng.choice(names) if names and self._rng.random() < 0.8 else self._path(model)
        return sub_ask.UnlinkStream(now_ms, name, path)

    def _resume(self, model: Model, now_ms: int, name: str) -> EngineCommand:
        known = model.subscriptions.by_id.items()
        suspended = [each for each, subscription in known if subscription.is_suspended]
        name = self._rng.choice(suspended) if suspended else name
        if name in model.subscriptions.by_id and self._rng.random() < 0.3:
            return self._create(model, now_ms, name)
        return sub_ask.ResumeSubscription(now_ms, name)

    def _disturb(self, model: Model, now_ms: int, _name: str) -> EngineCommand:
        """End or close a wake stream, or create it again, sometimes as one that is refused."""
        rng, path = self._rng, self._rng.choice(WAKE_STREAMS)
        if path not in model.streams:
            return self._create_wake_stream(path, now_ms)
        if rng.random() < 0.3:
            return ask.Append(path, now_ms, JSON, None, None, True)
        return ask.Delete(path, now_ms)

    # ---- wakes -----------------------------------------------------------------------------------

    def _remember(self, model: Model, name: str) -> None:
        known = model.subscriptions.by_id.get(name)
        if known is not None and known.wake is not None:
            past = (name, known.wake.id, known.generation)
            if past not in self._past:
                self._past.append(past)

    def wake_of(self, model: Model, name: str) -> tuple[str, str, int]:
        """Choose a wake: mostly the one in flight, sometimes an earlier one or a mixture."""
        rng = self._rng
        self._remember(model, name)
        known = model.subscriptions.by_id.get(name)
        past = [each for each in self._past if each[0] == name]
        if known is not None and known.wake is not None and rng.random() < 0.85:
            wake_id, generation = known.wake.id, known.generation
        elif past:
            _, wake_id, generation = rng.choice(past)
        else:
            wake_id, generation = "w_none", 0 if known is None else known.generation
        luck = rng.random()
        if luck < 0.04:
            generation += rng.choice([-1, 1])
        elif luck < 0.08 and past:
            wake_id = rng.choice(past)[1]
        return name, wake_id, max(0, generation)

    def _acks(self, model: Model, subscription: Subscription | None) -> tuple[tuple[str, int], ...]:
        """Draw how far a worker has come: mostly with all of the snapshot, or with a part."""
        rng = self._rng
        if subscription is None:
            return ((self._path(model), 0),)
        streams = {s.number: (path, s) for path, s in model.streams.items()}
        wake = subscription.wake
        ends = dict(wake.snapshot) if wake is not None else {}
        acks = []
        for number, link in subscription.links.items():
            path, stream = streams[number]
            if number not in ends and rng.random() < 0.8:
                continue
            end = ends.get(number, model.txns.stable(stream))
            start, luck = link.acked or 0, rng.random()
            offset = end if luck < 0.7 or start >= end else rng.randint(start, end)
            if luck > 0.96:
                offset = rng.choice([start - 1, stream.tail, stream.tail + 1, -1])
            acks.append((path, offset))
        if rng.random() < 0.04:
            acks.append((self._path(model), rng.choice([0, 0, 1, -1])))
        if acks and rng.random() < 0.02:
            acks.append(acks[0])
        rng.shuffle(acks)
        return tuple(acks if rng.random() < 0.9 else acks[:1])

    def _wake_ack(self, model: Model, name: str) -> WakeAck:
        rng = self._rng
        acks = self._acks(model, model.subscriptions.by_id.get(name))
        if rng.random() < 0.12:
            acks = ()
        is_permitted = rng.random() < 0.3
        wake = self.wake_of(model, name)
        return WakeAck(*wake, acks, done=rng.random() < 0.65, is_permitted=is_permitted)

    def _wakes(self, model: Model, names: Sequence[str]) -> tuple[WakeAck, ...]:
        wakes = [self._wake_ack(model, name) for name in names]
        if self._rng.random() < 0.02:
            wakes.append(wakes[0])
        return tuple(wakes)

    def _ack(self, model: Model, now_ms: int, name: str) -> EngineCommand:
        rng, known = self._rng, model.subscriptions.by_id.get(name)
        kind = None if known is None else known.configuration.type
        if rng.random() < 0.03:
            kind = rng.choice([WEBHOOK, PULL_WAKE, None])
        ack, has_token = self._wake_ack(model, name), rng.random() > 0.02
        if kind == WEBHOOK and rng.random() < 0.4:  # a response to a delivery
            ack = replace(ack, acks=(), done=True)
            return sub_ask.AckWake(now_ms, ack, kind, has_token, by_snapshot=True)
        return sub_ask.AckWake(now_ms, ack, kind, has_token)

    def _claim(self, model: Model, now_ms: int, name: str) -> EngineCommand:
        known = model.subscriptions.by_id.items()
        pull = [n for n, each in known if each.configuration.type == PULL_WAKE]
        name = self._rng.choice(pull) if pull and self._rng.random() < 0.9 else name
        return sub_ask.ClaimWake(now_ms, name, self._rng.choice(["one", "two", "three"]))

    def _release(self, model: Model, now_ms: int, name: str) -> EngineCommand:
        has_token = self._rng.random() > 0.05
        return sub_ask.ReleaseWake(now_ms, *self.wake_of(model, name), has_token)

    def _expire(self, model: Model, now_ms: int, name: str) -> EngineCommand:
        _, _, generation = self.wake_of(model, name)
        known = model.subscriptions.by_id.get(name)
        lease_ms = 1_000 if known is None else known.configuration.lease_ms
        return sub_ask.ExpireWake(now_ms, name, generation, self._rng.choice([0, lease_ms - 1]))

    def _note(self, model: Model, now_ms: int, name: str) -> EngineCommand:
        rng = self._rng
        wake = self.wake_of(model, name)
        return self.noted(now_ms, *wake, error=None if rng.random() < 0.3 else "status 500")

    def noted(
        self, now_ms: int, name: str, wake_id: str, generation: int, *, error: str | None
    ) -> sub_ask.NoteDelivery:
        """Return the record of a delivery, with a maximum of attempts and a Retry-After."""
        attempts_max, later_ms = self._rng.choice(ATTEMPTS_MAX), 0
        if error is not None and self._rng.random() < 0.2:
            later_ms = self._rng.choice([1, 30_000, 3_600_000])
        return sub_ask.NoteDelivery(
            now_ms, name, generation, error, attempts_max, retry_after_ms=later_ms, wake_id=wake_id
        )

    def _commit(self, model: Model, now_ms: int, name: str) -> EngineCommand:
        """Commit an output together with acks, as an exactly-once worker does."""
        rng, producer = self._rng, f"e{self._rng.randrange(2)}"
        epoch = model.registry.get(producer, 0)
        seq = model.txns.commit_seqs.get(producer, -1) + 1
        if rng.random() < 0.1:
            seq = max(0, seq - 1)  # a repeat
        appends: tuple[CommitAppend, ...] = ()
        if rng.random() < 0.9:
            path = self._output(model)
            stream = model.streams.get(path)
            kind = TEXT if stream is None else stream.content_type
            appends = (
                CommitAppend(path, kind, self._batch(stream is not None and stream.is_json)),
            )
        wakes = self._wakes(model, [name])
        return Commit(now_ms, producer, epoch, seq, appends=appends, wakes=wakes)
