"""Fixtures: a real browser. Its tests are skipped, with the reason, only where it is missing."""

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Names of the hostile site. The browser resolves them to this machine, as a DNS server of the
# attacker would.
HOSTILE_NAME: Final = "evil.example"
_RESOLVE: Final = f"--host-resolver-rules=MAP {HOSTILE_NAME} 127.0.0.1"
_CALL_MS_MAX: Final = 120_000  # for a busy machine


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """Debian's chromium, driven by Playwright. Nothing is downloaded.

    Playwright keeps an event loop running in this thread. Tests of other modules need their own.
    """
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed: run `make chromium` as root on Debian")
    from playwright.sync_api import sync_playwright  # a failure, not a skip, if it is missing

    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        it = playwright.chromium.launch(executable_path=chromium, args=[_RESOLVE, *sandbox])
        yield it
        it.close()


@pytest.fixture
def page(browser: "Browser") -> "Iterator[Page]":
    """A tab of a fresh profile: nothing is cached."""
    context = browser.new_context()
    context.set_default_timeout(_CALL_MS_MAX)
    yield context.new_page()
    context.close()
