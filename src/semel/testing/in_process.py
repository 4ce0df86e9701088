"""A server that runs in the test process, with the real engine and the real listener."""

import asyncio
import gc
import os
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from os import PathLike, fspath
from typing import Any, ClassVar, Final, Self

from semel.broker.engine import Engine
from semel.broker.settings import Settings
from semel.cli.serve_access import prepare_audit, store_bootstrap
from semel.model.errors import EngineStopped
from semel.model.limits import MIB
from semel.server.access import Access, AccessSettings
from semel.server.app import App
from semel.server.browsers import BrowserRules
from semel.server.limits_http import HttpLimits
from semel.server.listener import Listener
from semel.server.unread_budget import UnreadBudget
from semel.server.webhook_deliveries import WebhookDeliveries
from semel.server.webhook_targets import TargetPolicy
from semel.server.webhooks import Webhooks, WebhookSettings

_HOST: Final = "127.0.0.1"
_KEY_FILE: Final = "webhook.key"
_LOOPBACK: Final = TargetPolicy(allows_loopback=True)
_DRAIN_SECONDS: Final = 5.0
_LIGHT: Final = Settings(segment_bytes=16 * MIB, reserve_bytes=0)


# ---- background loop -----------------------------------------------------------------------------
# Runs asynchronous resources for tests that have no event loop of their own.


_START_SECONDS_MAX: Final = 60.0  # enough for a busy machine


class BackgroundLoop:
    """An asyncio event loop that runs on its own thread.

    uvloop is not used, because closing a uvloop loop can wait forever. This happens if a connection
    was accepted while the listener was closing.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine on the loop, and wait until it ends.

        Raises TimeoutError if that takes longer than a minute.
        """
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_START_SECONDS_MAX)

    def stop(self) -> None:
        """Cancel all tasks, end the thread, and close the loop."""
        self.run(self._cancel_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_tasks(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()  # it has threads that resolve addresses


class LoopResource(ABC):
    """Base class for a resource that needs an event loop.

    In a `with` block, the resource runs on a background loop. In an `async with` block, it runs on
    the current loop.
    """

    _thread_name: ClassVar[str]
    _background: BackgroundLoop | None = None

    @abstractmethod
    async def _open(self) -> None:
        """Open the resource on the running loop."""

    @abstractmethod
    async def _close(self) -> None:
        """Close the resource on the running loop."""

    def __enter__(self) -> Self:
        background = BackgroundLoop(self._thread_name)
        try:
            background.run(self._open())
        except BaseException:
            background.stop()
            raise
        self._background = background
        return self

    def __exit__(self, *exc: object) -> None:
        background, self._background = self._background, None
        if background is None:
            return  # the resource is already closed
        try:
            background.run(self._close())
        finally:
            background.stop()

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._close()


# ---- server --------------------------------------------------------------------------------------


class InProcessServer(LoopResource):
    """A server that runs in the test process.

    In a `with` block, the server runs on its own thread. In an `async with` block, it runs on your
    event loop.

    `data` is the data directory. If it is None, the server uses a temporary directory and removes
    it at the end of the block.

    With a `token`, access is on. If the directory has no token, this one is stored, and may do
    everything.

    If the engine fails, the test process keeps running, and EngineStopped is raised at the end of
    the block. (In `semel serve`, such a failure ends the process.)
    """

    _thread_name = "semel-in-process"

    def __init__(
        self,
        data: str | PathLike[str] | None = None,
        *,
        port: int = 0,
        settings: Settings = _LIGHT,
        http_limits: HttpLimits | None = None,
        long_poll_seconds: float = 30.0,
        sse_seconds: float = 60.0,
        cors_origins: Sequence[str] = (),
        token: str | None = None,
    ) -> None:
        self.data = "" if data is None else fspath(data)
        self.port = port
        self.failure: BaseException | None = None
        self._settings = settings
        self._http_limits = http_limits
        self._live_seconds = (long_poll_seconds, sse_seconds)
        self._browsers = BrowserRules(cors_origins=tuple(cors_origins))
        self._token = token
        self._access = AccessSettings(is_on=token is not None)
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._engine: Engine | None = None
        self._app: App | None = None
        self._listener: Listener | None = None
        self._deliveries: WebhookDeliveries | None = None

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http://{_HOST}:{self.port}"

    @property
    def engine(self) -> Engine:
        """The running engine. Call its methods only on the thread of the server's event loop.

        Raises EngineStopped outside the `with` block.
        """
        if self._engine is None:
            raise EngineStopped("the server is not running; use it inside its `with` block")
        return self._engine

    async def _open(self) -> None:
        if not self.data:
            self._temporary = tempfile.TemporaryDirectory(prefix="semel-")
            self.data = self._temporary.name
        self._switch_seconds = sys.getswitchinterval()
        self._gc_thresholds = gc.get_threshold()
        try:
            self._engine = await Engine.open(self.data, self._settings, on_fatal=self._fail)
            await self._listen(self._engine)
        except BaseException:
            await self._close()
            raise

    async def _listen(self, engine: Engine) -> None:
        unread = UnreadBudget(self._http_limits)
        if self._access.is_on:
            await store_bootstrap(engine, self._token or "")
            await prepare_audit(engine)
        self._listener = Listener(engine.clock)
        self.port = await self._listener.bind(_HOST, self.port)
        key_file = os.path.join(self.data, _KEY_FILE)
        webhooks = Webhooks(WebhookSettings(key_file=key_file, policy=_LOOPBACK), self.url)
        long_poll, sse = self._live_seconds
        self._app = App(
            engine,
            long_poll_seconds=long_poll,
            sse_seconds=sse,
            webhooks=webhooks,
            unread=unread,
            access=Access(engine, self._access),
        )
        self._listener.start(
            self._app.handle,
            self._http_limits,
            unread=unread,
            browsers=self._browsers,
            is_stranger=self._app.is_stranger,
        )
        self._deliveries = WebhookDeliveries(engine, webhooks)
        self._deliveries.start()

    def _fail(self, error: BaseException) -> None:
        self.failure = error

    async def _close(self) -> None:
        if self._listener is not None and self._app is not None:
            draining = asyncio.create_task(self._listener.drain(_DRAIN_SECONDS))
            # The listener must mark every connection as draining before the app ends live reads.
            await asyncio.sleep(0)
            self._app.drain()
            await draining
        if self._deliveries is not None:
            await self._deliveries.drain()
        if self._engine is not None:
            await self._engine.close()
        self._restore_process()
        if self.failure is not None:
            raise EngineStopped(f"the engine failed during the test: {self.failure}")

    def _restore_process(self) -> None:
        """Restore the process settings that the engine changed, and remove the temporary directory.

        The settings are the thread switch interval and the thresholds of the garbage collector.
        """
        self._listener = self._app = self._engine = self._deliveries = None
        sys.setswitchinterval(self._switch_seconds)
        gc.unfreeze()
        gc.set_threshold(*self._gc_thresholds)
        temporary, self._temporary = self._temporary, None
        if temporary is not None:
            temporary.cleanup()
            self.data = ""
