"""Who a producer says it is: the epoch it writes under, and how it came by it."""

from collections.abc import Mapping

from semel.client.errors import (
    ClientError,
    PayloadMismatch,
    ProducerExpired,
    ProducerFenced,
    ProtocolError,
)
from semel.client.producer_batches import SPARSE, Batch, ProducerSettings
from semel.model.limits import NUMBER_MAX
from semel.wire.headers import to_number

_IGNORED = (
    "the append was taken, but not as that of a producer: the answer has no Producer-Epoch."
    " It is stored, but sending it again would store it twice"
)
_UNGUARDED = (
    "the stream recognises no duplicates (Stream-Dedup: off). The append is stored, but sending it"
    " again would store it twice: switch it on, or use append_many"
)


class Identity:
    """The epoch, the session and whether the server has accepted them."""

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self._is_sparse = settings.mode == SPARSE
        self._is_unused = False  # nobody has written under our epoch, as far as the server knows
        self._is_told = False  # by a server that compares payloads
        self._is_ours = False  # it took a batch of ours as new: so will be all behind it
        self.epoch = 0 if settings.is_claiming else settings.epoch
        self.is_established = False

    def resume(self, known_epoch: int | None) -> None:
        """Take note of the epoch the server knows, before the first batch; None: it knows none."""
        self._is_unused = self._is_told = True
        if self._settings.is_claiming and known_epoch is not None:
            self.epoch = known_epoch + 1

    def take_over(self, epoch: int) -> None:
        """Take the epoch a claim has got: it is ours alone before the first batch."""
        self.epoch = epoch
        self.is_established = True

    def headers(self, batch: Batch) -> list[tuple[str, str]]:
        """Tag a batch."""
        settings = self._settings
        fields = [("Producer-Id", settings.id), ("Producer-Seq", batch.printed_seq)]
        if self.epoch is not None:
            fields.append(("Producer-Epoch", str(self.epoch)))
        if settings.session is not None:
            fields.append(("Producer-Session", settings.session))
        if self._is_sparse:
            fields.append(("Producer-Mode", SPARSE))
        if batch.cursor is not None:
            fields.append(("Producer-Cursor", batch.cursor))
        return fields

    def confirm(self, headers: Mapping[str, str], *, is_duplicate: bool) -> ClientError | None:
        """Learn from an answer that says yes; an error if it is not meant for us."""
        if _is_mismatch(headers):
            message = "the batch's number was used before, with other messages"
            return PayloadMismatch(message, status=204, facts={"current_epoch": self.epoch})
        if headers.get("producer-dedup", "").lower() == "off":
            return ProtocolError(_UNGUARDED)
        epoch = _epoch_in(headers)
        if epoch is None:
            return ProtocolError(_IGNORED)
        if is_duplicate and self._is_sparse:
            return None  # stored by an earlier instance, perhaps: then the epoch is that one's
        if self.epoch not in (None, epoch):
            return ProtocolError(f"sent under epoch {self.epoch}, answered under {epoch}")
        self.epoch = epoch
        self.is_established = True
        self._is_ours = self._is_ours or not is_duplicate
        return None

    def claim(self, error: ClientError, batch: Batch) -> bool:
        """Raise the epoch above the one that fenced us, or that was let go, if allowed and safe.

        It is not if an attempt is in doubt: it may have been stored under the epoch we had, and
        fenced only afterwards. A second copy under a new epoch would be a duplicate.
        """
        if not isinstance(error, ProducerFenced | ProducerExpired) or batch.is_doubtful:
            return False
        return self._raise_above(error.current_epoch)

    def reclaim(self, headers: Mapping[str, str], batch: Batch) -> bool:
        """Raise the epoch if a first batch counts as a duplicate, and of somebody else's.

        An earlier instance wrote under the epoch we began with. To take its number 0 for ours
        would lose our messages. But if nobody had used it, something on the way has sent a copy of
        our request first: to send it again would be a duplicate.
        """
        is_own = not _is_mismatch(headers) and (batch.is_doubtful or self._is_unused)
        return not (is_own or self._is_sparse) and self._raise_above(_epoch_in(headers))

    def is_foreign(self, headers: Mapping[str, str], batch: Batch) -> bool:
        """Tell whether a duplicate under a declared epoch is an earlier instance's, perhaps.

        It may have stored other messages under our numbers, and a server that does not compare, or
        no longer can, would take ours for a repeat.
        """
        if self._settings.epoch is None or self._is_sparse or self._is_ours:
            return False
        if self._is_told:
            # Our own would be among the last ones, which it remembers.
            return headers.get("producer-receipt", "").lower() == "expired"
        return not batch.is_doubtful

    def is_ambiguous(self, batch: Batch) -> bool:
        """Tell whether a duplicate may be ours or that of an instance under the same epoch."""
        is_at_start = self._settings.is_claiming and not self.is_established
        return is_at_start and batch.is_doubtful and not (self._is_unused or self._is_sparse)

    def _raise_above(self, epoch: int | None) -> bool:
        is_allowed = self._settings.is_claiming and not self.is_established
        if not is_allowed or epoch is None or epoch >= NUMBER_MAX:
            return False
        self.epoch = epoch + 1
        self._is_unused = True
        return True


def _is_mismatch(headers: Mapping[str, str]) -> bool:
    return headers.get("producer-payload-mismatch", "").lower() == "true"


def _epoch_in(headers: Mapping[str, str]) -> int | None:
    return to_number(headers.get("producer-epoch", ""))
