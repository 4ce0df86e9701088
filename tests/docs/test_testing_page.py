"""The page about testing lists all actions of the proxy and all findings of the checkers."""

import re
from pathlib import Path

from semel.testing import Action, check
from semel.testing.txn import check as txn_check

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/test-your-application.md"


def first_cells(heading: str) -> set[str]:
    """Return the code in the first column of the table with this heading."""
    table = PAGE.read_text(encoding="utf-8").partition(f"| {heading} |")[2].partition("\n\n")[0]
    cells = [row.split(" | ")[0] for row in table.splitlines()[2:]]
    return {name for cell in cells for name in re.findall(r"`([\w-]+)`", cell)}


def test_every_action_is_listed() -> None:
    assert first_cells("action") == {action.value for action in Action}


def test_every_violation_is_listed() -> None:
    source = Path(check.__file__).read_text(encoding="utf-8")
    assert first_cells("violation") == set(re.findall(r'Violation\(\s*"(\w+)"', source))


def test_every_anomaly_is_listed() -> None:
    folder = Path(txn_check.__file__).parent
    source = "".join(page.read_text(encoding="utf-8") for page in folder.glob("*.py"))
    named = set(re.findall(r'Anomaly\(\s*"([\w-]+)"', source))
    cycles = set(re.findall(r'"(G[\w-]+)"', source))
    assert first_cells("anomaly") == named | cycles
