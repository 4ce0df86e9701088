"""The functions of workers: which are possible, how they are called, and what they return."""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from semel import AsyncClient, Client
from semel.client.wake_functions import async_wake_call, check_wake_outputs, sync_wake_call

URL = "http://127.0.0.1:1"


class AsyncCallable:
    async def __call__(self, batch: Any) -> dict[str, list[Any]]:
        return {"out": [batch]}


class Callable_:
    def __call__(self, batch: Any) -> dict[str, list[Any]]:
        return {"out": [batch]}


async def coroutine_function(batch: Any) -> dict[str, list[Any]]:
    return {"out": [batch]}


def plain_function(batch: Any) -> dict[str, list[Any]]:
    return {"out": [batch]}


def returns_an_awaitable(batch: Any) -> Any:
    return coroutine_function(batch)


def generator_function(batch: Any) -> Iterator[Any]:
    yield {"out": [batch]}


async def async_generator_function(batch: Any) -> Any:
    yield {"out": [batch]}


ASYNC: list[Any] = [AsyncCallable(), coroutine_function]
PLAIN: list[Any] = [Callable_(), plain_function]


@pytest.mark.parametrize("function", [*ASYNC, *PLAIN, returns_an_awaitable])
def test_functions_of_every_kind_are_called_by_an_async_client(function: Any) -> None:
    async def run() -> Any:
        return await async_wake_call(function)(3)  # type: ignore[arg-type]

    assert asyncio.run(run()) == {"out": [3]}


def test_a_plain_function_does_not_stop_the_event_loop() -> None:
    """Otherwise the lease of its wake would not be renewed while it runs."""
    loop_runs = threading.Event()
    value = contextvars.ContextVar("value", default=0)

    def waits(batch: Any) -> dict[str, list[Any]]:
        return {"out": [loop_runs.wait(60), value.get()]}

    async def run() -> Any:
        value.set(7)
        task = asyncio.ensure_future(async_wake_call(waits)(3))  # type: ignore[arg-type]
        asyncio.get_running_loop().call_later(0.01, loop_runs.set)
        return await task

    assert asyncio.run(run()) == {"out": [True, 7]}


def test_plain_functions_leave_the_threads_of_the_event_loop_free() -> None:
    """The client looks up names there, also to renew a lease."""
    may_end = threading.Event()

    def waits(batch: Any) -> None:
        may_end.wait(60)

    async def run() -> None:
        call = async_wake_call(waits, threads=50)
        tasks = [asyncio.ensure_future(call(3)) for _ in range(50)]  # type: ignore[arg-type]
        await asyncio.to_thread(may_end.set)
        await asyncio.gather(*tasks)

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("function", PLAIN)
def test_plain_functions_are_called_by_a_client(function: Any) -> None:
    assert sync_wake_call(function)(3) == {"out": [3]}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "function", "reason"),
    [
        (sync_wake_call, coroutine_function, "coroutine_function is a coroutine function; use it"),
        (sync_wake_call, AsyncCallable(), "use it with an AsyncClient"),
        (sync_wake_call, generator_function, "is a generator function; return None, or a mapping"),
        (async_wake_call, generator_function, "is a generator function"),
        (async_wake_call, async_generator_function, "is a generator function"),
        (sync_wake_call, None, "a worker needs a function, not NoneType"),
        (async_wake_call, 5, "a worker needs a function, not int"),
    ],
)
def test_a_function_that_cannot_return_outputs_is_refused_at_once(
    make: Callable[[Any], Any], function: Any, reason: str
) -> None:
    with pytest.raises(TypeError, match=reason):
        make(function)


def test_outputs_that_are_not_a_mapping_are_refused() -> None:
    with pytest.raises(TypeError, match="'out'"):
        check_wake_outputs([1, 2])
    assert check_wake_outputs(None) == {}
    assert check_wake_outputs({"out": iter([1, 2])}) == {"out": [1, 2]}


def test_a_worker_is_called_like_its_function() -> None:
    with Client(URL) as client:
        worker = client.subscriptions.worker("billing")(plain_function)
        assert worker(3) == {"out": [3]}  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="coroutine function"):
            client.subscriptions.worker("billing")(coroutine_function)  # type: ignore[arg-type]
    asynchronous = AsyncClient(URL).subscriptions.worker("billing")(coroutine_function)
    assert asyncio.run(asynchronous(3)) == {"out": [3]}  # type: ignore[arg-type]


def test_a_decorator_without_an_id_is_refused_at_once() -> None:
    with Client(URL) as client, pytest.raises(TypeError, match="needs an id"):

        @client.subscriptions.worker  # type: ignore[arg-type]
        def bill(batch: Any) -> None:
            pass


def test_one_text_is_no_list_of_streams() -> None:
    with Client(URL) as client, pytest.raises(TypeError, match=r"expected e.g. streams=\['a'\]"):
        client.subscriptions.create("billing", streams="a", wake_stream="wakes")
