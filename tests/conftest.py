"""What every test shares: hypothesis' profile, the gate for root, the stacks of one that hangs."""

import faulthandler
import os
import signal
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import settings

# No deadline: a busy machine is not a bug, and every test already has its own timeout.
settings.register_profile("semel", deadline=None, print_blob=True)
settings.load_profile("semel")

# A shell starts its background jobs deaf to Ctrl-C, and they would pass that on to the programs
# that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") is not None and os.geteuid() != 0:
        pytest.skip("needs the rights of root")


# A worker of xdist whose test runs out of time ends, and what it had to say is lost: the stacks
# are printed past its capture, a moment before.


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    stderr = item.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(max(settings.timeout - 1, 0.5), file=stderr)


def pytest_timeout_cancel_timer(item: pytest.Item) -> None:
    del item
    faulthandler.cancel_dump_traceback_later()
