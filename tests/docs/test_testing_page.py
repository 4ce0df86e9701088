"""The page about testing lists every action of the proxy and every violation of the checker."""

import re
from pathlib import Path

from semel.testing import Action, check

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/test-your-application.md"


def first_cells(heading: str) -> set[str]:
    """The code in the first column of the table that has this heading."""
    table = PAGE.read_text(encoding="utf-8").partition(f"| {heading} |")[2].partition("\n\n")[0]
    cells = [row.split(" | ")[0] for row in table.splitlines()[2:]]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_every_action_is_listed() -> None:
    assert first_cells("action") == {action.value for action in Action}


def test_every_violation_is_listed() -> None:
    source = Path(check.__file__).read_text(encoding="utf-8")
    assert first_cells("violation") == set(re.findall(r'Violation\(\s*"(\w+)"', source))
