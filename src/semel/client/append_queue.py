"""The plain appends of a stream that wait to be sent. No I/O, no locks and no clock.

Appends that are called while a request is in flight wait here, and are sent together in the next
request. Times are arguments, in seconds of any monotonic clock. These are the rules:

1. One request of the stream is in flight at a time. An append that finds no request in flight is
   sent at once, by its caller.
2. Appends are sent in the order of the calls.
3. Several appends share a request if none of them has to be sent alone, and if they have at most
   1 MiB and 10,000 messages together.
4. When a request has ended, the turn to send passes to the caller of the next request that has the
   latest deadline. So a caller with a short timeout does not end the request of the others.
5. A caller can leave at any time. An append that is not sent yet is taken out of the queue.
6. A request that was interrupted is sent again by another of its callers, if a repeat is recognised
   by the server. Otherwise its callers get Indeterminate.

An append is in one of these states:

    state    event                        next state
    QUEUED   `take`                       SENT, or DONE if it cannot be encoded
    QUEUED   `leave`                      LEFT: nothing was applied
    SENT     `finish`, `fail`             DONE
    SENT     `send_alone`, `encode_again` QUEUED, before all others
    SENT     the sender leaves            SENT, or DONE if a repeat would not be recognised
    SENT     `leave`                      LEFT: it may be applied

Ctrl-C can interrupt any method between two lines. Changes are made in such an order that nothing is
lost if `interrupt` or `leave` is called after that.
"""

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from copy import copy
from typing import Final

from semel.client.errors import ClientError, Indeterminate, Unavailable
from semel.client.pending_append import AppendBatch, AppendState, PendingAppend
from semel.client.values import Receipt
from semel.model.limits import BATCH_MESSAGES_MAX, MIB

REQUEST_BYTES_MAX: Final = MIB
HELD_BYTES_MAX: Final = 64 * MIB
_LATER_SHARE: Final = 20
_INTERRUPTED: Final = "the request was interrupted while it was in flight"


class HeldBytes:
    """The encoded bytes of all appends that wait in a client, in all its streams."""

    def __init__(self, maximum: int = HELD_BYTES_MAX) -> None:
        self.maximum = maximum
        self.count = 0

    def has_room(self, size: int) -> bool:
        return self.count + size <= self.maximum


