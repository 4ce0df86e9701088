"""Writes and reads the golden files, and compares them with a new recording."""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.golden.exchanges import Entry

FOLDER: Final = Path(__file__).parent
_SHOWN_LINES_MAX: Final = 200
_SURROGATE: Final = re.compile("[\ud800-\udfff]")  # UTF-8 cannot encode these, so they are escaped


class Golden(NamedTuple):
    """Requests, responses and results of the client's calls, by section."""

    requests: Mapping[str, Sequence[Entry]]
    responses: Mapping[str, Sequence[Entry]]
    results: Mapping[str, Sequence[Entry]]


def load(folder: Path = FOLDER) -> Golden:
    """Read the golden files."""
    return Golden(
        *[
            json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
            for name in Golden._fields
        ]
    )


def write(golden: Golden, folder: Path = FOLDER) -> None:
    """Write the golden files so that a diff shows only the entries that have changed."""
    for name, sections in golden._asdict().items():
        parts = [
            f"{json.dumps(section)}: [\n" + ",\n".join(map(text_of, entries)) + "\n]"
            for section, entries in sections.items()
        ]
        text = "{\n" + ",\n".join(parts) + "\n}\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


def text_of(entry: Entry) -> str:
    """Format an entry: one line for each field, several lines for a long result."""
    lines = []
    for name, value in entry.items():
        shown = json.dumps(value, ensure_ascii=name == "bytes")
        if name == "returned" and len(shown) > 100:
            shown = json.dumps(value, ensure_ascii=False, indent=1).replace("\n", "\n  ")
        shown = _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", shown)
        lines.append(f"{json.dumps(name)}: {shown}")
    return " {" + ",\n  ".join(lines) + "}"


def differences(recorded: Sequence[Entry], live: Sequence[Entry]) -> str:
    """Compare entries; return a diff, or an empty string if they are equal."""
    if list(map(text_of, recorded)) == list(map(text_of, live)):
        return ""
    before, after = (
        [line for entry in entries for line in text_of(entry).splitlines()]
        for entries in (recorded, live)
    )
    lines = list(difflib.unified_diff(before, after, "recorded", "now", n=6, lineterm=""))
    hidden = len(lines) - _SHOWN_LINES_MAX
    more = [f"... and {hidden} more lines"] if hidden > 0 else []
    return "\n".join([*lines[:_SHOWN_LINES_MAX], *more])
