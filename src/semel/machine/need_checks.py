"""What a need of a command is: see `needs.py`, which has the needs of each command."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import Struct

from semel.machine.rows import OwnedKey
from semel.machine.state import State
from semel.model.outcomes import NotFound, Refusal
from semel.model.outcomes_txn import StreamRefused
from semel.model.patterns import matched_names
from semel.model.rights import READ, STREAM, Caller


class Check(Struct, frozen=True, gc=False):
    """A right that a command needs or, with `key`, a thing that must be the caller's.

    With `is_prefix`, the right is needed on all things whose names begin with `name`.

    `hidden` is the refusal if the caller has no right at all on the thing: the same as if the thing
    did not exist. It is None if the absence of the thing is no error.
    """

    kind: str
    name: str
    right: str
    hidden: Refusal | None = None
    key: OwnedKey | None = None
    path: str = ""  # of the stream in which a producer is
    is_use: bool = True  # False for what ends a thing or gives it away: it needs an owner or admin
    is_taken: bool = True  # False if the thing gets no owner by the command: O2
    is_prefix: bool = False


Checks = Iterator[Check]
Rule = Callable[[State, Any, Caller], Iterable[Check]]


def listed_stream(path: str, right: str) -> Check:
    """Return the check of a right on one of the streams that a command lists."""
    return Check(STREAM, path, right, StreamRefused(path, NotFound()))


def matched_streams(pattern: str) -> Checks:
    """Yield the checks of `read` on all streams that a pattern can match, now or later."""
    path, prefix = matched_names(pattern)
    if path is not None:
        yield Check(STREAM, path, READ)
    if prefix is not None:
        yield Check(STREAM, prefix, READ, is_prefix=True)
