"""Consume, transform, produce: each input's effect exactly once. Pure: flows, no sockets.

Outputs and the place up to which the inputs are read are committed together, by one request, which
is refused if the group stands elsewhere than thought. So at any moment the server knows exactly
which inputs have their outputs stored, and a restart goes on from there, wherever it was killed.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from math import inf
from typing import Any, Final
from urllib.parse import quote

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from semel.client import errors
from semel.client.commit_calls import CommitId, KnownStreams, Parts, commit_parts
from semel.client.flows import Flow, Pause, backoff_seconds
from semel.client.group_calls import STABLE_SECONDS_MAX, Positions, stable_positions
from semel.client.positions import KnownPosition
from semel.client.reading import PageReader
from semel.client.server_calls import register_producer
from semel.client.stream_calls import ServerConfig, StreamCalls
from semel.client.txn_values import ordinal_of
from semel.client.values import START, Message, Registration

Outputs = Mapping[str, Iterable[Any]]

_PAUSE_SECONDS_MIN: Final = 0.02
_PAUSE_SECONDS_MAX: Final = 0.25
_GROUP_CHARS_MAX: Final = 200


class InputBatch(Struct, frozen=True):
    """Some messages of one input, in order. Iterating gives the messages."""

    stream: str
    messages: list[Message]

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)


class _Input:
    def __init__(
        self, path: str, reader: PageReader, known: KnownPosition, messages_max: int
    ) -> None:
        self.path = path
        self.reader = reader
        self.known = known
        self.ready: deque[Message] = deque()
        self.messages_max = messages_max
        self.is_over = False


class ProcessLoop:
    """Reads batches of the inputs, and commits what was made of each."""

    def __init__(
        self,
        site: ServerConfig,
        group: str,
        inputs: str | Iterable[str],
        *,
        producer_id: str | None = None,
        is_live: bool = True,
        max_messages: int = 1000,
        silence_seconds: float = inf,
    ) -> None:
        paths = [inputs] if isinstance(inputs, str) else list(dict.fromkeys(inputs))
        if not paths:
            raise ValueError("there are no inputs to process")
        if max_messages < 1:
            raise ValueError("max_messages must be at least 1")
        self._site = site
        self._group = group
        self._producer_id = producer_id or group_producer_id(group, paths)
        self._is_live = is_live
        self._max_messages = max_messages
        self._silence_seconds = silence_seconds
        self._paths = paths
        self._known = KnownStreams(replace(site, retries=None))
        self._inputs: list[_Input] = []
        self._mark: CommitId | None = None
        self._in_vain = 0

    def begin(self) -> Flow[None]:
        """Fence off the older instance, then ask where it has come to.

        In this order: what the older one has on its way can no longer be applied after that.
        """
        registered = yield from register_producer(self._site, self._producer_id)
        self._mark = CommitId(registered.producer_id, registered.producer_epoch, 0)
        seconds_max = min(STABLE_SECONDS_MAX, self._silence_seconds / 2)
        stored = yield from stable_positions(
            self._site, self._group, self._paths, seconds_max=seconds_max
        )
        self._inputs = [self._input(path, stored) for path in self._paths]

    def _input(self, path: str, stored: Positions) -> _Input:
        position = stored.offsets.get(path)
        calls = StreamCalls(replace(self._site, retries=None), path)
        reader = PageReader(
            calls,
            START if position is None else position,
            is_live=self._is_live,
            waits_at_end=len(self._paths) == 1,  # waiting for one must not keep the others waiting
        )
        return _Input(path, reader, stored.known(path), self._max_messages)

    def next_batch(self) -> Flow[InputBatch | None]:
        """Read on, in turn; None when all inputs are at their end."""
        while True:
            for index, found in enumerate(self._inputs):
                if not found.ready and not found.is_over:
                    page = yield from found.reader.next_page()
                    found.is_over = page is None
                    found.ready.extend(page or ())
                if found.ready:
                    self._in_vain = 0
                    self._inputs = [*self._inputs[index + 1 :], *self._inputs[: index + 1]]
                    return self._batch(found)
            if all(found.is_over for found in self._inputs):
                return None
            if len(self._inputs) > 1:
                yield self._pause()

    def commit(self, batch: InputBatch, outputs: Outputs | None) -> Flow[bool]:
        """Store what was made of a batch, and that it was.

        False: it is more than one commit takes, and the messages come again in smaller batches.
        """
        assert self._mark is not None
        found = next(found for found in self._inputs if found.path == batch.stream)
        to = _end(batch)
        # A stream made anew under the path has its own messages, and none of them was read.
        known = found.known
        move = (known.offset, to, found.reader.incarnation, known.version)
        parts = Parts(outputs or {}, {self._group: {batch.stream: move}})
        try:
            yield from commit_parts(
                self._known, self._mark, parts, silence_seconds=self._silence_seconds
            )
        except errors.ProducerFenced as error:
            raise errors.TransactionFenced(
                f"a newer instance processes these inputs for {self._group}: {error.message}",
                status=error.status,
                facts=error.facts,
            ) from None
        except errors.TooLarge as error:
            self._put_back(found, batch, error)
            return False
        known.moved(to, None if known.version is None else known.version + 1)
        found.messages_max = min(2 * found.messages_max, self._max_messages)
        self._mark = replace(self._mark, seq=self._mark.seq + 1)
        return True

    def _put_back(self, found: _Input, batch: InputBatch, error: errors.TooLarge) -> None:
        if len(batch) == 1:
            raise errors.TooLarge(
                f"what was made of the message at {batch.messages[0].offset} of {batch.stream} is"
                f" more than one commit takes: {error.message}",
                status=error.status,
                facts=error.facts,
            ) from None
        found.messages_max = len(batch) // 2
        found.ready.extendleft(reversed(batch.messages))

    def _batch(self, found: _Input) -> InputBatch:
        count = min(found.messages_max, len(found.ready))
        return InputBatch(found.path, [found.ready.popleft() for _ in range(count)])

    def _pause(self) -> Pause:
        seconds = backoff_seconds(self._in_vain, _PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX)
        self._in_vain += 1
        return Pause(seconds)


def group_producer_id(group: str, inputs: Sequence[str]) -> str:
    """Name the producer of a group and its inputs: one instance of those at a time."""
    digest = sha256(msgspec.json.encode([group, sorted(inputs)])).hexdigest()[:16]
    return f"process:{quote(group, safe='')[:_GROUP_CHARS_MAX]}:{digest}"


def _end(batch: InputBatch) -> int:
    place = batch.messages[-1].next_ordinal
    if place is None:
        raise errors.NotSupported("this server does not tell the offset of each message")
    return ordinal_of(place)


# ---- identities ----------------------------------------------------------------------------------
# Under which producer a client's transactions are begun.


class ProducerPool:
    """The producers a client has registered, each once.

    To register a producer fences its older instances, and aborts what they have open. So a client
    does that once for each id, and keeps the epoch it was given. It never takes an id back after it
    was fenced: the newer instance has done so rightfully, and two that fence one another in turn
    would get nothing done.

    Ids the server has given out are lent to one transaction at a time.
    """

    def __init__(self) -> None:
        self._named: dict[str, Registration] = {}
        self._idle: list[Registration] = []

    def take(self, producer_id: str | None) -> Registration | None:
        """Give what is registered already; None if it must be registered first."""
        if producer_id is not None:
            return self._named.get(producer_id)
        return self._idle.pop() if self._idle else None

    def add(self, producer_id: str | None, found: Registration) -> Registration:
        """Take note of a registration."""
        if producer_id is not None:
            self._named[producer_id] = found
        return found

    def give_back(self, producer_id: str | None, used: Registration) -> None:
        """Take back an id that was lent, once its transaction is decided."""
        if producer_id is None:
            self._idle.append(used)


def check_owner(producer_id: str | None, epoch: int | None) -> Registration | None:
    """Read an identity that is the caller's own business; None if it is ours."""
    if epoch is None:
        return None
    if producer_id is None:
        raise ValueError("producer_epoch needs a producer_id")
    return Registration(producer_id, epoch)
