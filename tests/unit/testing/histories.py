"""Generated histories of a correct log, for the tests of the checker."""

from random import Random

from semel.testing.check import History, Operation


class Clock:
    """A clock that advances by one on every call."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1
        return self.now


class World:
    """Producers with several appends in flight to a correct log."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.history = History(Clock())
        self.log: list[object] = []
        self._queues: dict[str, list[Operation]] = {"a": [], "b": [], "c": []}
        self._next_seq = dict.fromkeys(self._queues, 0)
        self._arrived: list[tuple[Operation, int | None]] = []

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.random.choice([self.invoke, self.invoke, self.arrive, self.answer, self.read])()

    def invoke(self) -> None:
        name = self.random.choice(sorted(self._queues))
        seq = self._next_seq[name]
        self._next_seq[name] += 1
        operation = self.history.append(f"{name}{seq}", producer=name, seq=seq)
        self._queues[name].append(operation)

    def arrive(self) -> None:
        """Let one append take effect or be refused, in the order of its producer."""
        waiting = [queue for queue in self._queues.values() if queue]
        if not waiting:
            return
        operation = self.random.choice(waiting).pop(0)
        if self.random.random() < 0.2:
            self._arrived.append((operation, None))
        else:
            self.log.append(operation.value)
            self._arrived.append((operation, len(self.log) - 1))

    def answer(self) -> None:
        if not self._arrived:
            return
        operation, offset = self._arrived.pop(self.random.randrange(len(self._arrived)))
        if self.random.random() < 0.2:
            return  # the response is lost
        if offset is None:
            operation.refuse()
        else:
            operation.ok(offset)

    def read(self) -> None:
        invoked_at = self.history.clock()
        offset = self.random.randint(0, len(self.log))
        values = self.log[offset:]
        is_whole = self.random.random() < 0.7
        if not is_whole:
            values = values[: self.random.randint(0, len(values))]
        reader = self.random.choice("xy")
        self.history.read(
            values, invoked_at=invoked_at, offset=offset, reader=reader, is_up_to_date=is_whole
        )
