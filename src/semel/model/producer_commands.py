"""Commands on the lifetimes of producers: retirement, the removal of tombstones, and counted hours.

A tombstone is what stays of a producer that has ended: it refuses late copies of its appends.
"""

from msgspec import Struct

from semel.model.limits import (
    PATH_BYTES_MAX,
    PRODUCER_ID_BYTES_MAX,
    RETIRE_LIST_MAX,
    SESSION_BYTES_MAX,
)
from semel.model.names import (
    first_invalid,
    is_optional_name,
    is_optional_number,
)


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


# ---- fields --------------------------------------------------------------------------------------


def invalid_producer_field(producer_id: str | None, epoch: int | None) -> str | None:
    """Return the first invalid field of the identity of a producer, or None."""
    if not is_optional_name(producer_id, PRODUCER_ID_BYTES_MAX):
        return "producer_id"
    return None if is_optional_number(epoch) else "producer_epoch"


def invalid_retire_field(command: RetireProducers) -> str | None:
    """Return the first invalid field of a retirement of producers, or None."""
    if not 0 < len(command.producers) <= RETIRE_LIST_MAX:
        return "producers"
    return next(filter(None, map(_invalid_item_field, command.producers)), None)


def _invalid_item_field(item: RetiredProducer) -> str | None:
    has_identity = item.epoch is not None or (item.path is not None and item.session is not None)
    return invalid_producer_field(item.id, item.epoch) or first_invalid(
        ("path", is_optional_name(item.path, PATH_BYTES_MAX)),
        ("session", is_optional_name(item.session, SESSION_BYTES_MAX)),
        ("producer_epoch", has_identity),
    )


def invalid_registration_field(command: ExpireRegistration) -> str | None:
    """Return the first invalid field of the end of a registration, or None."""
    return invalid_producer_field(command.id, None)
