# generated from semel/client/aio/topic.py by `make facades`; do not edit
"""Topics: appending messages by their keys, and reading all partitions."""

import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self, Unpack

from semel.client import server_calls
from semel.client.extras import Extras, Headers, Key, extras_of
from semel.client.grouping import check_partition
from semel.client.pending_append import PendingAppend
from semel.client.producer.opening import ProducerOptions
from semel.client.producer.sync_producer import Producer
from semel.client.requests import AppendHeaders
from semel.client.sync_driver import Read, Tail
from semel.client.topic_calls import TopicCalls, TopicConfig
from semel.client.topic_reading import FetchedPartitions, TopicReader
from semel.client.topic_values import TopicInfo, TopicReceipt
from semel.client.transport import CLIENT_DEFAULT, Timeout, seconds_of
from semel.client.values import (
    READ_COMMITTED,
    START,
    Offset,
    ProducerState,
    RetiredEntry,
)

if TYPE_CHECKING:
    from semel.client.sync.client import Client
    from semel.client.sync.stream import Stream


class TopicRead(FetchedPartitions, Read):
    """The object that a topic's `read` returns: an iterator over the messages of all partitions.

    `offsets` says where to continue in each partition. `up_to_date` is True if each partition was
    read to its tail, and `closed` if the topic is closed and all its messages were returned.
    """


class TopicTail(FetchedPartitions, Tail):
    """An iterator over the messages of all partitions of a topic. It waits for new messages.

    The iteration ends when the topic is closed or when `close` is called. Its attributes are those
    of `read`.
    """


