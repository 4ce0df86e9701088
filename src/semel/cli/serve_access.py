"""Access on the machine of the server: whether it is on, and tokens that are made there."""

import logging
import os
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import Final

from msgspec import Struct

from semel.broker.engine import Engine
from semel.broker.guard import AUDIT, AUDIT_TYPE, AuditRecord, create_audit, encode_record
from semel.broker.settings import Settings, SystemClock
from semel.cli.output import EXIT_NO_INPUT, CommandRefused
from semel.client.extras import milliseconds
from semel.journal.identity import IDENTITY_NAME
from semel.journal.writer import RESERVE_NAME
from semel.machine.state import Stream
from semel.model.access_commands import CreateToken, invalid_token_field
from semel.model.errors import DirectoryLocked
from semel.model.outcomes import Refusal
from semel.model.rights import ALL_RIGHTS, RESERVED, Scope, make_caller
from semel.server.access import AccessSettings
from semel.wire.schema.tokens import NewToken
from semel.wire.tokens import (
    ID_BYTES,
    SECRET_BYTES,
    TokenText,
    make_token,
    new_token,
    parse_token_text,
)

BOOTSTRAP: Final = "SEMEL_BOOTSTRAP_TOKEN"
_LOCAL: Final = "local"  # the principal of what is done on the machine of the server
_ADMIN: Final = "admin"  # the principal of the first token
_NAMED_MAX: Final = 5
_INCARNATION_BYTES: Final = 8

_log: Final = logging.getLogger("semel.server")


