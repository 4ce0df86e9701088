"""What every test shares: the hypothesis profile and the gate for tests that need root."""

import os
import signal

import pytest
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
