"""`semel serve`: the options and the server process."""

import asyncio
import contextlib
import logging
import os
import shlex
import signal
import socket
from math import ceil
from typing import Any, Final

import click
import uvloop
from msgspec import Struct

from semel.broker.engine import Engine
from semel.broker.settings import Settings
from semel.cli.options import Number, Seconds
from semel.cli.output import EXIT_DISK, CommandRefused, ProgressLine, printable
from semel.cli.serve_access import describe_access, open_access
from semel.cli.serve_config import (
    LoadedFiles,
    TlsOptions,
    config_option,
    each_value,
    load_files,
    optional_value,
    setting,
)
from semel.cli.serve_reload import FileReload
from semel.cli.serve_webhooks import checked_network, key_file, parse_public_url, target_policy
from semel.journal.disk import NO_FILES, OTHERS_MODE
from semel.model.limits import (
    BODY_BYTES_MAX,
    CHECKPOINT_INTERVAL_MS,
    GAP_HOLD_MS_MAX,
    RESERVE_BYTES_DEFAULT,
    SEGMENT_BYTES_DEFAULT,
    SEGMENT_BYTES_MIN,
    TOMBSTONE_HOURS,
    WEBHOOK_ATTEMPTS_DEFAULT,
    WEBHOOK_ATTEMPTS_MAX,
)
from semel.model.policies import ROOT, SetPolicy
from semel.server.access import Access, AccessSettings
from semel.server.app import App
from semel.server.browsers import BrowserRules
from semel.server.host_names import ANY, parse_host, parse_origin
from semel.server.identities import OutsideIdentities
from semel.server.limits_http import HttpLimits, deliveries_allowed, raise_file_limit
from semel.server.listener import Listener
from semel.server.unread_budget import UnreadBudget
from semel.server.webhook_deliveries import WebhookDeliveries
from semel.server.webhooks import Webhooks, WebhookSettings

# The event loop, the listener and the data directory need more than this many files.
_FILES_NEEDED: Final = 12

_log: Final = logging.getLogger("semel.server")
_access_log: Final = logging.getLogger("semel.access")


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
    client_ca: str | None
    client_certificates: str
    access: str
    insecure: bool
    strict_rights: bool
    unowned: str
    webhook_key: str | None
    public_url: str | None
    webhook_allow: tuple[str, ...]
    webhook_ca: str | None
    webhook_attempts: int
    config: str | None

    def load(self) -> LoadedFiles:
        """Load all files but the data. Raises CommandRefused."""
        tls = TlsOptions(
            cert=self.tls_cert,
            key=self.tls_key,
            client_ca=self.client_ca,
            needs_client_certificate=self.client_certificates == "required",
        )
        return load_files(self.config, tls, self.webhooks(is_guarded=True))

    def webhooks(self, *, is_guarded: bool) -> WebhookSettings:
        """Return the settings of webhooks. `is_guarded` is True if access is on."""
        return WebhookSettings(
            key_file=key_file(self.data, self.webhook_key),
            public_url=self.public_url,
            policy=target_policy(
                self.webhook_allow,
                host=self.host,
                public_url=self.public_url,
                allowed_hosts=self.allowed_host,
                is_guarded=is_guarded,
            ),
            ca_file=self.webhook_ca,
            attempts_max=self.webhook_attempts,
        )


