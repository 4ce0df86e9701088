"""Fixtures: one zygote per worker, directories to damage, and figures to print at the end."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash.directory import copy, quick_directory
from tests.crash.old_directories import OldDirectory, unpack
from tests.crash.process import Zygote
from tests.crash.script import Built, build

Report = Callable[[str], None]
_FIGURES = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    it = Zygote()
    yield it
    it.close()


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    with quick_directory() as path:
        path.chmod(0o755)  # some tests start a server without the rights of root
        yield path


@pytest.fixture(scope="module")
def originals(zygote: Zygote, directory: Path) -> dict[str, Built]:
    return {
        state: build(zygote, directory / state, is_closed=state == "closed")
        for state in ("closed", "killed")
    }


@pytest.fixture
def trial(originals: dict[str, Built], directory: Path) -> Callable[[str], Path]:
    """Return a function that copies one of the two directories; the test damages the copy."""
    return lambda state: copy(originals[state].path, directory / "trial")


@pytest.fixture
def old(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OldDirectory]:
    """Return a copy of the directory that the module names with `BEFORE`."""
    directory = OldDirectory(unpack(request.module.BEFORE, tmp_path))
    yield directory
    directory.close()


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
