"""Decides whether each input has had its effect once, and in order per key.

The inputs are the messages of a topic. An effect is a message that a worker has written for one
input. It names the input by its key and number, and by the stream and the offset where the worker
read it. The checker only compares these lists. It does not know how they were made.

The numbers of a key count up from 0 in the order in which they were appended to the topic. So the
order of a key is also known across a growth that has moved the key to another partition.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

_SHOWN_MAX: Final = 10

Place = tuple[str, str]  # a stream and an offset in it


class Failed(Exception):
    """A guarantee was violated; the message says which one."""


class Input(NamedTuple):
    """A message of the topic: its key, its number among the messages of the key, and its place.

    `poison` says what the message does to its worker. It is empty for most messages.
    """

    key: str
    number: int
    stream: str
    offset: str
    poison: str = ""

    @property
    def place(self) -> Place:
        return self.stream, self.offset

    def __str__(self) -> str:
        return f"number {self.number} of key {self.key!r} at {self.offset} in {self.stream}"


class Effect(NamedTuple):
    """What a worker has written for an input, and who it was.

    `output` is the stream in which the effect was found. The other fields are in the effect itself.
    """

    key: str
    number: int
    stream: str
    offset: str
    worker: str
    output: str

    @property
    def place(self) -> Place:
        return self.stream, self.offset

    def is_of(self, each: Input | None) -> bool:
        """Return True if the effect says the right things about an input."""
        return each is not None and each[:4] == self[:4]

    def __str__(self) -> str:
        of = Input(self.key, self.number, self.stream, self.offset)
        return f"effect of {of}, by {self.worker} in {self.output}"


class Findings:
    """What is wrong, by kind. It is empty if nothing is wrong."""

    def __init__(self) -> None:
        self._lines: defaultdict[str, list[str]] = defaultdict(list)

    def add(self, kind: str, line: object) -> None:
        self._lines[kind].append(str(line))

    def count(self, kind: str) -> int:
        """Return how often something of this kind was found."""
        return len(self._lines.get(kind, ()))

    def merge(self, other: "Findings") -> None:
        """Add what `other` has found."""
        for kind, lines in other._lines.items():
            self._lines[kind] += lines

    @property
    def kinds(self) -> list[str]:
        return sorted(self._lines)

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __str__(self) -> str:
        shown = [
            f"{kind}: {line}" for kind in self.kinds for line in self._lines[kind][:_SHOWN_MAX]
        ]
        counts = ", ".join(f"{len(self._lines[kind])} {kind}" for kind in self.kinds)
        return "\n".join([counts or "nothing", *shown])


# The kinds of findings.
LOST: Final = "lost"
DOUBLED: Final = "doubled"
OUT_OF_ORDER: Final = "out of order"
INVENTED: Final = "invented"
SPLIT: Final = "split"
APPENDED_WRONG: Final = "appended wrong"
WITHOUT_KEY: Final = "without its key"


def check_inputs(inputs: Iterable[Input], appended: Mapping[str, int]) -> Findings:
    """Check the topic itself: it must have each message that was appended once, and no other.

    `appended` maps each key to the number of its messages.
    """
    found = Findings()
    numbers: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for each in inputs:
        numbers[each.key][each.number] += 1
    for key in sorted(appended.keys() | numbers.keys()):
        wanted = Counter(range(appended.get(key, 0)))
        for number in sorted((wanted - numbers[key]).elements()):
            found.add(APPENDED_WRONG, f"number {number} of key {key!r} is not in the topic")
        for number in sorted((numbers[key] - wanted).elements()):
            found.add(APPENDED_WRONG, f"number {number} of key {key!r} is once too often there")
    return found


def check_effects(
    inputs: Sequence[Input],
    effects: Sequence[Effect],
    *,
    without_effect: Iterable[Place] = (),
    without_order: Iterable[Place] = (),
) -> Findings:
    """Check the effects on one output, which may consist of several streams.

    The effects of each stream are in the order of the stream. The inputs at `without_effect` must
    have no effect. The order of those at `without_order` is not checked.

    - lost: an input has no effect.
    - doubled: an input has one more effect.
    - invented: an effect belongs to no input, or says something wrong about its input.
    - out of order: an effect follows one with a higher number of the same key.
    - split: the effects of a key are in several streams of the output.
    """
    found = Findings()
    by_place = {each.place: each for each in inputs}
    none, disordered = set(without_effect), set(without_order)
    counts: Counter[Place] = Counter()
    for effect in effects:
        if not effect.is_of(by_place.get(effect.place)):
            found.add(INVENTED, effect)
            continue
        counts[effect.place] += 1
        if effect.place in none:
            found.add(INVENTED, effect)
        elif counts[effect.place] > 1:
            found.add(DOUBLED, effect)
    for each in inputs:
        if each.place not in none and not counts[each.place]:
            found.add(LOST, each)
    _check_order([each for each in effects if each.place not in disordered], found)
    return found


def _check_order(effects: Sequence[Effect], found: Findings) -> None:
    by_key: defaultdict[str, list[Effect]] = defaultdict(list)
    for effect in effects:
        by_key[effect.key].append(effect)
    for key, own in by_key.items():
        outputs = {effect.output for effect in own}
        if len(outputs) > 1:
            found.add(SPLIT, f"key {key!r} is in {', '.join(sorted(outputs))}")
        for earlier, later in pairwise(own):
            if later.number < earlier.number:
                found.add(OUT_OF_ORDER, f"{later} follows number {earlier.number}")


def keys_that_moved(inputs: Iterable[Input]) -> int:
    """Return how many keys have messages in more than one partition."""
    streams: defaultdict[str, set[str]] = defaultdict(set)
    for each in inputs:
        streams[each.key].add(each.stream)
    return sum(len(own) > 1 for own in streams.values())


# ---- dead letters --------------------------------------------------------------------------------


def check_letters(letters: Iterable[Place], poisoned: Iterable[Place]) -> Findings:
    """Check dead letters: each poisoned input must be among them once, and no other input.

    - lost: a poisoned input is not a dead letter.
    - doubled: an input is a dead letter once more.
    - invented: an input is a dead letter and is not poisoned.
    """
    found = Findings()
    wanted, counts = set(poisoned), Counter(letters)
    for stream, offset in sorted(wanted - counts.keys()):
        found.add(LOST, f"{offset} in {stream} is not a dead letter")
    for place, count in sorted(counts.items()):
        stream, offset = place
        if place not in wanted:
            found.add(INVENTED, f"{offset} in {stream} is a dead letter and is not poisoned")
        for _ in range(count - 1):
            found.add(DOUBLED, f"{offset} in {stream} is once more a dead letter")
    return found