@click.command("serve")
@config_option
@setting("data", metavar="DIR", default="semel-data", help="Data directory.")
@setting("host", default="127.0.0.1", help="Address to listen on.")
@setting("port", type=Number(0, 65_535), default=4437, help="Port; 0 selects a free port.")
@setting(
    "long-poll-timeout",
    type=Seconds(3600.0),
    default=30.0,
    help="Maximum time that a long-poll request waits for new messages.",
)
@setting(
    "segment-bytes", type=Number(), default=SEGMENT_BYTES_DEFAULT, help="Size of a journal file."
)
@setting(
    "reserve-bytes",
    type=Number(),
    default=RESERVE_BYTES_DEFAULT,
    help="Disk space that is set aside so that deletes and checkpoints work on a full disk.",
)
@setting(
    "checkpoint-seconds",
    type=Seconds(86_400.0),
    default=CHECKPOINT_INTERVAL_MS / 1000,
    help="Time between checkpoints. After a crash, the journal since the last one is read again.",
)
@setting(
    "checkpoint-bytes",
    type=Number(SEGMENT_BYTES_MIN),
    help="Make a checkpoint also after this many bytes of the journal."
    "  [default: the size of a journal file]",
)
@setting(
    "body-bytes-max",
    type=Number(1, BODY_BYTES_MAX),
    default=BODY_BYTES_MAX,
    help="Maximum size of a request body.",
)
@setting(
    "dedup",
    type=click.Choice(["on", "off"]),
    help="Set the policy of the whole server: whether streams without a setting of their own, and"
    " without a policy of a longer prefix, recognise duplicates (see `semel policies`)."
    "  [default: as before; at first on]",
)
@setting(
    "strict-payloads",
    is_flag=True,
    help="Refuse an append that repeats a sequence with a different payload.",
)
@setting(
    "producer-idle-seconds",
    type=Seconds(10 * 365 * 86_400.0),
    help="Expire a producer that has not appended for this long, and refuse its later retries."
    "  [default: never]",
)
@setting(
    "producer-tombstone-hours",
    type=Number(1, 87_600),
    default=TOMBSTONE_HOURS,
    help="How long the retries of a producer that has expired in this way are refused, in hours"
    " during which the server runs.",
)
@setting(
    "gap-hold-ms",
    type=Number(0, GAP_HOLD_MS_MAX),
    default=0,
    help="Maximum time that an append waits for a missing earlier append before it is refused.",
)
@setting(
    "unread-bytes-per-address",
    type=Number(1),
    default=HttpLimits().unread_bytes_per_address_max,
    help="Size of the responses that clients at one address have not read, above which their long"
    " reads wait. All clients of a proxy have the same address.",
)
@setting(
    "cors-origin",
    metavar="ORIGIN",
    multiple=True,
    callback=each_value(parse_origin),
    help="Origin of web pages that can use the server, such as http://localhost:3000, or *. Can be"
    " repeated.  [default: none]",
)
@setting(
    "allowed-host",
    metavar="NAME",
    multiple=True,
    callback=each_value(parse_host),
    help="Name under which clients reach the server, besides localhost and the addresses on which"
    " it listens. Can be repeated.",
)
@setting("tls-cert", metavar="FILE", help="Serve HTTPS with this certificate (PEM).")
@setting("tls-key", metavar="FILE", help="Private key (PEM), if --tls-cert does not contain it.")
@setting(
    "client-ca",
    metavar="FILE",
    help="Verify the certificates of clients with these certificates of authorities (PEM).",
)
@setting(
    "client-certificates",
    type=click.Choice(["optional", "required"]),
    default="optional",
    help="Whether a client without a certificate can connect, if --client-ca is set.",
)
@setting(
    "access",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    help="Whether requests need a token. auto: if the data directory has a token, or the"
    " configuration has rules for JWTs or certificates.",
)
@setting(
    "insecure",
    is_flag=True,
    help="Allow that access is off although the directory has tokens, or other machines can"
    " connect.",
)
@setting(
    "strict-rights",
    is_flag=True,
    help="Require IdempotentWrite and TransactionalWrite on the cluster for producers and"
    " transactions; otherwise everybody who may write to a stream has them.",
)
@setting(
    "unowned",
    type=click.Choice(["allow", "deny"]),
    default="allow",
    help="Whether producers, transactions and sinks that have no owner can be used without admin.",
)
@setting(
    "webhook-key",
    metavar="FILE",
    help="File with the keys of webhooks, which is created when it is needed first."
    "  [default: webhook.key in the data directory]",
)
@setting(
    "public-url",
    metavar="URL",
    callback=optional_value(parse_public_url),
    help="URL at which receivers of webhooks reach the server, such as https://semel.example."
    "  [default: where it listens, if that is on this machine only]",
)
@setting(
    "webhook-allow",
    metavar="NETWORK",
    multiple=True,
    callback=each_value(checked_network),
    help="Network that receivers of webhooks may be in although it is not public, such as"
    " 10.1.0.0/16, with https and http. Can be repeated.",
)
@setting(
    "webhook-ca",
    metavar="FILE",
    help="Verify receivers of webhooks with these certificates of authorities, too (PEM).",
)
@setting(
    "webhook-attempts",
    type=Number(1, WEBHOOK_ATTEMPTS_MAX),
    default=WEBHOOK_ATTEMPTS_DEFAULT,
    help="Suspend a subscription after N failed deliveries of one wake in a row.",
)
def serve_command(**values: Any) -> None:
    """Serve a data directory over HTTP until SIGTERM or Ctrl-C.

    SIGHUP does not end the server. The server then loads its certificates, the rules and keys of
    the table [access], and the keys of webhooks again.

    When the server is ready, it prints `listening on http://HOST:PORT`. A line on standard error
    says whether access is on, so that requests need a token. Options override environment
    variables, and environment variables override the file that --config names.
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
    uvloop.run(_serve(serving, settings, serving.load()))


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


def _load_at_hangup(
    serving: ServeOptions, listener: Listener, identities: OutsideIdentities
) -> FileReload:
    """Return what loads the files of a server again, after it is set to do so at every SIGHUP."""
    reload = FileReload(
        serving.load,
        listener,
        identities,
        tls_cert=serving.tls_cert,
        config=serving.config,
        webhook_ca=serving.webhook_ca,
    )
    reload.on_hangup()
    return reload


async def _serve(serving: ServeOptions, settings: Settings, files: LoadedFiles) -> None:
    listener = Listener()
    identities = OutsideIdentities(files.certificates, files.jwt)
    reload = _load_at_hangup(serving, listener, identities)
    try:  # bind first, because creating a data directory takes time and much disk space
        port = await listener.bind(serving.host, serving.port)
    except OSError as error:
        raise _cannot_listen(serving, error) from error
    try:
        engine = await _open(serving.data, settings)
        access = await _prepare(engine, serving, files)
    except BaseException:
        await listener.drain(0.0)
        raise
    stop = _stop_requested()
    origin = _origin(serving, files, port)
    limits = HttpLimits(
        body_bytes_max=serving.body_bytes_max,
        unread_bytes_per_address_max=serving.unread_bytes_per_address,
    )
    unread = UnreadBudget(limits)
    webhooks = Webhooks(serving.webhooks(is_guarded=access.is_on), origin, files.webhooks)
    app = App(
        engine,
        long_poll_seconds=serving.long_poll_timeout,
        sse_seconds=60.0,
        webhooks=webhooks,
        is_strict=serving.strict_payloads,
        gap_hold_ms=serving.gap_hold_ms,
        unread=unread,
        access=Access(engine, access, identities),
    )
    raise_file_limit(limits)
    try:
        listener.start(
            app.handle,
            limits,
            unread=unread,
            ssl=files.tls,
            browsers=_browser_rules(serving, access),
            is_stranger=app.is_stranger,
        )
    except OSError as error:
        await engine.close()
        raise _cannot_listen(serving, error) from error
    deliveries = WebhookDeliveries(engine, webhooks, count_max=deliveries_allowed(limits))
    reload.use_for(deliveries)
    deliveries.start()
    identities.start()
    # A warning, because `logging` shows nothing lower without a configuration.
    _access_log.warning("%s", describe_access(access))
    click.echo(f"listening on {origin}")
    await stop.wait()
    identities.close()
    await _drain(listener, app, deliveries)
    await engine.close()


async def _drain(listener: Listener, app: App, deliveries: WebhookDeliveries) -> None:
    """Send the responses to the requests that have come, and begin nothing new."""
    draining = asyncio.create_task(listener.drain(10.0))
    await asyncio.sleep(0)  # lets every connection mark its next response as its last
    app.drain()
    await deliveries.drain()
    await draining


def _origin(serving: ServeOptions, files: LoadedFiles, port: int) -> str:
    host = f"[{serving.host}]" if ":" in serving.host else serving.host
    return f"{'http' if files.tls is None else 'https'}://{host}:{port}"


def _browser_rules(serving: ServeOptions, access: AccessSettings) -> BrowserRules:
    # A page that reaches the server by a name of its own has no token, so names do not matter then.
    hosts = (ANY,) if access.is_on else serving.allowed_host
    return BrowserRules(cors_origins=serving.cors_origin, allowed_hosts=hosts)


async def _prepare(engine: Engine, serving: ServeOptions, files: LoadedFiles) -> AccessSettings:
    """Store what the options set, and return the settings of access.

    If that is refused, close the engine and raise CommandRefused.
    """
    try:
        if serving.dedup is not None:
            command = SetPolicy(engine.clock.now_ms(), ROOT, dedup=serving.dedup == "on")
            await engine.execute(command)  # writes nothing if the policy is the same
        return await open_access(
            engine,
            serving.access,
            host=serving.host,
            has_identities=files.has_identities,
            is_insecure=serving.insecure,
            is_strict=serving.strict_rights,
            denies_unowned=serving.unowned == "deny",
        )
    except CommandRefused:
        await engine.close()
        raise


async def _open(data: str, settings: Settings) -> Engine:
    with ProgressLine() as steps:
        engine = await Engine.open(
            data,
            settings,
            progress=lambda done, total: steps.show("the journal", done, total),
        )
    if os.stat(data).st_mode & OTHERS_MODE:
        _log.warning(
            "other users have rights to the data directory %s; if they must not read the messages,"
            " run: chmod 700 %s",
            printable(data),
            printable(shlex.quote(data)),
        )
    return engine


def _stop_requested() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, stop.set)
    return stop


def _cannot_listen(serving: ServeOptions, error: OSError) -> CommandRefused:
    if error.errno in NO_FILES:
        message = f"cannot listen on {serving.host}:{serving.port} ({os.strerror(error.errno)})"
        return CommandRefused(f"{message}; raise the limit on open files (ulimit -n)", EXIT_DISK)
    if isinstance(error, socket.gaierror) or not error.errno:
        reason, advice = error.strerror or str(error), "correct --host"
    else:
        reason, advice = os.strerror(error.errno), "choose a different --port or --host"
    return CommandRefused(f"cannot listen on {serving.host}:{serving.port} ({reason}); {advice}")
