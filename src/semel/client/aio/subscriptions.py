"""Subscriptions: what is followed, wakes, and workers that process them exactly once."""

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeAlias

from semel.client import subscription_calls as calls
from semel.client.addresses import Address, path_of
from semel.client.commit_sequence import CommitSequence
from semel.client.errors import ClientError, Indeterminate, InvalidAck, Unavailable
from semel.client.flows import Flow
from semel.client.leases import AsyncLease, AsyncWorkerStop
from semel.client.server_calls import retire_producers
from semel.client.subscription_values import (
    AckedWake,
    SubscribedStream,
    SubscriptionState,
    WakeBatch,
    WakeInfo,
    WakeStream,
)
from semel.client.subscription_work import (
    BATCH_MESSAGES_MAX,
    Committed,
    UnreadStreams,
    WakeSource,
    WorkerSettings,
    commit_wake,
    finish_wake,
    read_wake,
)
from semel.client.transport import CLIENT_DEFAULT, FOREVER, Timeout
from semel.client.values import Offset
from semel.client.wake_functions import (
    AsyncWakeCall,
    AsyncWakeFunction,
    AsyncWakeOutputs,
    async_wake_call,
    check_wake_outputs,
)

if TYPE_CHECKING:
    from semel.client.aio.client import AsyncClient
    from semel.client.aio.stream import AsyncStream

    StreamOrPath: TypeAlias = str | AsyncStream

_log = logging.getLogger("semel.client")
_RELEASE_SECONDS: Final = 5.0
_RETIRE_SECONDS: Final = 1.0
_RENEWALS: Final = 3  # in the time of a lease


