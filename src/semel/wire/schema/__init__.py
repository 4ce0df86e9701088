"""The JSON bodies of requests and responses, for server and client alike.

Requests are strict: a member that the server does not know is refused, so a misspelt option is not
ignored in silence. Members without a value are not sent. Responses are tolerant: a client ignores
members that a newer server adds. Members without a value are sent as null, except those whose
default is UNSET, which belong to some of the responses only.

Members are sent in the order of the fields. Offsets are printed, as `semel.model.offsets` does;
instants are RFC 3339.
"""

from msgspec import Struct


class StrictRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The base of the JSON bodies of requests."""
