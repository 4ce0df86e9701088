"""`semel context`: the servers that the commands can use, each with its token.

A token is read from standard input, from a prompt or from a file, never from an argument: other
users of the machine can see the arguments of a process.
"""

import os
import sys
from pathlib import Path
from typing import Any, Final

import click
from msgspec.structs import replace

from semel.cli.options import is_utf8, option_error
from semel.cli.output import EXIT_REFUSED, ChangingCommand, CommandRefused, print_list, report
from semel.cli.server_choice import print_warning, read_credentials
from semel.client.addresses import parse_address
from semel.client.credentials import (
    Context,
    Credentials,
    CredentialsError,
    Secret,
    TokenFile,
    check_name,
    checked_token,
    find_context,
    save_credentials,
)
from semel.client.sync.client import Client

_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_json_option: Final = click.option(
    "--json", "is_json", is_flag=True, help="Print JSON, for programs."
)
_name_argument: Final = click.argument("name")
_FILE: Final = click.Path(dir_okay=False)


@click.group("context")
def context_command() -> None:
    """Store the addresses and tokens of servers, and choose one.

    A context is a server with a token. The commands use the current context, unless an option or
    a variable selects another server. Contexts are stored in ~/.config/semel/credentials.toml, or
    in the file that SEMEL_CREDENTIALS names.
    """


@context_command.command("add", cls=ChangingCommand)
@_name_argument
@click.option("--url", required=True, help="Address of the server.")
@click.option("--token-stdin", "is_piped", is_flag=True, help="Read the token from stdin.")
@click.option(
    "--token-file", type=_FILE, help="File with the token. It is read again for each request."
)
@click.option("--ca", type=_FILE, help="PEM file with the certificates to trust.")
@click.option("--replace", "is_replacing", is_flag=True, help="Replace a context of this name.")
@_json_option
def add_context_command(
    *,
    name: str,
    url: str,
    is_piped: bool,
    token_file: str | None,
    ca: str | None,
    is_replacing: bool,
    is_json: bool,
) -> None:
    """Store the server at --url as the context NAME.

    Without --token-stdin and --token-file, asks for the token on a terminal, and stores no token
    otherwise. The first context becomes the current one.
    """
    credentials, path = read_credentials()
    if is_piped and token_file is not None:
        raise CommandRefused("--token-stdin and --token-file cannot be used together; use one")
    if name in credentials.contexts and not is_replacing:
        raise CommandRefused(
            f"{path}: there is already a context {name!r}; use --replace to replace it",
            EXIT_REFUSED,
        )
    files = [_absolute(file) for file in (token_file, ca)]
    try:
        check_name(name, path)
        Client(url, token="", tls=files[1]).close()  # checks the address and the certificates
    except CredentialsError as error:
        raise CommandRefused(str(error)) from None
    except ValueError as error:
        raise option_error(error) from error
    token = _token(files[0], is_piped=is_piped)
    context = Context(url=url, token=token, token_file=files[0], ca=files[1])
    _warn_without_tls(context)
    current = name if credentials.current is None else credentials.current
    _save(Credentials(current, {**credentials.contexts, name: context}), path)
    facts = _facts(name, context, current)
    shown = context.shown_token or "none"
    is_current = "; it is the current context" if current == name else ""
    report(f"stored the context {name}: {url}, token {shown}{is_current}", facts, is_json=is_json)


@context_command.command("use", cls=ChangingCommand)
@_name_argument
@_json_option
def use_context_command(*, name: str, is_json: bool) -> None:
    """Make NAME the current context."""
    credentials, path = read_credentials()
    context = _found(credentials, name, path)
    _save(replace(credentials, current=name), path)
    facts = _facts(name, context, name)
    report(f"the current context is now {name}: {context.url}", facts, is_json=is_json)


@context_command.command("ls")
@_json_option
def list_contexts_command(*, is_json: bool) -> None:
    """List the contexts. `*` marks the current one.

    Of a token, only the public part is shown.
    """
    credentials, _ = read_credentials()
    contexts = [_facts(*item, credentials.current) for item in credentials.contexts.items()]
    rows = [
        (
            "*" if facts["current"] else " ",
            facts["name"],
            facts["url"],
            facts["token"] or "none",
            facts["ca"] or "system",
        )
        for facts in contexts
    ]
    titles = ("", "name", "url", "token", "certificates")
    print_list(contexts, titles, rows, is_json=is_json, lines=rows)


@context_command.command("rm", cls=ChangingCommand)
@_name_argument
@_json_option
def remove_context_command(*, name: str, is_json: bool) -> None:
    """Remove the context NAME and its token. The token itself stays valid."""
    credentials, path = read_credentials()
    _found(credentials, name, path)
    rest = {key: context for key, context in credentials.contexts.items() if key != name}
    current = None if credentials.current == name else credentials.current
    _save(Credentials(current, rest), path)
    report(f"removed the context {name}", {"name": name, "removed": True}, is_json=is_json)


# ---- parts ---------------------------------------------------------------------------------------


def _facts(name: str, context: Context, current: str | None) -> dict[str, Any]:
    return {
        "name": name,
        "url": context.url,
        "token": context.shown_token,
        "ca": context.ca,
        "current": name == current,
    }


def _absolute(file: str | None) -> str | None:
    if file is None:
        return None
    if not is_utf8(file):
        raise CommandRefused(f"the path {file!r} is not valid UTF-8; use another path")
    return os.path.abspath(file)


def _token(file: str | None, *, is_piped: bool) -> Secret | None:
    """Return the token to store, or None if there is none or it stays in its file."""
    try:
        if file is not None:
            TokenFile(file)()  # the file must have a token now; later it can have another
            return None
        if is_piped:
            return checked_token(sys.stdin.buffer.read(), "the token on stdin")
        if not sys.stdin.isatty():
            return None
        text = click.prompt(
            "Token (empty for none)", default="", show_default=False, hide_input=True, err=True
        )
        return checked_token(text.encode(), "the token") if text else None
    except CredentialsError as error:
        raise CommandRefused(str(error)) from None


def _warn_without_tls(context: Context) -> None:
    address = parse_address(context.url)
    if context.credential is not None and not address.is_tls and address.host not in _LOOPBACK:
        print_warning(f"the token is sent to {context.url} without TLS; use https if you can")


def _found(credentials: Credentials, name: str, path: str) -> Context:
    try:
        return find_context(credentials, name, path)
    except CredentialsError as error:
        raise CommandRefused(str(error), EXIT_REFUSED) from None


def _save(credentials: Credentials, path: str) -> None:
    try:
        save_credentials(credentials, Path(path))
    except CredentialsError as error:
        raise CommandRefused(str(error)) from None
