"""What a worker does with a batch that it has read as a member of a group. It does no I/O.

One request commits the outputs of a batch together with the group's position after the batch. The
server refuses it if the worker does not own the stream any more. The worker then drops the outputs,
because the new owner of the stream processes the same messages.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from semel.client import errors
from semel.client.commit_calls import Parts
from semel.client.commit_sequence import CommitSequence
from semel.client.consumer_options import ConsumerSettings
from semel.client.dead_letters import reject_message
from semel.client.flows import Flow
from semel.client.group_calls import cursor_of, end_offset_of
from semel.client.owned_streams import MemberCursor, OwnedStream
from semel.client.positions import MovePlanner, moves_by_member
from semel.client.processing import InputBatch, Outputs

_CAUSE: Final = "{}: {}"
_log = logging.getLogger("semel.client")


def check_outputs(outputs: Any) -> Outputs:
    """Return the outputs of a function. Raises TypeError if they are not a mapping."""
    if outputs is None:
        return {}
    if not isinstance(outputs, Mapping):
        raise TypeError(
            f"the function of process() returned a {type(outputs).__name__}; expected None, or a"
            " mapping from output streams to lists of values, such as {'out': [1, 2]}"
        )
    return outputs


def commit_outputs(
    sequence: CommitSequence, group: str, batch: InputBatch, outputs: Outputs
) -> Flow[int]:
    """Commit the outputs for a batch together with the group's position after the batch.

    Return the number of messages that are done. This is 0 if the stream was lost, if an operator
    has moved the group, or if the outputs are too large for one commit. In the last case, the same
    messages are delivered again, in smaller batches. Raises TooLarge if the outputs of a single
    message are too large.
    """
    cursor, stream = _owned(batch)
    planner = MovePlanner(cursor.positions)
    last = batch.messages[-1]
    planned = planner.plan_from((group, batch.stream), cursor.position, end_offset_of(last))
    (part,) = moves_by_member(planned)
    planner.accepted(group, planned)
    parts = Parts(outputs, {group: part.moves}, member=part.member, epochs=part.epochs)
    try:
        result = yield from sequence.commit(parts)
    except errors.UnstableOffsets:
        raise
    except errors.PositionRefused as error:
        stream.note_refusal(error)
        return 0
    except errors.TooLarge as error:
        if len(batch) == 1:
            raise errors.TooLarge(
                f"the outputs for the message at {last.offset} in {batch.stream} are too large for"
                f" one commit: {error.message}",
                status=error.status,
                facts=error.facts,
            ) from None
        stream.put_back(batch.messages, len(batch) // 2)
        return 0
    except (errors.StreamNotFound, errors.StreamGone) as error:
        if error.facts.get("stream") != batch.stream:
            raise
        stream.is_lost = True
        return 0
    planner.done(is_repeat=result.duplicate)
    return len(batch)


def retry_seconds(settings: ConsumerSettings, batch: InputBatch, failures: int) -> float | None:
    """Return how long to wait before the function is called again for a batch that has failed.

    `failures` counts its exceptions for this batch. Return None if the batch must be given up: see
    `give_up`. A batch of several messages is given up at once, because it is unknown which message
    is to blame.
    """
    if len(batch) > 1:
        return None
    crashes = _owned(batch)[0].crashes(batch.messages[0])
    return settings.retry_seconds(failures, crashes)


def give_up(
    sequence: CommitSequence,
    settings: ConsumerSettings,
    batch: InputBatch,
    error: Exception,
    failures: int,
) -> Flow[int]:
    """Make a message a dead letter. Return 1, or 0 if its stream was lost.

    The messages of a longer batch are delivered again one by one, and 0 is returned. Raises `error`
    if the settings allow no dead letters.
    """
    cursor, stream = _owned(batch)
    if len(batch) > 1:
        stream.put_back(batch.messages, 1)
        return 0
    if not settings.has_dead_letters:
        raise error
    message = batch.messages[0]
    cause = _CAUSE.format(type(error).__name__, error)
    with suppress(errors.PositionRefused):  # the stream has recorded the reason
        attempts = message.attempts + failures
        yield from reject_message(sequence, cursor, message, cause, attempts=attempts)
        _log.warning(
            "the group %s has made the message at %s in %s a dead letter after %d attempts: %s",
            *(cursor.group, message.offset, batch.stream, attempts, cause),
        )
        return 1
    return 0


def _owned(batch: InputBatch) -> tuple[MemberCursor, OwnedStream]:
    cursor = cursor_of(batch.messages[0])
    assert isinstance(cursor, MemberCursor)
    assert cursor.stream is not None
    return cursor, cursor.stream
