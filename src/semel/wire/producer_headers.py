"""Whose append is it? Two dialects of producer headers, one tag.

`Producer-Id`, `-Seq` and at least one of `-Epoch`, `-Session`, `-Mode: sparse` make a whole.
A sparse producer may leave its id to the server.
In the older dialect `X-Producer-Id` and `X-Producer-Seq` do, with or without `X-Producer-Epoch`.
"""

from collections.abc import Callable
from typing import Final

from semel.model.commands import DENSE, SPARSE, ProducerTag
from semel.model.limits import CURSOR_BYTES_MAX, PRODUCER_ID_BYTES_MAX, SESSION_BYTES_MAX
from semel.wire.headers import STRICT, Headers, read_flag, read_number, read_range, read_text
from semel.wire.problems import bad_header, bad_request

_ID: Final = "producer-id"
_EPOCH: Final = "producer-epoch"
_SEQ: Final = "producer-seq"
_SESSION: Final = "producer-session"
_MODE: Final = "producer-mode"
_CURSOR: Final = "producer-cursor"
_X_ID: Final = "x-producer-id"
_X_EPOCH: Final = "x-producer-epoch"
_X_SEQ: Final = "x-producer-seq"

_OURS: Final = frozenset({_ID, _EPOCH, _SEQ, _SESSION, _MODE, _CURSOR})
_X: Final = frozenset({_X_ID, _X_EPOCH, _X_SEQ})
_ANY: Final = _OURS | _X


def speaks_x(headers: Headers) -> bool:
    """Tell whether a request uses the X-Producer-* dialect, and so wants its answers."""
    return not _X.isdisjoint(headers)


def parse_producer(
    headers: Headers, *, is_strict: bool, fresh_id: Callable[[], str] | None = None
) -> ProducerTag | None:
    """Read the producer headers of an append; None if there are none."""
    if _ANY.isdisjoint(headers):
        return None
    is_strict = is_strict or read_flag(headers, STRICT)
    if not speaks_x(headers):
        return _parse_ours(headers, is_strict=is_strict, fresh_id=fresh_id)
    if not _OURS.isdisjoint(headers):
        raise bad_request("producer_headers_conflict", "use Producer-* or X-Producer-*, not both")
    if _X_ID not in headers or _X_SEQ not in headers:
        raise _incomplete("X-Producer-Id and X-Producer-Seq belong together")
    name = _read_id(headers, _X_ID)
    epoch = read_number(headers, _X_EPOCH)
    seq = _read_seq(headers, _X_SEQ)
    return ProducerTag(name, seq, seq, epoch, is_strict=is_strict)


def _parse_ours(
    headers: Headers, *, is_strict: bool, fresh_id: Callable[[], str] | None
) -> ProducerTag:
    mode = headers.get(_MODE)
    is_sparse = mode == "sparse"
    has_claim = _EPOCH in headers or _SESSION in headers or is_sparse
    has_name = _ID in headers or (is_sparse and fresh_id is not None)
    if not (has_claim and has_name and _SEQ in headers):
        raise _incomplete(
            "Producer-Id, Producer-Seq and one of Producer-Epoch, Producer-Session or"
            " Producer-Mode: sparse belong together"
        )
    name = fresh_id() if fresh_id is not None and _ID not in headers else _read_id(headers, _ID)
    epoch = read_number(headers, _EPOCH)
    if is_sparse:
        first, last = read_range(headers, _SEQ) or (0, 0)
    else:
        first = last = _read_seq(headers, _SEQ)
    if mode not in (None, "dense", "sparse"):
        raise bad_header(_MODE, "must be 'dense' or 'sparse'")
    session = read_text(headers, _SESSION, SESSION_BYTES_MAX)
    cursor = read_text(headers, _CURSOR, CURSOR_BYTES_MAX)
    return ProducerTag(
        name,
        first,
        last,
        epoch,
        session,
        SPARSE if is_sparse else DENSE,
        None if cursor is None else cursor.encode(),
        is_strict,
    )


def _read_id(headers: Headers, name: str) -> str:
    text = read_text(headers, name, PRODUCER_ID_BYTES_MAX)
    assert text is not None
    return text


def _read_seq(headers: Headers, name: str) -> int:
    seq = read_number(headers, name)
    assert seq is not None
    return seq


def _incomplete(message: str) -> Exception:
    return bad_request("producer_headers_incomplete", message)
