"""`semel tokens`: creates, lists, shows and revokes tokens.

A token is printed only once, alone on standard output. It is in no message and no argument: other
users of the machine can see the arguments of a process.
"""

import asyncio
import re
import sys
from datetime import datetime, timedelta
from typing import Any, Final

import click
import msgspec

from semel.broker.settings import SystemClock
from semel.cli.options import (
    Name,
    Path,
    SpanOrMoment,
    client_errors,
    is_utf8,
    json_option,
    remote,
    timeout_option,
)
from semel.cli.output import (
    ChangingCommand,
    CommandRefused,
    confirm,
    json_line,
    print_facts,
    print_list,
    printable,
    report,
    write_stdout,
)
from semel.cli.serve_access import TokenWish, check_data, create_in_directory
from semel.cli.server_choice import ChooseServer, server_options
from semel.client import token_calls as calls
from semel.client.sync.client import Client
from semel.client.token_calls import NewToken, TokenEntry
from semel.model.rights import ALL_RIGHTS, GROUP, STREAM, Scope, parse_scope, print_scope
from semel.wire.schema.tokens import ScopeEntry
from semel.wire.tokens import ID_BYTES, SECRET_BYTES, make_token

_ID: Final = re.compile(r"(?:semel_)?([A-Za-z0-9]{12})(?:_(?:\.\.\.)?)?")


