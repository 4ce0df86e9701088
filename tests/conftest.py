"""Setup for all tests: hypothesis profile, skipping of root tests, stacks of hanging tests."""

import faulthandler
import os
import signal
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import settings

# No deadline: a test may be slow on a busy machine, and pytest already limits its time.
settings.register_profile("semel", deadline=None, print_blob=True)
settings.load_profile("semel")

# A shell starts background jobs with SIGINT ignored. The programs that tests start and interrupt
# would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The contexts and the token of the user who runs the tests must not change their results. The
# programs that tests start inherit this.
os.environ["SEMEL_CREDENTIALS"] = "/nonexistent/semel/credentials.toml"
for _name in ("SEMEL_TOKEN", "SEMEL_CONTEXT"):
    os.environ.pop(_name, None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") is not None and os.geteuid() != 0:
        pytest.skip("needs root")


# When a test times out in an xdist worker, the worker exits and its captured output is lost. So
# the stacks are printed to the real stderr shortly before the timeout.


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    stderr = item.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(max(settings.timeout - 1, 0.5), file=stderr)


def pytest_timeout_cancel_timer(item: pytest.Item) -> None:
    del item
    faulthandler.cancel_dump_traceback_later()
