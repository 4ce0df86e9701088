"""The codes of docs/reference/errors.md that are provoked, and why the others are not."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.golden.exchanges import Entry

PAGE: Final = Path(__file__).resolve().parents[2] / "docs/reference/errors.md"
_CODE: Final = re.compile(r'^\{(?:"error":\{)?"code":"(\w+)"')
_CAUSE: Final = re.compile(r'^\{"error":\{.*"cause":"(\w+)"')
# The codes of outcomes that are not refusals; no response contains them.
DONE: Final = frozenset({"ok", "duplicate"})

NOT_PROVOKED: Final[Mapping[str, str]] = {
    "directory_locked": "the server does not start",
    "disk_failed": "ends the process",
    "engine_stopped": "raised to callers of the engine, never sent",
    "error": "the name of a family of errors, none has it itself",
    "forbidden": "needs a token, which is random; tests/access provokes it",
    "internal_error": "only a bug provokes it",
    "invariant_broken": "only a bug provokes it, and it is never sent",
    "not_found": "no address leads there: what is not below /v1/stream/ is no_such_address",
    "overloaded": "more must wait for the disk than a test can send in time",
    "still_alive": "the server asks itself, no request does",
    "stream_refused": "never sent: the response is that of its cause",
}


def documented_codes(page: str) -> set[str]:
    """Return the codes of the page: the names in backticks in columns named `code`."""
    found: set[str] = set()
    for header, rows in _tables(page):
        if "code" not in header:
            continue
        column = header.index("code")
        for row in rows:
            found.update(re.findall(r"`(\w+)`", row[column]))
    return found - DONE


def _tables(page: str) -> Iterator[tuple[list[str], list[list[str]]]]:
    table: list[list[str]] = []
    for line in [*page.splitlines(), ""]:
        if line.startswith("|"):
            table.append([cell.strip() for cell in line.strip("|").split("|")])
        elif table:
            yield table[0], table[2:]
            table = []


def codes_in(responses: Mapping[str, Sequence[Entry]]) -> set[str]:
    """Return the codes of the recorded refusals."""
    bodies = [entry.get("body", "") for entries in responses.values() for entry in entries]
    found = [form.match(body) for body in bodies for form in (_CODE, _CAUSE)]
    return {each[1] for each in found if each is not None}
