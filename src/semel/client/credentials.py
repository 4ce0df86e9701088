"""Tokens, and the credentials file: the addresses of servers with the token for each.

The file is `~/.config/semel/credentials.toml`, or the file that SEMEL_CREDENTIALS names:

    current = "prod"

    [contexts.prod]
    url = "https://semel.example"
    token = "semel_..."             # or token_file = "/run/secrets/semel"
    ca = "/etc/ssl/semel-ca.pem"    # optional: the certificates to trust

Clients do not read this file by themselves: the command line and `semel.context` do. No error and
no `repr` of this module contains the secret part of a token.
"""

import os
import re
import stat
import tempfile
import tomllib
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import msgspec
from msgspec import Struct

from semel.client.addresses import parse_address

TOKEN_VARIABLE: Final = "SEMEL_TOKEN"  # noqa: S105 - the name of the variable
CONTEXT_VARIABLE: Final = "SEMEL_CONTEXT"
PATH_VARIABLE: Final = "SEMEL_CREDENTIALS"
_TOKEN_BYTES_MAX: Final = 16 * 1024  # a JWT can be long
_PRIVATE: Final = 0o600
_OTHERS: Final = 0o077
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SECRET_PART: Final = re.compile(r"(semel_[A-Za-z0-9]{12}_)[A-Za-z0-9_-]+")

F = TypeVar("F")


class CredentialsError(ValueError):
    """Raised if the credentials file or a token file cannot be used. The message names the file."""


class CredentialsUnreadable(CredentialsError):
    """Raised if the credentials file exists and cannot be read, or if its path is not known."""


class Secret(str):
    """A string whose `repr` does not show its text, so that the text does not get into logs."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'...'"


# ---- tokens --------------------------------------------------------------------------------------


class TokenFile(Struct, frozen=True):
    """A function that returns the token in a file. It reads the file again for each call.

    So a program that runs for a long time uses a new token as soon as the file has it.
    """

    path: str

    def __call__(self) -> str:
        """Return the token.

        Raises CredentialsError if the file cannot be read, or does not contain one token.
        """
        try:
            with open(self.path, "rb") as file:
                data = file.read(_TOKEN_BYTES_MAX + 1)
        except OSError as error:
            raise CredentialsError(
                f"the token file {self.path} cannot be read: {error.strerror}"
            ) from None
        return checked_token(data, f"the token file {self.path}")


def checked_token(data: bytes, source: str) -> Secret:
    """Return the token that `data` contains, without white space at its ends.

    Raises CredentialsError if it is empty, too long, or has characters that no token has.
    """
    try:
        text = data.decode("ascii").strip()
    except UnicodeDecodeError:
        text = "\0"
    if not text:
        raise CredentialsError(f"{source} is empty; expected a token")
    if len(data) > _TOKEN_BYTES_MAX or not text.isprintable() or " " in text:
        raise CredentialsError(
            f"{source} does not contain one token; expected one line of ASCII without spaces"
        )
    return Secret(text)


def environment_token() -> Secret | None:
    """Return the token in the environment variable SEMEL_TOKEN, or None if it is not set.

    Raises CredentialsError if the variable is set and is not a token.
    """
    text = os.environ.get(TOKEN_VARIABLE, "")
    if not text.strip():
        return None
    return checked_token(text.encode(errors="replace"), f"the variable {TOKEN_VARIABLE}")


def chosen_token(token: F | str | None, headers: Mapping[str, Any] | None) -> F | Secret | None:
    """Return what a client with these options uses as its token: a text, a function, or None.

    An empty `token` means none. If `token` is None, the token is that of SEMEL_TOKEN, unless
    `headers` has an Authorization header.
    """
    if token is None:
        has_own = any(name.lower() == "authorization" for name in headers or {})
        return None if has_own else environment_token()
    if isinstance(token, str):
        return Secret(token) if token else None
    return token


def public_part(token: str) -> str:
    """Return a token as it can be shown: without its secret part.

    Of a text that is not a token of semel, such as a JWT, nothing is shown.
    """
    found = _SECRET_PART.fullmatch(token)
    return f"{found[1]}..." if found else "..."


def without_secrets(text: str) -> str:
    """Return a text in which no token of semel has its secret part."""
    return _SECRET_PART.sub(r"\1...", text)


# ---- contexts ------------------------------------------------------------------------------------


class Context(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A server and how to use it. At most one of `token` and `token_file` is set.

    `ca` is the path of a PEM file with the certificates to trust.
    """

    url: str
    token: str | None = None
    token_file: str | None = None
    ca: str | None = None

    def __repr__(self) -> str:
        return f"Context(url={self.url!r}, token={self.shown_token!r})"

    @property
    def shown_token(self) -> str | None:
        """Where the token comes from, without its secret part. None if there is no token."""
        if self.token_file is not None:
            return f"file {self.token_file}"
        return None if self.token is None else public_part(self.token)

    @property
    def credential(self) -> "Secret | TokenFile | None":
        """The token, or the function that reads it from its file."""
        if self.token_file is not None:
            return TokenFile(self.token_file)
        return None if self.token is None else Secret(self.token)


class Credentials(Struct, frozen=True):
    """The content of the credentials file. `current` is the name of a context, or None."""

    current: str | None = None
    contexts: Mapping[str, Context] = {}


