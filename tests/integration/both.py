"""One synchronous interface for Client and AsyncClient, so that a test can run with both."""

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

from semel import AsyncClient, Client
from semel.client.aio.catalog import AsyncAccess
from semel.client.aio.consumer import AsyncConsumer
from semel.client.aio.group import AsyncDeadLetters, AsyncGroup
from semel.client.aio.stream import AsyncStream
from semel.client.aio.subscriptions import AsyncSubscriptions, AsyncWake, AsyncWorker
from semel.client.aio.topic import AsyncTopic
from semel.client.aio.transaction import AsyncSink, AsyncSinkTask, AsyncTransaction
from semel.client.async_driver import AsyncRead, AsyncTail
from semel.client.producer.async_producer import AsyncProducer

KINDS = ("sync", "async")


def client_of(kind: str, url: str, **options: Any) -> Any:
    """Make a client of either kind with synchronous calls."""
    return Client(url, **options) if kind == "sync" else Waiting(url, **options)


class Waiting:
    """An AsyncClient on its own loop, with synchronous calls."""

    def __init__(self, url: str, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncClient(url, **options)

    def __getattr__(self, name: str) -> Any:
        return _waiting(self._runner, getattr(self._client, name))

    def waiting(self, call: Any) -> Any:
        """Make a call of an object of this client synchronous."""
        return _waiting(self._runner, call)

    def owns(self, client: AsyncClient) -> bool:
        return client is self._client

    def __enter__(self) -> "Waiting":
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


class _Proxy:
    def __init__(self, runner: asyncio.Runner, inner: Any) -> None:
        self._runner = runner
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return _waiting(self._runner, getattr(self._inner, name))

    def run(self, function: Any, *given: Any) -> Any:
        """Run a coroutine function with the asynchronous object; return its result."""
        return self._runner.run(function(self._inner, *given))


class _WorkerProxy(_Proxy):
    def run(self, **named: Any) -> Any:  # type: ignore[override]  # the method of a worker
        return self._runner.run(self._inner.run(**named))


class _TailProxy(_Proxy):
    def __iter__(self) -> Iterator[Any]:
        return _iterate(self._runner, aiter(self._inner))

    def __next__(self) -> Any:
        try:
            return self._runner.run(_next(self._inner))
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> "_TailProxy":
        self._runner.run(self._inner.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.run(self._inner.close())


class _BlockProxy(_Proxy):
    def __enter__(self) -> "_BlockProxy":
        self._runner.run(self._inner.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.run(self._inner.__aexit__(*error))


def _waiting(runner: asyncio.Runner, found: Any) -> Any:
    """Turn an asynchronous object into a synchronous one."""
    if isinstance(found, AsyncTail | AsyncRead | AsyncConsumer):
        return _TailProxy(runner, found)
    if isinstance(found, AsyncTransaction | AsyncSinkTask | AsyncProducer):
        return _BlockProxy(runner, found)
    if isinstance(found, AsyncDeadLetters):
        return _TailProxy(runner, found)
    if isinstance(found, AsyncStream | AsyncTopic | AsyncGroup | AsyncSink | AsyncAccess):
        return _Proxy(runner, found)
    if isinstance(found, AsyncWorker):
        return _WorkerProxy(runner, found)
    if isinstance(found, AsyncSubscriptions | AsyncWake):
        return _Proxy(runner, found)
    if inspect.iscoroutine(found):
        return _waiting(runner, runner.run(found))
    if inspect.isasyncgen(found):
        return _iterate(runner, found)
    if inspect.ismethod(found) or getattr(found, "__name__", "") == "decorate":
        return lambda *given, **named: _waiting(runner, found(*given, **named))
    return found


def _iterate(runner: asyncio.Runner, found: Any) -> Iterator[Any]:
    while True:
        try:
            yield runner.run(_next(found))
        except StopAsyncIteration:
            return


async def _next(found: Any) -> Any:
    return await anext(found)
