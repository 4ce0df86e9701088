"""`semel serve`: the process."""

import asyncio
import contextlib
import signal
from typing import Final

import click
import uvloop

from semel.broker.engine import Engine
from semel.broker.settings import Settings
from semel.model.limits import RESERVE_BYTES_DEFAULT, SEGMENT_BYTES_DEFAULT
from semel.server.app import App
from semel.server.listener import Listener

PORT_DEFAULT: Final = 4437
LONG_POLL_SECONDS_DEFAULT: Final = 30.0
SSE_SECONDS: Final = 60.0
DRAIN_SECONDS: Final = 10.0


@click.command("serve")
@click.option("--data", default="semel-data", envvar="SEMEL_DATA", show_default=True)
@click.option("--host", default="127.0.0.1", envvar="SEMEL_HOST", show_default=True)
@click.option("--port", default=PORT_DEFAULT, envvar="SEMEL_PORT", show_default=True)
@click.option(
    "--long-poll-timeout",
    "long_poll_seconds",
    default=LONG_POLL_SECONDS_DEFAULT,
    envvar="SEMEL_LONG_POLL_TIMEOUT",
    show_default=True,
    help="Seconds a long-poll waits.",
)
@click.option(
    "--segment-bytes",
    default=SEGMENT_BYTES_DEFAULT,
    envvar="SEMEL_SEGMENT_BYTES",
    show_default=True,
    help="Size of a journal file.",
)
@click.option(
    "--reserve-bytes",
    default=RESERVE_BYTES_DEFAULT,
    envvar="SEMEL_RESERVE_BYTES",
    show_default=True,
    help="Room kept for deletes and checkpoints on a full disk.",
)
def command(
    *,
    data: str,
    host: str,
    port: int,
    long_poll_seconds: float,
    segment_bytes: int,
    reserve_bytes: int,
) -> None:
    """Serve a data directory over HTTP until SIGTERM or Ctrl-C."""
    try:
        settings = Settings(segment_bytes=segment_bytes, reserve_bytes=reserve_bytes)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    uvloop.run(_serve(data, host, port, settings, long_poll_seconds))


async def _serve(
    data: str, host: str, port: int, settings: Settings, long_poll_seconds: float
) -> None:
    engine = await Engine.open(data, settings)
    app = App(engine, long_poll_seconds=long_poll_seconds, sse_seconds=SSE_SECONDS)
    listener = Listener()
    try:
        port = await listener.start(host, port, app.handle)
    except OSError as error:
        await engine.close()
        raise click.ClickException(f"cannot listen on {host}:{port}: {error.strerror}") from error
    click.echo(f"listening on http://{host}:{port}")
    await _until_told()
    await listener.drain(DRAIN_SECONDS)
    await engine.close()


async def _until_told() -> None:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, told.set)
    await told.wait()
