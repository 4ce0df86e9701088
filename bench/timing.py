"""Timing calls inside the engine without changing it."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

Times = dict[str, list[float]]


@contextmanager
def timed(calls: dict[str, tuple[object, str]]) -> Iterator[Times]:
    """Collect the seconds each call takes; `calls` gives a label to an owner's attribute.

    A name the engine no longer has is left out: the whole is measured anyway.
    """
    times: Times = {}
    with ExitStack() as stack:
        for label, (owner, name) in calls.items():
            if hasattr(owner, name):
                times[label] = []
                call = _clocked(getattr(owner, name), times[label])
                stack.enter_context(mock.patch.object(owner, name, call))
        yield times


def _clocked(call: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    def clocked(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            seconds.append(time.perf_counter() - began)

    return clocked
