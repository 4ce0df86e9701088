"""Access of the server: who sends a request, whether its address is allowed, and refusals.

If access is on, every request needs a caller, except for `/health`. The rights that follow from the
address are checked here (`semel.wire.gate`). The rights that follow from the command are checked by
the engine when the command is decided.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from hmac import compare_digest
from typing import Any, Final, Protocol, TypeVar

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from semel.broker.broker import Reply
from semel.broker.engine import Engine
from semel.broker.guard import AuditRecord, encode_record
from semel.machine.access import is_live
from semel.machine.needs import refuse_reserved
from semel.machine.state import Stream
from semel.machine.tokens import is_valid
from semel.model.access_commands import NoteTokenUses
from semel.model.commands import EngineCommand
from semel.model.errors import EngineStopped, ReadFailed
from semel.model.limits import HOUR_MS
from semel.model.outcomes import Refusal
from semel.model.outcomes_access import Forbidden, ReservedPath, Unauthenticated
from semel.model.rights import (
    ADMIN,
    DESCRIBE,
    ENDED,
    NEVER,
    STREAM,
    Caller,
    Scope,
    Source,
    is_of_server,
    make_caller,
)
from semel.server.http import Request, Responder
from semel.server.identities import Identity, OutsideIdentities
from semel.wire import routes
from semel.wire.gate import is_open, refuse_route
from semel.wire.paths import HEALTH
from semel.wire.refusal_table_access import print_thing
from semel.wire.routes import RouteMatch
from semel.wire.tokens import PREFIX, bearer_of, parse_token_text

_OUTSIDE_CALLERS_MAX: Final = 1_024  # with a JWT, and with a certificate
_NO_HASH: Final = bytes(32)
_NOT_COMPARED: Final = ENDED - 1  # the version of a caller that was not used yet
_USES_MAX: Final = 1_000
K = TypeVar("K")
T = TypeVar("T")
USES_SECONDS: Final = 60.0
_WRITES: Final = frozenset(
    {
        routes.STREAM_APPEND,
        routes.STREAM_CREATE,
        routes.STREAM_CHANGE,
        routes.STREAM_DELETE,
        routes.TOPIC_APPEND,
        routes.TOPIC_CREATE,
        routes.TOPIC_CHANGE,
        routes.TOPIC_DELETE,
    }
)

# The most frequent requests. Their commands are not audited, so they need no copy of the caller.
_UNCOPIED: Final = frozenset({routes.STREAM_APPEND, routes.TOPIC_APPEND, routes.STREAM_READ})
_REFUSAL_KEYS_MAX: Final = 64  # different refusals in one second that get a record of their own
_FLUSH_SECONDS: Final = 1.0
_PACES_MAX: Final = 1_024
_MANY: Final = ("", "", "unauthenticated")
_OF_MANY: Final = "of several callers"
PAUSE_SECONDS_MAX: Final = 600.0
# Addresses without a valid token that get records of their own: so many at once, and one more each
# time that so many seconds have passed.
_UNKNOWN_RECORDS: Final = 60.0
_UNKNOWN_SECONDS: Final = 60.0


class HasPeercert(Protocol):
    """A connection, or the responder of one of its requests."""

    @property
    def peercert(self) -> Mapping[str, Any] | None:
        """The verified certificate of the client, as `ssl` returns it, or None."""


class AccessSettings(Struct, frozen=True):
    """Whether access is on, and its options."""

    is_on: bool = False
    is_strict: bool = False
    denies_unowned: bool = False
    opens_reserved: bool = False  # access is off by --insecure, also for streams below `__semel/`


class Access:
    """Finds the callers of requests, and refuses requests by their address."""

    def __init__(
        self,
        engine: Engine,
        settings: AccessSettings | None = None,
        identities: OutsideIdentities | None = None,
    ) -> None:
        self._engine = engine
        self.settings: Final = settings or AccessSettings()
        self._identities = identities or OutsideIdentities()
        self._by_token: dict[str, Caller] = {}  # keyed by the public id
        self._by_jwt: dict[str, Caller] = {}
        self._by_identity: dict[Identity, Caller] = {}  # of client certificates
        self._source = Source()  # of the callers with a JWT or a certificate
        self.refusals: Final = RefusalLog(engine)
        if self.is_on:
            self._identities.on_change = self.forget_outside
            engine.broker.guard.on_refusal = self.refusals.note

    @property
    def is_on(self) -> bool:
        """True if requests need a token."""
        return self.settings.is_on

    # ---- callers -------------------------------------------------------------------------------

    def is_stranger(self, request: Request, connection: HasPeercert) -> bool:
        """Return True if a request will be refused because it has no valid caller.

        Such a request is answered before its body is read.
        """
        if not self.is_on or request.path == HEALTH:
            return False
        return self.caller_of(request, connection) is None

    def caller_of(self, request: Request, connection: HasPeercert) -> Caller | None:
        """Return who sends a request, or None if it has no valid token or certificate.

        A caller from a header is stored in the request's head, so that later requests with the same
        head need no search. One from a certificate is not, because connections share heads.
        """
        now_ms = self._engine.clock.now_ms()
        caller = request.head.caller
        if caller is None or caller.version == ENDED:
            if "authorization" in request.headers:
                bearer = bearer_of(request.headers, request.repeated)
                caller = None if bearer is None else self._find(bearer, now_ms)
                request.head.caller = caller
            else:
                caller = self._find_certificate(connection, now_ms)
        if caller is None or not is_live(self._engine.broker.state, caller, now_ms):
            request.head.caller = None
            return None
        caller.used_ms = now_ms
        return caller

    def _find(self, bearer: str, now_ms: int) -> Caller | None:
        if bearer.startswith(PREFIX):
            return self._find_token(bearer)
        caller = self._by_jwt.get(bearer)
        if caller is not None and caller.version != ENDED:
            return caller
        identity = self._identities.of_jwt(bearer, now_ms)
        if isinstance(identity, str):
            return None
        return self._remember(self._by_jwt, bearer, identity)

    def _find_token(self, bearer: str) -> Caller | None:
        token = parse_token_text(bearer)
        if token is None:
            return None
        row = self._engine.broker.state.tokens.get(token.id)
        is_right = compare_digest(token.hash, _NO_HASH if row is None else row.hash)
        if row is None or not is_right:
            return None
        caller = self._by_token.get(token.id)
        if caller is None:
            expires_ms = NEVER if row.expires_ms is None else row.expires_ms
            caller = self._make(row.principal, row.scopes, expires_ms, token.id)
            self._by_token[token.id] = caller
        return caller

    def _find_certificate(self, connection: HasPeercert, now_ms: int) -> Caller | None:
        peercert = connection.peercert
        identity = None if not peercert else self._identities.of_certificate(peercert)
        if identity is None or now_ms >= identity.expires_ms:
            return None
        caller = self._by_identity.get(identity)
        if caller is not None and caller.version != ENDED:
            return caller
        return self._remember(self._by_identity, identity, identity)

    def _remember(self, callers: dict[K, Caller], key: K, identity: Identity) -> Caller:
        """Make a caller from outside, and store it. If too many are stored, drop all others."""
        if len(callers) >= _OUTSIDE_CALLERS_MAX:
            callers.clear()
        caller = callers[key] = self._make(identity.principal, identity.scopes, identity.expires_ms)
        return caller

    def _make(
        self, principal: str, scopes: tuple[Scope, ...], expires_ms: int, token: str | None = None
    ) -> Caller:
        # The state never has this version, so a new caller is compared with the tokens at its first
        # use. A token that is revoked has a row with the right hash, too.
        return make_caller(
            principal,
            scopes,
            version=_NOT_COMPARED,
            expires_ms=expires_ms,
            token=token,
            is_strict=self.settings.is_strict,
            denies_unowned=self.settings.denies_unowned,
            source=self._source if token is None else None,
        )

    def forget_outside(self) -> None:
        """End all callers with a JWT or a certificate, because keys or rules have changed.

        Heads and live reads hold such callers, and copies of them. So the version of the tokens is
        raised, and everybody who uses one compares it with its source.
        """
        self._source.has_ended = True
        self._source = Source()
        self._engine.broker.state.access_version += 1
        self._by_jwt.clear()
        self._by_identity.clear()
        record = AuditRecord(self._engine.clock.now_ms(), "identities_change", "ok", "local")
        with suppress(EngineStopped):
            self._engine.audit([encode_record(record)])

    def is_live(self, caller: Caller | None) -> bool:
        """Return True if a caller is still valid, or access is off."""
        if not self.is_on:
            return True
        now_ms = self._engine.clock.now_ms()
        return caller is not None and is_live(self._engine.broker.state, caller, now_ms)

    def note_uses(self) -> None:
        """Store the last uses of tokens, at most once an hour for each, and trim the audit."""
        tokens, now_ms = self._engine.broker.state.tokens, self._engine.clock.now_ms()
        for token_id in [each for each in self._by_token if not is_valid(tokens.get(each), now_ms)]:
            del self._by_token[token_id]
        uses = tuple(
            (token_id, caller.used_ms)
            for token_id, caller in self._by_token.items()
            if token_id in tokens and caller.used_ms - tokens[token_id].used_ms >= HOUR_MS
        )
        with suppress(EngineStopped):
            for part in batched(uses, _USES_MAX):
                self._engine.submit(NoteTokenUses(now_ms, part), lambda _outcome: None)
            self._engine.audit([])

    def used_ms(self, token_id: str) -> int:
        """Return when a token was last used since the start of the process, or 0."""
        caller = self._by_token.get(token_id)
        return 0 if caller is None else caller.used_ms

    # ---- requests ------------------------------------------------------------------------------

    def admit(self, match: RouteMatch, request: Request, responder: Responder) -> Refusal | None:
        """Find the caller of a request, and check what its address needs.

        Sets `responder.caller`. Return a refusal if the request is not allowed. Raises
        MalformedRequest if its query is invalid.
        """
        is_reserved = match.route in _WRITES and is_of_server(match.name)
        if not self.is_on:
            is_refused = is_reserved and not self.settings.opens_reserved
            return ReservedPath() if is_refused else None
        if is_open(match):
            return None
        caller = self.caller_of(request, responder)
        if caller is None:
            self.refusals.note_unknown(responder.account.address, match.route)
            return Unauthenticated()
        if is_reserved:
            refusal: Refusal | None = ReservedPath()
        else:
            refusal = refuse_route(match, request.query, caller, self.owns, self.is_topic)
        if refusal is not None:
            address = responder.account.address
            self.refusals.note(replace(caller, route=match.route, address=address), refusal)
        elif match.route not in _UNCOPIED:
            caller = replace(caller, route=match.route, address=responder.account.address)
        responder.caller = caller
        return refusal

    def submit(self, command: EngineCommand, reply: Reply, caller: Caller | None) -> None:
        """Submit the command of a request. Without a caller, it is refused if access is on."""
        refusal = None if self.settings.opens_reserved else refuse_reserved(command)
        if refusal is None and self.is_on and caller is None:
            refusal = Unauthenticated()
        if refusal is None:
            self._engine.submit(command, reply, caller)
        else:
            reply(refusal)

    # ---- what a caller may see -----------------------------------------------------------------

    def is_topic(self, path: str) -> bool:
        """Return True if there is a topic at `path`, which might not be durable yet."""
        stream = self._engine.stream(path)
        return stream is not None and stream.topic is not None

    def owns(self, caller: Caller, kind: str, name: str) -> bool:
        """Return True if a caller owns a registration, a transaction id or a sink."""
        return self._engine.broker.guard.is_owner(caller, kind, name)

    def may_see(self, caller: Caller | None, kind: str, name: str) -> bool:
        """Return True if a response may show something: access is off, or the caller may see it."""
        if caller is None:
            return not self.is_on
        if caller.may(kind, name, DESCRIBE):
            return True
        return kind != STREAM and self.owns(caller, kind, name)

    def shown_owner(
        self, caller: Caller | None, kind: str, name: str, stream: Stream | None = None
    ) -> str | UnsetType | None:
        """Return the owner of a thing, as a response shows it. None means that it has no owner.

        UNSET means that the response does not show it: access is off, or the caller neither is the
        owner nor has `admin` on the thing. `stream` is that in which a producer is.
        """
        if caller is None:
            return UNSET
        try:
            owner = self._engine.broker.guard.owner_of(
                kind, name, 0 if stream is None else stream.row.number
            )
        except ReadFailed:
            return UNSET
        is_admin = caller.may(kind, name, ADMIN) or (
            stream is not None and caller.may(STREAM, stream.row.path, ADMIN)
        )
        return owner if is_admin or owner == caller.principal else UNSET


# ---- refusals ------------------------------------------------------------------------------------

_Key = tuple[str, str, str]  # the principal, otherwise the address, and the code


class _Pace(Struct):
    """When the refusals of one kind may be written again, by the loop's clock."""

    at: float
    pause: float