class AppendQueue:
    """The plain appends of one stream. `turn` is the append whose caller has to send.

    `turn` is None if nothing is in flight and nothing waits.
    """

    def __init__(self, held: HeldBytes) -> None:
        self.turn: PendingAppend | None = None
        self.bytes_max = REQUEST_BYTES_MAX
        self._held = held
        self._waiting: deque[PendingAppend] = deque()
        self._flight: AppendBatch | None = None
        self._interrupted: AppendBatch | None = None  # it is sent before all others
        self.checked_at = 0.0  # when a waiting caller last looked whether the sender is still there

    @property
    def is_idle(self) -> bool:
        return self.turn is None

    @property
    def is_ready(self) -> bool:
        """True if `take` can be called: something waits, and nothing is in flight."""
        return self.turn is not None and self._flight is None

    @property
    def in_flight(self) -> list[PendingAppend]:
        """The appends of the request in flight."""
        return [] if self._flight is None else list(self._flight.appends)

    @property
    def waiting_count(self) -> int:
        """The number of appends that are not sent yet."""
        return len(self._waiting)

    # ---- called by the callers of append ---------------------------------------------------------

    def start(self, append: PendingAppend) -> AppendBatch | None:
        """Return the batch to send if nothing waits. Otherwise add the append and return None.

        This is a short form of `add` and `take` for an append that finds no request in flight.
        """
        if self.turn is not None:
            self.add(append)
            return None
        self._hold(append)
        append.state = AppendState.SENT
        self.turn = append
        self._flight = AppendBatch([append], append.content_type)
        return self._flight

    def add(self, append: PendingAppend) -> bool:
        """Add an append. Return True if its caller has to send it now.

        If the client holds too many bytes, the encoded messages are dropped. They are encoded
        again when they are sent.
        """
        if append.content_type is not None:
            if self._held.has_room(append.size):
                self._hold(append)
            else:
                append.drop_encoded()
        self._waiting.append(append)
        if self.turn is not None:
            return False
        self.turn = append
        return True

    def leave(self, append: PendingAppend, *, is_sender: bool) -> list[PendingAppend]:
        """Take out an append whose caller no longer waits. Return the appends that are done now.

        `is_sender` is True if the caller was to send the next request, or was sending it. Such a
        request is interrupted.
        """
        assert append.is_pending
        if append.state is AppendState.QUEUED:
            with suppress(ValueError):  # its caller was interrupted before it was added
                self._waiting.remove(append)
            self._release(append)
        append.state = AppendState.LEFT
        if is_sender:
            return self.interrupt()
        if self.turn is append and self._flight is None:
            self._pass_turn()
        return []

    def interrupt(self) -> list[PendingAppend]:
        """Pass the turn on although the request has not ended. Return the appends done now.

        If a repeat is recognised by the server, another of its callers sends it again. Otherwise
        all of them get Indeterminate.
        """
        batch = self._flight
        if batch is None:
            self._pass_turn()
            return []
        if not batch.is_posted:
            self._put_back(batch)
            return []
        if not batch.is_repeatable:
            return self.fail(batch, Indeterminate(_INTERRUPTED))
        batch.was_lost = True
        self._interrupted = batch
        self._pass_turn()
        return []

    # ---- called by the sender --------------------------------------------------------------------

    def take(
        self, now: float, content_type: str | None, *, is_sharing: bool = True
    ) -> tuple[AppendBatch | None, list[PendingAppend]]:
        """Return the batch to send, and the appends that could not be encoded and are now done.

        `content_type` is the stream's media type, or None if it is not known yet. If `is_sharing`
        is False, the batch has one append. The batch is None if the caller's own append could not
        be encoded. In that case the turn has passed on.
        """
        assert self.is_ready
        sender = self.turn
        assert sender is not None
        if self._interrupted is not None:
            self._flight, self._interrupted = self._interrupted, None
            return self._flight, []
        if not self._encode(sender, content_type):
            self._waiting.remove(sender)
            self._pass_turn()
            return None, [sender]
        failed = []
        shared = _SharedRequest(self.bytes_max)
        until = sender.deadline + (sender.deadline - now) / _LATER_SHARE
        for append in list(self._waiting):
            if append.state is not AppendState.QUEUED or not self._encode(append, content_type):
                self._waiting.remove(append)
                failed.append(append)
                continue
            is_first = not shared.appends
            if not is_first and not (is_sharing and append.deadline <= until):
                break
            if not shared.add(append):
                break
        # From here on, `interrupt` puts them back.
        self._flight = AppendBatch(shared.appends, shared.appends[0].content_type)
        for append in shared.appends:
            append.state = AppendState.SENT
            self._waiting.popleft()
        return self._flight, failed

    def finish(self, batch: AppendBatch, receipt: Receipt) -> list[PendingAppend]:
        """Record that a batch is stored. Return the appends whose callers wait for it.

        `receipt.next_offset` is the offset after the last message of the batch.
        """
        for append, own in zip(batch.appends, batch.receipts(receipt), strict=True):
            append.receipt = own
        return self._end(batch)

    def fail(self, batch: AppendBatch, error: BaseException) -> list[PendingAppend]:
        """Record that a batch has failed. Return the appends whose callers wait for it.

        Each append gets an exception object of its own.
        """
        for append in batch.appends:
            if not append.is_done:
                append.error = error if append is self.turn else _copy_of(error)
        return self._end(batch)

    def send_alone(self, batch: AppendBatch, *, is_too_large: bool) -> None:
        """Queue the appends of a refused batch again, to be sent one by one."""
        if is_too_large:
            size = sum([append.size for append in batch.appends])
            self.bytes_max = min(self.bytes_max, size // 2)
        for append in batch.appends:
            append.is_alone = True
        self._put_back(batch)

    def encode_again(self, batch: AppendBatch) -> None:
        """Queue the appends of a batch again. The stream's media type has changed."""
        self._put_back(batch)

    # ---- helpers ---------------------------------------------------------------------------------

    def _encode(self, append: PendingAppend, content_type: str | None) -> bool:
        """Encode an append for this media type, if it is not. Return False if that fails."""
        if content_type is None or append.content_type == content_type:
            return True
        self._release(append)
        try:
            append.encode(content_type)
        except Exception as error:  # noqa: BLE001 - its caller gets it
            append.state, append.error = AppendState.DONE, error
            return False
        self._hold(append)
        return True

    def _put_back(self, batch: AppendBatch) -> None:
        """Queue the appends of a batch before all others. The queue changes in one step."""
        for append in batch.appends:
            self._release(append)
        pending = [append for append in batch.appends if append.is_pending]
        for append in pending:
            append.state = AppendState.QUEUED
        ids = set(map(id, pending))  # an interrupted `take` can have left some in the queue
        others = [append for append in self._waiting if id(append) not in ids]
        self._waiting = deque([*pending, *others])
        self._pass_turn()

    def _end(self, batch: AppendBatch) -> list[PendingAppend]:
        waiting = batch.waiting
        for append in batch.appends:
            self._release(append)
        for append in waiting:
            append.state = AppendState.DONE
        self._pass_turn()
        return waiting

    def _hold(self, append: PendingAppend) -> None:
        append.held_bytes = append.size
        self._held.count += append.size

    def _release(self, append: PendingAppend) -> None:
        self._held.count -= append.held_bytes
        append.held_bytes = 0
        append.drop_encoded()

    def _pass_turn(self) -> None:
        """End the request in flight, and choose the next sender."""
        self._flight = None
        if self._interrupted is not None:
            waiting = self._interrupted.waiting
            if waiting:
                self.turn = _latest(waiting)
                return
            for append in self._interrupted.appends:
                self._release(append)
            self._interrupted = None
        self.turn = _latest(self._likely_next()) if self._waiting else None

    def _likely_next(self) -> list[PendingAppend]:
        """Return the appends of the next request, as far as their sizes are known now."""
        shared = _SharedRequest(self.bytes_max)
        for append in self._waiting:
            if append.state is AppendState.QUEUED and not shared.add(append):
                break
        return shared.appends


class _SharedRequest:
    """The appends that are chosen for one request. The first one is always accepted."""

    def __init__(self, bytes_max: int) -> None:
        self.appends: list[PendingAppend] = []
        self._bytes_max = bytes_max
        self._count = 0
        self._size = 0

    def add(self, append: PendingAppend) -> bool:
        """Add an append. Return False if it cannot share the request."""
        count, size = self._count + append.count, self._size + append.size
        if self.appends:
            if count > BATCH_MESSAGES_MAX or size > self._bytes_max:
                return False
            self.appends[0].check()
            append.check()
            if self.appends[0].is_alone or append.is_alone:
                return False
        self.appends.append(append)
        self._count, self._size = count, size
        return True


def _copy_of(error: BaseException) -> BaseException:
    """Return a copy of an error, or the error itself if it cannot be copied."""
    try:
        return copy(error)
    except Exception:  # noqa: BLE001 - a class of the caller can have a constructor of any kind
        return error


def _latest(appends: Iterable[PendingAppend]) -> PendingAppend | None:
    return max(appends, key=lambda append: append.deadline, default=None)


def left_error(append: PendingAppend) -> ClientError:
    """Return the error for an append whose caller has waited until its deadline."""
    if append.state is AppendState.QUEUED:
        return Unavailable("the append was not sent before its timeout")
    return Indeterminate("no response came before the timeout of the append")


def to_wake(done: Iterable[PendingAppend], turn: PendingAppend | None) -> list[PendingAppend]:
    """Return the appends whose callers have to be woken."""
    found = [*done, *(() if turn is None else (turn,))]
    return [append for append in found if append.waker is not None]
