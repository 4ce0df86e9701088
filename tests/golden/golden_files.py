"""The golden files: written, read, and compared with what a run of today has recorded."""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.golden.exchanges import Entry

FOLDER: Final = Path(__file__).parent
_SHOWN_LINES_MAX: Final = 200
_SURROGATE: Final = re.compile("[\ud800-\udfff]")  # no file can hold one, but as an escape


class Golden(NamedTuple):
    """By section: requests, responses, and results of the client's calls."""

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
    """Write the golden files, in a form that shows a change of one entry as one."""
    for name, sections in golden._asdict().items():
        parts = [
            f"{json.dumps(section)}: [\n" + ",\n".join(map(text_of, entries)) + "\n]"
            for section, entries in sections.items()
        ]
        text = "{\n" + ",\n".join(parts) + "\n}\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


def text_of(entry: Entry) -> str:
    """Print an entry: one line for each of its fields, more for a result that is long."""
    lines = []
    for name, value in entry.items():
        shown = json.dumps(value, ensure_ascii=name == "bytes")
        if name == "returned" and len(shown) > 100:
            shown = json.dumps(value, ensure_ascii=False, indent=1).replace("\n", "\n  ")
        shown = _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", shown)
        lines.append(f"{json.dumps(name)}: {shown}")
    return " {" + ",\n  ".join(lines) + "}"


def differences(recorded: Sequence[Entry], live: Sequence[Entry]) -> str:
    """Compare entries; empty if they are equal, else a diff that names the steps."""
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
