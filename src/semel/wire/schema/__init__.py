"""The JSON bodies of requests and responses, for server and client alike.

Requests are strict: an unknown member is refused, so a misspelt option is not ignored in silence.
Members without a value are not sent. Responses are tolerant: a client ignores members that a newer
server adds. Members without a value are sent as null, except those whose default is UNSET: only
some of the responses have them.

Members are sent in the order of the fields. Offsets are printed, as `semel.model.offsets` does;
instants are RFC 3339.

This module has those of streams and of the server itself.
"""

from msgspec import Struct


class StrictRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The base of the JSON bodies of requests."""


class StreamEntry(Struct, frozen=True):
    """A stream in a listing. Times are in milliseconds since 1970."""

    path: str
    content_type: str
    incarnation: str
    first_offset: str
    next_offset: str
    closed: bool
    created_at_ms: int
    written_at_ms: int


class StreamsPage(Struct, frozen=True):
    """A page of a listing; `next` is the path after which the next page begins, if there is one."""

    streams: list[StreamEntry]
    next: str | None = None


class Health(Struct, frozen=True):
    """`GET /health`; `durable` is the LSN below which everything is durable."""

    status: str
    durable: int


class ControlEvent(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The event after each data event of an event stream: where the reader is."""

    stream_next_offset: str
    stream_closed: bool = False
    stream_cursor: str | None = None
    up_to_date: bool = False
    blocked_by: str | None = None
