"""The identity under which a producer appends: its epoch, and what responses say about it."""

from collections.abc import Mapping
from typing import Final

from semel.client.errors import (
    ClientError,
    Indeterminate,
    PayloadMismatch,
    ProducerExpired,
    ProducerFenced,
    ProtocolError,
    Refused,
)
from semel.client.producer.batches import ProducerBatch
from semel.client.producer.settings import ProducerSettings
from semel.client.requests import producer_id_field
from semel.model.commands import SPARSE
from semel.model.limits import NUMBER_MAX
from semel.wire.headers import read_flag, to_number

_MISMATCH: Final = "producer-payload-mismatch"
_IGNORED: Final = (
    "the append was stored, but the server ignored its producer headers: the response has no"
    " Producer-Epoch. Sending the append again would store it twice"
)
_UNGUARDED: Final = (
    "the stream does not recognise duplicates (Stream-Dedup: off). The append is stored, but"
    " sending it again would store it twice. Switch dedup on, or use append_many"
)

_AMBIGUOUS: Final = (
    "a request got no response, and the server does not report the epoch of stored batches;"
    " it is therefore unknown whether the first batch was stored by this instance or an earlier one"
)
_FOREIGN: Final = (
    "an earlier instance has probably used the same epoch, because the server reports a new batch"
    " as a duplicate; pass a higher epoch= after each restart"
)
_TAKEN: Final = (
    "another instance has stored messages with the sequences that this one has assigned; let only"
    " one instance use the id at a time, or pass seq= with every message"
)
_NO_SESSIONS: Final = (
    "the server does not support producer sessions; pass epoch= or auto_claim=True to producer()"
)


