"""Runs the terminal transcripts of the pages, and compares the output of each command.

A transcript is a `text` fence with lines that begin with `$ `. All transcripts of a page share one
server, which replaces the `semel serve` that they show. The output of curl may have more lines than
the transcript, but must have the lines of the transcript in the same order.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.test_docs import PAGES, ROOT, RUN_SECONDS_MAX, fences, name_of
from tests.spec.process import Server

SHOWN_PORT = "4437"

# A command prints these while it works; how many depends on the speed of the machine.
PROGRESS = re.compile(r"^reading [^:\n]+: .*\n", re.MULTILINE)


class Line(NamedTuple):
    command: str
    shown: list[str]


def transcript(text: str) -> list[Line]:
    """Return the commands of the transcripts of a page, each with the output shown."""
    found: list[Line] = []
    for fence in fences(text):
        if fence.info == "text" and fence.body.startswith("$ "):
            for line in fence.body.replace("\\\n", "").splitlines():
                if line.startswith("$ "):
                    found.append(Line(line[2:], []))
                elif line:
                    found[-1].shown.append(line)
    return found


def complaints(lines: list[Line], directory: Path) -> Iterator[str]:
    server = Server(directory / "data")
    try:
        for line in lines:
            told = answer_to(line.command, server, directory).replace(str(server.port), SHOWN_PORT)
            rest = iter(told.splitlines())
            is_right = (
                all(shown in rest for shown in line.shown)
                if line.command.startswith("curl")
                else line.shown == list(rest)
            )
            if not is_right:
                yield f"{line.command}\ntold {told!r}, not {line.shown}"
    finally:
        server.kill()


def answer_to(command: str, server: Server, directory: Path) -> str:
    if command.startswith("semel serve"):
        return server.access_line + server.greeting
    run = subprocess.run(
        ["bash", "-c", command.replace(f"localhost:{SHOWN_PORT}", f"127.0.0.1:{server.port}")],
        cwd=directory,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "SEMEL_URL": server.url,
            "SEMEL_CREDENTIALS": str(directory / "credentials.toml"),
            "NO_PROXY": "*",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if command.startswith("curl") else subprocess.STDOUT,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    return PROGRESS.sub("", run.stdout)


OTHERS = ROOT / "docs/how-to/run-it-for-others.md"  # run by test_others_page.py
OFF = "access is off: everybody who can connect may read and change everything"
TRANSCRIPTS = {
    page: transcript(page.read_text(encoding="utf-8")) for page in PAGES if page != OTHERS
}


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(
    "page", [page for page, lines in TRANSCRIPTS.items() if lines], ids=name_of
)
def test_every_transcript_happens(page: Path, tmp_path: Path) -> None:
    assert list(complaints(TRANSCRIPTS[page], tmp_path)) == []


def test_there_are_transcripts_at_all() -> None:
    assert {name_of(page) for page, lines in TRANSCRIPTS.items() if lines} >= {
        "README.md",
        "docs/reference/cli.md",
        "docs/reference/http.md",
    }


@pytest.mark.parametrize(
    ("command", "shown", "is_right"),
    [
        ("semel ls", [], True),
        ("semel ls", ["orders"], False),
        ("semel nothing", [], False),
        ("semel serve", [OFF, "listening on http://127.0.0.1:4437"], True),
        ("semel serve", [OFF, "listening on http://127.0.0.1:80"], False),
        ("semel serve", ["listening on http://127.0.0.1:4437"], False),
    ],
)
def test_an_answer_that_is_not_as_shown_is_noticed(
    command: str, shown: list[str], is_right: bool, tmp_path: Path
) -> None:
    assert (list(complaints([Line(command, shown)], tmp_path)) == []) is is_right


def test_commands_may_take_several_lines() -> None:
    page = "```text\n$ semel ls \\\n  --json\na\n\nb\n$ semel doctor\n```\n```text\nno\n```\n"
    assert transcript(page) == [Line("semel ls   --json", ["a", "b"]), Line("semel doctor", [])]
