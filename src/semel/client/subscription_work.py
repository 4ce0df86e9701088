"""What a worker does with a wake: it reads the messages, and commits the outputs. It does no I/O.

One request commits the outputs together with the ack of the wake, and ends the wake. The server
refuses it if the wake has ended before. So of all attempts to process a wake, by one worker or by
several, exactly one is stored. If not all messages fit into one commit, the rest is in the next
wake.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from semel.client import errors
from semel.client.commit_calls import Parts, find_unstorable
from semel.client.commit_sequence import CommitSequence
from semel.client.flows import Flow, Pause, backoff_seconds
from semel.client.processing import Outputs
from semel.client.reading import PageReader, StreamName
from semel.client.stream_calls import ServerConfig, StreamCalls
from semel.client.subscription_calls import ack_wake, claim_wake, show_subscription
from semel.client.subscription_values import PULL_WAKE, WakeBatch, WakeInfo, WakeStream
from semel.client.values import NOW, START, Message, ordinal_of
from semel.model.limits import MIB
from semel.model.offsets import print_offset

BATCH_MESSAGES_MAX: Final = 1_000
_BATCH_BYTES_MAX: Final = 16 * MIB
_POLL_SECONDS: Final = 5.0  # if the wake stream cannot be read
_IDLE_SECONDS_MIN: Final = 0.05
_IDLE_SECONDS_MAX: Final = 1.0
_FOREIGN_PAGES_MAX: Final = 20
_BACKOFF_SECONDS_MAX: Final = 10.0
_ONE_MESSAGE: Final = "these are the outputs for one message, and they must fit into one commit"
_BAD_BODY: Final = "bad_body"  # the code of a refusal because of a message


class WorkerSettings(Struct, frozen=True):
    """The options of a worker. `retries` counts failures in a row, and None means no limit."""

    name: str
    max_messages: int = BATCH_MESSAGES_MAX
    retries: int | None = 10
    backoff: float = 0.1

    def check(self) -> None:
        """Raise ValueError if an option is invalid."""
        if not self.name:
            raise ValueError("the name of a worker must not be empty")
        if self.max_messages < 1:
            raise ValueError(f"max_messages={self.max_messages} is invalid; expected 1 or more")
        if self.retries is not None and self.retries < 0:
            raise ValueError(f"retries={self.retries} is invalid; expected 0 or more, or None")
        if self.backoff < 0:
            raise ValueError(f"backoff={self.backoff} is invalid; expected 0 or more")

    def retry_seconds(self, failures: int) -> float | None:
        """Return how long to wait after so many failures in a row, or None to give up."""
        if self.retries is not None and failures > self.retries:
            return None
        return backoff_seconds(failures - 1, self.backoff, _BACKOFF_SECONDS_MAX)


# ---- waiting for wakes ---------------------------------------------------------------------------


class WakeSource:
    """Claims the wakes of a pull-wake subscription, and waits for the next one.

    The wake stream says when there is one. If it cannot be read, the subscription is asked again
    and again.
    """

    def __init__(self, site: ServerConfig, name: str, worker: str, *, is_live: bool) -> None:
        self._site = site
        self._name = name
        self._worker = worker
        self._is_live = is_live
        self._wake_stream = ""
        self._was_open = False
        self._reader: PageReader | None = None
        self._empty_rounds = 0
        self.is_claimed = False  # another worker had the wake at the last attempt

    def begin(self) -> Flow[None]:
        """Find the wake stream, and its present end.

        Raises SubscriptionNotFound, and ValueError if the subscription has no wake stream.
        """
        info = yield from show_subscription(self._site, self._name, streams_limit=1)
        if info.type != PULL_WAKE or info.wake_stream is None:
            raise ValueError(
                f"the subscription {self._name} has the type {info.type}; a worker needs one with"
                f" the type {PULL_WAKE}"
            )
        self._wake_stream = info.wake_stream
        if self._is_live:
            yield from self._open()

    def _open(self) -> Flow[None]:
        """Read the wake stream from its present end on, if possible."""
        reader = PageReader(StreamCalls(self._site, self._wake_stream), NOW, is_live=True)
        try:
            yield from reader.begin()
        except errors.Refused:
            return
        self._reader, self._was_open = reader, True

    def claim(self) -> Flow[WakeInfo | None]:
        """Claim a wake. Return None if there is none now."""
        self.is_claimed = False
        try:
            wake = yield from claim_wake(self._site, self._name, self._worker)
        except errors.NoPendingWork:
            return None
        except errors.AlreadyClaimed:
            self.is_claimed = True
            return None
        self._empty_rounds = 0
        return wake

    def wait(self) -> Flow[None]:
        """Wait until a wake is announced, or for some time."""
        if self._reader is None:
            seconds = _POLL_SECONDS
            if not self._is_live:
                seconds = backoff_seconds(self._empty_rounds, _IDLE_SECONDS_MIN, _IDLE_SECONDS_MAX)
                self._empty_rounds += 1
            yield Pause(seconds)
            if self._was_open:  # perhaps it was created again; a claim follows before the next wait
                yield from self._open()
            return
        for _ in range(_FOREIGN_PAGES_MAX):
            try:
                page = yield from self._reader.next_page()
            except errors.Refused:
                page = None
            if page is None:  # it is closed or deleted
                self._reader = None
                return
            if not page or any(self._is_ours(message) for message in page):
                return

    def _is_ours(self, message: Message) -> bool:
        try:
            event = message.value
        except errors.UndecodableMessage:
            return False
        return isinstance(event, Mapping) and event.get("subscription_id") == self._name


# ---- reading -------------------------------------------------------------------------------------


def read_wake(site: ServerConfig, wake: WakeInfo, count: int) -> Flow[WakeBatch]:
    """Return pending messages of a wake, at most `count`. Only committed messages are read."""
    found: list[Message] = []
    ends: dict[str, str] = {}
    unread: set[str] = set()
    size = 0
    for stream in wake.streams:
        if len(found) >= count or size >= _BATCH_BYTES_MAX:
            break
        if not stream.has_pending:
            continue
        messages, end = yield from _read_stream(
            site, stream, count=count - len(found), size_max=_BATCH_BYTES_MAX - size
        )
        found.extend(messages)
        size += sum(len(message.raw) for message in messages)
        if end > _ordinal(stream.acked_offset):
            ends[stream.path] = print_offset(end)
        else:
            unread.add(stream.path)
    return WakeBatch(wake.subscription, wake.generation, found, ends, frozenset(unread))


def _read_stream(
    site: ServerConfig, stream: WakeStream, *, count: int, size_max: int
) -> Flow[tuple[list[Message], int]]:
    """Return pending messages of one stream, and the offset up to which they were read.

    A stream that was deleted has none. Messages that were trimmed are skipped.
    """
    first, tail = _ordinal(stream.acked_offset), _ordinal(stream.tail_offset)
    start = START if first == 0 else print_offset(first)
    found: list[Message] = []
    end, size = first, 0
    reader = _reader(site, stream.path, start)
    while end < tail:
        try:
            page = yield from reader.next_page()
        except errors.OffsetTrimmed as error:
            end = max(end, _ordinal(error.head or stream.tail_offset))
            reader = _reader(site, stream.path, print_offset(end))
            continue
        except (errors.StreamNotFound, errors.StreamGone):
            return [], first
        if page is None:
            break
        for message in page:
            at = message.ordinal
            if not isinstance(at, int):
                raise errors.NotSupported("this server does not report the offset of each message")
            if at >= tail:
                return found, tail
            if len(found) >= count or size >= size_max:
                return found, at
            found.append(message)
            size += len(message.raw)
        end = max(end, _ordinal(reader.offset))
    return found, min(max(end, first), max(tail, first))


class UnreadStreams:
    """Recognises streams of which nothing can be read, although something is pending.

    A stream that was deleted after its wake was issued is not in the next one. If it is there
    again, this client cannot see it. Without an error, wakes would follow each other for ever.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, frozenset[str]]] = {}

    def check(self, batch: WakeBatch) -> None:
        """Raise StreamNotFound if a wake brings nothing but such a stream for the second time."""
        generation, before = self._found.get(batch.subscription, (batch.generation, frozenset()))
        again = sorted(batch.unread & before)
        if again and batch.generation > generation and not batch.ends:
            error = errors.StreamNotFound(
                f"nothing can be read of the stream {again[0]}, although the subscription"
                f" {batch.subscription} has something pending there",
                status=404,
            )
            error.advice = "use a token with the right 'read' on the stream"
            raise error
        self._found.pop(batch.subscription, None)
        if batch.unread:
            self._found[batch.subscription] = batch.generation, batch.unread