def is_loopback(host: str) -> bool:
    """Return True if only programs on the same machine can connect to an address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def decide_access(wanted: str, *, host: str, has_tokens: bool, is_insecure: bool) -> bool:
    """Return True if access is on: rules A1 and A2 of `docs/reference/access.md`.

    `wanted` is `auto`, `on` or `off`. `has_tokens` is True if there are tokens, also revoked ones,
    or rules for JWTs or certificates. Raises CommandRefused.
    """
    is_on = wanted == "on" or (wanted == "auto" and has_tokens)
    if is_on or is_insecure:
        return is_on
    if has_tokens:
        raise CommandRefused(
            "--access off: the data directory has tokens, or the configuration has identities;"
            " without access, everybody could do everything. Add --insecure if this is intended"
        )
    if not is_loopback(host):
        raise CommandRefused(
            f"--host {host}: other machines could do everything, because access is off. Make a"
            " token first (`semel tokens create --admin --data DIR`), or add --insecure if this is"
            " intended"
        )
    return False


async def store_bootstrap(engine: Engine, text: str) -> None:
    """Store the first token, for the principal `admin`, if the directory has no token (T9).

    Raises CommandRefused if `text` is not a token.
    """
    if not text or engine.broker.state.tokens:
        return
    token = parse_token_text(text.strip())
    if token is None:
        raise CommandRefused(
            f"{BOOTSTRAP} is not a token; `semel tokens generate` prints one, such as"
            " semel_<12 characters>_<43 characters>"
        )
    await prepare_audit(engine)
    await create_locally(
        engine,
        CreateToken(
            engine.clock.now_ms(),
            token.id,
            token.hash,
            _ADMIN,
            ALL_RIGHTS,
            description=f"from {BOOTSTRAP}",
        ),
    )


async def create_locally(engine: Engine, command: CreateToken) -> None:
    """Store a token on the machine of the server, with an audit record. Raises CommandRefused."""
    outcome = await engine.execute(command, make_caller(_LOCAL, ALL_RIGHTS))
    if isinstance(outcome, Refusal):
        raise CommandRefused(f"the token cannot be stored: {outcome.code}")


def _is_audit(stream: Stream) -> bool:
    """Return True if a stream can be the audit. One that an application made can be another one."""
    row, tail = stream.row, stream.tail
    stays = row.ttl_ms is None and row.expires_at_ms is None and not row.inherits_expiry
    return stays and row.content_type == AUDIT_TYPE and not (tail.is_closed or tail.is_deleted)


def audit_act(engine: Engine, action: str, detail: str = "") -> None:
    """Append a record of what was done on the machine of the server, if there is an audit."""
    record = AuditRecord(engine.clock.now_ms(), action, "ok", _LOCAL, detail=detail)
    engine.audit([encode_record(record)])


async def prepare_audit(engine: Engine) -> None:
    """Create the audit stream if it does not exist. Raises CommandRefused if it cannot be used.

    From then on, versions of semel without access refuse the directory.
    Streams that users made below `__semel/` in earlier versions are named in the log.
    """
    engine.require_access_format()
    stream = engine.stream(AUDIT)
    if stream is None:
        incarnation = engine.clock.random_bytes(_INCARNATION_BYTES).hex()
        outcome = await engine.execute(create_audit(engine.clock.now_ms(), incarnation))
        if isinstance(outcome, Refusal):
            raise CommandRefused(f"the stream {AUDIT} cannot be created: {outcome.code}")
    elif not _is_audit(stream):
        raise CommandRefused(
            f"the stream {AUDIT} is needed for the audit, but an application has used this path;"
            " copy its messages elsewhere and delete it with `--access off --insecure` first"
        )
    others = sorted(
        path for path in engine.broker.state.by_path if path.startswith(RESERVED) and path != AUDIT
    )
    if others:
        more = ", ..." if len(others) > _NAMED_MAX else ""
        _log.warning(
            "streams below %s are reserved; these can only be read, by administrators: %s%s",
            RESERVED,
            ", ".join(others[:_NAMED_MAX]),
            more,
        )


async def open_access(
    engine: Engine,
    wanted: str,
    *,
    host: str,
    has_identities: bool,
    is_insecure: bool,
    is_strict: bool,
    denies_unowned: bool,
) -> AccessSettings:
    """Return the settings of access, after the first token and the audit stream are stored.

    Raises CommandRefused if access would be off where it must not be.
    """
    # The variable is removed, so that child processes and reports do not contain it.
    bootstrap = os.environ.pop(BOOTSTRAP, "")
    await store_bootstrap(engine, "" if wanted == "off" else bootstrap)
    has_tokens = bool(engine.broker.state.tokens) or has_identities
    is_on = decide_access(wanted, host=host, has_tokens=has_tokens, is_insecure=is_insecure)
    if is_on:
        await prepare_audit(engine)
    audit_act(engine, "server_start", "access on" if is_on else "access off, insecure")
    return AccessSettings(
        is_on, is_strict, denies_unowned, opens_reserved=is_insecure and not is_on
    )


def describe_access(settings: AccessSettings) -> str:
    """Return the line about access at the start of a server."""
    if not settings.is_on:
        return "access is off: everybody who can connect may read and change everything"
    strict = "; strict rights" if settings.is_strict else ""
    return f"access is on: requests need a token{strict}"


# ---- tokens in a data directory that no server uses ----------------------------------------------


class TokenWish(Struct, frozen=True, kw_only=True):
    """The token that a user asks for."""

    scopes: tuple[Scope, ...]
    principal: str | None
    expires: datetime | timedelta | None
    description: str


def check_data(data: str, *, is_new: bool) -> None:
    """Raise CommandRefused unless `data` is a data directory, or `is_new`.

    A directory is created only if the user asks for it. Otherwise a mistyped name, or a volume that
    is not mounted, would get the token, and the real directory would have none.
    """
    if not is_new and not os.path.exists(os.path.join(data, IDENTITY_NAME)):
        what = "is not a data directory" if os.path.exists(data) else "does not exist"
        raise CommandRefused(
            f"{data} {what}; pass the same --data as to `semel serve`, or add --create to create a"
            " new data directory",
            EXIT_NO_INPUT,
        )


async def create_in_directory(data: str, wish: TokenWish) -> NewToken:
    """Store a token in a data directory that no process uses. Raises CommandRefused."""
    clock = SystemClock()
    token = make_token(clock.random_bytes(ID_BYTES), clock.random_bytes(SECRET_BYTES))
    command = _command(wish, token, clock.now_ms())
    try:
        settings = Settings(reserve_bytes=_reserve_bytes(data))
        engine = await Engine.open(data, settings, clock=clock)
    except DirectoryLocked:
        raise CommandRefused(
            f"a process uses {data}, probably a server; to create a token with a server, pass --url"
            " instead of --data, and a token with enough rights",
            DirectoryLocked.exit_code,
        ) from None
    try:
        await prepare_audit(engine)
        await create_locally(engine, command)
    finally:
        await engine.close()
    return new_token(command, token)


def _reserve_bytes(data: str) -> int:
    """Return the size of the directory's reserve, so that it stays as the server has made it."""
    try:
        return os.path.getsize(os.path.join(data, RESERVE_NAME))
    except FileNotFoundError:
        return 0


def _command(wish: TokenWish, token: TokenText, now_ms: int) -> CreateToken:
    principal = wish.principal
    if principal is None:
        if not set(ALL_RIGHTS) & set(wish.scopes):
            raise CommandRefused(
                "--principal is missing; with --data, it is needed without --admin"
            )
        principal = _ADMIN
    expires_ms = _instant_ms(wish.expires, now_ms)
    if expires_ms is not None and expires_ms <= now_ms:
        raise CommandRefused("--expires is in the past; pass a time in the future")
    command = CreateToken(
        now_ms,
        token.id,
        token.hash,
        principal,
        wish.scopes,
        expires_ms=expires_ms,
        description=wish.description,
    )
    invalid = invalid_token_field(command)
    if invalid is not None:
        option = {"scopes": "scope", "expires_at": "expires"}.get(invalid, invalid)
        raise CommandRefused(f"--{option} is too long or not valid")
    return command


def _instant_ms(when: datetime | timedelta | None, now_ms: int) -> int | None:
    if isinstance(when, timedelta):
        return now_ms + when // timedelta(milliseconds=1)
    return None if when is None else milliseconds(when)
