"""What the demo does, and what must come of it. All chance comes from the seed."""

import hashlib
from typing import Final

import msgspec
from msgspec import Struct

# What is looked up for each order, in Spark and in the judge.
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
DISORDER_MS: Final = 5_000  # less than the watermark: no order is too late
_ITEMS: Final = tuple(AISLES)
_BEGAN_MS: Final = 1_767_225_600_000  # 2026-01-01
_SPAN_MS: Final = 120 * WINDOW_MS
_CLOSING_MS: Final = _BEGAN_MS + _SPAN_MS + 10 * WINDOW_MS
_REQUESTS: Final = 800
_DRAW_BYTES: Final = 8
_encode: Final = msgspec.json.Encoder().encode


class Order(Struct, frozen=True):
    """One message of the input. `at` is its own time, in milliseconds since 1970."""

    order: int
    at: int
    item: str
    cents: int

    @property
    def key(self) -> int:
        """What there is one row of."""
        return self.order


class Enriched(Struct, frozen=True):
    """What Spark makes of an order."""

    order: int
    at: int
    item: str
    aisle: str
    cents: int

    @property
    def key(self) -> int:
        """What there is one row of."""
        return self.order


class Total(Struct, frozen=True):
    """What Spark makes of a window of orders; `start` in milliseconds since 1970."""

    start: int
    orders: int
    cents: int

    @property
    def key(self) -> int:
        """What there is one row of."""
        return self.start


def draw(seed: int, *what: object) -> float:
    """Draw a number in [0, 1) that belongs to `what`: the order of events cannot change it."""
    return _draw_bits(seed, *what) / (1 << 8 * _DRAW_BYTES)


def _draw_bits(seed: int, *what: object) -> int:
    name = repr((seed, *what)).encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=_DRAW_BYTES).digest(), "big")


class Plan(Struct, frozen=True):
    """How much work, and how much trouble."""

    orders: int
    seed: int
    server_kills: int = 2
    drop_share: float = 0.015

    @property
    def batch_messages(self) -> int:
        """How many orders travel in a request."""
        return max(self.orders // _REQUESTS, 1)

    @property
    def spark_rows(self) -> int:
        """How many orders Spark takes at a time: little, so that the kill finds it at work."""
        return max(self.orders // 10, 1)

    @property
    def last_spark_rows(self) -> int:
        """How many it takes at a time after that."""
        return max(self.orders // 4, 1)

    def input(self) -> list[Order]:
        """Make the orders, and one more that closes the windows of all others."""
        orders = [self._order(number) for number in range(self.orders)]
        return [*orders, Order(self.orders, _CLOSING_MS, _ITEMS[0], 0)]

    def _order(self, number: int) -> Order:
        bits = _draw_bits(self.seed, "order", number)
        at = _BEGAN_MS + number * _SPAN_MS // self.orders + bits % DISORDER_MS
        bits //= DISORDER_MS
        item = _ITEMS[bits % len(_ITEMS)]
        return Order(number, at, item, 100 + bits // len(_ITEMS) % 99_900)

    def kill_points(self) -> list[int]:
        """Tell after how many confirmed orders the server is killed."""
        width = self.orders / (self.server_kills + 1)
        shifts = (draw(self.seed, "kill", index) - 0.5 for index in range(self.server_kills))
        return [int((index + 1 + shift / 2) * width) for index, shift in enumerate(shifts)]


def raw(order: Order) -> bytes:
    """Write an order down as it is sent."""
    return _encode(order)


def enriched(order: Order) -> Enriched:
    """Say what Spark has to make of an order."""
    return Enriched(order.order, order.at, order.item, AISLES[order.item], order.cents)


def totals(orders: list[Order]) -> list[Total]:
    """Say what Spark has to make of the orders: a total of every window that closes.

    The last window stays open: nothing comes after it that would move the watermark.
    """
    sums: dict[int, tuple[int, int]] = {}
    for order in orders:
        start = order.at - order.at % WINDOW_MS
        count, cents = sums.get(start, (0, 0))
        sums[start] = count + 1, cents + order.cents
    closed = max(order.at for order in orders) - WATERMARK_MS
    return [Total(start, *sums[start]) for start in sorted(sums) if start + WINDOW_MS <= closed]
