"""Processes that tests fork from one process, which has already imported what they need."""

import multiprocessing
from multiprocessing.context import ForkServerContext
from typing import Final

_IMPORTED: Final = (
    "__main__",
    "tests.sharing.client_workers",
    "tests.sharing.raw_workers",
    "tests.wakes.dying",
    "tests.wakes.client_workers",
    "tests.wakes.pull_workers",
    "tests.wakes.webhook_workers",
)


def fork_context() -> ForkServerContext:
    """Return a context whose processes start fast.

    A process of the tests has only one process from which others are forked, so what that imports
    is the same for all tests.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_IMPORTED])
    return context
