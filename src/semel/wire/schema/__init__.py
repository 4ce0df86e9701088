"""The JSON bodies of requests and responses, as structs for the server and the client.

Requests are strict: most refuse an unknown member, so that a misspelt option is not ignored. Most
omit members that have their default value. Responses are tolerant: a client ignores members that a
newer server adds. Members without a value are sent as null. Members whose default is UNSET are in
some responses only.

Members are sent in the order of the fields. Offsets are strings, as `semel.model.offsets` prints
them. Times are RFC 3339, except those whose names end in `_ms`.

This module has the bodies about streams and about the server.
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
    """The event after each data event of an event stream: next offset and state of the reader."""

    stream_next_offset: str
    stream_closed: bool = False
    stream_cursor: str | None = None
    up_to_date: bool = False
    blocked_by: str | None = None