class RefusalLog:
    """Counts refusals, and writes them to the audit at most once a second for each kind.

    A kind is the principal or, without a valid token, the address, and the code. A record stands
    for all refusals of its kind since the last one, and describes the first of them. While refusals
    of a kind go on, the time between their records doubles up to PAUSE_SECONDS_MAX. Requests
    without a valid token from many addresses share a budget of records. So nobody can push other
    records out of the audit, or keep many segments of the journal, by refused requests.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: dict[_Key, AuditRecord] = {}
        self._paces: dict[_Key, _Pace] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._unknown_left = _UNKNOWN_RECORDS
        self._unknown_at = 0.0  # when `_unknown_left` was computed, by the loop's clock

    def note_unknown(self, address: str, route: str) -> None:
        """Count a request without a valid token."""
        record = AuditRecord(0, "refused", "unauthenticated", address=address, route=route)
        key = ("", address, record.outcome)
        if key not in self._waiting and key not in self._paces and not self._take_unknown():
            key, record = _MANY, AuditRecord(0, "refused", record.outcome, detail=_OF_MANY)
        self._note(key, record)

    def _take_unknown(self) -> bool:
        """Return True if one more address can have a record of its own."""
        now = asyncio.get_running_loop().time()
        more = (now - self._unknown_at) / _UNKNOWN_SECONDS
        self._unknown_left = min(_UNKNOWN_RECORDS, self._unknown_left + more)
        self._unknown_at = now
        if self._unknown_left < 1:
            return False
        self._unknown_left -= 1
        return True

    def note(self, caller: Caller, refusal: Refusal) -> None:
        """Count the refusal of a caller's request. `hidden` is one that is answered with 404."""
        target = right = ""
        code = "hidden"
        if isinstance(refusal, Forbidden):
            target, right = print_thing(refusal.kind, refusal.name), refusal.right
        if isinstance(refusal, Forbidden | Unauthenticated | ReservedPath):
            code = refusal.code
        record = AuditRecord(
            0,
            "refused",
            code,
            principal=caller.principal,
            token=caller.token or "",
            address=caller.address,
            route=caller.route,
            target=target,
            right=right,
        )
        self._note((caller.principal, "", code), record)

    def _note(self, key: _Key, record: AuditRecord) -> None:
        old = self._waiting.get(key)
        if old is None and len(self._waiting) >= _REFUSAL_KEYS_MAX:
            key = ("", "", record.outcome)
            old = self._waiting.get(key)
            record = AuditRecord(0, "refused", record.outcome, detail=_OF_MANY)
        if old is None:
            self._waiting[key] = replace(record, time_ms=self._engine.clock.now_ms())
        else:
            self._waiting[key] = replace(old, count=old.count + 1)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_FLUSH_SECONDS, self._write_due, loop)

    def _write_due(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write the refusals whose time has come. Look again in a second if others wait."""
        self._timer = None
        now = loop.time()
        due = [key for key in self._waiting if key not in self._paces or self._paces[key].at <= now]
        for key in due:
            old = self._paces.get(key)
            is_on = old is not None and now < old.at + PAUSE_SECONDS_MAX
            pause = min(2 * old.pause, PAUSE_SECONDS_MAX) if old and is_on else _FLUSH_SECONDS
            self._paces[key] = _Pace(now + pause, pause)
        if len(self._paces) > _PACES_MAX:
            self._paces = {key: pace for key, pace in self._paces.items() if pace.at > now}
        self._write([self._waiting.pop(key) for key in due])
        if self._waiting:
            self._timer = loop.call_later(_FLUSH_SECONDS, self._write_due, loop)

    def flush(self) -> None:
        """Write all counted refusals to the audit, at the end of a server."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        self._write([*waiting.values()])

    def _write(self, records: list[AuditRecord]) -> None:
        if records:
            with suppress(EngineStopped):
                self._engine.audit([encode_record(record) for record in records])


# ---- timers --------------------------------------------------------------------------------------


def batched(items: tuple[T, ...], count: int) -> Iterator[tuple[T, ...]]:
    """Yield the items in parts of at most `count`."""
    for start in range(0, len(items), count):
        yield items[start : start + count]


def every(seconds: float, action: Callable[[], None]) -> Callable[[], None]:
    """Call `action` at regular intervals. Return a function that ends this."""
    loop = asyncio.get_running_loop()
    timer: list[asyncio.TimerHandle] = []

    def run() -> None:
        timer[:] = [loop.call_later(seconds, run)]
        action()

    def cancel() -> None:
        timer[0].cancel()

    timer.append(loop.call_later(seconds, run))
    return cancel
