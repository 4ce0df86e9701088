"""Workers of the shared groups over plain HTTP. They keep no state between transactions."""

import threading
from collections.abc import Callable
from contextlib import suppress
from random import Random
from time import sleep
from typing import Final

from semel.testing import TransactionKind
from tests.transactions.notes import Noted, Notes
from tests.transactions.raw import (
    Line,
    Lost,
    Position,
    RawTransaction,
    RefusedCall,
    positions_of,
    read_page,
)
from tests.transactions.shared import GROUPS, SHARED, require_joined
from tests.transactions.workers import (
    ABORT_SHARE,
    DEADLINE_SECONDS,
    LEFT_SHARE,
    PAUSE_SECONDS_MAX,
    PAUSE_SHARE,
    PREPARE_SHARE,
    REST_SECONDS_MAX,
    TAKEN_MAX,
)
from tests.transactions.writers import STREAMS

_KINDS: Final[tuple[TransactionKind, ...]] = ("inline", "staged")
_STABLE_SHARE: Final = 0.5
_NEVER_MOVED: Final = Position(0, 0)


class RawWorker:
    """One worker, which reads the position of a group before every transaction."""

    def __init__(
        self,
        url: str,
        notes: Notes,
        name: str,
        random: Random,
        over: threading.Event,
        on_commit: Callable[[], None],
    ) -> None:
        self._line = Line(url)
        self._notes = notes
        self._name = name
        self._random = random
        self._over = over
        self._on_commit = on_commit
        self._count = 0

    def run(self) -> None:
        while not self._over.wait(self._random.uniform(0, REST_SECONDS_MAX)):
            with suppress(Lost, RefusedCall):  # input deleted or undecided; try again
                self._one()
        self._line.close()

    def _one(self) -> None:
        group, stream = self._random.choice(GROUPS), self._random.choice(SHARED)
        is_stable = self._random.random() < _STABLE_SHARE
        position = positions_of(self._line, group, is_stable=is_stable).get(stream, _NEVER_MOVED)
        page = read_page(self._line, stream, position.offset)
        values = page.values[: self._random.randint(1, TAKEN_MAX)]
        if not values:
            return
        self._count += 1
        kind = self._random.choice(_KINDS)
        noted = self._notes.begin(f"{self._name}-{self._count}", kind)
        first = require_joined(values)
        to = first.number + len(values)
        noted.move(group, stream, to, first.number, first.incarnation)
        owner = f"{noted.id}-owner"
        transaction = RawTransaction(self._line, noted.id, owner, kind, DEADLINE_SECONDS)
        try:
            self._pause()
            self._fill(transaction, noted)
            transaction.move(group, stream, position, to, page.incarnation)
            self._pause()
            self._end(transaction, noted)
        except RefusedCall as error:
            self._give_up(transaction, noted, error)

    def _fill(self, transaction: RawTransaction, noted: Noted) -> None:
        transaction.begin()
        for stream in self._random.sample(STREAMS, self._random.randint(1, 2)):
            value = f"{noted.id}.{stream}"
            noted.append(stream, value)
            transaction.append(stream, [value])
            noted.ok()

    def _end(self, transaction: RawTransaction, noted: Noted) -> None:
        fate = self._random.random()
        if fate < ABORT_SHARE:
            transaction.abort()
            noted.aborted()
            return
        if self._random.random() < PREPARE_SHARE:
            noted.prepare()
            transaction.prepare()
            noted.prepared()
            sleep(self._random.uniform(0, PAUSE_SECONDS_MAX))
        if fate > 1 - LEFT_SHARE:
            return
        noted.decide()
        transaction.commit()
        noted.committed()
        self._on_commit()

    def _give_up(self, transaction: RawTransaction, noted: Noted, error: RefusedCall) -> None:
        if error.is_abort:
            noted.aborted()
            return
        if error.is_conflict:
            noted.refused()
        transaction.abort()
        noted.aborted()

    def _pause(self) -> None:
        if self._random.random() < PAUSE_SHARE:
            sleep(self._random.uniform(0, PAUSE_SECONDS_MAX))
