"""Verification of the checkpoint's tables of subscriptions, their wakes and their links.

Each row must have fields that a command could have stored. A stream must be linked to exactly the
subscriptions that name it or whose pattern matches it.
"""

from collections.abc import Sequence
from typing import Final, TypeVar

from msgspec.structs import replace

from semel.journal.verify.report import Corrupt, Decoded
from semel.machine.rows import NAME_KEY, OWNED_KEY, is_topic
from semel.machine.state import STATE_TABLES, State, Stream
from semel.machine.subscription_events import NEVER_ACKED, LinkRow, SubscriptionRow, WakeRow
from semel.model.limits import (
    DELIVERY_ERROR_BYTES_MAX,
    WAKE_ID_BYTES_MAX,
    WAKE_STREAMS_MAX,
    WORKER_BYTES_MAX,
)
from semel.model.names import is_name, is_number
from semel.model.rights import is_of_server
from semel.model.subscription_commands import (
    WEBHOOK,
    CreateSubscription,
    invalid_subscription_field,
)

SUBSCRIPTION_TABLES: Final = frozenset({"subscriptions", "wakes", "links"})
_NO_SUBSCRIPTION: Final = "the row belongs to a subscription that does not exist"
_NO_STREAM: Final = "the row belongs to a stream that does not exist"

T = TypeVar("T", str, int)


def check_subscriptions(decoded: Decoded, state: State, corrupt: Corrupt) -> None:
    """Check all subscriptions with their wakes and links, and load the subscriptions."""
    by_id = state.subscriptions.by_id
    for key, row in decoded("subscriptions", SubscriptionRow):
        problem = _row_problem(key, row)
        if problem is None:
            STATE_TABLES["subscriptions"].load(state, NAME_KEY.decode(key), row)
        else:
            corrupt("subscriptions", key, problem)
    _check_wakes(decoded, state, corrupt)
    kinds: dict[int, dict[str, int]] = {}
    for key, row in decoded("links", LinkRow):
        number, name = OWNED_KEY.decode(key)
        kinds.setdefault(number, {})[name] = row.kinds
        stream = state.by_number.get(number)
        if stream is None or stream.tail.is_deleted or is_topic(stream.row):
            corrupt("links", key, _NO_STREAM)
        elif name not in by_id:
            corrupt("links", key, _NO_SUBSCRIPTION)
        elif not NEVER_ACKED <= row.acked <= stream.tail.tail:
            corrupt("links", key, f"the stream does not have the acked offset {row.acked}")
    for number, stream in state.by_number.items():
        _check_kinds(state, stream, kinds.get(number, {}), corrupt)


def _row_problem(key: bytes, row: SubscriptionRow) -> str | None:
    try:
        name = NAME_KEY.decode(key)
    except UnicodeDecodeError:
        return "the key is not UTF-8"
    command = CreateSubscription(
        row.created_ms,
        name,
        row.type,
        row.pattern,
        row.streams,
        url=row.url,
        wake_stream=row.wake_stream,
        lease_ms=row.lease_ms,
        description=row.description,
    )
    # What it names now must have the same form, except that it can be nothing.
    named = replace(command, streams=row.names, pattern=row.pattern or "*")
    field = invalid_subscription_field(command) or invalid_subscription_field(named)
    if field is not None:
        return f"the field `{field}` of the subscription is invalid"
    if not is_number(row.created_ms):
        return "the subscription has an invalid time"
    if not (_is_sorted(row.streams) and _is_sorted(row.names)):
        return "the streams of the subscription are not sorted"
    return None


def _is_sorted(items: Sequence[T]) -> bool:
    return [*items] == sorted(set(items))


def _check_wakes(decoded: Decoded, state: State, corrupt: Corrupt) -> None:
    by_id = state.subscriptions.by_id
    missing = set(by_id)
    for key, row in decoded("wakes", WakeRow):
        name = key.decode(errors="replace")
        missing.discard(name)
        if name not in by_id:
            corrupt("wakes", key, _NO_SUBSCRIPTION)
            continue
        problem = _wake_problem(state, by_id[name].row, row)
        if problem is not None:
            corrupt("wakes", key, problem)
    for name in sorted(missing):
        corrupt("wakes", NAME_KEY.encode(name), "the row is missing or damaged")


def _wake_problem(state: State, row: SubscriptionRow, wake: WakeRow) -> str | None:
    if not (is_number(wake.generation) and is_number(wake.issued_ms)):
        return "the generation or the time of the wake is invalid"
    if not is_number(wake.last):
        return "the field `last` of the wake is invalid"
    if not wake.wake_id:
        is_empty = wake == WakeRow(wake.generation, last=wake.last)
        return None if is_empty else "no wake is in flight, but the row describes one"
    if not is_number(wake.next_stream):
        return "the field `next_stream` of the wake is invalid"
    if not is_name(wake.wake_id, WAKE_ID_BYTES_MAX) or wake.generation == 0:
        return "the id or the generation of the wake is invalid"
    is_webhook = row.type == WEBHOOK
    if wake.worker and (is_webhook or not is_name(wake.worker, WORKER_BYTES_MAX)):
        return "the worker of the wake is invalid"
    is_error_short = len(wake.error.encode(errors="replace")) <= DELIVERY_ERROR_BYTES_MAX
    is_untried = wake.attempts == 0 and not (wake.error or wake.is_suspended)
    if not (is_untried or (is_webhook and is_number(wake.attempts) and is_error_short)):
        return "the failed deliveries of the wake are invalid"
    return _snapshot_problem(state, wake)


def _snapshot_problem(state: State, wake: WakeRow) -> str | None:
    numbers = [number for number, _ in wake.snapshot]
    if not 0 < len(numbers) <= WAKE_STREAMS_MAX or not _is_sorted(numbers):
        return "the snapshot of the wake is empty, too long or not sorted"
    for number, offset in wake.snapshot:
        stream = state.by_number.get(number)  # None if it was deleted after the wake was issued
        if offset < 0 or (stream is not None and offset > stream.tail.tail):
            return f"the snapshot has the offset {offset}, which stream {number} does not have"
    return None


def _check_kinds(state: State, stream: Stream, kinds: dict[str, int], corrupt: Corrupt) -> None:
    """Check to which subscriptions a stream is linked, and why. The kinds 0 mean that it is not."""
    if stream.tail.is_deleted or is_topic(stream.row):
        return  # its links, if there are any, were reported
    path = stream.row.path
    expected = {} if is_of_server(path) else state.subscriptions.kinds_of(path)
    for name in sorted(expected.keys() | kinds.keys()):
        before, after = kinds.get(name, 0), expected.get(name, 0)
        if before != after and name in state.subscriptions.by_id:
            corrupt(
                "links",
                OWNED_KEY.encode((stream.row.number, name)),
                f"the link of the stream {path} has the kinds {before}, and should have {after}",
            )
