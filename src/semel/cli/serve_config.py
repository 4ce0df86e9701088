"""The files of `semel serve`: settings, rules of outside identities, certificates.

SIGHUP loads all of them but the settings again.
"""

import ssl
import tomllib
from collections.abc import Callable
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click
from msgspec import Struct

from semel.cli.options import Seconds
from semel.cli.output import CommandRefused
from semel.cli.serve_webhooks import load_webhooks
from semel.server.identities import AccessRules, CertificateRule, advise, parse_access
from semel.server.webhooks import WebhookFiles, WebhookSettings

if TYPE_CHECKING:
    from semel.server.jwt_door import JwtDoor

CONFIG: Final = "config"
_F = TypeVar("_F", bound=Callable[..., Any])
ACCESS: Final = "access"  # the table of the file that is not a setting

# ---- settings ------------------------------------------------------------------------------------
# Settings can be in a TOML file. The command line and the environment override the file.


def _load(ctx: click.Context, _param: click.Parameter, path: str | None) -> str | None:
    if path is not None and not ctx.resilient_parsing:
        ctx.default_map = read_settings(path, ctx.command)
    return path


# This option is eager, which means that it is evaluated before the other options. The file sets
# their defaults.
config_option: Final = click.option(
    f"--{CONFIG}",
    metavar="FILE",
    envvar="SEMEL_CONFIG",
    show_envvar=True,
    is_eager=True,
    callback=_load,
    help="TOML file that sets options by name, such as long_poll_timeout = 20. Its table [access]"
    " has the rules for JWTs and client certificates.",
)


def read_settings(path: str, command: click.Command) -> dict[str, Any]:
    """Return the settings in a file. Each setting has the name of one of the command's options.

    The table `[access]` is left out; `read_access` returns it.

    Raises CommandRefused if the file cannot be read, or has an unknown name or a wrong type.
    """
    options = {
        param.name: param
        for param in command.params
        if isinstance(param, click.Option) and param.name and param.name != CONFIG
    }
    settings = _parse(path)
    if isinstance(settings.get(ACCESS), dict | list):
        del settings[ACCESS]
    for key, value in settings.items():
        if key not in options:
            raise CommandRefused(
                f"{path}: {key!r} is not a setting; {advise(key, {*options, ACCESS})}"
            )
        expected = _expected_if_wrong(options[key], value)
        if expected is not None:
            raise CommandRefused(f"{path}: {key!r} is {value!r}; expected {expected}")
    return settings


