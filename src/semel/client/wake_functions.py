"""The functions of workers and receivers: which are possible, how they are called, their outputs.

The lease of a wake is renewed while its function runs. So with asyncio, a function that is not a
coroutine function is called in a thread: in the event loop, it would stop the renewals.
"""

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from semel.client.processing import Outputs
from semel.client.subscription_values import WakeBatch

SyncWakeOutputs: TypeAlias = Outputs | None
AsyncWakeOutputs: TypeAlias = Outputs | Awaitable[Outputs | None] | None
SyncWakeFunction = Callable[[WakeBatch], SyncWakeOutputs]
AsyncWakeFunction = Callable[[WakeBatch], AsyncWakeOutputs]
# A function that has passed the checks, as it is called.
SyncWakeCall = SyncWakeFunction
AsyncWakeCall = Callable[[WakeBatch], Awaitable[Outputs | None]]

_RESULT = "None, or a mapping from output streams to lists of values, such as {'out': [1, 2]}"


def sync_wake_call(function: SyncWakeFunction) -> SyncWakeCall:
    """Return the function that is called for a batch of the sync client.

    Raises TypeError if a call of `function` cannot return outputs.
    """
    _check(function)
    if _is_coroutine_function(function):
        raise TypeError(
            f"{_name(function)} is a coroutine function; use it with an AsyncClient, or define it"
            " with `def`"
        )
    return function


def async_wake_call(function: AsyncWakeFunction, threads: int = 1) -> AsyncWakeCall:
    """Return the coroutine function that is called for a batch of an AsyncClient.

    It calls `function` in one of so many threads, unless that is a coroutine function. They are its
    own threads: those of the event loop are also used to look up names. Raises TypeError if a call
    of `function` cannot return outputs.
    """
    _check(function)
    if _is_coroutine_function(function):
        return function  # type: ignore[return-value]
    executor = ThreadPoolExecutor(threads, thread_name_prefix="semel-function")

    async def call(batch: WakeBatch) -> Outputs | None:
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        outputs = await loop.run_in_executor(executor, context.run, function, batch)
        return await outputs if isinstance(outputs, Awaitable) else outputs

    return call


def check_wake_outputs(outputs: Any) -> Outputs:
    """Return the outputs of a function, with lists of values. Raises what their iterators raise.

    Raises TypeError if they are not a mapping.
    """
    if outputs is None:
        return {}
    if not isinstance(outputs, Mapping):
        raise TypeError(
            f"the function of a worker returned a {type(outputs).__name__}; expected {_RESULT}"
        )
    return {
        stream: list(values) if isinstance(values, Iterator) else values
        for stream, values in outputs.items()
    }


def _check(function: object) -> None:
    """Raise TypeError if the object is not a function that can return outputs."""
    if not callable(function):
        raise TypeError(f"a worker needs a function, not {type(function).__name__}")
    if any(
        is_kind(each)
        for is_kind in (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
        for each in _calls(function)
    ):
        raise TypeError(f"{_name(function)} is a generator function; return {_RESULT}")


def _is_coroutine_function(function: object) -> bool:
    return any(inspect.iscoroutinefunction(each) for each in _calls(function))


def _calls(function: object) -> tuple[object, object]:
    """Return a function, and the method that is called if it is an object."""
    return function, getattr(function, "__call__", None)  # noqa: B004


def _name(function: object) -> str:
    return str(getattr(function, "__qualname__", None) or function)
