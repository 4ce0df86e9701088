"""Rights: what the holder of a token, of a JWT or of a client certificate may do.

A scope grants rights on the things of one kind, by their exact name or by a prefix of their names.
A request needs one or more rights; a need names the kind and the name of one thing, and one right.
Nothing is allowed that no scope grants. The rules are in `docs/reference/access.md`.
"""

from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, unquote

from msgspec import Struct, field

STREAM: Final = "stream"
TOPIC: Final = "topic"
GROUP: Final = "group"
PRODUCER: Final = "producer"
TRANSACTION: Final = "transaction"
SINK: Final = "sink"
POLICY: Final = "policy"
SUBSCRIPTION: Final = "subscription"
CLUSTER: Final = "cluster"
KINDS: Final = (
    STREAM,
    TOPIC,
    GROUP,
    PRODUCER,
    TRANSACTION,
    SINK,
    POLICY,
    SUBSCRIPTION,
    CLUSTER,
)

READ: Final = "read"
WRITE: Final = "write"
CREATE: Final = "create"
DELETE: Final = "delete"
DESCRIBE: Final = "describe"
ADMIN: Final = "admin"
# These two are rights on the cluster. Unless the server runs with --strict-rights, everybody who
# may write to a stream has them, and who may write as a group needs none of them to reject, replay
# and commit.
IDEMPOTENT: Final = "IdempotentWrite"
TRANSACTIONAL: Final = "TransactionalWrite"
RIGHTS: Final = (READ, WRITE, CREATE, DELETE, DESCRIBE, ADMIN)
CLUSTER_RIGHTS: Final = (DESCRIBE, ADMIN, IDEMPOTENT, TRANSACTIONAL)

RESERVED: Final = "__semel/"  # streams below it are the server's; only `admin` reads them
# Streams of a group, with the percent-encoded name of the group after the prefix. Whoever may write
# as the group may create, write and delete them.
DEAD_LETTERS: Final = f"{RESERVED}dead/"
RETRIES: Final = f"{RESERVED}retry/"
REPLAYS: Final = f"{RESERVED}replay/"  # the group that replays the dead letters of another group
NEVER: Final = 2**63  # the expiry of what does not expire, in milliseconds
ENDED: Final = -1  # the version of a caller that is no longer valid


class Scope(Struct, frozen=True, gc=False, array_like=True):
    """Rights on the things of one kind: on that with this name, or on all whose names begin so.

    The name of the cluster is empty.
    """

    kind: str
    name: str
    is_prefix: bool
    rights: tuple[str, ...]

    def grants(self, kind: str, name: str, right: str) -> bool:
        """Return True if this scope grants a right. `admin` grants all rights on its things.

        Every right on a thing includes `describe`.
        """
        if kind != self.kind or not (name == self.name or self.covers_prefix(name)):
            return False
        return right in self.rights or right == DESCRIBE or ADMIN in self.rights

    def covers_prefix(self, prefix: str) -> bool:
        """Return True if this scope is for all things whose names begin with `prefix`."""
        return self.is_prefix and prefix.startswith(self.name)

    def grants_all(self, kind: str, prefix: str, right: str) -> bool:
        """Return True if this scope grants a right on all things whose names begin with `prefix`.

        A scope for the one thing with the name `prefix` does not.
        """
        return self.covers_prefix(prefix) and self.grants(kind, prefix, right)


class Need(Struct, frozen=True, gc=False):
    """A right on one thing that a request needs."""

    kind: str
    name: str
    right: str


ALL_RIGHTS: Final = (Scope(CLUSTER, "", is_prefix=False, rights=(ADMIN,)),)


def is_granted(scopes: Iterable[Scope], kind: str, name: str, right: str) -> bool:
    """Return True if one of the scopes grants a right. `admin` on the cluster grants everything."""
    return any(
        scope.grants(kind, name, right) or scope.grants(CLUSTER, "", ADMIN) for scope in scopes
    )


def is_within(inner: Iterable[Scope], outer: tuple[Scope, ...]) -> bool:
    """Return True if the scopes `outer` grant everything that the scopes `inner` grant."""
    if is_granted(outer, CLUSTER, "", ADMIN):
        return True
    return all(_is_covered(scope, outer) for scope in inner)


