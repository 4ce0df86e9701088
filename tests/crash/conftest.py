"""A zygote for every worker, and the figures of the run where everybody sees them."""

import sys
from collections.abc import Callable, Iterator

import pytest

from tests.crash.process import Zygote

Report = Callable[[str], None]
_FIGURES = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    it = Zygote()
    yield it
    it.close()


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Report:
    """Note a line for the end of the run."""
    figures = request.config.stash.setdefault(_FIGURES, [])
    return figures.append


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for line in config.stash.get(_FIGURES, []):
        terminalreporter.write_line(line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of a parallel run has no summary of its own: it speaks up when it ends."""
    if not hasattr(session.config, "workerinput"):
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        for line in session.config.stash.get(_FIGURES, []):
            sys.stderr.write(f"\n{line}\n")
        sys.stderr.flush()
