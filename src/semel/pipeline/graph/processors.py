"""What a processor is: a function, the streams around it, and how it is to be run. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from msgspec import UNSET, Struct, UnsetType

EXACTLY_ONCE: Final = "exactly-once"
AT_MOST_ONCE: Final = "at-most-once"
STRATEGIES: Final = (EXACTLY_ONCE, AT_MOST_ONCE)

IN: Final = "in"
OUT: Final = "out"

# One stream, several that are called by their names, or several by names of their own.
Streams = str | Sequence[str] | Mapping[str, str]
# What passes: for all inputs, or by binding.
Words = str | Iterable[str] | Mapping[str, str | Iterable[str]]


class Role(StrEnum):
    """What a processor does for its graph."""

    SOURCE = "source"
    STREAM = "stream"
    SINK = "sink"


class FunctionKind(StrEnum):
    """What a function takes: one message, a batch of Arrow, a DataFrame, or what the engine has."""

    MESSAGE = "message"
    ARROW = "arrow"
    DATAFRAME = "dataframe"
    ANY = "any"


class Bindings(NamedTuple):
    """Streams by the names a function has for them; `is_one`: it has no need of names."""

    streams: dict[str, str] = {}  # noqa: RUF012 - never changed
    is_one: bool = False


class Processor(Struct, frozen=True):
    """One processor, as it was described; whether that makes sense, `validate` tells."""

    id: str
    role: Role
    function: Callable[..., Any]
    in_: Bindings = Bindings()
    alts: Bindings = Bindings()
    out: Bindings = Bindings()
    types: Mapping[str, frozenset[str]] = {}
    topics: Mapping[str, frozenset[str]] = {}
    errors: str | UnsetType | None = UNSET
    strategy: str | None = None
    stateful: bool = False

    @property
    def inputs(self) -> dict[str, str]:
        """The streams it reads, by binding, in order."""
        return self.in_.streams or self.alts.streams

    @property
    def outputs(self) -> dict[str, str]:
        """The streams it writes, by binding, in order; not the error stream."""
        return self.out.streams

    @property
    def is_alternatives(self) -> bool:
        """Whether it takes one message of any input."""
        return bool(self.alts.streams)

    @property
    def is_join(self) -> bool:
        """Whether it takes one message of every input."""
        return bool(self.in_.streams) and not self.in_.is_one


def bindings(streams: Streams | None, name: str) -> Bindings:
    """Read how streams were given; `name` is what a single one is called."""
    if not streams:
        return Bindings()
    if isinstance(streams, str):
        return Bindings({name: streams}, is_one=True)
    if isinstance(streams, Mapping):
        return Bindings(dict(streams))
    return Bindings({path: path for path in streams})


def quote_words(given: Words | None, inputs: Iterable[str]) -> dict[str, frozenset[str]]:
    """Read which types or topics pass, by binding."""
    if not given:
        return {}
    if isinstance(given, Mapping):
        return {binding: _set(value) for binding, value in given.items()}
    return dict.fromkeys(inputs, _set(given))


def _set(value: str | Iterable[str]) -> frozenset[str]:
    return frozenset([value] if isinstance(value, str) else value)
