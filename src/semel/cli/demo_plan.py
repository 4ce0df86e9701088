"""What the demo does, and what must come of it. All chance comes from the seed."""

import hashlib
import json
from typing import Final

from msgspec import Struct

_ITEMS: Final = ("anvil", "compass", "kettle", "lantern", "rope", "sextant", "tinder", "whistle")
_DRAW_BYTES: Final = 8


def draw(seed: int, *what: object) -> float:
    """Draw a number in [0, 1) that belongs to `what`: the order of events cannot change it."""
    name = repr((seed, *what)).encode()
    digest = hashlib.blake2b(name, digest_size=_DRAW_BYTES).digest()
    return int.from_bytes(digest, "big") / (1 << 8 * _DRAW_BYTES)


class Plan(Struct, frozen=True):
    """How much work, and how much trouble."""

    orders: int
    seed: int
    producers: int = 8
    batch_messages: int = 5
    kills: int = 5
    drop_share: float = 0.005

    def batches(self) -> list[list[list[bytes]]]:
        """Make every producer's batches."""
        work: list[list[bytes]] = [[] for _ in range(self.producers)]
        for number in range(self.orders):
            work[number % self.producers].append(self._order(number))
        size = self.batch_messages
        return [[own[at : at + size] for at in range(0, len(own), size)] for own in work]

    def _order(self, number: int) -> bytes:
        item = _ITEMS[int(draw(self.seed, "item", number) * len(_ITEMS))]
        cents = 100 + int(draw(self.seed, "cents", number) * 99_900)
        return json.dumps({"order": number, "item": item, "cents": cents}).encode()

    def is_dropped(self, producer: int, seq: int) -> bool:
        """Tell whether the first answer to a batch gets lost on its way back."""
        return draw(self.seed, "drop", producer, seq) < self.drop_share

    def kill_points(self, batch_count: int) -> list[int]:
        """Tell after how many confirmed batches the engine is killed; the last time after all."""
        middle = self.kills - 1
        width = batch_count / (middle + 1)
        shifts = (draw(self.seed, "kill", index) - 0.5 for index in range(middle))
        return [int((index + 1 + shift / 2) * width) for index, shift in enumerate(shifts)]


class Verdict(Struct, frozen=True):
    """What was stored, against what was produced."""

    stored: int
    lost: int
    duplicated: int
    foreign: int
    misplaced: int

    @property
    def is_exactly_once(self) -> bool:
        """Tell whether every order is there once, where its producer was told it is."""
        return not (self.lost or self.duplicated or self.foreign or self.misplaced)


def judge(
    batches: list[list[list[bytes]]], stored: list[bytes], places: dict[tuple[int, int], int]
) -> Verdict:
    """Compare; `places` has the offset each (producer, seq) was answered with."""
    counts = {order: 0 for own in batches for batch in own for order in batch}
    foreign = 0
    for message in stored:
        if message in counts:
            counts[message] += 1
        else:
            foreign += 1
    misplaced = sum(
        not is_at(stored, places.get((producer, seq)), batch)
        for producer, own in enumerate(batches)
        for seq, batch in enumerate(own)
    )
    lost = sum(count == 0 for count in counts.values())
    duplicated = sum(count - 1 for count in counts.values() if count > 1)
    return Verdict(len(stored), lost, duplicated, foreign, misplaced)


def is_at(stored: list[bytes], offset: int | None, batch: list[bytes]) -> bool:
    """Tell whether a batch stands at an offset."""
    return offset is not None and stored[offset : offset + len(batch)] == batch
