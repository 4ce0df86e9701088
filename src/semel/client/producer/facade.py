"""What the sync and the async producer share."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from semel.client.errors import ClientClosed, Indeterminate
from semel.client.producer.batches import BatchAck, BatchEvent, ProducerStats
from semel.client.producer.core import ProducerCore
from semel.client.producer.gather import BodyEncoder
from semel.client.producer.opening import (
    PENDING_BYTES_MAX,
    OpenResult,
    ProducerOptions,
    settings_of,
)
from semel.client.producer.pump import Pump
from semel.client.transport import Transport, jitter
from semel.client.values import Extra

_log = logging.getLogger("semel.client")


def _no_body(messages: Sequence[bytes], extras: Mapping[int, Extra]) -> bytes:
    del messages, extras
    raise AssertionError("nothing is sent before it is open")


class ProducerFacade:
    """A producer's state as its owner sees it, and its callbacks."""

    # What a callback may raise without any effect.
    _survives: type[BaseException] = Exception

    def __init__(
        self,
        producer_id: str | None,
        transport: Transport,
        target: str,
        options: ProducerOptions,
        *,
        answer_timeout: float,
    ) -> None:
        self._settings = settings_of(producer_id, options)
        self._transport = transport
        self._target = target
        self._answer_timeout = answer_timeout
        self._pending_bytes_max = options.get("max_pending_bytes", PENDING_BYTES_MAX)
        self._on_batch_ack = options.get("on_batch_ack")
        self._on_error = options.get("on_error")
        if self._pending_bytes_max < 1:
            raise ValueError("max_pending_bytes must be at least 1")
        self._lock = threading.Lock()
        self._reported_count = 0  # messages settled, and the callbacks have returned
        self._is_closed = False  # it takes no more
        self._is_ended = False  # and has none left
        self._is_raised = False
        self._core = ProducerCore(self._settings, _no_body)  # until it is open
        self._pump: Pump
        self._packing: BodyEncoder
        self._to_raw: Callable[[Any], bytes]

    def _open(self, opening: OpenResult) -> None:
        packing = BodyEncoder(opening.content_type, is_semel=opening.is_semel)
        self._packing, self._to_raw = packing, packing.to_raw
        self._core = ProducerCore(
            self._settings, packing.body, jitter, is_counting=opening.is_semel
        )
        if opening.claim is not None:
            claim = opening.claim
            self._core.take_over(claim.producer_epoch, claim.last_seq, claim.cursor)
        elif opening.past:
            (state,) = opening.past
            self._core.resume(state.epoch, state.last_seq, state.cursor)
        elif opening.past is not None:
            self._core.resume(None, None, None)
        self._pump = Pump(
            self._core,
            packing,
            self._transport,
            self._target,
            lock=self._lock,
            on_events=self._report,
            answer_timeout=self._answer_timeout,
        )

    # ---- what the owner may ask ------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The producer's name."""
        return self._settings.id

    @property
    def epoch(self) -> int | None:
        """The epoch it writes under; None until the server has given it one."""
        return self._core.epoch

    @property
    def last_seq(self) -> int | None:
        """The last sequence that is stored; right after the start, by an earlier instance."""
        return self._core.ledger.last_seq

    @property
    def cursor(self) -> str | None:
        """The last cursor that is stored; right after the start, by an earlier instance."""
        return self._core.ledger.cursor

    @property
    def pending_count(self) -> int:
        """How many messages are not yet acknowledged."""
        with self._lock:
            return self._core.pending_count

    @property
    def in_flight_count(self) -> int:
        """How many batches are sent and not yet answered."""
        return self._core.in_flight_count

    @property
    def stats(self) -> ProducerStats:
        """What it has done so far."""
        return self._core.ledger.stats

    # ---- what the pump tells ---------------------------------------------------------------------

    def _report(self, events: list[BatchEvent]) -> None:
        failure = self._core.failure
        for event in events:
            if isinstance(event, BatchAck):
                if self._on_batch_ack is not None:
                    self._call(self._on_batch_ack, event)
            elif self._on_error is not None:
                assert failure is not None
                self._call(self._on_error, failure, event)
        with self._lock:
            self._reported_count += sum(event.count for event in events)

    def _call(self, callback: Callable[..., object], *arguments: object) -> None:
        try:
            callback(*arguments)
        except self._survives:  # the owner's business, which must not stop ours
            _log.exception("a callback of the producer %s failed", self.id)

    # ---- what both do in the same way ------------------------------------------------------------

    def _check(self) -> None:
        """Raise what stands against another message."""
        failure = self._core.failure
        if failure is not None:
            self._is_raised = True
            raise failure
        if self._is_closed:
            raise ClientClosed("the producer is closed")

    def _is_settled(self, goal: int) -> bool:
        return self._reported_count >= goal

    def _check_settled(self, *, is_again: bool) -> None:
        """Raise what went wrong with messages, unless `on_error` has been told.

        `is_again`: even if it was raised before.
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