def parse_credentials(text: str, file: str) -> Credentials:
    """Parse the text of a credentials file. `file` is its name, for messages.

    Raises CredentialsError if the text is not TOML, or if it has an unknown or invalid key.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        _refuse(file, f"it is not valid TOML: {error}")
    unknown = sorted(set(document) - {"current", "contexts"})
    if unknown:
        _refuse(file, f"the key {unknown[0]!r} is unknown; expected 'current' and [contexts.NAME]")
    current, tables = document.get("current"), document.get("contexts", {})
    if not isinstance(current, str | None) or not isinstance(tables, dict):
        _refuse(file, "'current' must be the name of a context, and 'contexts' must have tables")
    contexts = {name: _context(name, table, file) for name, table in tables.items()}
    if current is not None and current not in contexts:
        _refuse(file, f"'current' is {current!r}, but the file has no such context")
    return Credentials(current, contexts)


def _context(name: str, table: object, file: str) -> Context:
    check_name(name, file)
    try:
        context = msgspec.convert(table, Context)  # its messages have no values
        parse_address(context.url)
    except (msgspec.ValidationError, ValueError) as error:
        _refuse(file, f"the context {name!r} is invalid: {error}")
    if context.token is not None and context.token_file is not None:
        _refuse(file, f"the context {name!r} has both 'token' and 'token_file'; remove one")
    if context.token is not None:
        source = f"{file}: the token of the context {name!r}"
        checked_token(context.token.encode(errors="replace"), source)
    return context


def check_name(name: str, file: str) -> None:
    """Raise CredentialsError if a context cannot have this name."""
    if _NAME.fullmatch(name) is None:
        _refuse(
            file,
            f"{name!r} is not a name for a context; use up to 64 letters, digits, dots, hyphens and"
            " underscores, and begin with a letter or a digit",
        )


def print_credentials(credentials: Credentials) -> str:
    """Return the text of a credentials file, in TOML. `parse_credentials` parses it again."""
    lines = []
    if credentials.current is not None:
        lines = [f"current = {_quoted(credentials.current)}"]
    for name, context in credentials.contexts.items():
        fields = msgspec.structs.asdict(context)
        lines += ["", f"[contexts.{_quoted(name)}]"]
        lines += [f"{key} = {_quoted(value)}" for key, value in fields.items() if value is not None]
    return "\n".join(lines).lstrip("\n") + "\n"


def _quoted(text: str) -> str:
    """Return a text as a basic string of TOML.

    JSON's escapes are all escapes of TOML too. TOML also needs one for DEL, which JSON does not.
    """
    return msgspec.json.encode(str(text)).decode().replace("\x7f", "\\u007f")


def find_context(credentials: Credentials, name: str | None, file: str) -> Context:
    """Return the context with this name, or the current one if `name` is None.

    Raises CredentialsError if there is none.
    """
    chosen = credentials.current if name is None else name
    if chosen is not None and chosen in credentials.contexts:
        return credentials.contexts[chosen]
    listed = ", ".join(credentials.contexts) or "none; add one with `semel context add`"
    if chosen is None:
        _refuse(file, f"no context is the current one; its contexts: {listed}")
    _refuse(file, f"there is no context {chosen!r}; its contexts: {listed}")


def _refuse(file: str, what: str) -> NoReturn:
    raise CredentialsError(without_secrets(f"{file}: {what}")) from None


# ---- the file ------------------------------------------------------------------------------------


def credentials_path() -> Path:
    """Return the path of the credentials file, which need not exist.

    Raises CredentialsUnreadable if the home directory is not known.
    """
    chosen = os.environ.get(PATH_VARIABLE)
    if chosen:
        return Path(chosen)
    configuration = os.environ.get("XDG_CONFIG_HOME", "")
    # The specification of XDG_CONFIG_HOME says to ignore a relative path.
    try:
        folder = Path(configuration) if os.path.isabs(configuration) else Path.home() / ".config"
    except RuntimeError:
        raise CredentialsUnreadable(
            f"the home directory is not known; set {PATH_VARIABLE} to the path of a file"
        ) from None
    return folder / "semel/credentials.toml"


def load_credentials(
    path: Path, on_warning: Callable[[str], object] = warnings.warn
) -> Credentials:
    """Return the content of the credentials file. A file that does not exist is empty.

    `on_warning` is called with a text if other users may read the file. Raises
    CredentialsUnreadable if the file cannot be read, and CredentialsError if it is invalid.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read().decode()
    except (FileNotFoundError, NotADirectoryError):
        return Credentials()
    except OSError as error:
        raise CredentialsUnreadable(
            f"{path}: the credentials file cannot be read: {error.strerror}"
        ) from None
    except UnicodeDecodeError:
        _refuse(str(path), "the credentials file is not UTF-8")
    if mode & _OTHERS:
        on_warning(
            f"other users may read the tokens in {path} (mode {mode:04o}); run: chmod 600 {path}"
        )
    return parse_credentials(text, str(path))


def save_credentials(credentials: Credentials, path: Path) -> None:
    """Replace the credentials file. Only its owner may read the new file.

    A crash leaves either the old file or the new one. If the path is a link, the file that it
    points to is replaced. Raises CredentialsError if the file cannot be written.
    """
    path = path.resolve()
    temporary: str | None = None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The new file has mode 0600 from the start.
        number, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(print_credentials(credentials))
            file.flush()
            os.fchmod(number, _PRIVATE)
            os.fsync(number)  # noqa: TID251 - not the data of a server
        os.replace(temporary, path)  # noqa: TID251
    except OSError as error:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)
        _refuse(str(path), f"the credentials file cannot be written: {error.strerror}")


def context(name: str | None = None) -> dict[str, Any]:
    """Return the options of a client for a context: `Client(**semel.context("prod"))`.

    Without `name`, the context is that of the environment variable SEMEL_CONTEXT, or the current
    one of the credentials file. Raises CredentialsError if there is no such context.
    """
    path = credentials_path()
    name = name or os.environ.get(CONTEXT_VARIABLE) or None
    found = find_context(load_credentials(path), name, str(path))
    options = {"url": found.url, "token": found.credential, "tls": found.ca}
    return {key: value for key, value in options.items() if value is not None}
