"""How a member of a group is kept alive: by a thread of a Client, or by a task of an AsyncClient.

The heartbeats run beside the application. So a member does not lose its streams if the processing
of a message takes longer than the session timeout. When heartbeats bring news, they interrupt what
the consumer waits for. They hold no reference to the consumer, so that a consumer that is no longer
used leaves its group.
"""

import asyncio
import threading
import time
from contextlib import suppress
from typing import Final

from semel.client.async_driver import AsyncDriver, AsyncStop, seconds_until
from semel.client.errors import ClientError, Refused
from semel.client.member_calls import Member, leave_group
from semel.client.sync_driver import Stop, SyncDriver

_LEAVE_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 1.0  # after a heartbeat that failed

# ---- by threads ----------------------------------------------------------------------------------


class Wakeup:
    """A wait that another thread can end. `renew` begins the next one."""

    def __init__(self) -> None:
        self._stop = Stop()
        self.is_over = False

    def renew(self) -> Stop:
        """Return the signal for the next wait. It is set already after `end`."""
        self._stop = stop = Stop()
        if self.is_over:
            stop.set()
        return stop

    def set(self) -> None:
        """End the present wait, if there is one."""
        self._stop.set()

    def end(self) -> None:
        """End the present wait and all later ones."""
        self.is_over = True
        self._stop.set()


class Heartbeats:
    """The heartbeats of a consumer. `news` is set when they have brought something."""

    def __init__(self, driver: SyncDriver, news: Wakeup) -> None:
        self._driver = driver
        self._news = news
        self._wakeup = Wakeup()
        self._thread: threading.Thread | None = None

    def follow(self, member: Member) -> None:
        """Send the heartbeats of a new member. Those of an earlier one must have ended."""
        self._wakeup = Wakeup()
        self._thread = threading.Thread(
            target=_keep_alive,
            args=(self._driver, member, self._news, self._wakeup),
            name=f"semel-heartbeats-{member.id}",
            daemon=True,
        )
        self._thread.start()

    def beat_now(self) -> None:
        """Send the next heartbeat at once."""
        self._wakeup.set()

    def stop_soon(self) -> None:
        """Let the member leave its group, and do not wait until it has left."""
        self._wakeup.end()

    def end(self, seconds: float) -> None:
        """Let the member leave its group, and wait for that, at most so many seconds."""
        self._wakeup.end()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(min(seconds, _LEAVE_SECONDS))


def _keep_alive(driver: SyncDriver, member: Member, news: Wakeup, wakeup: Wakeup) -> None:
    while not wakeup.is_over:
        stop = wakeup.renew()
        began, wait = time.monotonic(), member.wait_seconds
        try:
            is_new = driver.run(member.beat(), stop=stop)
        except Exception as error:  # noqa: BLE001 - the consumer raises it
            if stop.is_set:
                continue
            if _is_temporary(error):
                stop.wait(_PAUSE_SECONDS)
                continue
            member.news.append(error)
            news.set()
            return
        if is_new:
            news.set()
        elif time.monotonic() - began < wait / 2:  # the server has not waited
            stop.wait(wait / 2)
    with suppress(Exception):  # the member expires by itself, whatever fails here
        driver.run(leave_group(member.site, member.group, member.id), _LEAVE_SECONDS)


def _is_temporary(error: Exception) -> bool:
    return isinstance(error, ClientError) and not isinstance(error, Refused)


# ---- by tasks ------------------------------------------------------------------------------------


class AsyncWakeup:
    """A wait that another task can end. `renew` begins the next one."""

    def __init__(self) -> None:
        self._stop = AsyncStop()
        self.is_over = False

    def renew(self) -> AsyncStop:
        """Return the signal for the next wait. It is set already after `end`."""
        self._stop = stop = AsyncStop()
        if self.is_over:
            stop.set()
        return stop

    def set(self) -> None:
        """End the present wait, if there is one."""
        self._stop.set()

    def end(self) -> None:
        """End the present wait and all later ones."""
        self.is_over = True
        self._stop.set()


class AsyncHeartbeats:
    """The heartbeats of a consumer. `news` is set when they have brought something."""

    def __init__(self, driver: AsyncDriver, news: AsyncWakeup) -> None:
        self._driver = driver
        self._news = news
        self._wakeup = AsyncWakeup()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def follow(self, member: Member) -> None:
        """Send the heartbeats of a new member. Those of an earlier one must have ended."""
        self._wakeup = AsyncWakeup()
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(
            _keep_alive_async(self._driver, member, self._news, self._wakeup)
        )

    def beat_now(self) -> None:
        """Send the next heartbeat at once."""
        self._wakeup.set()

    def stop_soon(self) -> None:
        """Let the member leave its group, and do not wait until it has left.

        Any thread can call this, because the garbage collector does.
        """
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._wakeup.end)

    async def end(self, seconds: float) -> None:
        """Let the member leave its group, and wait for that, at most so many seconds."""
        self._wakeup.end()
        task = self._task
        is_here = self._loop is asyncio.get_running_loop()
        if task is not None and is_here and task is not asyncio.current_task():
            until = time.monotonic() + min(seconds, _LEAVE_SECONDS)
            await asyncio.wait([task], timeout=seconds_until(until))


async def _keep_alive_async(
    driver: AsyncDriver, member: Member, news: AsyncWakeup, wakeup: AsyncWakeup
) -> None:
    while not wakeup.is_over:
        stop = wakeup.renew()
        began, wait = time.monotonic(), member.wait_seconds
        try:
            is_new = await driver.run(member.beat(), stop=stop)
        except Exception as error:  # noqa: BLE001 - the consumer raises it
            if stop.is_set:
                continue
            if _is_temporary(error):
                await stop.wait(_PAUSE_SECONDS)
                continue
            member.news.append(error)
            news.set()
            return
        if is_new:
            news.set()
        elif time.monotonic() - began < wait / 2:  # the server has not waited
            await stop.wait(wait / 2)
    with suppress(Exception):  # the member expires by itself, whatever fails here
        await driver.run(leave_group(member.site, member.group, member.id), _LEAVE_SECONDS)
