"""Files in which clients record what happened, and the loader that merges them into a history."""

import os
from collections.abc import Hashable, Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from time import monotonic_ns
from typing import Any, Final

import msgspec

from semel.testing import (
    RecordedChange,
    RecordedTransaction,
    TransactionAppend,
    TransactionHistory,
    TransactionKind,
)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Notes:
    """A file with one line for each event and its time. Threads may share one instance.

    Each line is written in one call, so the file of a killed client has only complete lines.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, id: str, what: str, *details: Any, at: int | None = None) -> None:
        line = (monotonic_ns() if at is None else at, id, what, details)
        os.write(self._file, _encode(line) + b"\n")

    def begin(self, id: str, kind: TransactionKind) -> "Noted":
        self.write(id, "begin", kind)
        return Noted(self, id)

    def read(
        self,
        stream: str,
        values: Sequence[Hashable],
        *,
        start: int,
        invoked_at: int,
        reader: str,
        is_up_to_date: bool,
        is_committed: bool = True,
        returned_at: int | None = None,
    ) -> None:
        details = (stream, values, start, invoked_at, reader, is_up_to_date, is_committed)
        self.write("", "read", *details, at=returned_at)

    def close(self) -> None:
        os.close(self._file)


class Noted:
    """Records one transaction in the notes, with the methods of `RecordedTransaction`."""

    def __init__(self, notes: Notes, id: str) -> None:
        self.id: Final = id
        self._notes = notes

    def append(self, stream: str, value: str) -> None:
        self._notes.write(self.id, "append", stream, [value])

    def ok(self) -> None:
        """Record that the last append was confirmed."""
        self._notes.write(self.id, "ok")

    def read(
        self,
        stream: str,
        values: Sequence[str],
        start: int,
        invoked_at: int,
        is_up_to_date: bool,
    ) -> None:
        self._notes.write(self.id, "read", stream, values, start, invoked_at, is_up_to_date)

    def move(
        self,
        group: str,
        stream: str,
        to: int,
        start: int | None = None,
        incarnation: str = "",
    ) -> None:
        self._notes.write(self.id, "move", group, stream, to, start, incarnation)

    def prepare(self) -> None:
        self._notes.write(self.id, "prepare")

    def prepared(self) -> None:
        self._notes.write(self.id, "prepared")

    def refused(self) -> None:
        self._notes.write(self.id, "refused")

    def decide(self) -> None:
        self._notes.write(self.id, "decide")

    def committed(self) -> None:
        self._notes.write(self.id, "committed")

    def aborted(self) -> None:
        self._notes.write(self.id, "aborted")


class _Loader:
    """Adds the recorded events to a history, with their recorded times."""

    def __init__(self) -> None:
        self._now = 0
        self.history = TransactionHistory(lambda: self._now)
        self._transactions: dict[str, RecordedTransaction] = {}
        self._last: dict[str, TransactionAppend] = {}
        self._changes: dict[str, RecordedChange] = {}

    def take(self, at: int, id: str, what: str, details: Sequence[Any]) -> None:
        self._now = at
        if what == "begin":
            self._transactions[id] = self.history.begin(id, kind=details[0])
        elif what == "set_position":
            stream, incarnation, group, to = details
            change = self.history.set_position(group, stream, to, incarnation=incarnation)
            self._changes[id] = change
        elif what == "delete":
            stream, incarnation = details
            self._changes[id] = self.history.delete(stream, incarnation=incarnation)
        elif id in self._changes:
            getattr(self._changes[id], what)()
        elif not id:
            self._read(*details)
        else:
            self._step(self._transactions[id], what, details)

    def _step(self, transaction: RecordedTransaction, what: str, details: Sequence[Any]) -> None:
        match what:
            case "append":
                self._last[transaction.id] = transaction.append(*details)
            case "ok":
                self._last[transaction.id].ok()
            case "read":
                stream, values, start, invoked_at, is_up_to_date = details
                transaction.read(
                    stream,
                    values,
                    start=start,
                    invoked_at=invoked_at,
                    is_up_to_date=is_up_to_date,
                )
            case "move":
                group, path, to, begun, incarnation = details
                transaction.move(group, path, to, start=begun, incarnation=incarnation)
            case _:
                getattr(transaction, what)(*details)

    def _read(
        self,
        stream: str,
        values: Sequence[Hashable],
        start: int,
        invoked_at: int,
        reader: str,
        is_up_to_date: bool,
        is_committed: bool,
    ) -> None:
        self.history.read(
            stream,
            values,
            start=start,
            invoked_at=invoked_at,
            reader=reader,
            is_up_to_date=is_up_to_date,
            is_committed=is_committed,
        )


def load(files: Iterable[Path]) -> TransactionHistory:
    """Merge all notes into one history. Several processes may have notes of one transaction."""
    lines = [_decode(line) for file in sorted(files) for line in file.read_bytes().splitlines()]
    loader = _Loader()
    for line in sorted(lines, key=itemgetter(0)):
        loader.take(*line)
    return loader.history
