"""JSON bodies of our own calls, read strictly: what is not known is refused by its name."""

from typing import Final, TypeVar

import msgspec
from msgspec import Raw

from semel.model.limits import NUMBER_MAX
from semel.model.offsets import parse_offset
from semel.wire.headers import Headers, refuse_encoding
from semel.wire.json_mode import without_surrogates
from semel.wire.problems import bad_request

T = TypeVar("T")
# An offset as a document has it: printed, or its ordinal.
Offset = int | str
_TOO_DEEP: Final = "it is nested too deep"
_HALF: Final = "a text in it escapes half of a surrogate pair"


def read_document(headers: Headers, body: bytes, kind: type[T]) -> T:
    """Read a body; nothing at all counts as `{}`. Raises BadRequest."""
    refuse_encoding(headers)
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except RecursionError:
        reason = _TOO_DEEP
    except (msgspec.ValidationError, UnicodeDecodeError) as error:
        reason = str(error)
    except msgspec.DecodeError as error:
        reason = _HALF if _has_half(body) else str(error)
    raise bad_request("bad_body", f"the body is not what this call takes: {reason}")


def _has_half(body: bytes) -> bool:
    """Tell whether a body is JSON but for half a surrogate pair, which the parser does not take."""
    try:
        msgspec.json.decode(without_surrogates(body), type=Raw)
    except msgspec.DecodeError:
        return False
    return True


def read_offset(value: Offset, field: str) -> int:
    """Read an offset of a document. Raises BadRequest."""
    ordinal = parse_offset(value) if isinstance(value, str) else value
    if ordinal is None or not 0 <= ordinal <= NUMBER_MAX:
        raise bad_request(
            "invalid_offset", f"{field} must be an offset or its integer", field=field
        )
    return ordinal


def read_name(value: str, field: str, bytes_max: int) -> str:
    """Read a name that headers carry too: printable ASCII. Raises BadRequest."""
    if not (0 < len(value) <= bytes_max and value.isascii() and value.isprintable()):
        message = f"{field} must have 1 to {bytes_max} printable ASCII characters"
        raise bad_request("invalid_request", message, field=field)
    return value
