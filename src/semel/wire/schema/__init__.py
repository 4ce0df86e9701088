"""The JSON bodies of requests and responses, as structs that the server and the client share.

This module contains the bodies about streams and about the server.

Most requests refuse unknown members, so that a misspelt option causes an error. A client ignores
unknown members of a response, because a newer server can add members.

In a response, a member without a value is null. A member whose default is UNSET can be absent.
Offsets are strings in the format of `semel.model.offsets`. Times are RFC 3339 strings, except
members whose names end in `_ms`.
"""

from msgspec import UNSET, Struct, UnsetType

from semel.model.policies import BUILT_IN


class StrictRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base class for JSON request bodies. By default, unknown members are refused."""


class StreamEntry(Struct, frozen=True):
    """A stream in a listing. Times are in milliseconds since 1970.

    `dedup` is `on` if the stream recognises duplicates. `dedup_source` says where this setting
    comes from: `own`, `policy` or `built-in`. `dedup_policy` is the prefix of the policy.
    `dedup_pending` is the value that the stream gets with its next append, if it has another one.
    """

    path: str
    content_type: str
    incarnation: str
    first_offset: str
    next_offset: str
    closed: bool
    created_at_ms: int
    written_at_ms: int
    dedup: str = "on"
    dedup_source: str = BUILT_IN
    dedup_policy: str | None = None
    dedup_pending: str | None = None


class StreamsPage(Struct, frozen=True):
    """A page of the list of streams.

    `generation` is that of the data directory. It is raised when an older copy is restored. `next`
    is the path after which the next page begins. It is None on the last page.
    """

    streams: list[StreamEntry]
    generation: int = 1
    next: str | None = None


class PolicyRequest(StrictRequest, frozen=True):
    """A request to set a policy. `dedup` is `on` or `off`."""

    dedup: str | UnsetType = UNSET


class PolicyEntry(Struct, frozen=True):
    """What holds for every stream below a prefix. The prefix of the whole server is empty."""

    prefix: str
    dedup: str | None
    changed_at: str


class PoliciesPage(Struct, frozen=True):
    """The list of all policies, sorted by prefix."""

    policies: list[PolicyEntry]


class Health(Struct, frozen=True):
    """The response to `GET /health`.

    All records before the LSN `durable` are durable. `generation` is raised when an older copy of
    the data directory is restored. `access` is `on` if requests need a token, and otherwise `off`.
    """

    status: str
    durable: int
    generation: int
    access: str = "off"


class ControlEvent(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A control event of an event stream: the reader's next offset and state.

    The server sends it after each read, even an empty one. The JSON omits default values.
    """

    stream_next_offset: str
    stream_closed: bool = False
    stream_cursor: str | None = None
    up_to_date: bool = False
    blocked_by: str | None = None
