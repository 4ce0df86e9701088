"""Which server a command uses, and which token it sends to that server.

The address is that of `--url` or SEMEL_URL, else that of a context of the credentials file, else
the default. The token is that of `--token-file`, else SEMEL_TOKEN, else the token of the context.
The token of a context is sent only to the address of that context.
"""

import os
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, Final, Protocol

import click
from msgspec import Struct

from semel.cli.output import CommandRefused, printable
from semel.client.addresses import URL_DEFAULT, parse_address
from semel.client.credentials import (
    CONTEXT_VARIABLE,
    TOKEN_VARIABLE,
    Context,
    Credentials,
    CredentialsError,
    CredentialsUnreadable,
    Secret,
    TokenFile,
    credentials_path,
    environment_token,
    find_context,
    load_credentials,
)

URL_HELP: Final = f"Address of the server. The default is that of the context, or {URL_DEFAULT}."


class ServerChoice(Struct, frozen=True):
    """The server that a command uses, and the token that is sent to it.

    `ca` is the path of a PEM file with the certificates to trust, or None for those of the system.
    """

    url: str
    token: Secret | TokenFile | None = None
    ca: str | None = None


class ChooseServer(Protocol):
    """A function that returns the server for the options of the command.

    `own_url` is an address that wins over the current context, but not over an option.
    """

    def __call__(self, own_url: str | None = None) -> ServerChoice: ...


def server_options(url_help: str = URL_HELP) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds --url, --context and --token-file to a command.

    The command gets the argument `choose`, a ChooseServer, instead of them.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @click.option("--url", envvar="SEMEL_URL", show_envvar=True, help=url_help)
        @click.option(
            "--context",
            envvar=CONTEXT_VARIABLE,
            show_envvar=True,
            help="Context of the credentials file. The default is the current one.",
        )
        @click.option(
            "--token-file",
            type=click.Path(dir_okay=False),
            help=f"File with the token to send. The default is the variable {TOKEN_VARIABLE}, or"
            " the token of the context.",
        )
        @wraps(function)
        def run(
            *, url: str | None, context: str | None, token_file: str | None, **options: Any
        ) -> Any:
            def choose(own_url: str | None = None) -> ServerChoice:
                wanted = own_url if url is None and context is None else url
                return choose_server(wanted, context, token_file)

            return function(choose=choose, **options)

        return run

    return decorate


def choose_server(url: str | None, context: str | None, token_file: str | None) -> ServerChoice:
    """Return the server at `url`, else that of the context, else the default one.

    `context` is the name of a context, or None for the current one. Its token and its certificates
    are used only if its address is that of the server. Raises CommandRefused if the credentials
    file, the context or the token cannot be used.
    """
    try:
        file = None if token_file is None else TokenFile(os.path.abspath(token_file))
        token = environment_token() if file is None else file
        found = _context(context)
    except CredentialsError as error:
        raise CommandRefused(str(error)) from None
    if found is None or (url is not None and not _is_same(url, found.url)):
        return ServerChoice(URL_DEFAULT if url is None else url, token)
    return ServerChoice(found.url, found.credential if token is None else token, found.ca)


def _context(name: str | None) -> Context | None:
    """Return a context of the credentials file, or None if there is no current one.

    A file that cannot be read matters only if the user has named a context.
    """
    try:
        path = credentials_path()
        credentials = load_credentials(path, print_warning)
    except CredentialsUnreadable:
        if name is None:
            return None
        raise
    is_none = name is None and credentials.current is None
    return None if is_none else find_context(credentials, name, str(path))


def _is_same(url: str, other: str) -> bool:
    """Return True if two addresses are valid and are those of one server."""
    try:
        return parse_address(url) == parse_address(other)
    except ValueError:
        return False


@cache
def print_warning(text: str) -> None:
    """Print a warning on stderr, but the same one only once."""
    click.echo(f"semel: warning: {printable(text)}", err=True)


def read_credentials() -> tuple[Credentials, str]:
    """Return the content and the path of the credentials file.

    Raises CommandRefused if the file cannot be read or is invalid.
    """
    try:
        path = credentials_path()
        return load_credentials(path, print_warning), str(path)
    except CredentialsError as error:
        raise CommandRefused(str(error)) from None
