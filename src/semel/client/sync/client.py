# generated from semel/client/aio/client.py by `make facades`; do not edit
"""A client of one server. It gives access to streams, transactions, commits, groups and sinks."""

import ssl
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from types import TracebackType
from typing import Self, Unpack
from weakref import WeakSet

from semel.client import commit_calls, server_calls, txn_calls
from semel.client.addresses import STREAM_PATH, Address, locate_stream, path_of
from semel.client.appenders import SyncAppender
from semel.client.commit_sequence import CommitSequence
from semel.client.computed import FieldValue
from semel.client.consumer_options import (
    ConsumerOptions,
    consumer_settings,
    find_topics,
    names_of,
)
from semel.client.credentials import chosen_token
from semel.client.errors import ClientError
from semel.client.positions import KnownPositions
from semel.client.processing import (
    ProducerPool,
    SyncTransform,
    check_owner,
)
from semel.client.producer.facade import retire_seconds
from semel.client.producer.opening import OpenProducers
from semel.client.producer.settings import EXPIRES_SECONDS
from semel.client.producer.sync_producer import Producer
from semel.client.stream_calls import ServerConfig
from semel.client.sync.catalog import Access, Catalog
from semel.client.sync.consumer import Consumer
from semel.client.sync.group import DeadLetters, Group
from semel.client.sync.processing import Task, process_alone, process_together
from semel.client.sync.stream import Stream
from semel.client.sync.subscriptions import Subscriptions
from semel.client.sync.topic import Topic
from semel.client.sync.transaction import Sink, Transaction
from semel.client.sync_driver import SyncDriver, SyncLock
from semel.client.topic_calls import TopicConfig
from semel.client.transport import (
    CLIENT_DEFAULT,
    CONNECT_SECONDS,
    TIMEOUT_SECONDS,
    Timeout,
    random_id,
    reset_in_child,
    seconds_of,
    transport_to,
)
from semel.client.values import (
    KIND_INLINE,
    Registration,
)

Input = str | Stream | Topic