def _is_covered(scope: Scope, outer: tuple[Scope, ...]) -> bool:
    """Return True if scopes together grant all rights of one scope."""
    granted: set[str] = set()
    for other in outer:
        is_wide = not scope.is_prefix or other.covers_prefix(scope.name)
        if is_wide and other.grants(scope.kind, scope.name, DESCRIBE):
            granted.update(other.rights, (DESCRIBE,))
    return ADMIN in granted or granted.issuperset(scope.rights)


class Source(Struct, eq=False):
    """Where callers without a token come from: the keys and rules of JWTs and certificates.

    If these change, `has_ended` becomes True, and the version of the tokens is raised. So all
    callers from this source are compared with it again, and end.
    """

    has_ended: bool = False


class Caller(Struct, eq=False):
    """Who sends a request: a principal, and what it may do.

    `version` is the version of the state's tokens with which the caller was last compared, or ENDED
    if the caller is no longer valid. `token` is the public part of its token, and None for a JWT or
    a certificate. The other fields are what follows from the scopes, the last use, and facts about
    the request for the audit.
    """

    principal: str
    scopes: tuple[Scope, ...]
    version: int = 0
    expires_ms: int = NEVER
    token: str | None = None
    is_strict: bool = False  # the server runs with --strict-rights
    denies_unowned: bool = False  # the server runs with --unowned deny
    is_admin: bool = False  # on the cluster
    is_idempotent: bool = False  # it has the right IdempotentWrite, or does not need it
    writable: set[str] = field(default_factory=set)  # streams that it may write to, a cache
    used_ms: int = 0
    route: str = ""  # of the request, for the audit
    address: str = ""  # of the client, for the audit
    source: Source | None = None  # of a JWT or a certificate

    def may(self, kind: str, name: str, right: str) -> bool:
        """Return True if the caller's scopes grant a right.

        The streams below `__semel/` are only for `admin` on the cluster.
        """
        if self.is_admin:
            return True
        if name.startswith(RESERVED) and kind in (STREAM, GROUP):
            group = group_of(name)
            if group is None:
                return kind == GROUP and is_granted(self.scopes, kind, name, right)
            if right == DELETE and name == retries_of(group):  # also with `delete` on the group
                return any(self.may(GROUP, group, each) for each in (WRITE, DELETE))
            kind, name = GROUP, group
            right = right if right in (READ, DESCRIBE) else WRITE
        return is_granted(self.scopes, kind, name, right)

    def may_all(self, kind: str, prefix: str, right: str) -> bool:
        """Return True if one scope grants a right on all things whose names begin with `prefix`.

        The streams below `__semel/` are not among them.
        """
        if not self.may(kind, prefix, right):
            return False
        return self.is_admin or any(each.grants_all(kind, prefix, right) for each in self.scopes)


def group_of(path: str) -> str | None:
    """Return the group that a reserved name belongs to, or None if it belongs to no group.

    Such names are the streams with a group's dead letters and retries, and the group that replays.
    """
    for prefix in (DEAD_LETTERS, RETRIES, REPLAYS):
        if path.startswith(prefix):
            encoded = path[len(prefix) :]
            group = unquote(encoded)
            return group if group and _encoded(group) == encoded else None
    return None


def _encoded(group: str) -> str:
    """Return a group's name, percent-encoded, as a segment of a path.

    The dots of `.` and `..` are encoded too, because no path can have these segments.
    """
    return group.replace(".", "%2E") if group in (".", "..") else quote(group, safe="")


def is_of_server(path: str) -> bool:
    """Return True if only the server itself may write to the stream at `path`."""
    return path.startswith(RESERVED) and group_of(path) is None


def retries_of(group: str) -> str:
    """Return the path of the stream with a group's retries."""
    return RETRIES + _encoded(group)


def dead_letters_of(group: str) -> str:
    """Return the path of the stream with a group's dead letters."""
    return DEAD_LETTERS + _encoded(group)


