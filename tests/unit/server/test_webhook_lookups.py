"""Lookups of the names of targets: threads, shared lookups, and blocked ones."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

import pytest

from semel.server.webhook_lookups import LookupFailed, NameLookups
from tests.http.harness import eventually

PATIENCE_SECONDS = 30.0


def found(*addresses: str) -> list[Any]:
    """Return addresses as getaddrinfo does."""
    kind = socket.SOCK_STREAM
    return [
        (socket.AF_INET6, kind, 6, "", (each, 0, 0, 0))
        if ":" in each
        else (socket.AF_INET, kind, 6, "", (each, 0))
        for each in addresses
    ]


class BlockedNames:
    """A lookup whose names that begin with `dead` block until `release` is called."""

    def __init__(self) -> None:
        self._may_end = threading.Event()
        self.calls: list[str] = []

    def __call__(self, name: str, port: None, *, type: int) -> list[Any]:
        assert port is None
        assert type == socket.SOCK_STREAM
        self.calls.append(name)
        if name.startswith("dead"):
            self._may_end.wait(PATIENCE_SECONDS)
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure")
        return found("192.0.2.1")

    def release(self) -> None:
        self._may_end.set()


@contextmanager
def blocked_names() -> Iterator[BlockedNames]:
    names = BlockedNames()
    try:
        yield names
    finally:
        names.release()


def run(lookup: Callable[..., Any], *names: str, threads: int = 2) -> list[Any]:
    """Return the addresses of names that are looked up at the same time, or their errors."""

    async def main() -> list[Any]:
        lookups = NameLookups(threads, lookup)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await asyncio.gather(*map(lookups.addresses, names), return_exceptions=True)
        finally:
            lookups.close()

    return asyncio.run(main())


def test_all_addresses_are_returned_once_each_in_their_order() -> None:
    (addresses,) = run(lambda *_, **__: found("2001:db8::1", "192.0.2.1", "192.0.2.1", "::1"), "a")
    assert addresses == (ip_address("2001:db8::1"), ip_address("192.0.2.1"), ip_address("::1"))


@pytest.mark.parametrize(
    "error",
    [
        socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
        UnicodeError("label too long"),
        OSError(24, "Too many open files"),
        RuntimeError("bug"),
    ],
)
def test_every_error_is_a_lookup_that_failed(error: Exception) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    (failure,) = run(fail, "a")
    assert isinstance(failure, LookupFailed)
    assert str(failure) == "the name cannot be resolved"


def test_a_name_without_addresses_or_with_others_is_refused() -> None:
    (failure,) = run(lambda *_, **__: [], "a")
    assert str(failure) == "the name has no address"
    (failure,) = run(lambda *_, **__: found("192.0.2.1", "x"), "a")
    assert str(failure) == "the name cannot be resolved"


def test_a_name_is_looked_up_once_for_all_that_wait() -> None:
    with blocked_names() as names:

        async def main() -> None:
            lookups = NameLookups(2, names)
            waiting = [asyncio.create_task(lookups.addresses("dead")) for _ in range(10)]
            assert await lookups.addresses("good")
            names.release()
            for each in waiting:
                with pytest.raises(LookupFailed):
                    await each
            with pytest.raises(LookupFailed):
                await lookups.addresses("dead")
            lookups.close()

        asyncio.run(main())
        assert sorted(names.calls) == ["dead", "dead", "good"]


def test_a_caller_that_gives_up_leaves_the_lookup_to_the_others() -> None:
    with blocked_names() as names:

        async def main() -> None:
            lookups = NameLookups(1, names)
            first = asyncio.create_task(lookups.addresses("dead"))
            second = asyncio.create_task(lookups.addresses("dead"))
            queued = asyncio.create_task(lookups.addresses("never"))
            last = asyncio.create_task(lookups.addresses("good"))
            await asyncio.sleep(0)
            for each in (first, queued):
                each.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await each
            names.release()
            with pytest.raises(LookupFailed):
                await second
            assert await last
            lookups.close()

        asyncio.run(main())
        assert names.calls == ["dead", "good"]


def test_blocked_lookups_use_no_more_than_their_threads() -> None:
    with blocked_names() as names:

        async def main() -> None:
            lookups = NameLookups(3, names)
            before = threading.active_count()
            tasks = [asyncio.create_task(lookups.addresses(f"dead{n}")) for n in range(20)]
            await asyncio.sleep(0)  # lets the tasks begin
            assert eventually(lambda: len(names.calls) == 3)
            assert threading.active_count() - before == 3
            names.release()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert len(names.calls) == 20
            lookups.close()

        asyncio.run(main())


def test_the_threads_end_with_the_lookups() -> None:
    before = threading.active_count()
    run(BlockedNames(), "a", "b", "c", threads=3)
    assert eventually(lambda: threading.active_count() == before)


def test_a_lookup_that_ends_after_its_loop_is_ignored() -> None:
    with blocked_names() as names:

        async def main() -> None:
            lookups = NameLookups(1, names)
            task = asyncio.create_task(lookups.addresses("dead"))
            await asyncio.sleep(0)  # lets the task begin
            assert eventually(lambda: names.calls == ["dead"])
            task.cancel()
            lookups.close()

        before = threading.active_count()
        asyncio.run(main())
        names.release()
        assert eventually(lambda: threading.active_count() <= before)
