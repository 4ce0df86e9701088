"""Grouping of messages by the partitions of a topic, and the body of a request that has them.

The client selects the partitions itself, because it has the keys at hand. The server checks only
for how many partitions the messages are grouped, and refuses another number.
"""

from collections.abc import Callable, Sequence
from secrets import randbelow

from msgspec import Struct

from semel.client.errors import NotSupported, PartitionsChanged
from semel.client.extras import Extras
from semel.model.limits import TOPIC_PARTITIONS_MAX
from semel.model.partitioners import HASHES
from semel.wire.bodies import encode_batch, encode_parts


class Grouped(Struct, frozen=True, gc=False):
    """Messages that are grouped for a topic with this number of `partitions` and `partitioner`.

    `places` has the partition of each message.
    """

    body: bytes
    partitions: int
    partitioner: str
    places: Sequence[int]

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """The header of the request that says for what topic the messages are grouped."""
        return (("Topic-Partitions", f"{self.partitions};partitioner={self.partitioner}"),)


class Grouper:
    """Selects the partitions of a topic's messages.

    A hash of the key selects the partition of a message. All messages of a request that have no key
    go to one partition, so that a request has few parts, and those of the next request go to the
    next partition. `turn` is the first partition of this kind. It is random by default, so that the
    first messages of many clients do not all go to the same partition. A producer selects this
    partition by what identifies its batch, so that the same batch always has the same groups.

    Raises NotSupported if this client does not know the partitioner.
    """

    def __init__(self, partitioner: str, partitions: int, turn: int | None = None) -> None:
        _check_partitioner(partitioner)
        self.partitioner = partitioner
        self.partitions = partitions
        self._turn = randbelow(partitions) if turn is None else turn

    def copy(self) -> "Grouper":
        """Return a grouper of its own for a producer."""
        return Grouper(self.partitioner, self.partitions)

    def learn(self, partitions: int, partitioner: str) -> None:
        """Record what the topic is now. Another topic can have been created with its name.

        Raises NotSupported if this client does not know the partitioner.
        """
        _check_partitioner(partitioner)
        self.partitions, self.partitioner = partitions, partitioner

    def note_refusal(self, error: PartitionsChanged, refused: Grouped | None) -> None:
        """Record what the topic is, according to the refusal of an append.

        Raises `error` if it does not say so, or if the append was grouped for just such a topic.
        """
        partitions, partitioner = error.partitions, error.partitioner
        if partitions is None or partitioner is None or refused is None:
            raise error
        if (partitions, partitioner) == (refused.partitions, refused.partitioner):
            raise error
        self.learn(partitions, partitioner)

    def groups_as(self, grouped: Grouped) -> bool:
        """Return True if messages that are grouped now get the same partitions for their keys."""
        return (self.partitions, self.partitioner) == (grouped.partitions, grouped.partitioner)

    def group(
        self,
        content_type: str,
        messages: Sequence[bytes],
        extras: Extras,
        chosen: Sequence[int | None] | None = None,
        *,
        turn: int | None = None,
    ) -> Grouped:
        """Group messages that have these extras. `chosen` has partitions that the caller chose.

        With `turn`, messages without a key go to this partition, modulo the number of partitions.

        Raises ValueError if a column of the extras has not one element for each message.
        """
        partitions, count = self.partitions, len(messages)
        for column in (extras.keys, extras.headers, extras.timestamps):
            if column is not None and len(column) != count:
                raise ValueError(
                    f"keys, headers and timestamps must each have {count} items for {count}"
                    " messages"
                )
        sticky = self._next_turn if turn is None else lambda count: turn % count
        places = self._places(partitions, count, extras.keys, sticky)
        if chosen is not None:
            places = [
                place if own is None else own for own, place in zip(chosen, places, strict=True)
            ]
        if places.count(places[0]) == count:
            parts = {places[0]: _encode(content_type, messages, extras)}
        else:
            parts = _split(content_type, messages, extras, places)
        return Grouped(encode_parts(parts), partitions, self.partitioner, places)

    def _places(
        self,
        partitions: int,
        count: int,
        keys: Sequence[bytes | None] | None,
        sticky: Callable[[int], int],
    ) -> list[int]:
        if keys is None:
            return [sticky(partitions)] * count
        hash_key = HASHES[self.partitioner]
        if None not in keys:
            return [hash_key(key) % partitions for key in keys if key is not None]
        turn = sticky(partitions)
        return [turn if key is None else hash_key(key) % partitions for key in keys]

    def _next_turn(self, partitions: int) -> int:
        self._turn = turn = (self._turn + 1) % partitions
        return turn


def check_partition(partition: object) -> None:
    """Raise TypeError or ValueError if no topic can have this partition.

    Call this before an append is queued: it can share a request with appends of other callers.
    """
    if partition is None:
        return
    if not isinstance(partition, int) or isinstance(partition, bool):
        kind = type(partition).__name__
        raise TypeError(f"partition must be the number of a partition or None, not {kind}")
    if not 0 <= partition < TOPIC_PARTITIONS_MAX:
        raise ValueError(
            f"partition={partition} is invalid; expected 0 to {TOPIC_PARTITIONS_MAX - 1}"
        )


def _check_partitioner(partitioner: str) -> None:
    if partitioner not in HASHES:
        raise NotSupported(f"this client does not know the partitioner {partitioner!r}")


def _split(
    content_type: str, messages: Sequence[bytes], extras: Extras, places: Sequence[int]
) -> dict[int, bytes]:
    indexes: dict[int, list[int]] = {place: [] for place in sorted(set(places))}
    for index, place in enumerate(places):
        indexes[place].append(index)
    keys, headers, timestamps = extras.keys, extras.headers, extras.timestamps
    return {
        place: encode_batch(
            content_type,
            [messages[index] for index in own],
            keys=None if keys is None else [keys[index] for index in own],
            headers=None if headers is None else [headers[index] for index in own],
            timestamps=None if timestamps is None else [timestamps[index] for index in own],
        )
        for place, own in indexes.items()
    }


def _encode(content_type: str, messages: Sequence[bytes], extras: Extras) -> bytes:
    return encode_batch(
        content_type,
        messages,
        keys=extras.keys,
        headers=extras.headers,
        timestamps=extras.timestamps,
    )