def replays_of(group: str) -> str:
    """Return the name of the group that replays a group's dead letters."""
    return REPLAYS + _encoded(group)


def make_caller(
    principal: str,
    scopes: tuple[Scope, ...],
    *,
    version: int = 0,
    expires_ms: int = NEVER,
    token: str | None = None,
    is_strict: bool = False,
    denies_unowned: bool = False,
    source: Source | None = None,
) -> Caller:
    """Return a caller. Computes what follows from the scopes."""
    is_admin = is_granted(scopes, CLUSTER, "", ADMIN)
    if is_strict:
        is_idempotent = is_granted(scopes, CLUSTER, "", IDEMPOTENT)
    else:
        is_idempotent = is_admin or writes_somewhere(scopes)
    return Caller(
        principal,
        scopes,
        version=version,
        expires_ms=expires_ms,
        token=token,
        is_strict=is_strict,
        denies_unowned=denies_unowned,
        is_admin=is_admin,
        is_idempotent=is_idempotent,
        source=source,
    )


def writes_somewhere(scopes: Iterable[Scope]) -> bool:
    """Return True if one of the scopes lets its holder write to a stream or a topic."""
    return any(
        scope.kind in (STREAM, TOPIC) and (WRITE in scope.rights or ADMIN in scope.rights)
        for scope in scopes
    )


def writes_as_group(scopes: Iterable[Scope]) -> bool:
    """Return True if one of the scopes lets its holder write as a group."""
    return any(
        scope.kind == GROUP and (WRITE in scope.rights or ADMIN in scope.rights) for scope in scopes
    )


# ---- scopes as text ------------------------------------------------------------------------------


def scope_problem(scope: Scope) -> str | None:
    """Return what is wrong with a scope, or None if it is valid."""
    if scope.kind not in KINDS:
        return f"{scope.kind!r} is not a kind; the kinds are {', '.join(KINDS)}"
    allowed = CLUSTER_RIGHTS if scope.kind == CLUSTER else RIGHTS
    for right in scope.rights:
        if right not in allowed:
            return f"{right!r} is not a right on a {scope.kind}; those are {', '.join(allowed)}"
    if not scope.rights:
        return f"a scope needs at least one right; those on a {scope.kind} are {', '.join(allowed)}"
    if scope.kind == CLUSTER and (scope.name or scope.is_prefix):
        return "the cluster has no name; write cluster:admin"
    if scope.name.endswith("*") and not scope.is_prefix:
        return "the name ends with '*'; write a prefix instead, because this would look like one"
    if not scope.name and not scope.is_prefix and scope.kind != CLUSTER:
        return f"the scope has no name; write {scope.kind}:*:read for every {scope.kind}"
    return None


def parse_scope(text: str) -> Scope:
    """Return the scope that a text names, such as `stream:orders/*:read,write`.

    The text is a kind, a name and rights. A name that ends with `*` is a prefix. The cluster has no
    name: `cluster:admin`. Raises ValueError if the text is not a valid scope.
    """
    kind, colon, rest = text.partition(":")
    name, _, rights = rest.rpartition(":")
    if not colon or (kind != CLUSTER and ":" not in rest):
        raise ValueError(
            f"{text!r} is not a scope; write a kind, a name and rights, such as"
            " stream:orders/*:read,write or cluster:admin"
        )
    if kind == CLUSTER:
        name = name.removesuffix("*")
    is_prefix = name.endswith("*")
    scope = Scope(
        kind,
        name[:-1] if is_prefix else name,
        is_prefix,
        tuple(sorted({right.strip() for right in rights.split(",") if right.strip()})),
    )
    problem = scope_problem(scope)
    if problem is not None:
        raise ValueError(f"{text!r} is not a scope: {problem}")
    return scope


def print_scope(scope: Scope) -> str:
    """Return a scope as text, as `parse_scope` reads it."""
    rights = ",".join(scope.rights)
    if scope.kind == CLUSTER:
        return f"{CLUSTER}:{rights}"
    return f"{scope.kind}:{scope.name}{'*' if scope.is_prefix else ''}:{rights}"
