"""A scripted run: one command after the other, and a crash where a test needs it.

All checks of a World are active: decisions, recovered states and the messages after a recovery
are compared with the reference model.
"""

from collections.abc import Callable

from semel.broker.broker import ReadDone
from semel.machine import MachineLimits
from semel.model.commands import READ_COMMITTED, READ_UNCOMMITTED, EngineCommand
from semel.model.outcomes import Outcome, Refusal
from semel.testing import CrashMode
from tests.sim.oracle import read_all
from tests.sim.world import World

STEPS_MAX = 100


class Script(World):
    """A World whose steps are chosen by a test and not at random."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__(seed, txn_share=0)
        self.injector.is_on = False
        self.segment_sizes = [4096]

    def draw_limits(self) -> MachineLimits:
        """Return the default limits."""
        return MachineLimits()

    def boot(self) -> None:
        """Start the process, without faults."""
        self.injector.is_on = False
        self._recover()

    def send(self, command: EngineCommand) -> list[Outcome]:
        """Send a command without any disk operation; return the list that gets the outcome."""
        got: list[Outcome] = []
        self.broker.submit(command, got.append)
        return got

    def do(self, command: EngineCommand) -> Outcome:
        """Send a command and wait for its outcome."""
        got = self.send(command)
        self.until(lambda: bool(got))
        return got[0]

    def done(self, *commands: EngineCommand) -> Outcome:
        """Execute commands, none of which may be refused; return the last outcome."""
        for command in commands:
            outcome = self.do(command)
            assert not isinstance(outcome, Refusal), (command, outcome)
        return outcome

    def until(self, is_over: Callable[[], bool]) -> None:
        """Run the journal's thread until a condition is true."""
        for _ in range(STEPS_MAX):
            if is_over():
                return
            self.find_room()
            self.write()
        raise AssertionError("the condition never becomes true")

    def is_all_synced(self) -> bool:
        """Return whether all decisions are on the disk, although the loop does not know yet."""
        group = self.group
        return group is not None and self.is_group_on_disk and group.end >= self.facts_end()

    def take_checkpoint(self) -> None:
        """Take a complete checkpoint."""
        count = self.counts["checkpoints"]
        self.until(lambda: not self.log)
        while self.counts["checkpoints"] == count or self.dead is not None:
            self.checkpoint()

    def lose_power(self, mode: CrashMode) -> None:
        """Lose power in the given mode, and start again."""
        self.disk.crash(self.rng, mode)
        self.store.crash(self.rng)
        self.boot()

    def offsets(self, path: str, isolation: str = READ_COMMITTED) -> list[int]:
        """Read a stream, and return the offsets of its messages."""
        found = read_all(self.broker, path, self.now_ms, isolation)
        assert isinstance(found, list), found
        return [piece.offset + i for piece in found for i in range(piece.count)]

    def bodies(self, path: str, isolation: str = READ_COMMITTED) -> list[bytes]:
        """Read a stream, and return its messages."""
        found = read_all(self.broker, path, self.now_ms, isolation)
        assert isinstance(found, list), found
        return [body for piece in found for body in piece.messages()]

    def stable(self, path: str) -> int:
        """Return the stable offset that a read reports."""
        got: list[Outcome] = []
        self.broker.read(
            path, None, now_ms=self.now_ms, reply=got.append, isolation=READ_UNCOMMITTED
        )
        assert isinstance(got[0], ReadDone)
        return got[0].tail.stable
