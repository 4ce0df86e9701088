"""Workers that share groups. One transaction writes the outputs and moves the group."""

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from itertools import islice
from random import Random
from time import sleep
from typing import Final

from semel import Client
from semel.client.errors import (
    ClientError,
    Indeterminate,
    PositionConflict,
    Refused,
    TransactionAborted,
    Unavailable,
    UnstableOffsets,
)
from semel.client.sync.transaction import Transaction
from semel.client.sync_driver import Tail
from semel.client.values import Message
from semel.testing import TransactionKind
from tests.transactions.notes import Noted, Notes
from tests.transactions.shared import GROUPS, SHARED, require_joined
from tests.transactions.writers import STREAMS

KINDS: Final[tuple[TransactionKind, ...]] = ("inline", "staged", "one-shot")
DEADLINE_SECONDS: Final = 2.0
PREPARE_SHARE: Final = 0.3
LEFT_SHARE: Final = 0.01  # left open or prepared, like after a crash
ABORT_SHARE: Final = 0.05
TAKEN_MAX: Final = 4
PAUSE_SHARE: Final = 0.4  # pauses, so that other workers can interfere
PAUSE_SECONDS_MAX: Final = 0.02
REST_SECONDS_MAX: Final = 0.03  # between transactions, for other clients
_BOTH_SHARE: Final = 0.15  # reads from both inputs
_DEFAULT_SHARE: Final = 0.5  # without a producer id of its own
_TAIL_SECONDS: Final = (0.1, 0.5, 5.0)  # a tail waits half of it for other workers
_TURNS_MAX: Final = 3
_CALL_SECONDS: Final = (0.1, 10.0, 10.0, 10.0)
_TRIES_MAX: Final = 3

Taken = Mapping[str, list[Message]]  # by input


