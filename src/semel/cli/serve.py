"""`semel serve`: the options, the configuration file and the server process."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
import tomllib
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from math import ceil
from ssl import SSLContext
from typing import Any, Final, NoReturn, TypeVar

import click
import uvloop
from msgspec import Struct

from semel.broker.engine import Engine
from semel.broker.settings import Settings
from semel.cli.options import Number, Seconds
from semel.cli.output import EXIT_DISK, CommandRefused, ProgressLine
from semel.journal.disk import NO_FILES
from semel.model.limits import (
    BODY_BYTES_MAX,
    CHECKPOINT_INTERVAL_MS,
    GAP_HOLD_MS_MAX,
    RESERVE_BYTES_DEFAULT,
    SEGMENT_BYTES_DEFAULT,
    SEGMENT_BYTES_MIN,
    TOMBSTONE_HOURS,
)
from semel.model.policies import ROOT, SetPolicy
from semel.server.app import App
from semel.server.browsers import BrowserRules
from semel.server.host_names import parse_host, parse_origin
from semel.server.limits_http import HttpLimits, raise_file_limit
from semel.server.listener import Listener
from semel.server.unread_budget import UnreadBudget

# ---- config file ---------------------------------------------------------------------------------
# Settings can be in a TOML file. The command line and the environment override the file.


CONFIG: Final = "config"

# The event loop, the listener and the data directory need more than this many files.
_FILES_NEEDED: Final = 12

_log: Final = logging.getLogger("semel.server")

_F = TypeVar("_F", bound=Callable[..., Any])


def _load(ctx: click.Context, _param: click.Parameter, path: str | None) -> None:
    if path is not None and not ctx.resilient_parsing:
        ctx.default_map = read_settings(path, ctx.command)


# This option is eager, which means that it is evaluated before the other options. The file sets
# their defaults.
config_option: Final = click.option(
    f"--{CONFIG}",
    metavar="FILE",
    envvar="SEMEL_CONFIG",
    show_envvar=True,
    is_eager=True,
    expose_value=False,
    callback=_load,
    help="TOML file that sets options by name, such as long_poll_timeout = 20.",
)


def read_settings(path: str, command: click.Command) -> dict[str, Any]:
    """Return the settings in a file. Each setting has the name of one of the command's options.

    Raises CommandRefused if the file cannot be read, or has an unknown name or a wrong type.
    """
    options = {
        param.name: param
        for param in command.params
        if isinstance(param, click.Option) and param.name and param.name != CONFIG
    }
    settings = _parse(path)
    for key, value in settings.items():
        if key not in options:
            raise CommandRefused(f"{path}: {key!r} is not a setting; {_nearest(key, options)}")
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


def _nearest(key: str, options: Mapping[str, object]) -> str:
    near = get_close_matches(key.replace("-", "_").lower(), options, 1)
    return f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(sorted(options))}"


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


# ---- serve ---------------------------------------------------------------------------------------


class ServeOptions(Struct, frozen=True, kw_only=True):
    """The settings of the server process, from options, environment and configuration file."""

    data: str
    host: str
    port: int
    long_poll_timeout: float
    segment_bytes: int
    reserve_bytes: int
    body_bytes_max: int
    checkpoint_seconds: float
    checkpoint_bytes: int | None
    dedup: str | None
    strict_payloads: bool
    producer_idle_seconds: float | None
    producer_tombstone_hours: int
    gap_hold_ms: int
    unread_bytes_per_address: int
    cors_origin: tuple[str, ...]
    allowed_host: tuple[str, ...]
    tls_cert: str | None
    tls_key: str | None


def _setting(
    name: str, *, help: str, metavar: str | None = None, **more: Any
) -> Callable[[_F], _F]:
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


def _each(parse: Callable[[str], str]) -> Callable[..., tuple[str, ...]]:
    """Return a callback that parses every value of an option that can be repeated."""

    def parse_all(
        _ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]
    ) -> tuple[str, ...]:
        try:
            return tuple(map(parse, values))
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return parse_all


@click.command("serve")
@config_option
@_setting("data", metavar="DIR", default="semel-data", help="Data directory.")
@_setting("host", default="127.0.0.1", help="Address to listen on.")
@_setting("port", type=Number(0, 65_535), default=4437, help="Port; 0 selects a free port.")
@_setting(
    "long-poll-timeout",
    type=Seconds(3600.0),
    default=30.0,
    help="Maximum time that a long-poll request waits for new messages.",
)
@_setting(
    "segment-bytes", type=Number(), default=SEGMENT_BYTES_DEFAULT, help="Size of a journal file."
)
@_setting(
    "reserve-bytes",
    type=Number(),
    default=RESERVE_BYTES_DEFAULT,
    help="Disk space that is set aside so that deletes and checkpoints work on a full disk.",
)
@_setting(
    "checkpoint-seconds",
    type=Seconds(86_400.0),
    default=CHECKPOINT_INTERVAL_MS / 1000,
    help="Time between checkpoints. After a crash, the journal since the last one is read again.",
)
@_setting(
    "checkpoint-bytes",
    type=Number(SEGMENT_BYTES_MIN),
    help="Make a checkpoint also after this many bytes of the journal."
    "  [default: the size of a journal file]",
)
@_setting(
    "body-bytes-max",
    type=Number(1, BODY_BYTES_MAX),
    default=BODY_BYTES_MAX,
    help="Maximum size of a request body.",
)
@_setting(
    "dedup",
    type=click.Choice(["on", "off"]),
    help="Set the policy of the whole server: whether streams without a setting of their own, and"
    " without a policy of a longer prefix, recognise duplicates (see `semel policies`)."
    "  [default: as before; at first on]",
)
@_setting(
    "strict-payloads",
    is_flag=True,
    help="Refuse an append that repeats a sequence with a different payload.",
)
@_setting(
    "producer-idle-seconds",
    type=Seconds(10 * 365 * 86_400.0),
    help="Expire a producer that has not appended for this long, and refuse its later retries."
    "  [default: never]",
)
@_setting(
    "producer-tombstone-hours",
    type=Number(1, 87_600),
    default=TOMBSTONE_HOURS,
    help="How long the retries of a producer that has expired in this way are refused, in hours"
    " during which the server runs.",
)
@_setting(
    "gap-hold-ms",
    type=Number(0, GAP_HOLD_MS_MAX),
    default=0,
    help="Maximum time that an append waits for a missing earlier append before it is refused.",
)
@_setting(
    "unread-bytes-per-address",
    type=Number(1),
    default=HttpLimits().unread_bytes_per_address_max,
    help="Size of the responses that clients at one address have not read, above which their long"
    " reads wait. All clients of a proxy have the same address.",
)
@_setting(
    "cors-origin",
    metavar="ORIGIN",
    multiple=True,
    callback=_each(parse_origin),
    help="Origin of web pages that can use the server, such as http://localhost:3000, or *. Can be"
    " repeated.  [default: none]",
)
@_setting(
    "allowed-host",
    metavar="NAME",
    multiple=True,
    callback=_each(parse_host),
    help="Name under which clients reach the server, besides localhost and the addresses on which"
    " it listens. Can be repeated.",
)
@_setting("tls-cert", metavar="FILE", help="Serve HTTPS with this certificate (PEM).")
@_setting("tls-key", metavar="FILE", help="Private key (PEM), if --tls-cert does not contain it.")
def serve_command(**values: Any) -> None:
    """Serve a data directory over HTTP until SIGTERM or Ctrl-C.

    SIGHUP does not end the server. With --tls-cert, the server then loads the certificate again.

    Prints one line, `listening on http://HOST:PORT`, when the server is ready. Options override
    environment variables, and environment variables override the file that --config names.
    """
    serving = ServeOptions(**values)
    if not serving.host:
        raise click.UsageError("--host is empty; to listen on every address use 0.0.0.0 or ::")
    try:
        settings = Settings(
            segment_bytes=serving.segment_bytes,
            reserve_bytes=serving.reserve_bytes,
            checkpoint_interval_ms=ceil(1000 * serving.checkpoint_seconds),
            checkpoint_bytes=serving.checkpoint_bytes or 0,
            producer_idle_ms=ceil(1000 * (serving.producer_idle_seconds or 0)),
            producer_tombstone_hours=serving.producer_tombstone_hours,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    _check_open_files()
    uvloop.run(_serve(serving, settings, server_context(serving.tls_cert, serving.tls_key)))


def _check_open_files() -> None:
    """Raise CommandRefused if the process cannot open as many files as the start needs.

    With too few files, the event loop ends the process with a signal, or raises other errors.
    """
    opened: list[int] = []
    try:
        while len(opened) < _FILES_NEEDED:
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        reason = error.strerror or str(error)
        advice = "raise the limit on open files (ulimit -n)"
        raise CommandRefused(f"cannot open files ({reason}); {advice}", EXIT_DISK) from error
    finally:
        for fd in opened:
            os.close(fd)


async def _serve(serving: ServeOptions, settings: Settings, tls: SSLContext | None) -> None:
    listener = Listener()
    _on_hangup(partial(_reload, listener, serving))
    try:  # bind first, because creating a data directory takes time and much disk space
        port = await listener.bind(serving.host, serving.port)
    except OSError as error:
        raise _cannot_listen(serving, error) from error
    try:
        engine = await _open(serving.data, settings)
        if serving.dedup is not None:
            command = SetPolicy(engine.clock.now_ms(), ROOT, dedup=serving.dedup == "on")
            await engine.execute(command)  # writes nothing if the policy is the same
    except BaseException:
        await listener.drain(0.0)
        raise
    stop = _stop_requested()
    host = f"[{serving.host}]" if ":" in serving.host else serving.host
    origin = f"{'http' if tls is None else 'https'}://{host}:{port}"
    limits = HttpLimits(
        body_bytes_max=serving.body_bytes_max,
        unread_bytes_per_address_max=serving.unread_bytes_per_address,
    )
    unread = UnreadBudget(limits)
    app = App(
        engine,
        long_poll_seconds=serving.long_poll_timeout,
        sse_seconds=60.0,
        origin=origin,
        is_strict=serving.strict_payloads,
        gap_hold_ms=serving.gap_hold_ms,
        unread=unread,
    )
    browsers = BrowserRules(cors_origins=serving.cors_origin, allowed_hosts=serving.allowed_host)
    raise_file_limit(limits)
    try:
        listener.start(app.handle, limits, unread=unread, ssl=tls, browsers=browsers)
    except OSError as error:
        await engine.close()
        raise _cannot_listen(serving, error) from error
    click.echo(f"listening on {origin}")
    await stop.wait()
    draining = asyncio.create_task(listener.drain(10.0))
    await asyncio.sleep(0)  # lets every connection mark its next response as its last
    app.drain()
    await draining
    await engine.close()


async def _open(data: str, settings: Settings) -> Engine:
    with ProgressLine() as steps:
        return await Engine.open(
            data,
            settings,
            progress=lambda done, total: steps.show("the journal", done, total),
        )


def _stop_requested() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, stop.set)
    return stop


def _on_hangup(action: Callable[[], None]) -> None:
    # A terminal that closes and programs that rotate logs send SIGHUP. Neither must end a server.
    with contextlib.suppress(NotImplementedError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, action)


def _reload(listener: Listener, serving: ServeOptions) -> None:
    """Load the certificate again, for new connections. If this fails, keep the present one."""
    if serving.tls_cert is None:
        _log.warning("SIGHUP is ignored; send SIGTERM to stop the server")
        return
    try:
        context = server_context(serving.tls_cert, serving.tls_key)
    except CommandRefused as refusal:
        _log.error("SIGHUP: %s; the server keeps its present certificate", refusal.message)
        return
    assert context is not None
    listener.replace_tls(context)
    _log.warning("SIGHUP: the certificate is loaded again from %s", serving.tls_cert)


def _cannot_listen(serving: ServeOptions, error: OSError) -> CommandRefused:
    if error.errno in NO_FILES:
        message = f"cannot listen on {serving.host}:{serving.port} ({os.strerror(error.errno)})"
        return CommandRefused(f"{message}; raise the limit on open files (ulimit -n)", EXIT_DISK)
    if isinstance(error, socket.gaierror) or not error.errno:
        reason, advice = error.strerror or str(error), "correct --host"
    else:
        reason, advice = os.strerror(error.errno), "choose a different --port or --host"
    return CommandRefused(f"cannot listen on {serving.host}:{serving.port} ({reason}); {advice}")


def server_context(cert: str | None, key: str | None) -> ssl.SSLContext | None:
    """Return the TLS context for a certificate and its key, or None if `cert` is None.

    Raises CommandRefused if the PEM files cannot be loaded.
    """
    if cert is None:
        if key is not None:
            raise CommandRefused("--tls-key requires --tls-cert with the certificate for this key")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
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
    return context


def _no_password() -> NoReturn:
    raise CommandRefused("the private key is encrypted; pass a key without a password")
