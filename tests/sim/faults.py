"""The faults of a run, and when they occur. Everything is drawn from the run's seed."""

import errno
from dataclasses import dataclass
from random import Random

from semel.journal.store import StoreFull
from semel.testing import Fail, Fault, Killed, LostSync, PowerLost, ShortWrite, refuse

CHANGES = frozenset({"create", "grow", "write", "sync", "rename", "unlink", "sync_names", "commit"})


@dataclass
class Swarm:
    """The fault mix of one run: each kind is on or off, so that runs differ from each other."""

    death: float
    lost_sync: float
    short_write: float
    io_error: float
    no_room: bool
    store_full: bool
    jumps: bool

    @classmethod
    def draw(cls, rng: Random) -> "Swarm":
        """Draw the fault mix of a run."""

        def sometimes(rate: float) -> float:
            return rate if rng.random() < 0.4 else 0.0

        return cls(
            death=rng.choice([0.004, 0.01, 0.02]),
            lost_sync=sometimes(0.01),
            short_write=sometimes(0.005),
            io_error=sometimes(0.005),
            no_room=rng.random() < 0.3,
            store_full=rng.random() < 0.3,
            jumps=rng.random() < 0.3,
        )


class Injector:
    """Injects faults into operations of the disk and the store."""

    def __init__(self, rng: Random, swarm: Swarm) -> None:
        self._rng = rng
        self._swarm = swarm
        self.is_on = False

    def before(self, operation: str, name: str, size: int) -> Fault | None:
        """Return the fault of an operation, or None."""
        if not self.is_on or operation not in CHANGES:
            return None
        rng, swarm = self._rng, self._swarm
        if rng.random() < swarm.death:
            return Fail(rng.choice([Killed, PowerLost])(), is_after=rng.random() < 0.5)
        if operation == "commit":
            is_full = swarm.store_full and rng.random() < 0.2
            return Fail(StoreFull()) if is_full else None
        # Only for file data: when a journaling file system cannot commit its metadata it turns
        # read-only; it does not continue and lose a name.
        if operation == "sync" and rng.random() < swarm.lost_sync:
            return LostSync()
        if operation == "write" and size > 1 and rng.random() < swarm.short_write:
            return ShortWrite(rng.randrange(1, size))
        if rng.random() < swarm.io_error:
            return refuse(rng.choice([errno.EIO, errno.EMFILE]))
        return None