class Worker:
    """One worker on its own thread. Workers may share a client, and they share the groups."""

    def __init__(
        self,
        client: Client,
        notes: Notes,
        name: str,
        random: Random,
        over: threading.Event,
        on_commit: Callable[[], None],
        producer_id: str,
    ) -> None:
        self._client = client
        self._notes = notes
        self._name = name
        self._random = random
        self._over = over
        self._on_commit = on_commit
        self._producer_id = producer_id
        self._count = 0
        self._identity = 0
        self._seq = 0

    def run(self) -> None:
        while not self._over.wait(self._random.uniform(0, REST_SECONDS_MAX)):
            with suppress(ClientError):  # input deleted or server down; try again
                self._read_on()

    def _read_on(self) -> None:
        """Process some batches from the position of a group; stop when a commit fails."""
        group = self._random.choice(GROUPS)
        inputs = self._random.sample(SHARED, 2 if self._random.random() < _BOTH_SHARE else 1)
        producer_id = None if self._random.random() < _DEFAULT_SHARE else self._producer_id
        seconds = self._random.choice(_TAIL_SECONDS)
        with ExitStack() as stack:
            tails: dict[str, Tail] = {}
            for path in inputs:
                stream = self._client.stream(path)
                tail = stream.tail(group=group, producer_id=producer_id, timeout=seconds)
                tails[path] = stack.enter_context(tail)
            for _ in range(self._random.randint(1, _TURNS_MAX)):
                count = self._random.randint(1, TAKEN_MAX)
                taken = {path: list(islice(tail, count)) for path, tail in tails.items()}
                taken = {path: messages for path, messages in taken.items() if messages}
                if not taken or not self._use(group, taken, producer_id):
                    return

    def _use(self, group: str, taken: Taken, producer_id: str | None) -> bool:
        """Process messages in a transaction; return whether it is known to be committed."""
        self._count += 1
        kind = self._random.choice(KINDS)
        noted = self._notes.begin(f"{self._name}-{self._count}", kind)
        for path, messages in taken.items():
            first = require_joined([message.value for message in messages])
            to = first.number + len(messages)
            noted.move(group, path, to, first.number, first.incarnation)
        if kind == "one-shot":
            is_committed = self._commit_at_once(group, taken, noted)
        else:
            is_committed = self._transact(group, taken, noted, producer_id, kind)
        if is_committed:
            noted.committed()
            self._on_commit()
        return is_committed

    def _outputs(self, noted: Noted) -> dict[str, str]:
        streams = self._random.sample(STREAMS, self._random.randint(1, 2))
        return {stream: f"{noted.id}.{stream}" for stream in streams}

    def _pause(self) -> None:
        """Pause sometimes, so that other workers can interfere."""
        if self._random.random() < PAUSE_SHARE:
            sleep(self._random.uniform(0, PAUSE_SECONDS_MAX))

    def _seconds(self) -> float:
        return self._random.choice(_CALL_SECONDS)

    # ---- one-shot commits ------------------------------------------------------------------------

    def _commit_at_once(self, group: str, taken: Taken, noted: Noted) -> bool:
        outputs = self._outputs(noted)
        for stream, value in outputs.items():
            noted.append(stream, value)
        self._pause()
        noted.decide()
        commit = partial(
            self._client.commit,
            producer_id=f"{self._name}-one-shot-{self._identity}",
            seq=self._seq,
            appends={stream: [value] for stream, value in outputs.items()},
            offsets={group: _offsets(taken)},
        )
        is_lost = False
        for _ in range(self._random.randint(1, _TRIES_MAX)):
            try:
                commit(timeout=self._seconds())
            except (Unavailable, Indeterminate):
                is_lost = True
            except Refused as error:
                _note_refusal(noted, error)
                if not is_lost:
                    noted.aborted()
                    return False
                break
            else:
                self._seq += 1
                return True
        self._identity, self._seq = self._identity + 1, 0  # outcome unknown; use a new producer
        return False

    # ---- transactions ----------------------------------------------------------------------------

    def _transact(
        self,
        group: str,
        taken: Taken,
        noted: Noted,
        producer_id: str | None,
        kind: TransactionKind,
    ) -> bool:
        transaction = self._client.transaction(
            noted.id, producer_id=producer_id, kind=kind, timeout=DEADLINE_SECONDS
        )
        try:
            self._pause()
            transaction.begin()
            self._fill(transaction, group, taken, noted)
            self._pause()
            return self._end(transaction, noted)
        except TransactionAborted:
            noted.aborted()
        except (Unavailable, Indeterminate, Refused) as error:
            _note_refusal(noted, error)
            with suppress(ClientError):
                transaction.abort(timeout=DEADLINE_SECONDS)
                noted.aborted()
        return False

    def _fill(self, transaction: Transaction, group: str, taken: Taken, noted: Noted) -> None:
        outputs = list(self._outputs(noted).items())
        at = self._random.randint(0, len(outputs))  # the number of appends before the groups
        for stream, value in outputs[:at]:
            self._append(transaction, noted, stream, value)
        self._name_groups(transaction, group, taken)
        for stream, value in outputs[at:]:
            self._append(transaction, noted, stream, value)

    def _append(self, transaction: Transaction, noted: Noted, stream: str, value: str) -> None:
        noted.append(stream, value)
        transaction.append(stream, value, timeout=self._seconds())
        noted.ok()

    def _name_groups(self, transaction: Transaction, group: str, taken: Taken) -> None:
        if self._random.random() < 0.5:
            transaction.commit_offsets(group, _offsets(taken))
            return
        for messages in taken.values():
            for message in messages if self._random.random() < 0.5 else messages[-1:]:
                transaction.commit_message(message)

    def _end(self, transaction: Transaction, noted: Noted) -> bool:
        fate = self._random.random()
        if fate < ABORT_SHARE:
            transaction.abort()
            noted.aborted()
            return False
        is_left = fate > 1 - LEFT_SHARE
        commit: Callable[..., object] = transaction.commit
        if self._random.random() < PREPARE_SHARE:
            noted.prepare()
            token = transaction.prepare()
            noted.prepared()
            if self._random.random() < 0.5:
                commit = partial(self._client.commit_prepared, token)
            sleep(self._random.uniform(0, PAUSE_SECONDS_MAX))
        if is_left:
            return False
        noted.decide()
        for _ in range(self._random.randint(1, _TRIES_MAX)):
            with suppress(Unavailable, Indeterminate):
                commit(timeout=self._seconds())
                return True
        return False


def _note_refusal(noted: Noted, error: ClientError) -> None:
    if isinstance(error, PositionConflict | UnstableOffsets):
        noted.refused()


def _offsets(taken: Taken) -> dict[str, str]:
    offsets = {path: messages[-1].next_offset for path, messages in taken.items()}
    return {path: offset for path, offset in offsets.items() if offset is not None}
