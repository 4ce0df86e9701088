"""Seeded bugs of a client; the run must find each of them."""

import secrets
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest

from semel.client import append_lanes, stream_calls
from semel.client.append_queue import AppendQueue
from semel.client.errors import ClientError, Indeterminate
from semel.client.flows import Exchanged, Pause, RetrySafety, Send, ask
from semel.client.pending_append import AppendBatch
from semel.client.producer.batches import ProducerBatch
from semel.client.producer.core import ProducerCore
from semel.client.producer.identity import ProducerIdentity
from semel.client.producer.outcomes import Acknowledgements
from semel.client.requests import Request
from semel.client.response_parser import Response
from semel.client.values import Receipt

Mutant = Callable[[pytest.MonkeyPatch], None]


def a_new_number_for_every_try(patch: pytest.MonkeyPatch) -> None:
    """Retry a batch with a new sequence."""
    retry = ProducerCore._retry

    def renumbering(core: ProducerCore) -> ProducerBatch | None:
        batch = retry(core)
        if batch is not None and not core._is_sparse and not core.in_flight_count:
            for each in core._unsettled:
                each.seq = each.last_seq = each.seq + 1  # type: ignore[operator]
            core._next_seq += 1
        return batch

    patch.setattr(ProducerCore, "_retry", renumbering)


def a_new_session_for_every_connection(patch: pytest.MonkeyPatch) -> None:
    """Start again after a lost connection, with sequence 0 in a new session."""
    lost = ProducerCore.connection_lost

    def forgetting(core: ProducerCore, now: float, error: ClientError) -> None:
        lost(core, now, error)
        if core._settings.session is None or core._is_sparse:
            return
        core._settings = msgspec.structs.replace(core._settings, session=secrets.token_hex(16))
        core._identity = ProducerIdentity(core._settings)
        for number, batch in enumerate(core._unsettled):
            batch.seq = batch.last_seq = number
        core._next_seq = len(core._unsettled)

    patch.setattr(ProducerCore, "connection_lost", forgetting)


def an_append_without_a_key_is_sent_again(patch: pytest.MonkeyPatch) -> None:
    """Treat every call as safe to repeat."""

    def asking(request: Any, kind: RetrySafety, **options: Any) -> Any:
        return ask(request, RetrySafety.REPEATABLE, **options)

    patch.setattr(stream_calls, "ask", asking)


def what_is_in_doubt_is_called_not_stored(patch: pytest.MonkeyPatch) -> None:
    """Report every batch that was given up as not stored."""
    give_up = Acknowledgements.give_up

    def certain(ledger: Acknowledgements, batch: ProducerBatch, *, is_certain: bool) -> None:
        give_up(ledger, batch, is_certain=True)

    patch.setattr(Acknowledgements, "give_up", certain)


def a_new_number_for_every_try_of_a_plain_append(patch: pytest.MonkeyPatch) -> None:
    """Send a plain append again with the next epoch, as if nothing had been sent before."""

    def asking(request: Request, kind: RetrySafety, **options: Any) -> Any:
        fields = dict(request.headers)
        tries = 0
        while True:
            reply = yield Send(request, kind)
            if isinstance(reply, Response) and reply.status < 500:
                return Exchanged(reply)
            if not (yield Pause(0.01)):
                raise Indeterminate("no response")
            tries += 1
            fields["Producer-Epoch"] = str(int(fields["Producer-Epoch"]) + 1_000_000 + tries)
            fields["Producer-Seq"] = "0"
            request = msgspec.structs.replace(request, headers=tuple(fields.items()))

    patch.setattr(append_lanes, "ask", asking)


def one_offset_for_all_appends_of_a_request(patch: pytest.MonkeyPatch) -> None:
    """Return to every caller the offset after the whole request."""
    finish = AppendQueue.finish

    def undivided(queue: AppendQueue, batch: AppendBatch, receipt: Receipt) -> Any:
        done = finish(queue, batch, receipt)
        for append in batch.appends:
            append.receipt = receipt
        return done

    patch.setattr(AppendQueue, "finish", undivided)


MUTANTS: Final[tuple[Mutant, ...]] = (
    a_new_number_for_every_try,
    a_new_session_for_every_connection,
    an_append_without_a_key_is_sent_again,
    what_is_in_doubt_is_called_not_stored,
    a_new_number_for_every_try_of_a_plain_append,
    one_offset_for_all_appends_of_a_request,
)
