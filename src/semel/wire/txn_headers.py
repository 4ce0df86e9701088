"""Which transaction is an append part of? `Transaction-Id`, `-Epoch`; `-Seq` if it is staged."""

from typing import Final

from semel.model.commands import TxnTag
from semel.model.limits import TXN_ID_BYTES_MAX
from semel.wire.headers import STRICT, Headers, read_flag, read_number, read_text
from semel.wire.problems import bad_request

_ID: Final = "transaction-id"
_EPOCH: Final = "transaction-epoch"
_SEQ: Final = "transaction-seq"
_ANY: Final = frozenset({_ID, _EPOCH, _SEQ})


def parse_transaction(headers: Headers, *, is_strict: bool = False) -> TxnTag | None:
    """Read the transaction headers of an append; None if there are none. Raises BadRequest."""
    if _ANY.isdisjoint(headers):
        return None
    name = read_text(headers, _ID, TXN_ID_BYTES_MAX)
    epoch = read_number(headers, _EPOCH)
    if name is None or epoch is None:
        message = "Transaction-Id and Transaction-Epoch belong together, Transaction-Seq to both"
        raise bad_request("transaction_headers_incomplete", message)
    is_strict = is_strict or read_flag(headers, STRICT)
    return TxnTag(name, epoch, read_number(headers, _SEQ), is_strict)
