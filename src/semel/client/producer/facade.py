"""The base class of the threaded and the asyncio producer: state, callbacks and checks."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from semel.client.errors import (
    ClientClosed,
    Indeterminate,
    NotSupported,
    ProducerFenced,
    Refused,
    StreamClosed,
)
from semel.client.extras import Extra
from semel.client.flows import Flow
from semel.client.producer.core import ProducerCore
from semel.client.producer.encoding import BodyEncoder, TopicEncoder
from semel.client.producer.opening import (
    PENDING_BYTES_MAX,
    OpenResult,
    Past,
    ProducerOptions,
    settings_of,
)
from semel.client.producer.outcomes import BatchAck, BatchEvent, ProducerStats
from semel.client.producer.pump import Pump
from semel.client.server_calls import RETIRE_SECONDS_MAX, retire_producer
from semel.client.stream_calls import StreamCalls
from semel.client.transport import Transport, fork_safe_lock, jitter
from semel.model.commands import SPARSE

_log = logging.getLogger("semel.client")


def _no_body(messages: Sequence[bytes], extras: Mapping[int, Extra], seq: int) -> bytes:
    del messages, extras, seq
    raise AssertionError("a batch was sent before the producer was open")


def retire_seconds(deadline: float | None) -> float:
    """Return how long `close` waits for the server to forget a producer without an `id`.

    `deadline` is the end of the call in monotonic clock time, or None.
    """
    if deadline is None:
        return RETIRE_SECONDS_MAX
    return min(RETIRE_SECONDS_MAX, max(deadline - time.monotonic(), 0.0))


class ProducerFacade:
    """What both producers have in common.

    A producer with an `id` of the caller can have a past: what earlier instances have stored. The
    past is read when it is needed, by a claim if no batch was sent yet.
    """

    # If a callback raises an exception of this type, it is logged and otherwise ignored.
    _survives: type[BaseException] = Exception

    def __init__(
        self,
        producer_id: str | None,
        calls: StreamCalls,
        transport: Transport,
        options: ProducerOptions,
        *,
        response_timeout: float,
    ) -> None:
        self._settings = settings_of(producer_id, options)
        self._calls = calls
        self._transport = transport
        self._response_timeout = response_timeout
        self._pending_bytes_max = options.get("max_pending_bytes", PENDING_BYTES_MAX)
        self._on_batch_ack = options.get("on_batch_ack")
        self._on_error = options.get("on_error")
        if self._pending_bytes_max < 1:
            raise ValueError(
                f"max_pending_bytes={self._pending_bytes_max} is invalid; expected 1 or more"
            )
        self._lock = fork_safe_lock()
        self._reported_count = 0  # messages whose callbacks have returned
        self._is_closed = False  # `append` is refused
        self._is_ended = False  # the producer is closed, and no message is pending
        self._is_raised = False  # the failure was already raised to the caller
        self._is_retired = False
        self._is_past_known = not self._settings.has_past
        self._core = ProducerCore(self._settings, _no_body)  # replaced by `_open`
        self._pump: Pump
        self._encoder: BodyEncoder
        self._to_raw: Callable[[Any], bytes]

    def _open(self, opening: OpenResult) -> None:
        encoder = self._make_encoder(opening)
        self._encoder, self._to_raw = encoder, encoder.to_raw
        self._core = ProducerCore(
            self._settings,
            encoder.body,
            jitter,
            is_semel=opening.is_semel,
            stream=self._calls.path,
            known=opening.known,
            renews_token=self._transport.renews_token,
            regroup=encoder.regroup,
        )
        self._is_past_known |= self._settings.is_claimed_first or not opening.is_semel
        self._set_past(opening.past)
        self._pump = Pump(
            self._core,
            encoder,
            self._transport,
            self._calls.target,
            lock=self._lock,
            on_events=self._report,
            response_timeout=self._response_timeout,
        )

    def _make_encoder(self, opening: OpenResult) -> BodyEncoder:
        grouper, doubt = self._calls.grouper, self._doubt_stream
        if grouper is not None:
            settings = self._settings
            return TopicEncoder(
                opening.content_type,
                grouper.copy(),
                on_refusal=doubt,
                producer_id=settings.id,
                is_sparse=settings.mode == SPARSE,
            )
        return BodyEncoder(opening.content_type, is_semel=opening.is_semel, on_refusal=doubt)

    def _check_closable(self) -> None:
        """Raise NotSupported if this is the producer of a topic."""
        if self._calls.grouper is not None:
            raise NotSupported("a producer cannot close a topic; use the topic's close()")

    def _doubt_stream(self) -> None:
        """Let the next producer of the same stream object ask what the stream is."""
        self._calls.is_stale = True

    def _set_past(self, past: Past) -> None:
        """Record what earlier instances have stored."""
        claim, states = past.claim, past.states
        if claim is not None:
            self._core.take_over(claim.producer_epoch, claim.last_seq, claim.cursor)
        elif states is not None:
            state = states[0] if states else None
            if self._core.is_used:
                # The first batch has fenced the earlier instances, so this cursor is final.
                acks = self._core.acks
                acks.cursor = acks.cursor if state is None or acks.cursor else state.cursor
            elif state is None:
                self._core.resume(None, None, None)
            else:
                self._core.resume(state.epoch, state.last_seq, state.cursor)
        self._core.release()

    @property
    def _is_to_retire(self) -> bool:
        """True if the server must be told that the producer's id is not used again."""
        failure = self._core.failure
        is_current = failure is None or (
            isinstance(failure, Refused) and not isinstance(failure, ProducerFenced)
        )
        is_own = not self._settings.has_past and self._core.is_used
        if self._calls.place.path is None:  # only semel has this call, and it needs the path
            return False
        return is_own and is_current and not self._is_retired

    def _retirement(self) -> Flow[object]:
        """Tell the server that the producer's id is not used again."""
        self._is_retired = True
        settings = self._settings
        epoch = self._core.epoch if settings.session is None else None
        return retire_producer(self._calls, settings.id, epoch, settings.session)

    # ---- state -----------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self._settings.id

    @property
    def epoch(self) -> int | None:
        """The epoch of this instance, or None until the server has assigned one."""
        return self._core.epoch

    @property
    def last_seq(self) -> int | None:
        """The last stored sequence.

        Before the first acknowledgement, this is the last sequence that an earlier instance stored,
        or None if there was no earlier instance. See `cursor`.
        """
        if self._core.acks.last_seq is None:
            self._require_past()
        return self._core.acks.last_seq

    @property
    def cursor(self) -> str | None:
        """The last stored cursor.

        Until a cursor of this instance is stored, this is the last cursor that an earlier instance
        stored, or None if there is none.

        If no batch was sent yet, a `Producer` claims its id to read the cursor, so that no earlier
        instance can store messages after that. An `AsyncProducer` raises RuntimeError if neither
        `open` was called nor a cursor of this instance is stored.
        """
        if self._core.acks.cursor is None:
            self._require_past()
        return self._core.acks.cursor

    def _require_past(self) -> None:
        """Make what earlier instances have stored known. After the end, do nothing."""
        if not (self._is_past_known or self._is_ended or self._core.failure is not None):
            self._read_past()

    def _read_past(self) -> None:
        raise NotImplementedError

    @property
    def pending_count(self) -> int:
        """The number of messages that are not acknowledged yet."""
        with self._lock:
            return self._core.pending_count

    @property
    def in_flight_count(self) -> int:
        """The number of batches that were sent and have no response yet."""
        return self._core.in_flight_count

    @property
    def stats(self) -> ProducerStats:
        """The producer's counters, from the time it was opened."""
        return self._core.acks.stats

    # ---- callbacks -------------------------------------------------------------------------------

    def _report(self, events: list[BatchEvent]) -> None:
        failure = self._core.failure
        if failure is not None:
            self._doubt_stream()
        for event in events:
            if isinstance(event, BatchAck):
                if self._on_batch_ack is not None:
                    self._call(self._on_batch_ack, event)
            elif self._on_error is not None:
                assert failure is not None
                self._call(self._on_error, failure, event)
        with self._lock:
            self._reported_count += sum(event.units for event in events)

    def _call(self, callback: Callable[..., object], *arguments: object) -> None:
        try:
            callback(*arguments)
        except self._survives:  # an error in a callback must not stop the producer
            _log.exception("a callback of the producer %s failed", self.id)

    # ---- checks ----------------------------------------------------------------------------------

    def _check(self) -> None:
        """Raise an error if no message can be appended.

        This is the failure of the producer, StreamClosed if the producer has closed the stream, or
        ClientClosed if the producer is closed.
        """
        failure = self._core.failure
        if failure is not None:
            self._is_raised = True
            raise failure
        if self._is_closed:
            if self._core.is_closing:
                raise StreamClosed("the producer has closed the stream", status=409)
            raise ClientClosed("the producer is closed")

    def _check_settled(self, *, is_again: bool) -> None:
        """Raise the failure if the producer has failed and the caller has set no `on_error`.

        A failure that was already raised is raised again only if `is_again` is True.
        """
        failure = self._core.failure
        if failure is None or self._on_error is not None or (self._is_raised and not is_again):
            return
        self._is_raised = True
        raise failure

    def _late(self, timeout: float | None) -> Indeterminate:
        with self._lock:
            count = self._core.appended_count - self._reported_count
        return Indeterminate(f"{count} messages are not acknowledged after {timeout:g} seconds")
