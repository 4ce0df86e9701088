"""The streams and topics to which a client's transactions and commits write."""

from typing import Final

from semel.client import errors
from semel.client.addresses import path_of
from semel.client.flows import Flow
from semel.client.stream_calls import ServerConfig, StreamCalls
from semel.client.topic_calls import TopicCalls

_KNOWN_STREAMS_MAX: Final = 10_000


class KnownStreams:
    """The streams to which a client's transactions and commits have written.

    The `StreamCalls` of each stream is kept, because it caches the stream's media type.
    """

    def __init__(self, site: ServerConfig) -> None:
        self.site = site
        self._calls: dict[str, StreamCalls] = {}

    def calls(self, stream: object) -> StreamCalls:
        """Return the `StreamCalls` for a stream or a topic of the server.

        `stream` is a path, a stream object or a topic object. Raises ValueError or TypeError if it
        is none of them, or if it is not on this server. A path is taken for that of a stream, until
        `find` has shown that it is a topic.
        """
        calls = self._calls.get(stream) if isinstance(stream, str) else None
        if calls is None:
            path = path_of(stream, self.site.address)
            given = getattr(stream, "calls", None)
            known = self._calls.get(path)
            is_topic = isinstance(given, TopicCalls)
            if known is not None and isinstance(known, TopicCalls) >= is_topic:
                return known
            new = TopicCalls(self.site, path) if is_topic else StreamCalls(self.site, path)
            if isinstance(new, TopicCalls) and isinstance(given, TopicCalls):
                new.wanted = given.wanted
            calls = self._add(path, new)
        return calls

    def _add(self, path: str, calls: StreamCalls) -> StreamCalls:
        if len(self._calls) >= _KNOWN_STREAMS_MAX:
            self._calls.clear()
        self._calls[path] = calls
        return calls

    def find(self, stream: object) -> Flow[StreamCalls]:
        """Do the same as `calls`, and ask the server if it is not known what the path is."""
        calls = self.calls(stream)
        try:
            yield from calls.known_type()
        except errors.IsTopic:  # a path that was taken for that of a stream
            calls = self._add(calls.path, TopicCalls(self.site, calls.path))
            yield from calls.known_type()
        return calls
