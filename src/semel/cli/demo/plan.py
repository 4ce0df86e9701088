"""The demo's plan and its expected results. The seed determines all random numbers."""

import hashlib
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from semel.cli.output import CommandRefused
from semel.cli.read_only import is_in_use

# The aisle of each item. Both Spark and the comparison look up the aisle of each order's item.
AISLES: Final = {
    "anvil": "forge",
    "compass": "travel",
    "kettle": "kitchen",
    "lantern": "travel",
    "rope": "forge",
    "sextant": "travel",
    "tinder": "kitchen",
    "whistle": "travel",
}
WINDOW_MS: Final = 60_000
WATERMARK_MS: Final = 10_000
DISORDER_MS: Final = 5_000  # less than the watermark, so that Spark drops no order as too late
_ITEMS: Final = tuple(AISLES)
_BEGAN_MS: Final = 1_767_225_600_000  # 2026-01-01
_SPAN_MS: Final = 120 * WINDOW_MS
_DRAW_BYTES: Final = 8


class Order(Struct, frozen=True):
    """One message of the input. `at` is the event time, in milliseconds since 1970."""

    order: int
    at: int
    item: str
    cents: int

    @property
    def key(self) -> int:
        """The value that identifies a row. In a correct stream, each key occurs once."""
        return self.order


class Enriched(Order, frozen=True):
    """An order with the aisle of its item, as Spark writes it."""

    aisle: str


class Total(Struct, frozen=True):
    """The totals of one window: the number of orders, and the sum of their prices.

    `start` is the start of the window, in milliseconds since 1970.
    """

    start: int
    orders: int
    cents: int

    @property
    def key(self) -> int:
        return self.start


def draw_number(seed: int, *what: object) -> float:
    """Return a number in [0, 1) that depends only on `seed` and `what`, not on earlier draws."""
    return _draw_bits(seed, *what) / (1 << 8 * _DRAW_BYTES)


def _draw_bits(seed: int, *what: object) -> int:
    name = repr((seed, *what)).encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=_DRAW_BYTES).digest(), "big")


