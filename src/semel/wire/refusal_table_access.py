"""The entries of the refusal table about tokens, rights and owners."""

from typing import Any, Final

from semel.model.rights import CLUSTER, IDEMPOTENT, TRANSACTIONAL
from semel.wire.problems import Entry


def print_thing(kind: str, name: str) -> str:
    """Return a thing as messages name it, such as `stream 'orders'`; the cluster has no name."""
    return f"{kind} {name!r}" if name else f"the {kind}" if kind == "cluster" else f"{kind} ''"


def _forbidden(outcome: Any) -> str:
    thing = print_thing(outcome.kind, outcome.name)
    message = f"the caller does not have the right {outcome.right!r} on {thing}"
    if outcome.right in (IDEMPOTENT, TRANSACTIONAL):
        message += f"; a token that also has the scope {CLUSTER}:{outcome.right} has it"
    return message


ACCESS_REFUSALS: Final = (
    Entry(
        "unauthenticated",
        401,
        outcome="Unauthenticated",
        message="the request has no valid token; send the header Authorization: Bearer <token>",
        error="Unauthenticated",
        advice="pass a valid token: token=, SEMEL_TOKEN, or a context of `semel context`",
        cli="set SEMEL_TOKEN, or add a context with a valid token: `semel context add`",
    ),
    Entry(
        "forbidden",
        403,
        outcome="Forbidden",
        message=_forbidden,
        error="Forbidden",
        advice="use a token with this right, or ask an administrator for one",
        cli="use a token with this right; `semel tokens show` shows what a token may do",
    ),
    Entry(
        "reserved_stream",
        403,
        outcome="ReservedPath",
        message="only the server writes to streams below __semel/; choose another path",
        error="Forbidden",
    ),
    Entry(
        "token_not_found",
        404,
        outcome="UnknownToken",
        message="there is no such token",
        cli="`semel tokens ls` lists the tokens",
    ),
    Entry(
        "thing_not_found",
        404,
        outcome="UnknownThing",
        message="there is no such producer, transaction or sink",
    ),
    Entry(
        "access_off",
        409,
        message="access is off on this server, so that tokens have no effect. Stop the server, make"
        " the first token with `semel tokens create --admin --data DIR`, and start it again",
    ),
)