class ScopeOption(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.5
    """A scope, such as `stream:orders/*:read,write`."""

    name = "scope"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Scope:
        text = str(value)
        if not is_utf8(text):
            self.fail(f"{text!r} is not valid UTF-8; expected a scope", param, ctx)
        try:
            return parse_scope(text)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Pattern(ScopeOption):
    """The name of a thing, or a prefix of names that ends with `*`. It becomes a scope."""

    name = "name"

    def __init__(self, kind: str, *rights: str) -> None:
        self._kind = kind
        self._rights = ",".join(rights)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Scope:
        text = str(value)
        if self._kind == STREAM and not text.endswith("*"):
            text = Path().convert(text, param, ctx)
        elif self._kind == STREAM and text.startswith("/"):
            self.fail(f"{text!r}: the path of a stream does not begin with /", param, ctx)
        return super().convert(f"{self._kind}:{text}:{self._rights}", param, ctx)


class TokenId(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.5
    """The id of a token, also as `semel_<id>` or `semel_<id>_...`."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the id. The message for another text does not repeat it: it can be a secret."""
        found = _ID.fullmatch(str(value))
        if found is None:
            self.fail(
                "expected the id of a token, the 12 characters after `semel_`. Do not pass a whole"
                " token, because other users of the machine can see arguments",
                param,
                ctx,
            )
        return found[1]


@click.group("tokens")
def tokens_command() -> None:
    """Create, list, show and revoke tokens.

    A token lets its holder use a server. Its scopes say what the holder may do, and its principal
    is whose producers, transactions and sinks it uses.
    """


# ---- create --------------------------------------------------------------------------------------


@tokens_command.command("create", cls=ChangingCommand)
@click.option(
    "--principal",
    type=Name(),
    help="Who the token is for. The default is the principal of the token that the command sends;"
    " with --data and --admin, it is `admin`.",
)
@click.option(
    "--scope",
    "scopes",
    type=ScopeOption(),
    metavar="SCOPE",
    multiple=True,
    help="A scope, such as 'stream:orders/*:read,write' or cluster:admin. Can be repeated.",
)
@click.option(
    "--read",
    type=Pattern(STREAM, "read"),
    metavar="PATH",
    multiple=True,
    help="Short for --scope stream:PATH:read. With 'orders/*', all streams below orders.",
)
@click.option(
    "--write",
    type=Pattern(STREAM, "create", "write"),
    metavar="PATH",
    multiple=True,
    help="Short for --scope stream:PATH:create,write.",
)
@click.option(
    "--group",
    type=Pattern(GROUP, "read", "write"),
    metavar="GROUP",
    multiple=True,
    help="Short for --scope group:GROUP:read,write. A reader that stores its position in a group"
    " needs it, in addition to --read.",
)
@click.option("--admin", "is_admin", is_flag=True, help="Short for --scope cluster:admin.")
@click.option(
    "--expires",
    type=SpanOrMoment(),
    metavar="TIME",
    help="When the token expires: after 30d or 12h, or at 2030-01-31T12:00:00Z. The default is that"
    " of the token that the command sends, or never.",
)
@click.option(
    "--description", type=Name(can_be_empty=True), default="", help="What the token is for."
)
@click.option(
    "--data",
    metavar="DIR",
    help="Create the token in this data directory instead, while no server uses it.",
)
@click.option(
    "--create",
    "is_new",
    is_flag=True,
    help="Create the data directory if there is none.",
)
@server_options()
@timeout_option
@json_option
def create_token_command(
    *,
    choose: ChooseServer,
    timeout: float,
    data: str | None,
    is_new: bool,
    is_json: bool,
    **options: Any,
) -> None:
    """Create a token, and print it.

    The token is the only line on standard output, and it is shown only this once. The server does
    not store it. What it may do is printed on standard error.

    With --data, no server and no token is needed, so this creates the first token.
    """
    wish = _read_wish(**options)
    if data is None:
        if is_new:
            raise CommandRefused("--create is for --data; a server creates its directory itself")
        with client_errors(choose(), timeout) as client:
            created = client.run(
                calls.create_token(
                    client.site,
                    [print_scope(scope) for scope in wish.scopes],
                    principal=wish.principal,
                    expires=wish.expires,
                    description=wish.description,
                )
            )
    else:
        _refuse_server_options(click.get_current_context())
        check_data(data, is_new=is_new)
        created = asyncio.run(create_in_directory(data, wish))
    if is_json:
        write_stdout(json_line(created))
        return
    write_stdout(f"{created.token}\n".encode())
    click.echo(printable(_describe(created)), err=True)


def _read_wish(
    *,
    scopes: tuple[Scope, ...],
    read: tuple[Scope, ...],
    write: tuple[Scope, ...],
    group: tuple[Scope, ...],
    is_admin: bool,
    expires: datetime | timedelta | None,
    **options: Any,
) -> TokenWish:
    everything = (*scopes, *read, *write, *group, *(ALL_RIGHTS if is_admin else ()))
    if not everything:
        raise CommandRefused(
            "the token would have no rights; pass --scope, --read, --write, --group or --admin"
        )
    if isinstance(expires, timedelta) and not expires:
        raise CommandRefused("--expires: the token would expire at once; pass a longer time")
    return TokenWish(scopes=tuple(dict.fromkeys(everything)), expires=expires, **options)


def _describe(created: NewToken) -> str:
    expiry = "never expires" if created.expires_at is None else f"expires at {created.expires_at}"
    return (
        f"created token {created.id} of principal {created.principal}, which {expiry}, with"
        f" {_scopes(created.scopes)}; the token is on standard output, and is shown only this once"
    )


def _refuse_server_options(context: click.Context) -> None:
    for name in ("url", "context", "token_file"):
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            option = f"--{name.replace('_', '-')}"
            raise CommandRefused(f"--data and {option} cannot be used together; use one of them")


@tokens_command.command("generate")
def generate_command() -> None:
    """Print a random token that is stored nowhere.

    It is for the environment variable SEMEL_BOOTSTRAP_TOKEN: a server that starts with it in a
    directory without tokens stores it as a token for administrators.
    """
    clock = SystemClock()
    token = make_token(clock.random_bytes(ID_BYTES), clock.random_bytes(SECRET_BYTES))
    write_stdout(f"{token.text}\n".encode())


# ---- ls, show, revoke ----------------------------------------------------------------------------


def _scopes(scopes: list[ScopeEntry]) -> str:
    return " ".join(map(calls.scope_text, scopes))


def _facts(token: TokenEntry) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.to_builtins(token)
    return facts


@tokens_command.command("ls")
@remote
def list_tokens_command(client: Client, *, is_json: bool) -> None:
    """List the tokens that you may see, also revoked and expired ones.

    Prints a table on a terminal. Otherwise prints one id per line.
    """
    tokens: list[TokenEntry] = []
    after: str | None = None
    while True:
        page = client.run(calls.list_tokens(client.site, after))
        tokens += page.tokens
        if page.next is None:
            break
        after = page.next
    titles = ("id", "principal", "state", "scopes", "expires", "last use", "description")
    rows = [
        (
            token.id,
            token.principal,
            token.state,
            _scopes(token.scopes),
            _minute(token.expires_at),
            _minute(token.used_at),
            token.description,
        )
        for token in tokens
    ]
    print_list(map(_facts, tokens), titles, rows, is_json=is_json, whole=("id",))


def _minute(instant: str | None) -> str:
    return "never" if instant is None else f"{instant[:16].replace('T', ' ')}Z"


@tokens_command.command("show")
@click.argument("token_id", type=TokenId(), metavar="[ID]", required=False)
@remote
def show_token_command(client: Client, *, token_id: str | None, is_json: bool) -> None:
    """Show a token, without its secret. Without ID, show what your own token may do."""
    if token_id is None:
        caller = client.run(calls.who_am_i(client.site))
        document = msgspec.to_builtins(caller)
        facts = {**document, "scopes": _scopes(caller.scopes) or None}
        if caller.access == "off":
            del facts["strict_rights"]
    else:
        token = client.run(calls.show_token(client.site, token_id))
        document = _facts(token)
        facts = {**document, "scopes": _scopes(token.scopes), "description": token.description}
    shown = {name: value for name, value in facts.items() if value != ""}
    print_facts(shown, document, is_json=is_json)


@tokens_command.command("revoke", cls=ChangingCommand)
@click.argument("token_id", type=TokenId(), metavar="ID")
@click.option(
    "--children", is_flag=True, help="Also revoke all tokens that were made with this one."
)
@click.option(
    "--yes",
    "is_sure",
    is_flag=True,
    help="Do not ask for confirmation if ID is the token that the command itself sends.",
)
@remote
def revoke_token_command(
    client: Client, *, token_id: str, children: bool, is_sure: bool, is_json: bool
) -> None:
    """Revoke a token. This is final.

    Requests with the token are refused from now on, and live reads with it end within a second.
    """
    if not is_sure and client.run(calls.who_am_i(client.site)).token == token_id:
        if not sys.stdin.isatty():
            raise CommandRefused(
                f"{token_id} is the token that this command sends; confirm with --yes"
            )
        question = f"{token_id} is the token that this command sends. Revoke it?"
        confirm(question, f"token {token_id} was not revoked")
    revoked = client.run(calls.revoke_token(client.site, token_id, children=children))
    more = f", {revoked.count} tokens in total" if revoked.count > 1 else ""
    state = "revoked" if revoked.count else "was already revoked"
    sentence = f"token {token_id} {state} at {revoked.revoked_at}{more}"
    report(sentence, msgspec.to_builtins(revoked), is_json=is_json)
