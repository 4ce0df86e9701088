"""The outcomes of commands on tokens and owners, and the refusals of callers without a right."""

from semel.model.outcomes import Outcome, Refusal


class TokenStored(Outcome, frozen=True, gc=False):
    """The command has stored the token."""

    id: str


class TokenEnded(Outcome, frozen=True, gc=False):
    """The token is revoked. `count` is how many tokens the command has revoked."""

    id: str
    revoked_ms: int
    count: int


class UsesNoted(Outcome, frozen=True, gc=False):
    """The last uses of tokens are stored."""


class OwnerSet(Outcome, frozen=True, gc=False):
    """The thing has this owner, or none."""

    owner: str | None
    previous: str | None


class UnknownToken(Refusal, frozen=True, gc=False):
    """There is no such token, or the caller may not know it."""

    code = "token_not_found"


class UnknownThing(Refusal, frozen=True, gc=False):
    """The producer, transaction or sink that a change of owner names does not exist."""

    code = "thing_not_found"


class Unauthenticated(Refusal, frozen=True, gc=False):
    """The caller has no valid token. Every reason has the same outcome."""

    code = "unauthenticated"


class Forbidden(Refusal, frozen=True, gc=False):
    """The caller does not have a right that the command needs."""

    code = "forbidden"
    right: str
    kind: str
    name: str


class ReservedPath(Refusal, frozen=True, gc=False):
    """Only the server writes to streams below `__semel/`."""

    code = "reserved_stream"
