"""Who a producer says it is: the epoch it writes under, and how it came by it."""

from collections.abc import Mapping

from semel.client.errors import ClientError, PayloadMismatch, ProducerFenced, ProtocolError
from semel.client.producer_batches import SPARSE, Batch, ProducerSettings
from semel.model.limits import NUMBER_MAX
from semel.wire.headers import to_number

_IGNORED = (
    "the append was taken, but not as that of a producer: the answer has no Producer-Epoch."
    " It is stored, but sending it again would store it twice"
)


class Identity:
    """The epoch, the session and whether the server has accepted them."""

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self.epoch = 0 if settings.is_claiming else settings.epoch
        self.is_established = False

    def headers(self, batch: Batch) -> list[tuple[str, str]]:
        """Tag a batch."""
        settings = self._settings
        fields = [("Producer-Id", settings.id), ("Producer-Seq", batch.printed_seq)]
        if self.epoch is not None:
            fields.append(("Producer-Epoch", str(self.epoch)))
        if settings.session is not None:
            fields.append(("Producer-Session", settings.session))
        if settings.mode == SPARSE:
            fields.append(("Producer-Mode", SPARSE))
        if batch.cursor is not None:
            fields.append(("Producer-Cursor", batch.cursor))
        return fields

    def confirm(self, headers: Mapping[str, str]) -> ClientError | None:
        """Learn from an answer that says yes; an error if it is not meant for us."""
        if headers.get("producer-payload-mismatch", "").lower() == "true":
            message = "the batch's number was used before, with other messages"
            return PayloadMismatch(message, status=204, facts={"current_epoch": self.epoch})
        epoch = to_number(headers.get("producer-epoch", ""))
        if epoch is None:
            return ProtocolError(_IGNORED)
        if self.epoch not in (None, epoch):
            return ProtocolError(f"sent under epoch {self.epoch}, answered under {epoch}")
        self.epoch = epoch
        self.is_established = True
        return None

    def claim(self, error: ClientError, batch: Batch) -> bool:
        """Raise the epoch above the one that fenced us, if that is allowed and safe.

        It is not if an attempt is in doubt: it may have been stored under the epoch we had, and
        fenced only afterwards. A second copy under a new epoch would be a duplicate.
        """
        if not (self._settings.is_claiming and isinstance(error, ProducerFenced)):
            return False
        current = error.current_epoch
        if self.is_established or batch.is_doubtful or current is None or current >= NUMBER_MAX:
            return False
        self.epoch = current + 1
        return True
