"""Which failures of a heartbeat end a membership, for a Client and for an AsyncClient."""

import asyncio
from collections import deque
from typing import Any

import pytest

from semel.client import errors, heartbeats
from semel.client.heartbeats import AsyncWakeup, Wakeup


class FakeMember:
    """A member whose heartbeats have no content."""

    id, group, site, wait_seconds = "m", "g", None, 0.0

    def __init__(self) -> None:
        self.news: deque[Any] = deque()

    def beat(self) -> str:
        return "heartbeat"


class FakeDriver:
    """Answers each heartbeat with the next result, and then lets the member leave."""

    def __init__(self, wakeup: Any, *results: Any) -> None:
        self._wakeup = wakeup
        self._results = [*results]
        self.has_left = False

    def run(self, flow: Any, seconds: float | None = None, stop: Any = None) -> Any:
        del seconds, stop
        if flow != "heartbeat":
            self.has_left = True
            return None
        result = self._results.pop(0)
        if not self._results:
            self._wakeup.end()
        if isinstance(result, Exception):
            raise result
        return result


class FakeAsyncDriver(FakeDriver):
    async def run(self, flow: Any, seconds: float | None = None, stop: Any = None) -> Any:
        return super().run(flow, seconds, stop)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "_PAUSE_SECONDS", 0.0)


def beaten(kind: str, *results: Any) -> tuple[list[Any], bool, bool]:
    """Return the news of a member, whether the consumer was woken, and whether it has left."""
    member: Any = FakeMember()
    if kind == "sync":
        news, wakeup = Wakeup(), Wakeup()
        woken = news.renew()
        driver: Any = FakeDriver(wakeup, *results)
        heartbeats._keep_alive(driver, member, news, wakeup)
        return [*member.news], woken.is_set, driver.has_left

    async def story() -> tuple[list[Any], bool, bool]:
        news, wakeup = AsyncWakeup(), AsyncWakeup()
        woken = news.renew()
        driver: Any = FakeAsyncDriver(wakeup, *results)
        await heartbeats._keep_alive_async(driver, member, news, wakeup)
        return [*member.news], woken.is_set, driver.has_left

    return asyncio.run(story())


KINDS = pytest.mark.parametrize("kind", ["sync", "async"])


@KINDS
@pytest.mark.parametrize("error", [errors.Unavailable("down"), errors.Indeterminate("cut")])
def test_a_failure_that_can_pass_does_not_end_the_membership(
    kind: str, error: errors.ClientError
) -> None:
    assert beaten(kind, error, True) == ([], True, True)


@KINDS
@pytest.mark.parametrize("error", [errors.UnknownMember("gone"), ZeroDivisionError("a bug")])
def test_any_other_failure_is_news_for_the_consumer(kind: str, error: Exception) -> None:
    assert beaten(kind, error, True) == ([error], True, False)