def _reader(site: ServerConfig, path: str, start: str) -> PageReader:
    reader = PageReader(StreamCalls(site, path), start, is_live=False)
    reader.source = StreamName(path)
    return reader


def _ordinal(offset: str) -> int:
    """Return an offset as a number. The offset before the first message is 0."""
    return 0 if offset == START else ordinal_of(offset)


# ---- committing ----------------------------------------------------------------------------------


class Committed(Struct, frozen=True):
    """What has become of a batch.

    `count` is the number of messages that are done. If it is 0 and `smaller` is set, the outputs
    were too large, and the function must be called again with at most so many messages.
    """

    count: int = 0
    smaller: int | None = None
    is_fenced: bool = False


def commit_wake(
    sequence: CommitSequence, wake: WakeInfo, batch: WakeBatch, outputs: Outputs
) -> Flow[Committed]:
    """Commit the outputs for a batch, and end the wake. All is stored, or nothing.

    Without outputs, a plain ack is enough. It needs no producer. Raises what says that the outputs
    can never be stored.
    """
    if not outputs:
        return (yield from finish_wake(sequence.streams.site, wake, batch))
    parts = Parts(outputs, wakes=[wake.acked(batch.ends)])
    try:
        yield from sequence.commit(parts)
    except errors.WakeFenced:
        return Committed(is_fenced=True)
    except errors.TooLarge as error:
        if len(batch) > 1:
            return Committed(smaller=len(batch) // 2)
        error.advice = _ONE_MESSAGE
        raise
    except errors.ClientError:
        raise
    except Exception:
        reason = yield from find_unstorable(sequence.streams, outputs)
        if reason is None:
            raise
        raise reason from None
    return Committed(len(batch))


def finish_wake(site: ServerConfig, wake: WakeInfo, batch: WakeBatch) -> Flow[Committed]:
    """End a wake for which there is nothing to store.

    That is also so if there was nothing to read, as after an aborted transaction.
    """
    try:
        yield from ack_wake(site, wake, wake.acked(batch.ends))
    except errors.WakeFenced as error:
        if error.applied == errors.NO:
            return Committed(is_fenced=True)
    return Committed(len(batch))
