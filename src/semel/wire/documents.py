"""Parses JSON documents: all JSON bodies except those of appends.

Their structs are in `semel.wire.schema`. A list that is too long is refused before it is read,
because it would delay every other request.
"""

import re
from collections.abc import Collection, Mapping
from typing import Final, Protocol, TypeVar

import msgspec
from msgspec import Raw

from semel.model.limits import NUMBER_MAX, TXN_LIST_MAX
from semel.model.offsets import parse_offset
from semel.model.steps import STEP_BYTES, finish
from semel.wire.append_headers import PRODUCER_ID_RULE, is_producer_id
from semel.wire.headers import Headers, require_json
from semel.wire.json_mode import without_surrogates
from semel.wire.problems import MalformedRequest, bad_request
from semel.wire.schema.transactions import Offset

T = TypeVar("T")

_value: Final = msgspec.json.Decoder(Raw)

_DOCUMENT_TOO_DEEP: Final = "the JSON is nested too deeply"
# The strings and commas of a document. The longest documents that can be valid have about 20,000:
# lists of 1,000 entries, each with up to 12 of them.
_TOKENS_MAX: Final = 50_000
_TOO_LONG: Final = re.compile(
    rb'(?:[^",]*+(?:,|"[^"\\]*+(?:\\.[^"\\]*+)*+")){%d}' % (_TOKENS_MAX + 1), re.DOTALL
)


def read_document(headers: Headers, body: bytes, kind: type[T]) -> T:
    """Return the JSON document in a body, as an instance of `kind`.

    An empty body counts as `{}`. Raises MalformedRequest if the body does not match `kind`, has
    another media type than JSON, or is so long that one of its lists must have too many entries.
    """
    require_json(headers, body)
    refuse_long_list(body)
    return decode_document(body, kind)


def refuse_long_list(text: bytes) -> None:
    """Raise MalformedRequest if a text has too many entries for a document. It is not parsed."""
    if len(text) > _TOKENS_MAX and _TOO_LONG.match(text) is not None:
        raise too_many_entries()


def too_many_entries() -> MalformedRequest:
    """Return the exception for a document with a list that has too many entries."""
    message = f"a list in the body has too many entries; the maximum is {TXN_LIST_MAX:,}"
    return bad_request("invalid_request", message)


def decode_document(body: bytes, kind: type[T]) -> T:
    """Return the JSON document in a body. Raises MalformedRequest if it does not match `kind`.

    An empty body counts as `{}`.
    """
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except RecursionError:
        reason = _DOCUMENT_TOO_DEEP
    except (msgspec.ValidationError, UnicodeDecodeError) as error:
        reason = str(error)
    except msgspec.DecodeError as error:
        reason = _fault_without_surrogates(body) or str(error)
    raise bad_request("bad_body", f"the body is not valid for this request: {reason}")


def _fault_without_surrogates(body: bytes) -> str | None:
    """Return what is wrong with a body that the parser refused, if surrogates may be the cause.

    Return None if the body is not JSON, even without its escaped surrogates, or if it is long.
    """
    if len(body) > STEP_BYTES:
        return None
    try:
        _value.decode(finish(without_surrogates(body)))
    except RecursionError:
        return _DOCUMENT_TOO_DEEP
    except msgspec.DecodeError:
        return None
    return "a string contains an escaped lone surrogate"


def read_offset(value: Offset, field: str) -> int:
    """Return the ordinal (integer value) of an offset in a JSON document.

    `field` is the member that contains `value`. Raises MalformedRequest if `value` is invalid.
    """
    ordinal = parse_offset(value) if isinstance(value, str) else value
    if ordinal is None or not 0 <= ordinal <= NUMBER_MAX:
        message = f"'{field}' must be an offset or an integer"
        raise bad_request("invalid_offset", message, field=field)
    return ordinal


class MovesPositions(Protocol):
    """A document that moves positions, some of them for a member of a group."""

    @property
    def member(self) -> str | None:
        """The id of the member, or None."""

    @property
    def epochs(self) -> Mapping[str, int]:
        """The epochs of the streams in which the member moves positions, keyed by path."""


def member_of(request: MovesPositions, path: str) -> tuple[str | None, int | None]:
    """Return the member that moves the position in a stream, and its epoch of the stream.

    Both are None if `epochs` does not name the stream: then the move is not made by a member.
    Raises MalformedRequest if the epoch is out of range.
    """
    epoch = request.epochs.get(path)
    if epoch is None:
        return None, None
    if not 0 <= epoch <= NUMBER_MAX:
        message = f"the epoch of a stream must be an integer from 0 to {NUMBER_MAX}"
        raise bad_request("invalid_request", message, field="epochs")
    return request.member, epoch


def check_epochs(request: MovesPositions, paths: Collection[str]) -> None:
    """Raise MalformedRequest if a document has only one of a member and its epochs.

    Also raise it if there is an epoch of a stream that is not among `paths`, those of the streams
    in which positions are moved.
    """
    if request.epochs and request.member is None:
        raise bad_request("invalid_request", "'epochs' needs 'member'", field="member")
    if request.member is not None and not request.epochs:
        message = "'member' needs 'epochs', the member's epoch of each stream"
        raise bad_request("invalid_request", message, field="epochs")
    for path in request.epochs:
        if path not in paths:
            message = f"'epochs' names the stream {path}, but 'offsets' does not"
            raise bad_request("invalid_request", message, field="epochs")


def check_name(value: str, field: str, bytes_max: int) -> str:
    """Return `value` if it has 1 to `bytes_max` characters, all of them printable ASCII.

    Otherwise raises MalformedRequest. Names are restricted to printable ASCII because headers must
    be able to contain them.
    """
    if not (0 < len(value) <= bytes_max and value.isascii() and value.isprintable()):
        message = f"'{field}' must have 1 to {bytes_max} printable ASCII characters"
        raise bad_request("invalid_request", message, field=field)
    return value


def check_producer(value: str) -> str:
    """Return the member `producer_id` of a document; raise MalformedRequest if it is no id.

    In a header, an id that is not printable ASCII is sent as `Producer-Id*`.
    """
    if not is_producer_id(value):
        message = f"'producer_id' {PRODUCER_ID_RULE}"
        raise bad_request("invalid_request", message, field="producer_id")
    return value
