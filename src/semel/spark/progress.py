"""How far a batch goes: from where the query stands to where its streams end. Pure."""

from collections.abc import Mapping

from semel.spark import troubles
from semel.spark.look import End
from semel.spark.offsets import Position


def next_positions(
    positions: Mapping[str, Position], ends: Mapping[str, End], *, is_loss_fatal: bool
) -> dict[str, Position]:
    """Find where the streams end now, never before where the query stands; raises DataLossError.

    A stream that is not among the ends is gone. A new incarnation is only gone to if nothing is to
    be said about what is lost.
    """
    found: dict[str, Position] = {}
    for stream, position in positions.items():
        if stream not in ends:
            if is_loss_fatal:
                raise troubles.deleted(stream)
            found[stream] = position
    for stream, end in ends.items():
        known = positions.get(stream)
        if known is not None and known.id == end.id:
            if known.next > end.tail and is_loss_fatal:
                raise troubles.shrunk(stream, known.next, end.tail)
            found[stream] = Position(end.id, max(known.next, end.stable))
            continue
        if known is not None and is_loss_fatal:
            raise troubles.recreated(stream)
        found[stream] = Position(end.id, end.stable)
    return found


def limited(
    begins: Mapping[str, int], found: Mapping[str, Position], count: int
) -> dict[str, Position]:
    """Take about `count` offsets, of each stream in proportion to what it has; 1 at the least."""
    lags = {stream: found[stream].next - begin for stream, begin in begins.items()}
    total = sum(lags.values())
    if total <= count:
        return dict(found)
    nearer = dict(found)
    for stream, lag in lags.items():
        if lag:
            share = max(1, lag * count // total)
            nearer[stream] = Position(found[stream].id, begins[stream] + share)
    return nearer
