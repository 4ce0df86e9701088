"""Clients that commit transactions of every kind and record the results."""

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from time import monotonic_ns
from typing import Final

from semel import Client
from semel.client.errors import (
    ClientError,
    Indeterminate,
    PositionConflict,
    Refused,
    TransactionAborted,
    TransactionCommitted,
    Unavailable,
    UnstableOffsets,
)
from semel.client.sync.transaction import Transaction
from semel.client.values import READ_COMMITTED, Moves
from semel.model.offsets import parse_offset
from semel.testing import TransactionKind
from tests.transactions.notes import Noted, Notes
from tests.transactions.pages import Cursor, Line

STREAMS: Final = ("a", "b", "c", "d", "e", "f")
INPUTS: Final = "inputs"  # groups move here; nothing is appended during the run
INPUTS_COUNT: Final = 10_000

_KINDS: Final[tuple[TransactionKind, ...]] = (
    "inline",
    "staged",
    "one-shot",
    "one-shot",
    "one-shot",
)
_READ_SHARE: Final = 0.15
_MOVE_SHARE: Final = 0.3
_ABORT_SHARE: Final = 0.06
_LEFT_SHARE: Final = 0.005  # left open, like after a crash
_LATE_SHARE: Final = 0.1  # committed transactions that get a late abort
_PREPARE_SHARE: Final = 0.1
_SHORT_SHARE: Final = 0.01  # transactions whose deadline is too short
_SHORT_SECONDS: Final = 0.02
_DEADLINE_SECONDS: Final = 2.0
_CALL_SECONDS: Final = (0.1, 10.0, 10.0, 10.0)
_TRIES_MAX: Final = 3


class Writer:
    """One client, which makes one transaction after another until `over` is set."""

    def __init__(
        self,
        url: str,
        notes: Notes,
        name: str,
        random: Random,
        over: threading.Event,
        on_commit: Callable[[], None],
    ) -> None:
        self._on_commit = on_commit
        self._url = url
        self._notes = notes
        self._name = name
        self._random = random
        self._over = over
        self._line = Line(url)
        self._cursors = {stream: Cursor(stream, READ_COMMITTED) for stream in STREAMS}
        self._count = 0
        self._moves = 0
        self._found: int | None = None
        self._identity = 0
        self._seq = 0

    def run(self) -> None:
        with Client(self._url, timeout=10.0) as client:
            while not self._over.is_set():
                self._one(client)
        self._line.close()

    def _one(self, client: Client) -> None:
        self._count += 1
        kind = self._random.choice(_KINDS)
        noted = self._notes.begin(f"{self._name}-{self._count}", kind)
        if kind == "one-shot":
            self._one_shot(client, noted)
        else:
            self._transact(client, noted, kind)

    # ---- parts of a transaction ------------------------------------------------------------------

    def _appends(self, noted: Noted) -> dict[str, list[str]]:
        streams = self._random.sample(STREAMS, self._random.randint(1, 3))
        return {stream: [f"{noted.id}.{stream}"] for stream in streams}

    def _move(self, noted: Noted) -> dict[str, Moves]:
        """Return a move of the client's own group, with the last position read, if any."""
        if self._random.random() > _MOVE_SHARE or self._moves == INPUTS_COUNT:
            return {}
        self._moves += 1
        noted.move(self._name, INPUTS, self._moves)
        found, self._found = self._found, None
        return {self._name: {INPUTS: self._moves if found is None else (found, self._moves)}}

    def _read(self, noted: Noted) -> None:
        if self._random.random() > _READ_SHARE:
            return
        cursor = self._cursors[self._random.choice(STREAMS)]
        invoked_at = monotonic_ns()
        page = cursor.read(self._line)
        if page is None:
            return
        noted.read(cursor.stream, page.values, cursor.count, invoked_at, page.is_up_to_date)
        cursor.move(page)

    def _seconds(self) -> float:
        return self._random.choice(_CALL_SECONDS)

    # ---- one-shot commits ------------------------------------------------------------------------

    def _one_shot(self, client: Client, noted: Noted) -> None:
        self._read(noted)
        appends = self._appends(noted)
        for stream, values in appends.items():
            noted.append(stream, values[0])
        moves = self._move(noted)
        noted.decide()
        commit = partial(
            client.commit,
            producer_id=f"{self._name}-one-shot-{self._identity}",
            seq=self._seq,
            appends=appends,
            offsets=moves,
        )
        is_lost = False
        for _ in range(self._random.randint(1, _TRIES_MAX)):
            try:
                commit(timeout=self._seconds())
            except (Unavailable, Indeterminate):
                is_lost = True
            except (PositionConflict, UnstableOffsets):
                noted.refused()
                self._ask_position(client)
                if is_lost:
                    break
                noted.aborted()
                return
            else:
                noted.committed()
                self._on_commit()
                self._seq += 1
                return
        self._identity, self._seq = self._identity + 1, 0  # outcome unknown; use a new producer

    def _ask_position(self, client: Client) -> None:
        """Read the position of the group: a move without a response may have been applied."""
        with suppress(ClientError):
            offsets = client.group(self._name).offsets()
            self._found = parse_offset(offsets.get(INPUTS, "")) or 0

    # ---- transactions ----------------------------------------------------------------------------

    def _transact(self, client: Client, noted: Noted, kind: TransactionKind) -> None:
        is_short = self._random.random() < _SHORT_SHARE
        seconds = _SHORT_SECONDS if is_short else _DEADLINE_SECONDS
        transaction = client.transaction(noted.id, kind=kind, timeout=seconds)
        try:
            transaction.begin()
            self._fill(transaction, noted)
            self._end(client, transaction, noted)
        except TransactionAborted:
            noted.aborted()
        except (PositionConflict, UnstableOffsets):
            noted.refused()
            self._give_up(transaction, noted)
            self._ask_position(client)
        except (Unavailable, Indeterminate, Refused):
            self._give_up(transaction, noted)

    def _fill(self, transaction: Transaction, noted: Noted) -> None:
        for stream, values in self._appends(noted).items():
            self._read(noted)
            noted.append(stream, values[0])
            transaction.append(stream, values[0], timeout=self._seconds())
            noted.ok()
        for group, moves in self._move(noted).items():
            transaction.commit_offsets(group, moves)

    def _end(self, client: Client, transaction: Transaction, noted: Noted) -> None:
        fate = self._random.random()
        if fate < _LEFT_SHARE:
            return
        if fate < _LEFT_SHARE + _ABORT_SHARE:
            transaction.abort()
            noted.aborted()
            return
        commit: Callable[..., object] = transaction.commit
        is_prepared = self._random.random() < _PREPARE_SHARE
        if is_prepared:
            noted.prepare()
            commit = partial(client.commit_prepared, transaction.prepare())
            noted.prepared()
        noted.decide()
        if not self._is_committed(commit):
            return
        noted.committed()
        self._on_commit()
        if not is_prepared and self._random.random() < _LATE_SHARE:
            self._abort_late(transaction)

    def _is_committed(self, commit: Callable[..., object]) -> bool:
        for _ in range(self._random.randint(1, _TRIES_MAX)):
            with suppress(Unavailable, Indeterminate):
                commit(timeout=self._seconds())
                return True
        return False

    def _abort_late(self, transaction: Transaction) -> None:
        """Send an abort after the commit, like a delayed request."""
        with suppress(TransactionCommitted, Unavailable, Indeterminate):
            transaction.abort()

    def _give_up(self, transaction: Transaction, noted: Noted) -> None:
        with suppress(ClientError):
            transaction.abort(timeout=_DEADLINE_SECONDS)
            noted.aborted()
