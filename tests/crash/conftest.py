"""Fixtures: one zygote per worker, and figures that are printed at the end of the run."""

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
    """Return a function that adds a line to the output at the end of the run."""
    figures = request.config.stash.setdefault(_FIGURES, [])
    return figures.append


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for line in config.stash.get(_FIGURES, []):
        terminalreporter.write_line(line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Print the figures of an xdist worker, which has no terminal summary, to stderr."""
    if not hasattr(session.config, "workerinput"):
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        for line in session.config.stash.get(_FIGURES, []):
            sys.stderr.write(f"\n{line}\n")
        sys.stderr.flush()