class Topic:
    """A topic on a server: a set of streams, its partitions. The attribute `calls` is internal.

    The key of a message selects its partition. So messages with the same key are in order, and
    several workers can share the work. See the client's `consume`.
    """

    def __init__(self, client: "Client", name: str, config: TopicConfig | None = None) -> None:
        self.client = client
        self.name = name
        self.calls = TopicCalls(client.site, name, config)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    # ---- the topic as a whole --------------------------------------------------------------------

    def create(
        self,
        partitions: int,
        content_type: str | None = None,
        *,
        exist_ok: bool = False,
        partitioner: str | None = None,
        ttl: int | timedelta | None = None,
        expires_at: datetime | None = None,
        dedup: bool | None = None,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> Self:
        """Create the topic with all its partitions.

        The content type is JSON by default. `partitioner` is "crc32" (the default, as in
        librdkafka) or "murmur2" (as in Kafka's Java clients). It selects the partition of a key,
        and can never be changed. The other options are those of a stream.

        Raises TopicConflict if the topic exists with a different configuration. Raises StreamExists
        if it exists with the same configuration, unless `exist_ok`, and if a path of its partitions
        is in use. With `exist_ok`, a topic with more partitions is accepted, too.
        """
        config = TopicConfig(partitions, content_type, partitioner, ttl, expires_at, dedup)
        self.client.run(self.calls.create_topic(config, exist_ok=exist_ok), timeout)
        return self

    def describe(self, *, timeout: Timeout = CLIENT_DEFAULT) -> TopicInfo:
        """Return the state of the topic and of its partitions.

        Raises TopicNotFound if there is no such topic.
        """
        return self.client.run(self.calls.show(), timeout)

    def exists(self, *, timeout: Timeout = CLIENT_DEFAULT) -> bool:
        """Return True if the topic exists."""
        return self.client.run(self.calls.exists(), timeout)

    def grow(
        self, partitions: int, *, keys_may_move: bool = False, timeout: Timeout = CLIENT_DEFAULT
    ) -> TopicInfo:
        """Give the topic more partitions, and return its new state.

        If messages with keys were appended, the keys then belong to other partitions. This is
        refused with KeysWouldMove, unless `keys_may_move`. The members of a group still get the
        messages of each key in order. Other readers can get the later ones first. `moved_at` of the
        result has the offset in each earlier partition at which the topic has grown.

        Raises TooFewPartitions if the topic has more partitions than `partitions`. Staged
        transactions with messages for the topic prevent a growth until they have ended. Raises
        StreamInTransaction if they have not ended before the timeout.
        """
        flow = self.calls.grow(partitions, keys_may_move=keys_may_move)
        return self.client.run(flow, timeout)

    def set_dedup(self, dedup: bool | None, *, timeout: Timeout = CLIENT_DEFAULT) -> TopicInfo:
        """Switch the recognition of duplicates on or off, or inherit from the policies (None)."""
        setting = "inherit" if dedup is None else ("off", "on")[dedup]
        return self.client.run(self.calls.change(dedup=setting), timeout)

    def close(self, *, timeout: Timeout = CLIENT_DEFAULT) -> TopicInfo:
        """Close the topic permanently, and return its state. It accepts no more messages."""
        return self.client.run(self.calls.change(closed=True), timeout)

    def delete(self, *, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Delete the topic with all its partitions.

        Messages that forks of partitions share are kept as long as the forks exist.
        """
        self.client.run(self.calls.delete(), timeout)

    def partition(self, number: int) -> "Stream":
        """Return the stream of one partition. Nothing is sent."""
        return self.client.stream(f"{self.name}/{number}")

    # ---- writing ---------------------------------------------------------------------------------

    def append(
        self,
        value: Any,
        *,
        key: Key = None,
        headers: Headers = None,
        timestamp: datetime | None = None,
        partition: int | None = None,
        idempotency_key: str | None = None,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> TopicReceipt:
        """Append one message. The message is durable when this call returns.

        A hash of the key selects the partition: a str as UTF-8, an int as decimal digits, or bytes.
        Messages without a key are spread over the partitions. `partition` selects one by its
        number instead.

        In all other respects, this is as an append to a stream. If the topic has grown, the message
        is sent again for the new number of partitions.
        """
        return self.append_many(
            [value],
            keys=None if key is None else [key],
            headers=None if headers is None else [headers],
            timestamps=None if timestamp is None else [timestamp],
            partition=partition,
            idempotency_key=idempotency_key,
            timeout=timeout,
        )

    def append_many(
        self,
        values: Iterable[Any],
        *,
        keys: Iterable[Key] | None = None,
        headers: Iterable[Headers] | None = None,
        timestamps: Iterable[datetime | None] | None = None,
        partition: int | None = None,
        idempotency_key: str | None = None,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> TopicReceipt:
        """Append all of the messages or none of them, to any number of partitions.

        The options are those of `append`. `keys`, `headers` and `timestamps` have one element for
        each value. The receipt has the offsets in each partition.
        """
        values, extras = list(values), extras_of(keys, headers, timestamps)
        if not values:
            raise ValueError("there is nothing to append; pass at least one message")
        check_partition(partition)
        conditions = AppendHeaders(idempotency_key=idempotency_key)
        return self._append(values, conditions, extras, partition, timeout)

    def _append(
        self,
        values: list[Any],
        conditions: AppendHeaders,
        extras: Extras,
        partition: int | None,
        timeout: Timeout,
    ) -> TopicReceipt:
        client = self.client
        deadline = time.monotonic() + seconds_of(timeout, client.timeout)
        if self.calls.wanted is not None:
            client.run(self.calls.show(), timeout)
        append = PendingAppend(values, conditions, extras, deadline, partition=partition)
        receipt = client.appender.append(self.calls, append)
        assert isinstance(receipt, TopicReceipt)
        return receipt

    # ---- reading ---------------------------------------------------------------------------------

    def read(
        self,
        offsets: Mapping[int, Offset] | None = None,
        *,
        limit: int | None = None,
        isolation: str = READ_COMMITTED,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> TopicRead:
        """Return an iterator over the messages of all partitions up to their present tails.

        `offsets` maps partitions to the offsets at which to begin. All other partitions are read
        from their first message. The iterator's attribute `offsets` has those at which to continue.

        The messages of one partition come in their order. There is no order between partitions. If
        the topic has grown, messages of one key can be in two partitions, and the later ones can
        come first. The other options are those of a stream's `read`.
        """
        reader = self._reader(offsets, START, is_live=False, isolation=isolation)
        seconds = seconds_of(timeout, self.client.timeout)
        return TopicRead(self.client.driver, reader, limit, seconds)

    def tail(
        self,
        offsets: Mapping[int, Offset] | None = None,
        *,
        start: str = START,
        isolation: str = READ_COMMITTED,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> TopicTail:
        """Read all partitions, then wait for new messages until the topic is closed.

        `offsets` is as in `read`. In all other partitions, reading begins at `start`: the first
        message, or `now` for the tail at that moment. Partitions that are added later are read from
        their first message on. No message is skipped or repeated.

        A tail of a topic does not share the partitions with other readers, and has no group. With
        the client's `consume`, several workers share the partitions.
        """
        reader = self._reader(offsets, start, is_live=True, isolation=isolation)
        return TopicTail(self.client.driver, reader, seconds_of(timeout, self.client.timeout))

    def _reader(
        self, offsets: Mapping[int, Offset] | None, start: str, *, is_live: bool, isolation: str
    ) -> TopicReader:
        return TopicReader(
            self.calls,
            offsets,
            self.client.positions.read_position,
            start=start,
            is_live=is_live,
            isolation=isolation,
        )

    # ---- producers -------------------------------------------------------------------------------

    def producer(self, id: str | None = None, **options: Unpack[ProducerOptions]) -> Producer:
        """Return a producer that stores every message once and in order per key, despite failures.

        It works as a producer of a stream, with one sequence for the whole topic. Its batches have
        messages for several partitions, and each batch is stored as a whole. If the topic grows,
        the producer continues with the new number of partitions.
        """
        client = self.client
        return client.close_with_client(
            Producer(
                id,
                self.calls,
                client.transport,
                options,
                run=client.run,
                response_timeout=client.timeout,
            )
        )

    def producers(
        self, producer_id: str | None = None, *, timeout: Timeout = CLIENT_DEFAULT
    ) -> list[ProducerState]:
        """Return what the server stores about the topic's producers.

        With `producer_id`, the list contains at most this producer.
        """
        return self.client.run(server_calls.producers(self.calls, producer_id), timeout)

    def retire_producer(
        self,
        producer_id: str,
        *,
        epoch: int | None = None,
        session: str | None = None,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> RetiredEntry:
        """Retire a producer that is no longer used, as in a stream's `retire_producer`."""
        flow = server_calls.retire_producer(self.calls, producer_id, epoch, session)
        return self.client.run(flow, timeout)
