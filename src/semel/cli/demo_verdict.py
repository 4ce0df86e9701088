"""The demo's judge: what is stored, against what had to come of the input."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from semel.cli.demo_plan import Enriched, Order, Total

Row = TypeVar("Row", Order, Enriched, Total)


class Verdict(Struct, frozen=True):
    """How a stream compares: `wrong` are rows that were changed, or that nobody sent."""

    stored: int
    lost: int
    duplicated: int
    wrong: int
    misplaced: int

    @property
    def is_exactly_once(self) -> bool:
        """Tell whether every row is there once, unchanged and in its place."""
        return not (self.lost or self.duplicated or self.wrong or self.misplaced)

    @property
    def complaint(self) -> str:
        """Say what is wrong."""
        return (
            f"{self.lost:,} lost, {self.duplicated:,} duplicated, {self.wrong:,} wrong, "
            f"{self.misplaced:,} out of place"
        )


def parse(stored: Iterable[bytes], kind: type[Row]) -> list[Row | None]:
    """Read messages as rows; None for one that cannot be such a row."""
    decode = msgspec.json.Decoder(kind).decode
    rows: list[Row | None] = []
    for message in stored:
        try:
            rows.append(decode(message))
        except msgspec.DecodeError:
            rows.append(None)
    return rows


def judge(
    expected: Sequence[Row], stored: Sequence[Row | None], *, is_ordered: bool = True
) -> Verdict:
    """Compare. In an ordered stream the first copy of each row stands where it was planned.

    Rows of one Spark batch that came through a shuffle have no order.
    """
    wanted = {row.key: row for row in expected}
    keys = [row.key for row in stored if row is not None and row.key in wanted]
    lost = len(wanted) - len(set(keys))
    duplicated = len(keys) - len(set(keys))
    wrong = sum(row is None or wanted.get(row.key) != row for row in stored)
    misplaced = _misplaced(keys) if is_ordered else 0
    return Verdict(len(stored), lost, duplicated, wrong, misplaced)


def _misplaced(keys: Sequence[int]) -> int:
    """Count the rows whose first copy comes after one that belongs behind them."""
    latest, seen, misplaced = -1, set[int](), 0
    for key in keys:
        if key in seen:
            continue
        seen.add(key)
        misplaced += key < latest
        latest = max(latest, key)
    return misplaced
