# generated from semel/client/aio/consumer.py by `make facades`; do not edit
"""Consumers: the members of a group that shares work."""

import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from semel.client.commit_sequence import CommitSequence
from semel.client.consumer_options import ConsumerSettings, Names, OnStreams, sync_call
from semel.client.consuming import Consumption
from semel.client.errors import ClientError
from semel.client.heartbeats import Heartbeats, Wakeup
from semel.client.owned_streams import MemberCursor
from semel.client.processing import InputBatch
from semel.client.server_calls import retire_producers
from semel.client.sync.group import MessageCommitter
from semel.client.sync_driver import SyncLock, sync_caller
from semel.client.transport import (
    CLIENT_DEFAULT,
    FOREVER,
    ProcessOwner,
    Timeout,
    seconds_of,
)
from semel.client.values import Message

if TYPE_CHECKING:
    from semel.client.sync.client import Client


class Consumer(Iterator[Message]):
    """A member of a group. Iterating yields the messages of the streams that it owns.

    The members of a group share its streams: each stream belongs to one of them at a time. The
    consumer joins the group when the first message is requested or the `with` block is
    entered. It leaves when it is closed, or when it is no longer used.

    Heartbeats are sent beside the application, so a message can take any time to be processed. The
    application commits each message with `message.commit()`, rejects it with
    `message.reject(reason)`, or passes it to `txn.commit_message(message)`. Messages
    that are not committed are delivered again, to the next owner of their stream. If the consumer
    has lost a stream, commits of its messages raise IllegalGeneration, and nothing is stored.

    A message that crashes its members becomes a dead letter only if each message is committed
    before the next one is taken: otherwise it is not known which one has done it. Threads and tasks
    can share a consumer. Then one of them can get nothing for a while, until such a message of
    another one is committed.
    """

    def __init__(
        self,
        client: "Client",
        group: str,
        names: Names,
        settings: ConsumerSettings,
        *,
        is_live: bool,
        timeout: Timeout,
    ) -> None:
        self.group = group
        self.settings = settings
        self._client = client
        self._seconds = seconds_of(timeout, client.timeout)
        self._owner = ProcessOwner("a consumer")
        self._news = Wakeup()
        self._closing = Wakeup()  # its signal ends what must not be interrupted by news
        self._stop = self._closing.renew()
        self._heartbeats = Heartbeats(client.driver, self._news)
        self._lock = SyncLock()  # held while the next messages are determined

        def make_committer(cursor: MemberCursor) -> MessageCommitter:
            return MessageCommitter(client, cursor)

        self._share = Consumption(
            client.known_streams,
            group,
            names,
            settings,
            client.positions,
            make_committer,
            is_live=is_live,
        )
        finalizer = weakref.finalize(self, self._heartbeats.stop_soon)
        finalizer.atexit = False  # a program that ends without `close` has perhaps failed

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.group!r}, {self.member!r})"

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        messages = self._next(1)
        if not messages:
            raise StopIteration
        return messages[0]

    def __enter__(self) -> Self:
        with self._lock:
            self._settle()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def member(self) -> str | None:
        """The member's id, or None before it has joined. It can change after an expiry."""
        member = self._share.member
        return None if member is None else member.id

    @property
    def streams(self) -> list[str]:
        """The paths of the streams that the consumer owns, sorted."""
        return [] if self.closed else sorted(self._share.streams)

    @property
    def closed(self) -> bool:
        """True if `close` was called."""
        return self._stop.is_set

    def next_batch(self, max_messages: int = 1000) -> InputBatch | None:
        """Return the next messages of one stream, or None at the end.

        After crashes, messages are delivered one by one. Do not iterate at the same time.
        """
        if max_messages < 1:
            raise ValueError(f"max_messages={max_messages} is invalid; expected 1 or more")
        messages = self._next(max_messages)
        return InputBatch(messages[0].stream or "", messages) if messages else None

    def close(self, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Leave the group, so that its other members get the streams. Iteration ends.

        `on_revoked` is called before that, and can still commit. Any thread or task can call this.
        """
        if self.closed:
            if not self._owner.is_parent:  # another thread or task is perhaps still leaving
                self._heartbeats.end(seconds_of(timeout, self._client.timeout))
            return
        streams = self.streams
        self._closing.end()
        self._news.end()
        if self._owner.is_parent:
            return
        try:
            if streams:
                self._call(self.settings.on_revoked, streams)
        finally:
            self._leave(seconds_of(timeout, self._client.timeout))

    @property
    def sequence(self) -> CommitSequence:
        """The one-shot commits of this consumer. It is internal."""
        return self._share.sequence

    def pause(self, seconds: float) -> None:
        """Wait, but not after `close`. It is internal."""
        self._stop.wait(seconds)

    def stop(self) -> None:
        """Let the iteration end. The consumer does not leave its group before `close`."""
        self._news.end()

    def _leave(self, seconds: float) -> None:
        self._heartbeats.end(seconds)
        self._share.forget()
        entries = self._share.sequence.retirements()
        if entries:
            with suppress(ClientError):  # the producers expire by themselves
                self._client.run(retire_producers(self._client.site, entries), seconds)

    def _next(self, count: int) -> list[Message]:
        caller = sync_caller()
        self._share.note_return(caller)  # another one that waits for that has the lock
        with self._lock:
            self._owner.check()
            try:
                while not self._news.is_over:
                    messages = self._step(count, caller)
                    if messages is not None:
                        return messages
            except ClientError:
                if not self.closed:
                    raise
        return []

    def _step(self, count: int, caller: object) -> list[Message] | None:
        """Return messages if there are some, an empty list at the end, and otherwise None."""
        share = self._share
        messages = [] if share.has_news else share.take(count, caller)
        if not messages:
            self._settle()
            messages = share.take(count, caller)
        if messages or (share.is_exhausted and self._client.run(share.is_over(), self._seconds)):
            return messages
        self._fetch()
        return None

    def _settle(self) -> None:
        """Join if necessary, apply what the heartbeats have brought, and release streams."""
        share, driver = self._share, self._client.driver
        if share.member is None and not self._has_joined():
            return
        changes = share.take_news()
        if changes.lost:
            self._call(self.settings.on_lost, changes.lost)
        if changes.revoked:
            self._call(self.settings.on_revoked, changes.revoked)
        if share.release():
            self._heartbeats.beat_now()
        if changes.assigned:
            self._call(self.settings.on_assigned, changes.assigned)
        if share.has_chores:
            try:
                driver.run(share.chores(), FOREVER, self._stop)
            except ClientError:
                if not self.closed:
                    raise

    def _has_joined(self) -> bool:
        """Join the group. Return False if `close` has ended that."""
        share, driver = self._share, self._client.driver
        seconds = self._seconds if not share.has_joined else FOREVER
        try:
            self._heartbeats.follow(driver.run(share.join(), seconds, self._stop))
        except ClientError:
            if self.closed:
                return False
            raise
        if self.closed:  # meanwhile: it did not know that there is a member
            self._heartbeats.end(self._seconds)
        return True

    def _fetch(self) -> None:
        """Read more messages or wait for some. News end the wait."""
        stop = self._news.renew()
        if self._share.has_news:
            return
        try:
            self._client.driver.run(self._share.fetch(), FOREVER, stop)
        except ClientError:
            if not stop.is_set:
                raise

    def _call(self, function: OnStreams | None, streams: list[str]) -> None:
        if function is not None:
            sync_call(function, sorted(streams))
