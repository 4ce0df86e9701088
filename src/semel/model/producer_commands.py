"""Commands on the lifetimes of producers: retirement, the removal of tombstones, and counted hours.

A tombstone is what stays of a producer that has ended: it refuses late copies of its appends.
"""

from msgspec import Struct


class RetiredProducer(Struct, frozen=True, gc=False):
    """A producer to retire, and the identity of the instance that retires it.

    With `path`, the row in that stream is retired. Then `epoch`, `session` or both are given.
    Without `path`, the registration of the id is retired, and `epoch` is given.
    """

    id: str
    path: str | None = None
    epoch: int | None = None
    session: str | None = None


class RetireProducers(Struct, frozen=True, gc=False):
    """Retire producers that will not be used again, all in one frame."""

    now_ms: int
    producers: tuple[RetiredProducer, ...]


class ExpireRegistration(Struct, frozen=True, gc=False):
    """Retire a registration that declared an idle time, if it was not used for that long.

    `elapsed_ms` is the time since its last use, by the broker's monotonic clock.
    """

    now_ms: int
    id: str
    elapsed_ms: int


class Tombstone(Struct, frozen=True, gc=False):
    """The tombstone of a producer in a stream. If `stream` is 0, it is a retired registration.

    `elapsed_ms` is the time since the producer ended or, if that is later, since the process
    started, by the broker's monotonic clock.
    """

    stream: int
    id: str
    elapsed_ms: int = 0


class DropTombstones(Struct, frozen=True, gc=False):
    """Remove those of the given tombstones that have stayed for long enough.

    `hours` is how long the tombstones of idle producers stay, in hours during which a server ran.
    """

    now_ms: int
    tombstones: tuple[Tombstone, ...]
    hours: int


class CountHour(Struct, frozen=True, gc=False):
    """Record that a server has run for one more hour. Retention is measured in such hours."""

    now_ms: int


LifeCommand = RetireProducers | ExpireRegistration | DropTombstones | CountHour