class Plan(Struct, frozen=True):
    """The number of orders, and the faults to inject.

    `drop_share` is the probability that a response to a producer is dropped.
    """

    orders: int
    seed: int
    server_kills: int = 2
    drop_share: float = 0.015

    @property
    def batch_messages(self) -> int:
        """The number of orders per request. A run sends about 800 requests."""
        return max(self.orders // 800, 1)

    @property
    def spark_rows(self) -> int:
        """The number of orders per Spark batch before the driver is killed.

        This number is small, so that there are many batches and the kill interrupts one of them.
        """
        return max(self.orders // 10, 1)

    @property
    def last_spark_rows(self) -> int:
        """The number of orders per Spark batch after the driver was killed."""
        return max(self.orders // 4, 1)

    def input(self) -> list[Order]:
        """Return the orders, and one extra order with a later time.

        The time of the extra order closes the windows of all other orders.
        """
        orders = [self._order(number) for number in range(self.orders)]
        closing_ms = _BEGAN_MS + _SPAN_MS + 10 * WINDOW_MS
        return [*orders, Order(self.orders, closing_ms, _ITEMS[0], 0)]

    def _order(self, number: int) -> Order:
        bits = _draw_bits(self.seed, "order", number)
        at = _BEGAN_MS + number * _SPAN_MS // self.orders + bits % DISORDER_MS
        rest, item = divmod(bits // DISORDER_MS, len(_ITEMS))
        return Order(number, at, _ITEMS[item], 100 + rest % 99_900)

    def kill_points(self) -> list[int]:
        """For each kill of the server, return how many orders must be confirmed first."""
        width = self.orders / (self.server_kills + 1)
        shifts = (draw_number(self.seed, "kill", index) - 0.5 for index in range(self.server_kills))
        return [int((index + 1 + shift / 2) * width) for index, shift in enumerate(shifts)]


class Job(Struct, frozen=True):
    """The arguments of the Spark program.

    If `is_last`, the program processes the stored orders and ends. Otherwise it runs until it is
    killed.
    """

    url: str
    checkpoints: str
    rows_per_batch: int
    is_last: bool


def expected_raw(order: Order) -> bytes:
    """Return the message that is stored for an order."""
    return msgspec.json.encode(order)


def expected_enriched(order: Order) -> Enriched:
    return Enriched(**asdict(order), aisle=AISLES[order.item])


def expected_totals(orders: list[Order]) -> list[Total]:
    """Return the totals of each window that closes.

    The window of the last order stays open, because no later order moves the watermark.
    """
    sums: dict[int, tuple[int, int]] = {}
    for order in orders:
        start = order.at - order.at % WINDOW_MS
        count, cents = sums.get(start, (0, 0))
        sums[start] = count + 1, cents + order.cents
    closed = max(order.at for order in orders) - WATERMARK_MS
    return [Total(start, *sums[start]) for start in sorted(sums) if start + WINDOW_MS <= closed]


# ---- comparison ----------------------------------------------------------------------------------


Row = TypeVar("Row", Order, Enriched, Total)


class StreamVerdict(Struct, frozen=True):
    """Counts the differences between a stream and the expected rows.

    `wrong` counts the rows that were changed or that were never sent. `misplaced` counts the rows
    that are out of order.
    """

    stored: int
    lost: int
    duplicated: int
    wrong: int
    misplaced: int

    @property
    def is_exactly_once(self) -> bool:
        """True if every row is stored once, unchanged and in order."""
        return not (self.lost or self.duplicated or self.wrong or self.misplaced)

    @property
    def complaint(self) -> str:
        return (
            f"{self.lost:,} rows lost, {self.duplicated:,} duplicated, {self.wrong:,} wrong, "
            f"{self.misplaced:,} out of order"
        )


def parse(stored: Iterable[bytes], kind: type[Row]) -> list[Row | None]:
    """Decode messages as rows. A message that cannot be decoded as `kind` becomes None."""
    decode = msgspec.json.Decoder(kind).decode
    rows: list[Row | None] = []
    for message in stored:
        try:
            rows.append(decode(message))
        except msgspec.DecodeError:
            rows.append(None)
    return rows


def judge_stream(
    expected: Sequence[Row], stored: Sequence[Row | None], *, is_ordered: bool = True
) -> StreamVerdict:
    """Compare the stored rows with the expected rows.

    If `is_ordered`, a row counts as misplaced if a row with a higher key is stored before it. Only
    the first copy of each row is considered. Pass `is_ordered=False` for rows that Spark shuffles,
    because Spark does not preserve their order.
    """
    by_key = {row.key: row for row in expected}
    keys = [row.key for row in stored if row is not None and row.key in by_key]
    return StreamVerdict(
        stored=len(stored),
        lost=len(by_key) - len(set(keys)),
        duplicated=len(keys) - len(set(keys)),
        wrong=sum(row is None or by_key.get(row.key) != row for row in stored),
        misplaced=_count_misplaced(keys) if is_ordered else 0,
    )


def _count_misplaced(keys: Sequence[int]) -> int:
    """Return how many keys come after a higher key. Only the first copy of a key is considered."""
    latest = -1
    misplaced = 0
    for key in dict.fromkeys(keys):
        misplaced += key < latest
        latest = max(latest, key)
    return misplaced


# ---- directory -----------------------------------------------------------------------------------
# Only files that a demo has created are removed.


DATA: Final = "data"
CHECKPOINTS: Final = "checkpoints"
DRIVER_LOG: Final = "spark.log"
_MARKER_NAME: Final = "DEMO"
_OWN_NAMES: Final = frozenset({_MARKER_NAME, DATA, CHECKPOINTS, DRIVER_LOG})


def prepare_directory(path: str, *, is_forced: bool) -> Path:
    """Create or empty a directory, mark it as created by a demo, and return its path.

    A directory that is not empty is replaced only if `is_forced` is True and all its files come
    from a demo that has ended. Otherwise, or if `path` is a file, CommandRefused is raised.
    """
    if os.path.exists(path) and not os.path.isdir(path):
        raise CommandRefused(f"{path} is not a directory; choose a directory with --data")
    os.makedirs(path, exist_ok=True)
    names = os.listdir(path)
    if names:
        _check_replaceable(path, names, is_forced=is_forced)
    for name in names:
        _remove(os.path.join(path, name))
    home = Path(path).absolute()
    text = "`semel demo` created this directory. `semel demo --force` replaces it.\n"
    (home / _MARKER_NAME).write_text(text, encoding="utf-8")
    return home


def _check_replaceable(path: str, names: list[str], *, is_forced: bool) -> None:
    if _MARKER_NAME not in names:
        raise CommandRefused(
            f"{path} is not empty and was not created by a demo; choose a new directory with --data"
        )
    if not is_forced:
        raise CommandRefused(
            f"{path} is not empty; add --force to replace the data of an earlier demo"
        )
    foreign = [name for name in names if name not in _OWN_NAMES]
    if foreign:
        raise CommandRefused(
            f"{path} contains {foreign[0]}, which was not created by a demo; choose a new"
            " directory with --data"
        )
    if is_in_use(os.path.join(path, DATA)):
        raise CommandRefused(f"{path} is in use by a running process; stop that process first")


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)
