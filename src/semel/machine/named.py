"""The streams a command names: all of them have to be there."""

from collections.abc import Iterable

from semel.machine.state import State, Stream
from semel.machine.streams import find_stream
from semel.model.outcomes import Outcome, Refusal
from semel.model.txn_outcomes import StreamRefused


def find_named(state: State, paths: Iterable[str]) -> dict[str, Stream] | StreamRefused:
    """Find every stream, or the first that is not there."""
    found: dict[str, Stream] = {}
    for path in paths:
        stream = find_stream(state, path)
        if not isinstance(stream, Stream):
            return refused(path, stream)
        found[path] = stream
    return found


def refused(path: str, cause: Outcome) -> StreamRefused:
    """Name the stream of several that refuses."""
    assert isinstance(cause, Refusal)
    return StreamRefused(path, cause)
