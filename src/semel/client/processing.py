"""Flows that read inputs, transform them and store the outputs, with exactly-once effects.

One request commits the outputs together with the group's position in the input. The server refuses
the request if the group is not at the expected position. Outputs are therefore stored for every
message before the group's position, and for no other message. After a restart, processing continues
at this position.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from math import inf
from typing import Any, Final, TypeGuard
from urllib.parse import quote

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from semel.client import errors
from semel.client.addresses import path_of
from semel.client.commit_calls import CommitId, KnownStreams, Parts, commit_parts
from semel.client.flows import Flow, Pause, backoff_seconds
from semel.client.group_calls import STABLE_SECONDS_MAX, Positions, stable_positions
from semel.client.positions import KnownPosition
from semel.client.reading import PageReader, StreamName
from semel.client.server_calls import register_producer
from semel.client.stream_calls import ServerConfig, StreamCalls
from semel.client.values import START, Message, Registration, ordinal_of
from semel.wire.schema.producers import RetireEntry

Outputs = Mapping[str, Iterable[Any]]

_PAUSE_SECONDS_MIN: Final = 0.02
_PAUSE_SECONDS_MAX: Final = 0.25
_GROUP_CHARS_MAX: Final = 200
_WRITTEN_COUNT_MAX: Final = 10_000  # in any more streams, a generated id expires by itself


class InputBatch(Struct, frozen=True):
    """Messages from one input stream, in order. Iterating over the batch yields the messages."""

    stream: str
    messages: list[Message]

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)


SyncTransform = Callable[[InputBatch], Outputs | None]
AsyncTransform = Callable[[InputBatch], Outputs | Awaitable[Outputs | None] | None]


def sync_transform(function: SyncTransform, batch: InputBatch) -> Outputs | None:
    """Call the function with the batch and return its outputs."""
    return function(batch)


async def async_transform(function: AsyncTransform, batch: InputBatch) -> Outputs | None:
    """Call the function with the batch and return its outputs. Await them if necessary."""
    outputs = function(batch)
    return await outputs if isinstance(outputs, Awaitable) else outputs


class _Input(Struct):
    path: str
    reader: PageReader
    position: KnownPosition
    messages_max: int
    ready: deque[Message] = field(default_factory=deque)
    is_over: bool = False


class ProcessLoop:
    """Reads batches from the input streams, and commits the outputs for each batch."""

    def __init__(
        self,
        site: ServerConfig,
        group: str,
        inputs: object,
        *,
        producer_id: str | None = None,
        is_live: bool = True,
        max_messages: int = 1000,
        silence_seconds: float = inf,
    ) -> None:
        streams = inputs if _is_list(inputs) else [inputs]
        paths = list(dict.fromkeys(path_of(stream, site.address) for stream in streams))
        if not paths:
            raise ValueError("there are no inputs; pass at least one input stream")
        if max_messages < 1:
            raise ValueError(f"max_messages={max_messages} is invalid; expected 1 or more")
        self._site = site
        self._group = group
        self._producer_id = producer_id or group_producer_id(group, paths)
        self._is_live = is_live
        self._max_messages = max_messages
        self._silence_seconds = silence_seconds
        self._paths = paths
        self._known = KnownStreams(replace(site, retries=None))
        self._inputs: list[_Input] = []
        self._commit_id: CommitId | None = None
        self._empty_rounds = 0

    def begin(self) -> Flow[None]:
        """Fence the older instances, and then read the group's positions.

        The order matters. A request from an instance that is not fenced could still move a position
        after this flow has read it.
        """
        registered = yield from register_producer(self._site, self._producer_id)
        self._commit_id = CommitId(registered.producer_id, registered.producer_epoch, 0)
        stored = yield from stable_positions(
            self._site,
            self._group,
            self._paths,
            seconds_max=min(STABLE_SECONDS_MAX, self._silence_seconds / 2),
        )
        self._inputs = [self._input(path, stored) for path in self._paths]

    def _input(self, path: str, stored: Positions) -> _Input:
        reader = PageReader(
            StreamCalls(replace(self._site, retries=None), path),
            stored.offsets.get(path, START),
            is_live=self._is_live,
            # With several inputs, waiting for one input would delay the others.
            waits_at_end=len(self._paths) == 1,
        )
        reader.source = StreamName(path)
        return _Input(path, reader, stored.known(path), self._max_messages)

    def next_batch(self) -> Flow[InputBatch | None]:
        """Return the next batch, or None if all inputs have ended. The inputs take turns."""
        while True:
            for index, source in enumerate(self._inputs):
                if not source.ready and not source.is_over:
                    page = yield from source.reader.next_page()
                    source.is_over = page is None
                    source.ready.extend(page or ())
                if source.ready:
                    self._empty_rounds = 0
                    self._inputs = [*self._inputs[index + 1 :], *self._inputs[: index + 1]]
                    count = min(source.messages_max, len(source.ready))
                    return InputBatch(source.path, [source.ready.popleft() for _ in range(count)])
            if all(source.is_over for source in self._inputs):
                return None
            if len(self._inputs) > 1:
                yield self._pause()

    def commit(self, batch: InputBatch, outputs: Outputs | None) -> Flow[bool]:
        """Commit the outputs for a batch together with the group's position after the batch.

        Return True if they were committed. Return False if the outputs are too large for one
        commit. In that case `next_batch` returns the same messages again, in smaller batches.

        Raises TooLarge if the outputs for a single message are too large. Raises TransactionFenced
        if a newer instance has taken over. Raises PositionConflict if the group is not at the
        expected position.
        """
        assert self._commit_id is not None
        if outputs is not None and not isinstance(outputs, Mapping):
            raise TypeError(
                f"the function of process() returned a {type(outputs).__name__}; expected None, or"
                " a mapping from output streams to lists of values, such as {'out': [1, 2]}"
            )
        source = next(source for source in self._inputs if source.path == batch.stream)
        to = _end(batch)
        position = source.position
        # The incarnation is a condition too. If the stream was deleted and created again, its new
        # messages have not been read.
        move = (position.offset, to, source.reader.incarnation, position.version)
        parts = Parts(outputs or {}, {self._group: {batch.stream: move}})
        try:
            yield from commit_parts(
                self._known, self._commit_id, parts, silence_seconds=self._silence_seconds
            )
        except errors.ProducerFenced as error:
            raise errors.TransactionFenced(
                f"a newer instance now processes these inputs for the group {self._group}:"
                f" {error.message}",
                status=error.status,
                facts=error.facts,
            ) from None
        except errors.TooLarge as error:
            self._put_back(source, batch, error)
            return False
        position.moved(to, None if position.version is None else position.version + 1)
        source.messages_max = min(2 * source.messages_max, self._max_messages)
        self._commit_id = replace(self._commit_id, seq=self._commit_id.seq + 1)
        return True

    def _put_back(self, source: _Input, batch: InputBatch, error: errors.TooLarge) -> None:
        if len(batch) == 1:
            raise errors.TooLarge(
                f"the outputs for the message at {batch.messages[0].offset} in {batch.stream} are"
                f" too large for one commit: {error.message}",
                status=error.status,
                facts=error.facts,
            ) from None
        source.messages_max = len(batch) // 2
        source.ready.extendleft(reversed(batch.messages))

    def _pause(self) -> Pause:
        seconds = backoff_seconds(self._empty_rounds, _PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX)
        self._empty_rounds += 1
        return Pause(seconds)


def group_producer_id(group: str, inputs: Sequence[str]) -> str:
    """Return the producer id for a group and its input streams.

    Every instance that processes these inputs for the group gets the same id. A newer instance
    registers this id again, and the server then refuses the commits of older instances.
    """
    digest = sha256(msgspec.json.encode([group, sorted(inputs)])).hexdigest()[:16]
    return f"process:{quote(group, safe='')[:_GROUP_CHARS_MAX]}:{digest}"


def _is_list(inputs: object) -> TypeGuard[Iterable[object]]:
    return isinstance(inputs, Iterable) and not isinstance(inputs, str)


def _end(batch: InputBatch) -> int:
    next_ordinal = batch.messages[-1].next_ordinal
    if next_ordinal is None:
        raise errors.NotSupported(
            "process() cannot be used: this server does not report the offset of each message"
        )
    return ordinal_of(next_ordinal)


# ---- the producers of a client's transactions ----------------------------------------------------


class ProducerPool:
    """The producers that a client has registered for its transactions.

    Registering a producer fences its older instances. For this reason a client registers each id
    only once. A fenced client does not register the id again, because two instances would then
    fence each other in turn.

    An id that the server has generated is used by only one transaction at a time. When the client
    is closed, these ids are retired, and so is what streams store about them.
    """

    def __init__(self) -> None:
        self._named: dict[str, Registration] = {}
        self._idle: list[Registration] = []
        self._written: dict[str, set[str]] = {}  # the streams of each generated id

    def take(self, producer_id: str | None) -> Registration | None:
        """Return a registration, or None if the caller must register a producer.

        If `producer_id` is None, remove an idle registration from the pool and return it.
        Otherwise return the registration of `producer_id`, which stays in the pool.
        """
        if producer_id is not None:
            return self._named.get(producer_id)
        return self._idle.pop() if self._idle else None

    def add(self, producer_id: str | None, registration: Registration) -> Registration:
        """Return `registration`. Keep it for later calls if `producer_id` is not None."""
        if producer_id is not None:
            self._named[producer_id] = registration
        return registration

    def give_back(
        self, producer_id: str | None, registration: Registration, streams: Iterable[str]
    ) -> None:
        """Make a generated id available again after its transaction has ended.

        `streams` are the streams in which the transaction has written.
        """
        if producer_id is not None:
            return
        self._idle.append(registration)
        written = self._written.setdefault(registration.producer_id, set())
        if len(written) < _WRITTEN_COUNT_MAX:
            written.update(streams)

    def remove_idle(self) -> list[RetireEntry]:
        """Remove the generated ids that no transaction uses. Return the entries to retire them."""
        idle, self._idle = self._idle, []
        entries: list[RetireEntry] = []
        for owner in idle:
            # The registration comes last, because the id is unknown afterwards.
            streams: list[str | None] = [*sorted(self._written.pop(owner.producer_id, ())), None]
            entries += [
                RetireEntry(owner.producer_id, stream, owner.producer_epoch) for stream in streams
            ]
        return entries


def check_owner(producer_id: str | None, epoch: int | None) -> Registration | None:
    """Return a registration with the caller's own id and epoch.

    Return None if the caller passed no epoch, because the client must then register the producer.
    Raises ValueError if the caller passed an epoch without an id.
    """
    if epoch is None:
        return None
    if producer_id is None:
        raise ValueError("producer_epoch was passed without producer_id; pass both")
    return Registration(producer_id, epoch)