class AsyncWake:
    """A wake of a pull-wake subscription that this client has claimed.

    Until it has ended, nobody else can claim the work of the subscription. It ends with `done`,
    `release`, a commit that has it in `wakes`, or when its lease has expired. Every `ack` renews
    the lease. After its end, every call for it raises WakeFenced.
    """

    def __init__(self, client: "AsyncClient", wake: WakeInfo) -> None:
        self.wake = wake
        self._client = client

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.subscription!r}, generation={self.generation})"

    @property
    def subscription(self) -> str:
        """The id of the subscription."""
        return self.wake.subscription

    @property
    def wake_id(self) -> str:
        """The id of the wake."""
        return self.wake.wake_id

    @property
    def generation(self) -> int:
        """The number of the wake. It counts the wakes of the subscription."""
        return self.wake.generation

    @property
    def token(self) -> str:
        """The secret with which the wake can be acked."""
        return self.wake.token

    @property
    def streams(self) -> list[WakeStream]:
        """The streams of the wake, with what is pending in each."""
        return self.wake.streams

    @property
    def lease(self) -> float:
        """How many seconds the lease lasts after the claim and after each ack."""
        return self.wake.lease_ttl_ms / 1000

    def acked(self, offsets: Mapping[str, Offset] | None = None, *, done: bool = True) -> AckedWake:
        """Return what a commit in `wakes` says of this wake. Nothing is sent.

        `offsets` maps streams to the offset up to which they are processed. By default, all that
        was pending is.
        """
        return self.wake.acked(offsets, done=done)

    async def ack(
        self,
        offsets: Mapping[str, Offset] | None = None,
        *,
        done: bool = False,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> bool:
        """Record how far streams are processed, and renew the lease.

        Without `offsets`, only the lease is renewed. With `done`, the wake ends. Return True if it
        has ended and more is pending. Raises InvalidAck for an offset that cannot be acked.
        """
        ack = self.wake.acked(offsets or {}, done=done)
        return await self._client.run(calls.ack_wake(self._client.site, self.wake, ack), timeout)

    async def done(
        self, offsets: Mapping[str, Offset] | None = None, *, timeout: Timeout = CLIENT_DEFAULT
    ) -> bool:
        """End the wake: all that was pending is processed, or what `offsets` says.

        Return True if more is pending.
        """
        ack = self.wake.acked(offsets)
        return await self._client.run(calls.ack_wake(self._client.site, self.wake, ack), timeout)

    async def release(self, *, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """End the wake without an ack, so that another worker can claim the work at once."""
        await self._client.run(calls.release_wake(self._client.site, self.wake), timeout)


# ---- workers -------------------------------------------------------------------------------------


class AsyncWakeProcessor:
    """Processes wakes with a function: outputs and ack are one commit. It is internal."""

    def __init__(
        self, client: "AsyncClient", call: AsyncWakeCall, count: int, unread: UnreadStreams
    ) -> None:
        self.sequence = CommitSequence(client.known_streams)
        self._unread = unread
        self._client = client
        self._call = call
        self._count_max = self._count = count

    async def process(self, wake: WakeInfo, renewal_seconds: float) -> Committed:
        """Read messages of a wake, call the function, commit. Return what has become of it.

        Raises what the function raises, and what says that the outputs cannot be stored.
        """
        client = self._client
        renewal = wake.acked({}, done=False)

        def renew() -> Flow[bool]:
            return calls.ack_wake(client.site, wake, renewal)

        async with AsyncLease(client.driver, renew, renewal_seconds):
            while True:
                batch = await client.run(read_wake(client.site, wake, self._count))
                self._unread.check(batch)
                if not batch.messages:
                    return await client.run(finish_wake(client.site, wake, batch))
                outputs = check_wake_outputs(await self._call(batch))
                done = await client.run(commit_wake(self.sequence, wake, batch, outputs))
                if done.smaller is None:
                    self._count = min(2 * self._count, self._count_max)
                    return done
                self._count = done.smaller

    async def retire(self) -> None:
        """Let the server remove the producers of the commits."""
        entries = self.sequence.retirements()
        if entries:
            with suppress(ClientError):  # they expire by themselves
                await self._client.run(
                    retire_producers(self._client.site, entries), _RETIRE_SECONDS
                )


class AsyncWorker:
    """A worker of a pull-wake subscription. `await worker.run()` does the work.

    A call of the worker is a call of its function, as for a test of it.
    """

    def __init__(
        self,
        client: "AsyncClient",
        subscription: str,
        function: AsyncWakeFunction,
        settings: WorkerSettings,
    ) -> None:
        self.subscription = subscription
        self._client = client
        self._settings = settings
        self._function = function
        self._call = async_wake_call(function)
        self._stop = AsyncWorkerStop()

    def __call__(self, batch: WakeBatch) -> AsyncWakeOutputs:
        """Return what the function returns for a batch. Nothing is stored."""
        return self._function(batch)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.subscription!r}, {self._settings.name!r})"

    @property
    def name(self) -> str:
        """The name that others see while the worker has a wake."""
        return self._settings.name

    def stop(self) -> None:
        """Let `run` return when the present batch is done. It cannot be started again.

        With `Client`, any thread and a signal handler can call this. With `AsyncClient`, call it in
        the event loop, as `loop.add_signal_handler(SIGTERM, worker.stop)` does.
        """
        self._stop.set()

    async def run(self, *, live: bool = True, timeout: Timeout = CLIENT_DEFAULT) -> int:
        """Process wakes until `stop` is called. Return the number of messages that were stored.

        With live=False, return when nothing is pending. `timeout` limits the first request. After
        that, the worker waits while the server is unreachable.

        Raises SubscriptionNotFound if the subscription does not exist, or is deleted. Raises what
        the function has raised, after too many failures in a row.
        """
        client = self._client
        source = WakeSource(client.site, self.subscription, self.name, is_live=live)
        count_max = self._settings.max_messages
        processor = AsyncWakeProcessor(client, self._call, count_max, UnreadStreams())
        await client.run(source.begin(), timeout)
        count = failures = 0
        try:
            while not self._stop.is_set:
                wake = await self._claim(source)
                if wake is None:
                    if not (live or source.is_claimed):
                        break
                    await self._wait(source)
                    continue
                done = await self._process(processor, wake, failures)
                failures = failures + 1 if done is None else 0
                count += 0 if done is None else done.count
        finally:
            await processor.retire()
        return count

    async def _claim(self, source: WakeSource) -> WakeInfo | None:
        """Claim a wake. Return None if there is none, or if the server cannot be reached."""
        try:
            return await self._client.run(source.claim())
        except (Unavailable, Indeterminate) as error:
            source.is_claimed = True  # perhaps, so this is not the end
            _log.warning("the worker %s waits for the server: %s", self.name, error.message)
            return None

    async def _wait(self, source: WakeSource) -> None:
        with suppress(Unavailable, Indeterminate):
            await self._client.driver.run(source.wait(), FOREVER, self._stop)

    async def _process(
        self, processor: AsyncWakeProcessor, wake: WakeInfo, failures: int
    ) -> Committed | None:
        """Process a wake. Return None if that has failed, after the time to wait.

        Raises the error if it was one too many in a row.
        """
        lease_seconds = wake.lease_ttl_ms / 1000
        try:
            done = await processor.process(wake, lease_seconds / _RENEWALS)
        except (Unavailable, Indeterminate) as error:  # the commit was perhaps applied
            await self._release(wake)
            _log.warning("the worker %s waits for the server: %s", self.name, error.message)
            await self._stop.wait(self._settings.backoff)
            return Committed()
        except InvalidAck:  # a stream was deleted after it was read; the next wake is without it
            await self._release(wake)
            return Committed()
        except Exception as error:
            await self._release(wake)
            seconds = self._settings.retry_seconds(failures + 1)
            if seconds is None:
                raise
            _log.warning(
                "the subscription %s: the messages of the wake %d were not processed, and are"
                " tried again in %.1f s: %s: %s",
                *(self.subscription, wake.generation, seconds, type(error).__name__, error),
            )
            await self._stop.wait(seconds)
            return None
        except BaseException:
            await self._release(wake)
            raise
        if done.is_fenced:
            _log.warning(
                "the worker %s has lost the wake %d of the subscription %s, and its outputs were"
                " dropped; the messages are processed again. Either its lease of %g s has expired,"
                " because the worker could not renew it, or the subscription was deleted",
                *(self.name, wake.generation, wake.subscription, lease_seconds),
            )
        return done

    async def _release(self, wake: WakeInfo) -> None:
        with suppress(ClientError):  # otherwise it ends when its lease has expired
            await self._client.run(calls.release_wake(self._client.site, wake), _RELEASE_SECONDS)