class ProducerIdentity:
    """An instance's epoch and session, and whether the server has accepted them."""

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self._is_sparse = settings.mode == SPARSE
        self._is_unused = False  # the server has stored nothing with the present epoch
        self._is_semel = False  # the server compares payloads
        self._is_ours = False  # a batch was new, so no earlier instance has stored later batches
        self._id_field = producer_id_field(settings.id)
        self._fixed = _fixed_headers(settings)
        self.epoch = 0 if settings.is_claiming else settings.epoch
        self.is_established = False

    def resume(self, stored_epoch: int | None) -> None:
        """Record the epoch that the server has stored. Call this before the first batch.

        `stored_epoch` is None if nothing is stored. With the setting `is_claiming`, this instance
        uses the stored epoch plus one, or 0 if nothing is stored.
        """
        self._is_unused = self._is_semel = True
        if self._settings.is_claiming and stored_epoch is not None:
            self.epoch = stored_epoch + 1

    def take_over(self, epoch: int) -> None:
        """Set the epoch that a claim has returned.

        The epoch belongs to this instance from now on, even before the first batch.
        """
        self.epoch = epoch
        self.is_established = True

    def headers(self, batch: ProducerBatch) -> list[tuple[str, str]]:
        """Return the producer headers for a batch."""
        fields = [self._id_field, ("Producer-Seq", batch.printed_seq)]
        if self.epoch is not None:
            fields.append(("Producer-Epoch", str(self.epoch)))
        fields += self._fixed
        if batch.cursor is not None:
            fields.append(("Producer-Cursor", batch.cursor))
        if batch.is_closing:
            fields.append(("Stream-Closed", "true"))
        return fields

    def accept(
        self,
        headers: Mapping[str, str],
        batch: ProducerBatch,
        *,
        is_duplicate: bool,
        has_new_seqs: bool = False,
    ) -> ClientError | None:
        """Check a successful response to `batch`, and record its epoch.

        `has_new_seqs` is True if no earlier instance has used the batch's sequences. Return an
        error if the response shows that the producer must end. Otherwise return None.
        """
        # These must be computed before `_confirm` changes the identity.
        is_taken = has_new_seqs and self.is_taken(headers, batch)
        is_ambiguous = self.is_ambiguous(batch)
        is_foreign = self.is_foreign(headers, batch)
        error = self._confirm(headers, is_duplicate=is_duplicate)
        if error is None and is_duplicate and is_ambiguous:
            return Indeterminate(_AMBIGUOUS)
        if error is None and is_duplicate and is_foreign:
            return Indeterminate(_FOREIGN)
        if error is None and is_duplicate and is_taken:
            return Indeterminate(_TAKEN)
        return error

    def _confirm(self, headers: Mapping[str, str], *, is_duplicate: bool) -> ClientError | None:
        if read_flag(headers, _MISMATCH):
            return PayloadMismatch(
                "the server has already stored different messages with this sequence",
                status=204,
                facts={"current_epoch": self.epoch},
            )
        if headers.get("producer-dedup", "").lower() == "off":
            return ProtocolError(_UNGUARDED)
        epoch = _epoch_in(headers)
        if epoch is None:
            return ProtocolError(_IGNORED)
        if is_duplicate and self._is_sparse and self._settings.expires is None:
            return None  # an earlier instance can have stored it, with a different epoch
        if self.epoch not in (None, epoch):
            return ProtocolError(
                f"the request had epoch {self.epoch}, but the response has epoch {epoch}"
            )
        self.epoch = epoch
        self.is_established = True
        self._is_ours = self._is_ours or not is_duplicate
        return None

    def renew(self, stored_epoch: int | None = None) -> bool:
        """Move to a higher epoch, because the server may have forgotten the producer.

        Return False if that is not possible. Call this only if no batch without an acknowledgement
        can be stored. The session stays the same, so that the server refuses late copies of
        earlier requests.
        """
        known = [epoch for epoch in (self.epoch, stored_epoch) if epoch is not None]
        if not known or max(known) >= NUMBER_MAX:
            return False
        self.epoch = max(known) + 1
        self.is_established = False
        return True

    def explained(self, error: ClientError) -> ClientError:
        """Return the error to raise for a refusal of a batch.

        If the server seems not to know sessions, return an error that says so.
        """
        is_unknown_session = (
            self._settings.session is not None
            and not self._settings.is_claiming
            and not self.is_established
            and isinstance(error, Refused)
            and error.status == 400
            and error.code == "bad_request"  # semel sends a more specific code
        )
        return ProtocolError(_NO_SESSIONS) if is_unknown_session else error

    def claim(self, error: ClientError, batch: ProducerBatch) -> bool:
        """Move to a higher epoch if the producer was fenced or has expired.

        Return True if the epoch has changed. It changes only with the setting `is_claiming`, and
        only before the server has accepted an epoch of this instance. If an earlier attempt may
        have stored `batch`, the epoch stays the same: with a new epoch, `batch` could be stored
        twice.
        """
        if not isinstance(error, ProducerFenced | ProducerExpired) or batch.is_indeterminate:
            return False
        return self._raise_above(error.current_epoch)

    def reclaim(self, headers: Mapping[str, str], batch: ProducerBatch) -> bool:
        """Move to a higher epoch if an earlier instance has stored messages with this epoch.

        Call this if the server reports `batch` as a duplicate. Return True if the epoch changes. In
        that case `batch` itself is not stored yet, and must be sent again.

        The epoch changes only in dense mode with the setting `is_claiming`, and only before the
        server has accepted an epoch of this instance. If this instance may have stored `batch`
        itself, the epoch stays the same: with a new epoch, `batch` could be stored twice.
        """
        # An attempt got no response, or the epoch was unused and a proxy sent the request twice.
        is_own = not read_flag(headers, _MISMATCH) and (batch.is_indeterminate or self._is_unused)
        return not (is_own or self._is_sparse) and self._raise_above(_epoch_in(headers))

    def is_foreign(self, headers: Mapping[str, str], batch: ProducerBatch) -> bool:
        """Return True if an earlier instance has probably used the epoch and sequence of `batch`.

        Use the result only if the server reports `batch` as a duplicate. The result is True only if
        the caller passed the epoch: in that case an earlier instance can have stored different
        messages with the same epoch and sequence. A server that cannot compare payloads reports
        `batch` as a duplicate of these messages.
        """
        if self._settings.epoch is None or self._is_sparse or self._is_ours:
            return False
        if self._is_semel:
            # If this instance had stored the batch, the receipt would be recent and still retained.
            return headers.get("producer-receipt", "").lower() == "expired"
        return not batch.is_indeterminate

    def is_taken(self, headers: Mapping[str, str], batch: ProducerBatch) -> bool:
        """Return True if another instance has stored the sequences of `batch`.

        Use the result only if the server reports `batch` as a duplicate. A duplicate that this
        instance has stored has its epoch, and the receipt is retained.
        """
        if _epoch_in(headers) != self.epoch and (
            self.epoch is not None or not batch.is_indeterminate
        ):
            return True
        if self._is_semel:
            return headers.get("producer-receipt", "").lower() == "expired"
        return not batch.is_indeterminate and not self.is_established

    def is_ambiguous(self, batch: ProducerBatch) -> bool:
        """Return True if it is unknown whether this instance or an earlier one stored `batch`."""
        is_at_start = self._settings.is_claiming and not self.is_established
        return is_at_start and batch.is_indeterminate and not (self._is_unused or self._is_sparse)

    def _raise_above(self, epoch: int | None) -> bool:
        is_allowed = self._settings.is_claiming and not self.is_established
        if not is_allowed or epoch is None or epoch >= NUMBER_MAX:
            return False
        self.epoch = epoch + 1
        self._is_unused = True
        return True


def _epoch_in(headers: Mapping[str, str]) -> int | None:
    return to_number(headers.get("producer-epoch", ""))


def _fixed_headers(settings: ProducerSettings) -> tuple[tuple[str, str], ...]:
    """Return the headers that are the same for every batch, except the id."""
    fields = []
    if settings.session is not None:
        fields.append(("Producer-Session", settings.session))
    if settings.mode == SPARSE:
        fields.append(("Producer-Mode", SPARSE))
    if settings.expires is not None:
        fields.append(("Producer-Expires", str(settings.expires)))
    return tuple(fields)
