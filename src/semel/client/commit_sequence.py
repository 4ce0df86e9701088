"""One-shot commits of a producer that the server has named, one after the other.

Workers that share the streams of a group use it. Each has a producer id of its own, so that no
worker fences another one. This module uses no sockets.
"""

from math import inf
from typing import Final

from msgspec.structs import replace

from semel.client import errors
from semel.client.commit_calls import CommitId, Parts, commit_parts
from semel.client.flows import Flow
from semel.client.known_streams import KnownStreams
from semel.client.producer.settings import EXPIRES_SECONDS
from semel.client.requests import CreateHeaders
from semel.client.server_calls import UNKNOWN_PRODUCER, register_producer
from semel.client.stream_calls import StreamCalls
from semel.client.values import CommitResult, Registration
from semel.model.messages import JSON_MEDIA_TYPE
from semel.wire.schema.producers import RetireEntry

# The server refuses the next commit of a producer id that it has removed with one of these codes.
_REMOVED: Final = frozenset({UNKNOWN_PRODUCER, "epoch_must_start_at_zero"})


class CommitSequence:
    """The one-shot commits of one worker. They must not be made concurrently.

    The producer id is registered before the first commit. If the outcome of a commit is unknown,
    the next commit gets a new id, because the number of the unknown one is perhaps used.
    """

    def __init__(self, streams: KnownStreams) -> None:
        self.streams = streams
        self._next: CommitId | None = None
        self._registered: list[Registration] = []
        self._created: set[str] = set()

    def commit(self, parts: Parts, *, silence_seconds: float = inf) -> Flow[CommitResult]:
        """Commit all parts or nothing, exactly once. Return the result."""
        is_new = self._next is None
        try:
            return (yield from self._commit(parts, silence_seconds))
        except errors.Refused as error:
            if is_new or error.code not in _REMOVED:
                raise
        self._next = None
        return (yield from self._commit(parts, silence_seconds))

    def _commit(self, parts: Parts, silence_seconds: float) -> Flow[CommitResult]:
        commit_id, self._next = self._next, None
        if commit_id is None:
            registration = yield from register_producer(self.streams.site, None, EXPIRES_SECONDS)
            self._registered.append(registration)
            commit_id = CommitId(registration.producer_id, registration.producer_epoch, 0)
        try:
            result = yield from commit_parts(
                self.streams, commit_id, parts, silence_seconds=silence_seconds
            )
        except (errors.Refused, errors.Unavailable, TypeError, ValueError):
            self._next = commit_id  # nothing was applied, so the number is still free
            raise
        self._next = replace(commit_id, seq=commit_id.seq + 1)
        return result

    def append_letters(self, path: str, parts: Parts) -> Flow[CommitResult]:
        """Commit parts that append JSON to the stream `path`. Create the stream if it is missing.

        A one-shot commit creates no streams, so the stream is created before its first use. If it
        was deleted since then, it is created again.
        """
        if path in self._created:
            try:
                return (yield from self.commit(parts))
            except (errors.StreamNotFound, errors.StreamGone) as error:
                if error.facts.get("stream") not in (None, path):
                    raise
        yield from create_letters(self.streams, path)
        self._created.add(path)
        return (yield from self.commit(parts))

    def take_registrations(self) -> list[Registration]:
        """Return the ids that were registered. The caller lets the server remove them."""
        registered, self._registered = self._registered, []
        self._next = None
        return registered

    def retirements(self) -> list[RetireEntry]:
        """Return the entries with which the server removes the ids that were registered."""
        return [
            RetireEntry(each.producer_id, producer_epoch=each.producer_epoch)
            for each in self.take_registrations()
        ]


def create_letters(streams: KnownStreams, path: str) -> Flow[None]:
    """Create a stream for dead letters or retries, unless it exists."""
    calls = StreamCalls(streams.site, path)
    yield from calls.create(CreateHeaders(JSON_MEDIA_TYPE), exist_ok=True)
