"""Seeded bugs of the client in dead letters: messages that are lost, or processed twice."""

from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from semel.client import dead_letter_calls, dead_letters
from semel.client.commit_calls import Parts
from tests.sim.letters import DEAD, INPUT, RETRY


def reject_without_the_position() -> Any:
    """A dead letter is stored, but its group is not moved past the message."""
    return _changed_parts(DEAD, lambda parts: replace(parts, offsets={}))


def reject_without_the_dead_letter() -> Any:
    """A group is moved past a rejected message, which is stored nowhere."""
    return _changed_parts(DEAD, lambda parts: replace(parts, appends={}))


def replay_into_the_source() -> Any:
    """Dead letters are appended to the stream from which they were read."""
    return patch.object(dead_letter_calls, "retries_of", lambda group: INPUT)


def replay_without_the_position() -> Any:
    """A replay does not store which dead letters were replayed."""
    return _changed_parts(RETRY, lambda parts: replace(parts, offsets={}))


def replay_without_what_was_read() -> Any:
    """A replay does not say from where it moves the position: two at once copy letters twice."""

    def change(parts: Parts) -> Parts:
        offsets = {
            group: {path: _only_to(move) for path, move in moves.items()}
            for group, moves in parts.offsets.items()
        }
        return replace(parts, offsets=offsets)

    return _changed_parts(RETRY, change)


def reject_a_retry_with_another_origin() -> Any:
    """A message that is rejected again has its place in the retry stream as its origin."""
    return patch.object(dead_letters, "unwrap", lambda message: None)


def _only_to(move: Any) -> Any:
    return None, move[1], None, None


def _changed_parts(path: str, change: Callable[[Parts], Parts]) -> Any:
    """Change the commits of the client that append to a stream."""

    def made(appends: Mapping[str, Any], *rest: Any, **more: Any) -> Parts:
        parts = Parts(appends, *rest, **more)
        return change(parts) if path in appends else parts

    module = dead_letter_calls if path == RETRY else dead_letters
    return patch.object(module, "Parts", made)


LETTER_MUTANTS: tuple[Callable[[], Any], ...] = (
    reject_without_the_position,
    reject_without_the_dead_letter,
    replay_into_the_source,
    replay_without_the_position,
    replay_without_what_was_read,
    reject_a_retry_with_another_origin,
)