def _parse(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise CommandRefused(
            f"{path} cannot be read: {error.strerror}; correct --config"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CommandRefused(f"{path} is not a valid TOML file: {error}") from error


def _expected_if_wrong(option: click.Option, value: object) -> str | None:
    """Return a description of the expected value, or None if the value has the right type."""
    if option.is_flag:
        return None if isinstance(value, bool) else "true or false"
    if option.multiple:
        is_list = isinstance(value, list) and all(isinstance(each, str) for each in value)
        return None if is_list else "a list of strings"
    if isinstance(option.type, Seconds):
        is_right, expected = isinstance(value, int | float), "a number of seconds"
    elif isinstance(option.type, click.types.IntParamType):
        is_right, expected = isinstance(value, int), "an integer"
    else:
        is_right, expected = isinstance(value, str), "a string"
    return None if is_right and not isinstance(value, bool) else expected


def setting(name: str, *, help: str, metavar: str | None = None, **more: Any) -> Callable[[_F], _F]:
    """Return an option that an environment variable or the configuration file can also set."""
    return click.option(
        f"--{name}",
        envvar=f"SEMEL_{name.upper().replace('-', '_')}",
        show_envvar=True,
        show_default="default" in more,
        help=help,
        metavar=metavar,
        **more,
    )


def each_value(parse: Callable[[str], str]) -> Callable[..., tuple[str, ...]]:
    """Return a callback that parses every value of an option that can be repeated."""

    def parse_all(
        _ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]
    ) -> tuple[str, ...]:
        try:
            return tuple(map(parse, values))
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return parse_all


def optional_value(parse: Callable[[str], str]) -> Callable[..., str | None]:
    """Return a callback that parses the value of an option, if it has one."""

    def parse_one(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
        try:
            return None if value is None else parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return parse_one


# ---- identities ----------------------------------------------------------------------------------


def read_access(path: str | None) -> AccessRules:
    """Return the rules in the table `[access]` of a file. Raises CommandRefused."""
    if path is None:
        return AccessRules()
    try:
        return parse_access(_parse(path).get(ACCESS, {}))
    except ValueError as error:
        raise CommandRefused(f"{path}: {error}") from error


def _make_door(rules: AccessRules, config: str | None) -> "JwtDoor | None":
    """Return what verifies JWTs, with the keys in files; None if no issuer is configured."""
    if not rules.jwt:
        return None
    try:
        from semel.server.jwks import read_keys
        from semel.server.jwt_door import JwtDoor
    except ImportError as error:
        raise CommandRefused(
            f"{config}: [[access.jwt]] needs the packages pyjwt and cryptography; install them"
            " with pip install 'semel[jwt]'"
        ) from error
    try:
        keys = {rule.name: read_keys(rule.jwks_file) for rule in rules.jwt if rule.jwks_file}
    except ValueError as error:
        raise CommandRefused(f"{config}: [[access.jwt]]: 'jwks_file': {error}") from error
    return JwtDoor(rules.jwt, keys)


# ---- TLS -----------------------------------------------------------------------------------------


class TlsOptions(Struct, frozen=True, kw_only=True):
    """The options about TLS. All are names of PEM files, except the last one."""

    cert: str | None = None
    key: str | None = None
    client_ca: str | None = None
    needs_client_certificate: bool = False


def server_context(options: TlsOptions) -> SSLContext | None:
    """Return the TLS context of the server, or None if it has no certificate.

    Raises CommandRefused if the PEM files cannot be loaded.
    """
    if options.cert is None:
        if options.key is not None:
            raise CommandRefused("--tls-key requires --tls-cert with the certificate for this key")
        if options.client_ca is not None:
            raise CommandRefused(
                "--client-ca requires --tls-cert: clients send certificates only over TLS"
            )
    if options.needs_client_certificate and options.client_ca is None:
        raise CommandRefused(
            "--client-certificates required requires --client-ca with the certificates that have"
            " signed those of the clients"
        )
    if options.cert is None:
        return None
    context = SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_certificate(context, options.cert, options.key)
    if options.client_ca is not None:
        _load_client_ca(context, options.client_ca)
        is_required = options.needs_client_certificate
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
    return context


def _load_certificate(context: SSLContext, cert: str, key: str | None) -> None:
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except ssl.SSLError as error:
        files = cert if key is None else f"{cert} and {key}"
        reason = error.reason or "not PEM"
        raise CommandRefused(
            f"cannot load a certificate and its key from {files} ({reason}); pass PEM files"
            " with --tls-cert and --tls-key"
        ) from error
    except OSError as error:
        files = cert if key is None else f"{cert} or {key}"
        raise CommandRefused(f"{files} cannot be read: {error.strerror}") from error


def _no_password() -> NoReturn:
    raise CommandRefused("the private key is encrypted; pass a key without a password")


def _load_client_ca(context: SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise CommandRefused(
            f"cannot load certificates from {path} ({error.reason or 'not PEM'}); pass a PEM file"
            " with --client-ca"
        ) from error
    except OSError as error:
        raise CommandRefused(f"{path} cannot be read: {error.strerror}") from error


# ---- everything together -------------------------------------------------------------------------


class LoadedFiles(Struct, frozen=True):
    """The content of all files that SIGHUP loads again."""

    tls: SSLContext | None
    certificates: tuple[CertificateRule, ...]
    jwt: "JwtDoor | None"
    webhooks: WebhookFiles

    @property
    def has_identities(self) -> bool:
        """True if there are rules for JWTs or client certificates."""
        return bool(self.certificates) or self.jwt is not None


def load_files(config: str | None, tls: TlsOptions, webhooks: WebhookSettings) -> LoadedFiles:
    """Load all files, and change nothing. Raises CommandRefused if one of them is not valid."""
    context = server_context(tls)
    rules = read_access(config)
    if rules.certificates and tls.client_ca is None:
        raise CommandRefused(
            f"{config}: [[access.certificate]] requires --client-ca, because no client certificate"
            " is verified without it"
        )
    return LoadedFiles(
        context, rules.certificates, _make_door(rules, config), load_webhooks(webhooks)
    )