# ---- subscriptions -------------------------------------------------------------------------------


class AsyncSubscriptions:
    """The subscriptions of a server: `client.subscriptions`.

    A subscription follows streams, and wakes a worker when there is something to read in them. It
    stores how far each stream was processed.
    """

    def __init__(self, client: "AsyncClient") -> None:
        self._client = client

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._client.url!r})"

    async def create(
        self,
        id: str,
        *,
        pattern: str | None = None,
        streams: "Iterable[StreamOrPath]" = (),
        webhook_url: str | None = None,
        wake_stream: "StreamOrPath | None" = None,
        lease: float | timedelta | None = None,
        description: str | None = None,
        exist_ok: bool = False,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> SubscriptionState:
        """Create a subscription. It follows `streams`, and those that match the `pattern`.

        Wakes are delivered to `webhook_url`, or announced in the stream `wake_stream`, for workers
        that claim them. That must be a stream with the content type application/json. Streams that
        exist are followed from their present ends on, and those that are created later from their
        beginnings. A wake belongs to its worker for `lease` seconds, by default 30.

        If it exists with the same configuration, raises SubscriptionExists, unless `exist_ok`; then
        it is resumed if it was suspended. With another configuration, always raises
        SubscriptionExists.
        """
        if isinstance(streams, str):
            raise TypeError(f"streams is a list of streams; expected e.g. streams=[{streams!r}]")
        address = self._client.site.address
        config = calls.SubscriptionConfig(
            pattern=pattern,
            streams=tuple(path_of(stream, address) for stream in streams),
            lease_ttl_ms=_milliseconds(lease),
            description=description,
            webhook_url=webhook_url,
            wake_stream=None if wake_stream is None else path_of(wake_stream, address),
        )
        flow = calls.create_subscription(self._client.site, id, config, exist_ok=exist_ok)
        return await self._client.run(flow, timeout)

    async def show(self, id: str, *, timeout: Timeout = CLIENT_DEFAULT) -> SubscriptionState:
        """Return a subscription with its first 1,000 streams, and how far each was processed.

        Raises SubscriptionNotFound if there is none.
        """
        return await self._client.run(calls.show_subscription(self._client.site, id), timeout)

    async def streams(
        self, id: str, *, timeout: Timeout = CLIENT_DEFAULT
    ) -> AsyncIterator[SubscribedStream]:
        """Yield all streams that a subscription follows, the oldest first."""
        after: int | str | None = None
        while True:
            flow = calls.next_streams(self._client.site, id, after)
            streams, after = await self._client.run(flow, timeout)
            for stream in streams:
                yield stream
            if after is None:
                return

    async def list(
        self, prefix: str = "", *, after: str | None = None, timeout: Timeout = CLIENT_DEFAULT
    ) -> AsyncIterator[SubscriptionState]:
        """Yield the subscriptions whose ids begin with `prefix`, sorted by id.

        With `after`, yield only those after this id. They come without their streams.
        """
        while True:
            flow = calls.list_subscriptions(self._client.site, prefix, after)
            page = await self._client.run(flow, timeout)
            for entry in page.subscriptions:
                yield entry
            if page.next is None:
                return
            after = page.next

    async def delete(self, id: str, *, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Delete a subscription. Nothing happens if there is none.

        The wake in flight ends. The streams are not changed.
        """
        await self._client.run(calls.delete_subscription(self._client.site, id), timeout)

    async def link(
        self, id: str, *streams: "StreamOrPath", timeout: Timeout = CLIENT_DEFAULT
    ) -> None:
        """Follow more streams, from their present ends on. They need not exist yet."""
        paths = _paths(self._client.site.address, streams)
        await self._client.run(calls.link_streams(self._client.site, id, paths), timeout)

    async def unlink(
        self, id: str, *streams: "StreamOrPath", timeout: Timeout = CLIENT_DEFAULT
    ) -> None:
        """No longer follow these streams, except those that match the pattern."""
        paths = _paths(self._client.site.address, streams)
        await self._client.run(calls.unlink_streams(self._client.site, id, paths), timeout)

    async def resume(self, id: str, *, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Deliver the wakes of a suspended subscription again."""
        await self._client.run(calls.resume_subscription(self._client.site, id), timeout)

    async def claim(
        self, id: str, *, worker: str | None = None, timeout: Timeout = CLIENT_DEFAULT
    ) -> AsyncWake:
        """Claim what is pending in a pull-wake subscription, for the lease time.

        `worker` is the name that others see; it is random by default. Raises NoPendingWork if
        nothing is pending, and AlreadyClaimed if a worker has claimed it. If this happens because
        the response to an earlier attempt was lost, `current_holder` is `worker`, and `applied` is
        "unknown": the work can be claimed again when the lease has expired.
        """
        flow = calls.claim_wake(self._client.site, id, worker or calls.worker_name())
        return AsyncWake(self._client, await self._client.run(flow, timeout))

    def worker(
        self,
        id: str,
        *,
        name: str | None = None,
        max_messages: int = BATCH_MESSAGES_MAX,
        retries: int | None = 10,
        backoff: float = 0.1,
    ) -> Callable[[AsyncWakeFunction], AsyncWorker]:
        """Return a decorator that makes a function the worker of a pull-wake subscription.

        The function is called with a batch of messages, and returns None, or a mapping from output
        streams or topics to lists of values. Its outputs and the ack are one commit: for each
        message, they are stored exactly once. Its other effects can happen more than once. With
        `AsyncClient` it can be a coroutine function. `await worker.run()` does the work.

        Several workers of one subscription take over from each other, and only one works at a time.
        `name` is what others see of a worker, and is random by default. If the function raises an
        exception, it is called again, after `backoff` seconds, which double with each failure up to
        10 seconds. After more than `retries` failures in a row, `run` raises the exception.
        """
        if not isinstance(id, str):
            raise TypeError(f'the decorator needs an id: worker("billing"), not worker({id!r})')
        settings = WorkerSettings(name or calls.worker_name(), max_messages, retries, backoff)
        settings.check()

        def decorate(function: AsyncWakeFunction) -> AsyncWorker:
            return AsyncWorker(self._client, id, function, settings)

        return decorate


def _paths(address: Address, streams: "Iterable[StreamOrPath]") -> list[str]:
    paths = [path_of(stream, address) for stream in streams]
    if not paths:
        raise ValueError("no stream is given; pass at least one")
    return paths


def _milliseconds(lease: float | timedelta | None) -> int | None:
    if lease is None:
        return None
    return round((lease.total_seconds() if isinstance(lease, timedelta) else lease) * 1000)