class Client(Catalog):
    """A client of one server. It keeps connections open and reuses them.

    Several threads can share a `Client`. An `AsyncClient` can be used in one event loop at a time.

    Every call returns a result or raises a SemelError within `timeout` seconds. The error says
    whether the request was applied. With `timeout=None` there is no limit.

    A request is sent again only if that is safe, and at most `retries` times. With `retries=None`,
    only the timeout limits the retries.

    `token`, the values of `headers` and the values of `params` (query parameters) are str, or
    functions that return a str. A function is called for each request, also for each retry and each
    reconnection of a tail. With `AsyncClient` it can be a coroutine function. If it raises an
    exception, the call raises it. They are sent only to the server at `url`.

    Without `token`, the client uses the token in the environment variable SEMEL_TOKEN, if it is set
    and `headers` has no Authorization header. With `token=""` it sends none. If the server refuses
    the token of a function, the function is called again and the request is sent once more.

    `stream_path` is the path below which the server has its streams. Semel has them below
    `/v1/stream`.

    Appends to one stream that are made while a request is in flight are sent together in the next
    request. They are numbered, so that an append whose response is lost is sent again and stored
    once. With `retry_appends=False` they are not numbered, and such an append raises
    Indeterminate. This has no effect with another server than semel.

    `tls` is an ssl.SSLContext, or the path of a file with trusted certificates. With
    `gzip=True`, the client asks for compressed responses. This helps only on slow networks.

    Libraries that build on the client can use `url`, `timeout`, `run` and `run_until_stopped`. All
    other fields, and the method `registered`, are internal.
    """

    def __init__(
        self,
        url: str,
        *,
        token: FieldValue | None = None,
        headers: Mapping[str, FieldValue] | None = None,
        params: Mapping[str, FieldValue] | None = None,
        timeout: float | None = TIMEOUT_SECONDS,
        connect_timeout: float = CONNECT_SECONDS,
        retries: int | None = None,
        tls: ssl.SSLContext | str | None = None,
        gzip: bool = False,
        stream_path: str = STREAM_PATH,
        retry_appends: bool = True,
    ) -> None:
        self.timeout = seconds_of(timeout, TIMEOUT_SECONDS)
        token = chosen_token(token, headers)
        self.transport = transport_to(
            url,
            token=token,
            headers=headers,
            params=params,
            timeout=self.timeout,
            connect_timeout=connect_timeout,
            tls=tls,
            stream_path=stream_path,
        )
        # These make the clients of other servers, without and with this client's credentials.
        stranger = partial(
            Client,
            token="",
            timeout=timeout,
            connect_timeout=connect_timeout,
            retries=retries,
            tls=tls,
            gzip=gzip,
            retry_appends=retry_appends,
        )
        own = partial(stranger, token=token or "", headers=headers, params=params)
        self._client_types = {False: stranger, True: own}
        self._others: dict[Address, Client] = {}
        self.site = ServerConfig(self.transport.address, retries, gzip)
        self.driver = SyncDriver(self.transport)
        self.appender = SyncAppender(self.driver, random_id, is_retrying=retry_appends)
        self.known_streams = commit_calls.KnownStreams(self.site)
        self.positions = KnownPositions()
        # The transactions that this client has begun and that have not ended.
        self.unresolved: txn_calls.Unresolved = {}
        self.pool = ProducerPool()
        # The commits that store dead letters and replay them. The lock is held during each of them.
        self.letters = CommitSequence(self.known_streams)
        self.letters_lock = SyncLock()
        self._registering = SyncLock()  # concurrent registrations would fence each other
        self._producers: OpenProducers[Producer] = OpenProducers()
        self._consumers: WeakSet[Consumer] = WeakSet()
        reset_in_child(self)

    def _after_fork(self) -> None:
        """Forget what belongs to the parent: its registrations, transactions and producers."""
        self.pool, self.unresolved, self._producers = ProducerPool(), {}, OpenProducers()
        self.letters, self._consumers = CommitSequence(self.known_streams), WeakSet()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except ClientError:
            if error is None:  # otherwise the exception that the block has raised is reported
                raise

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @property
    def url(self) -> str:
        """The address of the server."""
        return self.transport.address.url

    @property
    def access(self) -> Access:
        """The calls about tokens and owners."""
        return Access(self)

    @property
    def subscriptions(self) -> Subscriptions:
        """The calls about subscriptions and their wakes."""
        return Subscriptions(self)

    def close(self, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Wait until appends and the messages of producers are stored, then close the client.

        Consumers leave their groups.

        Raises Indeterminate if some messages of producers are not stored within `timeout`. The
        client does not send these messages again. Later calls raise ClientClosed.
        """
        deadline = time.monotonic() + seconds_of(timeout, self.timeout)
        with ExitStack() as stack:
            stack.callback(self.driver.close)
            for other in self._others.values():
                stack.callback(other.close, timeout)
            stack.callback(self._retire_generated, deadline)
            for producer in self._producers.remove_all():
                stack.callback(producer.close_by, deadline)
            for consumer in list(self._consumers):
                stack.callback(consumer.close, timeout)

    def _retire_generated(self, deadline: float) -> None:
        """Send the appends that wait. Retire the producers that this client has generated.

        These are the producers of plain appends, of transactions without a producer id, and of
        commits that store dead letters.
        """
        entries = [
            *self.appender.close(deadline),
            *self.pool.remove_idle(),
            *self.letters.retirements(),
        ]
        with suppress(Exception):  # they expire by themselves, whatever fails here
            flow = server_calls.retire_producers(self.site, entries)
            self.run(flow, retire_seconds(deadline))

    # ---- streams, producers ----------------------------------------------------------------------

    def stream(self, path: str) -> Stream:
        """Return the stream with this path or URL. Nothing is sent.

        A URL can be that of any stream of any Durable Streams server. The client's token, headers
        and parameters are sent only to the client's own server. If another server needs them,
        create a client for it. Raises ValueError for an invalid path or URL.

        If the URL is not below the server's `stream_path`, the stream has no path. Calls of semel
        that refer to a stream by its path then raise NotSupported or ValueError.
        """
        place = locate_stream(path, self.site.address)
        client = self if place.address == self.site.address else self._other(place.address)
        return Stream(client, path if place.path is None else place.path, place)

    def _other(self, address: Address) -> "Client":
        """Return the client of another server. It is closed together with this client."""
        other = self._others.get(address)
        if other is None:
            client_type = self._client_types[address.origin == self.site.address.origin]
            client = client_type(address.url, stream_path=address.stream_path)
            other = self._others.setdefault(address, client)
        return other

    def topic(
        self,
        name: str,
        partitions: int | None = None,
        content_type: str | None = None,
        *,
        partitioner: str | None = None,
    ) -> Topic:
        """Return the topic with this name. Nothing is sent.

        With `partitions`, the first use creates the topic if it is missing, for JSON by default. It
        raises TopicConflict if the topic has fewer partitions or another configuration. See the
        topic's `create`.
        """
        config = None
        if partitions is not None:
            config = TopicConfig(partitions, content_type, partitioner)
        elif content_type is not None or partitioner is not None:
            raise ValueError("content_type and partitioner need partitions; pass it, too")
        return Topic(self, name, config)

    def register_producer(
        self, id: str | None = None, *, timeout: Timeout = CLIENT_DEFAULT
    ) -> Registration:
        """Register a producer, fence its older instances, and return its id and new epoch.

        If `id` is None, the server generates an id.
        """
        return self.run(server_calls.register_producer(self.site, id), timeout)

    def registered(self, producer_id: str | None, *, is_new: bool = False) -> Registration:
        """Return this client's registration of a producer. The first call registers the producer.

        If `producer_id` is None, the producer has an id that the server generated. This can be the
        id of an earlier transaction, but only if that transaction has ended and not `is_new`.
        """
        with self._registering:
            known = None if is_new else self.pool.take(producer_id)
            if known is not None:
                return known
            expires = EXPIRES_SECONDS if producer_id is None else None
            flow = server_calls.register_producer(self.site, producer_id, expires)
            return self.pool.add(producer_id, self.run(flow))

    def close_with_client(self, producer: Producer) -> Producer:
        """Make the client's `close` also close `producer`. Return the producer."""
        self._producers.add(producer)
        return producer

    # ---- transactions ----------------------------------------------------------------------------

    def transaction(
        self,
        id: str | None = None,
        *,
        producer_id: str | None = None,
        producer_epoch: int | None = None,
        kind: str = KIND_INLINE,
        timeout: float = 60.0,
        streams: Iterable[str | Stream | Topic] = (),
    ) -> Transaction:
        """Return a transaction. An `with` block begins it, and commits or aborts it.

        The default `id` is random. The server aborts the transaction if it is open for more than
        `timeout` seconds. `streams` lists the streams that the transaction can write to. By
        default, it can write to any stream.

        `producer_id` identifies the producer. The client's first transaction of this producer
        fences the producer's older instances and aborts their transactions. By default, the server
        generates a `producer_id`, and removes it when the client is closed, or after a day in which
        it is not used. To choose the epoch yourself, pass `producer_epoch`.

        With kind="staged", messages get their offsets at the commit, so that readers of the streams
        need not wait for the end of the transaction.
        """
        return Transaction(
            self,
            txn_calls.TransactionCalls(
                self.site, id or None, kind, timeout, self.unresolved, self.positions
            ),
            tuple(path_of(stream, self.site.address) for stream in streams),
            producer_id=producer_id,
            registration=check_owner(producer_id, producer_epoch),
        )

    # ---- groups, sinks, processing ---------------------------------------------------------------

    def group(self, name: str) -> Group:
        """Return the group with the name `name`. Nothing is sent."""
        return Group(self, name)

    def dead_letters(self, group: str, *, stream: str | Stream | None = None) -> DeadLetters:
        """Return the dead letters of a group. Nothing is sent.

        `stream` is the stream that has them, such as the error stream of a pipeline. By default, it
        is the one in which the group's members store the messages that they reject.
        """
        return DeadLetters(self, group, stream)

    def sink(self, app: str) -> Sink:
        """Return the sink of the application `app`. Nothing is sent.

        The sink commits each numbered version of the application's output once.
        """
        return Sink(self, app)

    def sinks(self, *, timeout: Timeout = CLIENT_DEFAULT) -> list[commit_calls.SinkInfo]:
        """Return what the server stores about all sinks."""
        return self.run(commit_calls.list_sink_infos(self.site), timeout)

    def consume(
        self,
        inputs: Input | Iterable[Input] = (),
        *,
        group: str,
        streams: Iterable[str | Stream] = (),
        topics: Iterable[str | Topic] = (),
        patterns: Iterable[str] = (),
        live: bool = True,
        timeout: Timeout = CLIENT_DEFAULT,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer:
        """Return a consumer: a member of a group that shares the work with its other members.

        Each stream belongs to one member at a time, so each message is delivered to one of them. A
        message that is not committed is delivered again. When members join, leave or crash, their
        streams go to others. The order of the messages of each key is kept, also when a topic
        grows. Only committed messages are read.

        `inputs` are names of topics or streams, topic or stream objects, and patterns: texts with a
        segment `*` (one segment) or `**` (any number of segments). `streams`, `topics` and
        `patterns` say which is which. The options are described in `ConsumerOptions`.

        The iteration ends when all streams are closed and read to the end. With live=False, it ends
        when the present tails are reached. `timeout` limits the first join. After that, the
        consumer waits while the server is unreachable.
        """
        consumer = Consumer(
            self,
            group,
            names_of(self.site, inputs, streams, topics, patterns),
            consumer_settings(options),
            is_live=live,
            timeout=timeout,
        )
        self._consumers.add(consumer)
        return consumer

    def process(
        self,
        group: str,
        inputs: Input | Iterable[Input],
        function: SyncTransform,
        *,
        live: bool = True,
        max_messages: int = 1000,
        workers: int | None = None,
        producer_id: str | None = None,
        timeout: Timeout = CLIENT_DEFAULT,
        **options: Unpack[ConsumerOptions],
    ) -> int:
        """Read inputs, transform the messages and store the outputs, exactly once.

        `function` is called with a batch of messages from one input, `batch.stream`. It returns
        None, or a mapping from output streams or topics to lists of values. A value with a key is
        `semel.Keyed(value, key)`. With `AsyncClient` it can be a coroutine function. Its outputs
        and the group's new position are stored in one commit. If they do not fit into one, it is
        called again with half as many messages. Its other effects can happen more than once.

        With `workers`, so many workers share the inputs with each other and with those of other
        processes, as `consume` does: in threads, or in tasks of an `AsyncClient`. Topics and
        patterns always have workers. If `function` raises an exception, or returns outputs that can
        never be stored, it is called again with single messages, and a message for which it fails
        too often becomes a dead letter.

        Without `workers`, this call reads the inputs alone. It fences earlier calls with the same
        `producer_id`, which depends on the group and the inputs: they raise TransactionFenced. If
        `function` raises an exception, this call raises it and stores nothing for the batch. Raises
        PositionConflict if another client changes the group's position.

        Return the number of processed messages when all inputs are closed and read to the end. With
        live=False, return when the present tails are reached. Raises TooLarge if the outputs of one
        message do not fit into a commit. `timeout` limits only the requests before the first batch.
        """
        names = names_of(self.site, inputs)
        if workers is None and not options and not names.has_sharing:
            names = self.run(find_topics(self.site, names), timeout)
        task = Task(group, function, live, max_messages, timeout)
        if workers is None and not options and not names.has_sharing:
            return process_alone(self, task, names.streams, producer_id)
        if producer_id is not None:
            raise ValueError("each of the workers has a producer of its own; pass no producer_id")
        settings = consumer_settings(options).of_workers(1 if workers is None else workers)
        consumers = [
            Consumer(self, group, names, each, is_live=live, timeout=timeout) for each in settings
        ]
        self._consumers.update(consumers)
        return process_together(self, task, consumers)
