"""`semel serve`: the process."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from math import ceil
from ssl import SSLContext
from typing import Any, Final, TypeVar

import click
import uvloop
from msgspec import Struct

from semel.broker.engine import Engine
from semel.broker.settings import Settings
from semel.cli.config_file import config_option
from semel.cli.exits import Refused
from semel.cli.options import Seconds
from semel.cli.progress import Steps
from semel.cli.tls import server_context
from semel.model.limits import (
    BODY_BYTES_MAX,
    GAP_HOLD_MS_MAX,
    RESERVE_BYTES_DEFAULT,
    SEGMENT_BYTES_DEFAULT,
)
from semel.server.app import App
from semel.server.limits_http import HttpLimits, raise_file_limit
from semel.server.listener import Listener
from semel.server.unread import Unread

PORT_DEFAULT: Final = 4437
LONG_POLL_SECONDS_DEFAULT: Final = 30.0
LONG_POLL_SECONDS_MAX: Final = 3600.0
PRODUCER_IDLE_SECONDS_MAX: Final = 10 * 365 * 86_400.0
SSE_SECONDS: Final = 60.0
DRAIN_SECONDS: Final = 10.0


_F = TypeVar("_F", bound=Callable[..., Any])


class Serving(Struct, frozen=True, kw_only=True):
    """What the process was asked for, from wherever."""

    data: str
    host: str
    port: int
    long_poll_timeout: float
    segment_bytes: int
    reserve_bytes: int
    body_bytes_max: int
    dedup: str
    strict_payloads: bool
    producer_idle_seconds: float | None
    gap_hold_ms: int
    tls_cert: str | None
    tls_key: str | None


def _setting(
    name: str, *, help: str, metavar: str | None = None, **more: Any
) -> Callable[[_F], _F]:
    """Declare an option that the environment and the file may also set."""
    return click.option(
        f"--{name}",
        envvar=f"SEMEL_{name.upper().replace('-', '_')}",
        show_envvar=True,
        show_default="default" in more,
        help=help,
        metavar=metavar,
        **more,
    )


@click.command("serve")
@config_option
@_setting("data", metavar="DIR", default="semel-data", help="Where everything is kept.")
@_setting("host", default="127.0.0.1", help="The address to listen on.")
@_setting("port", type=click.IntRange(0, 65_535), default=PORT_DEFAULT, help="0 picks a free one.")
@_setting(
    "long-poll-timeout",
    type=Seconds(LONG_POLL_SECONDS_MAX),
    default=LONG_POLL_SECONDS_DEFAULT,
    help="Seconds a long-poll waits.",
)
@_setting("segment-bytes", type=int, default=SEGMENT_BYTES_DEFAULT, help="Size of a journal file.")
@_setting(
    "reserve-bytes",
    type=int,
    default=RESERVE_BYTES_DEFAULT,
    help="Room kept for deletes and checkpoints on a full disk.",
)
@_setting(
    "body-bytes-max",
    type=click.IntRange(1, BODY_BYTES_MAX),
    default=BODY_BYTES_MAX,
    help="The largest body of a request.",
)
@_setting(
    "dedup",
    type=click.Choice(["on", "off"]),
    default="on",
    help="Whether a new stream recognises duplicates, if it is not told.",
)
@_setting(
    "strict-payloads",
    is_flag=True,
    help="Refuse a repeated sequence whose payload is another one.",
)
@_setting(
    "producer-idle-seconds",
    type=Seconds(PRODUCER_IDLE_SECONDS_MAX),
    help="Let a producer go that was silent so long; a tombstone stays.  [default: never]",
)
@_setting(
    "gap-hold-ms",
    type=click.IntRange(0, GAP_HOLD_MS_MAX),
    default=0,
    help="How long an append that came too early waits for those before it.",
)
@_setting("tls-cert", metavar="FILE", help="Serve HTTPS with this certificate (PEM).")
@_setting("tls-key", metavar="FILE", help="The certificate's key, if in a file of its own.")
def command(**given: Any) -> None:
    """Serve a data directory over HTTP until SIGTERM or Ctrl-C.

    Prints one line, `listening on http://HOST:PORT`, when it is ready. A setting of the command
    line goes before one of the environment, and that before one of the file.
    """
    serving = Serving(**given)
    if not serving.host:
        raise click.UsageError("--host is empty; to listen on every address say 0.0.0.0 or ::")
    try:
        settings = Settings(
            segment_bytes=serving.segment_bytes,
            reserve_bytes=serving.reserve_bytes,
            producer_idle_ms=ceil(1000 * (serving.producer_idle_seconds or 0)),
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    tls = server_context(serving.tls_cert, serving.tls_key)
    uvloop.run(_serve(serving, settings, tls))


async def _serve(serving: Serving, settings: Settings, tls: SSLContext | None) -> None:
    listener = Listener()
    try:  # before the directory is touched: making a new one may take a while, and much room
        port = await listener.bind(serving.host, serving.port)
    except OSError as error:
        raise _cannot_listen(serving, error) from error
    try:
        engine = await _open(serving.data, settings)
    except BaseException:
        await listener.drain(0.0)
        raise
    told = _told_to_end()
    scheme = "http" if tls is None else "https"
    host = f"[{serving.host}]" if ":" in serving.host else serving.host
    origin = f"{scheme}://{host}:{port}"
    limits = HttpLimits(body_bytes_max=serving.body_bytes_max)
    unread = Unread(limits)
    app = App(
        engine,
        long_poll_seconds=serving.long_poll_timeout,
        sse_seconds=SSE_SECONDS,
        origin=origin,
        dedup=serving.dedup == "on",
        is_strict=serving.strict_payloads,
        gap_hold_ms=serving.gap_hold_ms,
        unread=unread,
    )
    raise_file_limit(limits)
    try:
        listener.start(app.handle, limits, unread=unread, ssl=tls)
    except OSError as error:
        await engine.close()
        raise _cannot_listen(serving, error) from error
    click.echo(f"listening on {origin}")
    await told.wait()
    draining = asyncio.create_task(listener.drain(DRAIN_SECONDS))
    await asyncio.sleep(0)  # now every connection knows that its next answer is the last
    app.drain()
    await draining
    await engine.close()


async def _open(data: str, settings: Settings) -> Engine:
    with Steps() as steps:
        return await Engine.open(
            data,
            settings,
            progress=lambda done, total: steps.show("the journal", done, total),
        )


def _told_to_end() -> asyncio.Event:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, told.set)
    return told


def _cannot_listen(serving: Serving, error: OSError) -> Refused:
    if isinstance(error, socket.gaierror) or not error.errno:
        reason, advice = error.strerror or str(error), "correct --host"
    else:
        reason, advice = os.strerror(error.errno), "choose another --port or --host"
    return Refused(f"cannot listen on {serving.host}:{serving.port} ({reason}); {advice}")
