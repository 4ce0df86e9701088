"""What a worker does with a batch that it has read as a member of a group. It does no I/O.

One request commits the outputs of a batch together with the group's position after the batch. The
server refuses it if the worker does not own the stream any more. The worker then drops the outputs,
because the new owner of the stream processes the same messages.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from semel.client import errors
from semel.client.commit_calls import Parts, find_unstorable
from semel.client.commit_sequence import CommitSequence
from semel.client.consumer_options import ConsumerSettings
from semel.client.dead_letters import cause_of
from semel.client.flows import Flow
from semel.client.group_calls import cursor_of, end_offset_of
from semel.client.owned_streams import MemberCursor, OwnedStream, reject_or_put_back
from semel.client.positions import MovePlanner, moves_by_member
from semel.client.processing import InputBatch, Outputs

_BAD_BODY: Final = "bad_body"  # the code of a refusal because of a message
_log = logging.getLogger("semel.client")


def check_outputs(outputs: Any, batch: InputBatch) -> Outputs:
    """Return the outputs of a function, with lists of values. Raises what their iterators raise.

    Raises TypeError if they are not a mapping.
    """
    if outputs is None:
        return {}
    if not isinstance(outputs, Mapping):
        error = TypeError(
            f"the function of process() returned a {type(outputs).__name__}; expected None, or a"
            " mapping from output streams to lists of values, such as {'out': [1, 2]}"
        )
        raise _named(error, batch)
    return {
        stream: list(values) if isinstance(values, Iterator) else values
        for stream, values in outputs.items()
    }


def commit_outputs(
    sequence: CommitSequence, group: str, batch: InputBatch, outputs: Outputs
) -> Flow[int | Exception]:
    """Commit the outputs for a batch together with the group's position after the batch.

    Return the number of messages that are done. This is 0 if the stream was lost, if an operator
    has moved the group, or if the outputs are too large for one commit. In the last case, the same
    messages are delivered again, in smaller batches.

    Return an error if the outputs can never be stored, because a value cannot be encoded, or
    because the outputs of a single message are too large. Then nothing was stored.
    """
    cursor, stream = _owned(batch)
    planner = MovePlanner(cursor.positions)
    planned = planner.plan_from(
        (group, batch.stream), cursor.position, end_offset_of(batch.messages[-1])
    )
    (part,) = moves_by_member(planned)
    planner.accepted(group, planned)
    parts = Parts(outputs, {group: part.moves}, member=part.member, epochs=part.epochs)
    try:
        result = yield from sequence.commit(parts)
    except errors.Refused as refused:
        return _after_refusal(refused, stream, batch)
    except errors.ClientError:
        raise
    except Exception:
        reason = yield from find_unstorable(sequence.streams, outputs)
        if reason is None:
            raise
        return _named(reason, batch)
    planner.done(is_repeat=result.duplicate)
    return len(batch)


def _after_refusal(
    error: errors.Refused, stream: OwnedStream, batch: InputBatch
) -> int | Exception:
    """Return 0, or the error if the outputs can never be stored. Otherwise raise it."""
    if isinstance(error, errors.PositionRefused) and not isinstance(error, errors.UnstableOffsets):
        stream.note_refusal(error)
        return 0
    if isinstance(error, errors.TooLarge) and len(batch) > 1:
        stream.put_back(batch.messages, len(batch) // 2)
        return 0
    if isinstance(error, errors.TooLarge) or error.code == _BAD_BODY:
        return _named(error, batch)
    is_missing = isinstance(error, errors.StreamNotFound | errors.StreamGone)
    if is_missing and error.facts.get("stream") == batch.stream:
        stream.is_lost = True
        return 0
    raise error


def _named(error: Exception, batch: InputBatch) -> Exception:
    """Return an error that says for which input the outputs cannot be stored, and why."""
    what = "message" if len(batch) == 1 else f"{len(batch)} messages"
    offset = batch.messages[0].offset
    text = f"the outputs for the {what} at {offset} in {batch.stream} cannot be stored: "
    named: Exception
    if isinstance(error, errors.Refused):
        named = type(error)(text + error.message, status=error.status, facts=error.facts)
    else:
        named = (TypeError if isinstance(error, TypeError) else ValueError)(f"{text}{error}")
    named.__cause__ = error
    return named


def retry_seconds(settings: ConsumerSettings, batch: InputBatch, failures: int) -> float | None:
    """Return how long to wait before the function is called again for a batch that has failed.

    `failures` counts its exceptions for this batch, and outputs that could not be stored. Return
    None if the batch must be given up: see `give_up`. A batch of several messages is given up at
    once, because it is unknown which message is to blame.
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
    """Make a message a dead letter. Return 1, or 0 if its stream was lost or that must wait.

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
    cause = cause_of(error)
    with suppress(errors.PositionRefused):  # the stream has recorded the reason
        attempts = message.attempts + failures
        tried = "1 attempt" if attempts == 1 else f"{attempts:,} attempts"
        if not (yield from reject_or_put_back(sequence, stream, message, cause, attempts=attempts)):
            return 0
        _log.warning(
            "the group %s has made the message at %s in %s a dead letter after %s: %s",
            *(cursor.group, message.offset, batch.stream, tried, cause),
        )
        return 1
    return 0


def _owned(batch: InputBatch) -> tuple[MemberCursor, OwnedStream]:
    cursor = cursor_of(batch.messages[0])
    assert isinstance(cursor, MemberCursor)
    assert cursor.stream is not None
    return cursor, cursor.stream
