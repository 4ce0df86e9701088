"""The options of a member of a group, and what it reads."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypedDict

from msgspec import UNSET, Struct
from msgspec.structs import replace

from semel.client import errors
from semel.client.addresses import Address, path_of
from semel.client.flows import Flow, backoff_seconds
from semel.client.member_calls import Subscription
from semel.client.stream_calls import ServerConfig
from semel.client.topic_calls import TopicCalls
from semel.client.transport import random_id
from semel.model.group_commands import EARLIEST, LATEST
from semel.model.patterns import pattern_problem

ATTEMPTS_MAX: Final = 5
_BACKOFF_SECONDS: Final = 0.1
_BACKOFF_SECONDS_MAX: Final = 10.0

# ---- options -------------------------------------------------------------------------------------

OnStreams = Callable[[list[str]], Any]


class ConsumerOptions(TypedDict, total=False):
    """The options of a member of a group. All have defaults.

    - `session_timeout`: the member expires if it is not heard for so many seconds, and other
      members get its streams. 1 to 1,800 seconds; the default is 30.
    - `rebalance_timeout`: how many seconds the member may keep a stream that it must release. The
      default is the session timeout.
    - `instance`: a name that stays the same after a restart. A new member with this name takes over
      the streams of the old one at once. By default, every member has another one.
    - `start`: "earliest" or "latest": where the group begins a stream in which it has no position.
    - `max_attempts`: a message becomes a dead letter when so many attempts to process it have
      failed, by an exception or by a crash. None means never. The default is 5. Without exceptions
      at least three crashes are needed: only then it is sure which message has caused them.
    - `retries`: how often the function is called again after an exception. By default, this is
      limited only by `max_attempts`.
    - `backoff`: the seconds before the first retry. They double with each retry, up to 10 seconds.
      The default is 0.1.
    - `on_assigned(streams)`: called after the member has got streams.
    - `on_revoked(streams)`: called before the member releases streams. It can still commit.
    - `on_lost(streams)`: called after streams were taken away. Commits in them are refused.
    """

    session_timeout: float
    rebalance_timeout: float | None
    instance: str | None
    start: str
    max_attempts: int | None
    retries: int | None
    backoff: float
    on_assigned: OnStreams | None
    on_revoked: OnStreams | None
    on_lost: OnStreams | None


class ConsumerSettings(Struct, frozen=True):
    """The options of a member with their defaults. Times are in seconds."""

    session_timeout: float | None = None
    rebalance_timeout: float | None = None
    instance: str | None = None
    start: str | None = None
    max_attempts: int | None = ATTEMPTS_MAX
    retries: int | None = None
    backoff: float = _BACKOFF_SECONDS
    on_assigned: OnStreams | None = None
    on_revoked: OnStreams | None = None
    on_lost: OnStreams | None = None

    def subscription(self, names: "Names") -> Subscription:
        """Return the request to join a group.

        Without an `instance`, a random one is sent, so that a repeated request replaces the member
        that the first one has added.
        """
        return Subscription(
            streams=names.streams,
            topics=[calls.path for calls in names.topics],
            patterns=names.patterns,
            session_timeout_ms=_milliseconds(self.session_timeout),
            rebalance_timeout_ms=_milliseconds(self.rebalance_timeout),
            instance=self.instance or f"consumer-{random_id()}",
            start=UNSET if self.start is None else self.start,
            names_suspects=True,
        )

    def of_workers(self, count: int) -> list["ConsumerSettings"]:
        """Return the settings of so many members. Each has an instance name of its own.

        Raises ValueError if `count` is not positive.
        """
        if count < 1:
            raise ValueError(f"workers={count} is invalid; expected 1 or more")
        if count == 1 or self.instance is None:
            return [self] * count
        return [replace(self, instance=f"{self.instance}-{index}") for index in range(count)]

    @property
    def has_dead_letters(self) -> bool:
        """True if a message that cannot be processed becomes a dead letter."""
        return self.max_attempts is not None or self.retries is not None

    def retry_seconds(self, failures: int, crashes: int) -> float | None:
        """Return how long to wait before a message is tried again, or None to give it up.

        `failures` counts the exceptions so far, and `crashes` what the server has counted.
        """
        is_last = self.max_attempts is not None and failures + crashes >= self.max_attempts
        if is_last or (self.retries is not None and failures > self.retries):
            return None
        if not self.has_dead_letters:
            return None
        return backoff_seconds(failures - 1, self.backoff, _BACKOFF_SECONDS_MAX)


def _milliseconds(seconds: float | None) -> Any:
    return UNSET if seconds is None else round(seconds * 1000)


def consumer_settings(options: ConsumerOptions) -> ConsumerSettings:
    """Return the settings of a member.

    Raises TypeError for an unknown option, and ValueError for an invalid value.
    """
    unknown = sorted(set(options) - ConsumerOptions.__annotations__.keys())
    if unknown:
        known = ", ".join(ConsumerOptions.__annotations__)
        raise TypeError(f"there is no option {unknown[0]!r}; the options are {known}")
    settings = ConsumerSettings(**options)
    numbers: dict[str, float | None] = {
        "max_attempts": settings.max_attempts,
        "session_timeout": settings.session_timeout,
        "rebalance_timeout": settings.rebalance_timeout,
    }
    for name, value in numbers.items():
        if value is not None and value <= 0:
            raise ValueError(f"{name}={value} is invalid; expected more than 0")
    if settings.start not in (None, EARLIEST, LATEST):
        raise ValueError(
            f"start={settings.start!r} is invalid; expected {EARLIEST!r} or {LATEST!r}"
        )
    if (settings.retries or 0) < 0 or settings.backoff < 0:
        raise ValueError("retries and backoff must not be negative")
    return settings


class Names(Struct, frozen=True):
    """What a member reads: streams, topics, patterns, and names of streams or topics."""

    streams: tuple[str, ...] = ()
    topics: tuple[TopicCalls, ...] = ()
    patterns: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def has_sharing(self) -> bool:
        """True if there are topics or patterns, which only members of a group can read."""
        return bool(self.topics or self.patterns)


def names_of(
    site: ServerConfig,
    given: object,
    streams: Iterable[object] = (),
    topics: Iterable[object] = (),
    patterns: Iterable[str] = (),
) -> Names:
    """Return what a member reads.

    `given` is one item or several. A text with a segment `*` or `**` is a pattern, any other text
    is the name of a stream or a topic. Raises ValueError if there is nothing to read, or for an
    invalid pattern. Raises TypeError for an item that is not a text, a stream or a topic.
    """
    found = Names(
        tuple(path_of(stream, site.address) for stream in streams),
        tuple(_topic_calls(site, topic) for topic in topics),
        tuple(map(_checked_pattern, patterns)),
    )
    for item in [given] if _is_one(given) else list(given):  # type: ignore[call-overload]
        found = _with_item(found, item, site)
    if not (found.streams or found.topics or found.patterns or found.names):
        raise ValueError("there is nothing to read; pass at least one stream, topic or pattern")
    return found


def _is_one(given: object) -> bool:
    return isinstance(given, str) or not isinstance(given, Iterable)


def _with_item(names: Names, item: object, site: ServerConfig) -> Names:
    if isinstance(item, str):
        if not {"*", "**"}.isdisjoint(item.split("/")):
            return replace(names, patterns=(*names.patterns, _checked_pattern(item)))
        if "*" in item and "://" not in item:
            raise ValueError(
                f"{item!r} is not a pattern, because * must be a whole segment, as in orders/*; use"
                " streams= for a stream and topics= for a topic with this name"
            )
        if "://" in item:  # the URL of a stream
            return replace(names, streams=(*names.streams, path_of(item, site.address)))
        return replace(names, names=(*names.names, item))
    if isinstance(getattr(item, "calls", None), TopicCalls):
        return replace(names, topics=(*names.topics, _topic_calls(site, item)))
    return replace(names, streams=(*names.streams, path_of(item, site.address)))


def _checked_pattern(text: str) -> str:
    problem = pattern_problem(text)
    if problem is not None:
        raise ValueError(problem)
    return text


def _topic_calls(site: ServerConfig, topic: object) -> TopicCalls:
    calls = TopicCalls(site, topic) if isinstance(topic, str) else getattr(topic, "calls", None)
    if not isinstance(calls, TopicCalls):
        raise TypeError(f"expected the name of a topic or a topic, not {type(topic).__name__}")
    _require_server(calls, site.address)
    return calls


def _require_server(calls: TopicCalls, own: Address) -> None:
    if calls.place.address != own:
        raise ValueError(f"the topic {calls.path} is not on the server {own.url}")


def resolve_names(site: ServerConfig, names: Names) -> Flow[tuple[Names, dict[str, int]]]:
    """Find out which names are topics. Return the names, and the partitions of each topic."""
    streams, topics, counts = list(names.streams), list(names.topics), {}
    for calls in names.topics:
        counts[calls.path] = (yield from calls.show()).partition_count
    for name in names.names:
        calls = TopicCalls(site, name)
        try:
            counts[name] = (yield from calls.show()).partition_count
            topics.append(calls)
        except errors.TopicNotFound:
            streams.append(path_of(name, site.address))
    return Names(tuple(streams), tuple(topics), names.patterns), counts


def find_topics(site: ServerConfig, names: Names) -> Flow[Names]:
    """Find out which names are topics. On a server that has no topics, all are streams."""
    try:
        return (yield from resolve_names(site, names))[0]
    except errors.NotSupported:
        paths = tuple(path_of(name, site.address) for name in names.names)
        return replace(names, streams=(*names.streams, *paths), names=())


# ---- callbacks -----------------------------------------------------------------------------------


def sync_call(function: Callable[[Any], Any], argument: Any) -> Any:
    """Call the application's function, and return its result."""
    return function(argument)


async def async_call(function: Callable[[Any], Any], argument: Any) -> Any:
    """Call the application's function, and return its result. Await it if necessary."""
    result = function(argument)
    return await result if isinstance(result, Awaitable) else result
