"""The table of refusals agrees with the outcomes, the client's errors and the documentation."""

import re
from pathlib import Path

import pytest

from semel.client import errors
from semel.model import (
    outcomes,
    outcomes_access,
    outcomes_groups,
    outcomes_subscriptions,
    outcomes_topics,
    outcomes_txn,
)
from semel.wire.problems import Entry
from semel.wire.refusal_table import ADVICE, BY_CODE, REFUSALS

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/errors.md"
OUTCOMES = {
    **vars(outcomes),
    **vars(outcomes_txn),
    **vars(outcomes_topics),
    **vars(outcomes_groups),
    **vars(outcomes_access),
    **vars(outcomes_subscriptions),
}


def rows() -> list[list[str]]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"
    ]


def test_every_refusal_of_the_engine_has_one_entry() -> None:
    refusals = {
        name
        for name, kind in OUTCOMES.items()
        if isinstance(kind, type)
        and issubclass(kind, outcomes.Refusal)
        and kind not in (outcomes.Refusal, outcomes_txn.StreamRefused)
    }
    assert sorted(entry.outcome for entry in REFUSALS if entry.outcome) == sorted(refusals)


@pytest.mark.parametrize("entry", REFUSALS, ids=lambda entry: entry.outcome or entry.code)
def test_an_entry_agrees_with_its_outcome_its_error_and_the_page(entry: Entry) -> None:
    if entry.outcome:
        assert OUTCOMES[entry.outcome].code == entry.code
        assert entry.message
        assert [f"`{entry.code}`", f"`{entry.outcome}`"] in [row[:2] for row in rows()]
    else:
        listed = [row for row in rows() if f"`{entry.code}`" in row[1]]
        assert [str(entry.status) in row[0] for row in listed] == [True]
    if entry.error:
        kind = getattr(errors, entry.error)
        assert issubclass(kind, errors.Refused)
        assert kind.advice
    assert not entry.advice or entry.error


def test_the_advice_of_an_error_is_that_of_its_own_code() -> None:
    given = [entry for entry in REFUSALS if entry.advice]
    assert len(given) == len(ADVICE) > 30
    for entry in given:
        kind = getattr(errors, entry.error)
        assert (kind.code, kind.advice) == (entry.code, entry.advice)


def test_the_first_entry_of_a_code_counts() -> None:
    fenced = [entry for entry in REFUSALS if entry.code == "PRODUCER_FENCED"]
    assert len(fenced) == 3
    assert BY_CODE["PRODUCER_FENCED"].outcome == "StaleEpoch"


def test_every_problem_the_server_makes_itself_has_the_status_of_its_entry() -> None:
    source = Path(errors.__file__).parents[1]
    made = re.compile(r"(?:Refused|Problem)\(\s*(\d+),\s*\"(\w+)\"|(bad_request)\(\s*\"(\w+)\"")
    found = {
        (int(status or 400), code or other)
        for folder in ("wire", "server")
        for path in (source / folder).glob("*.py")
        for status, code, _, other in made.findall(path.read_text(encoding="utf-8"))
    }
    assert len(found) > 20
    for status, code in found:
        assert BY_CODE[code].status == status, code


def test_advice_for_spark_names_the_sink() -> None:
    texts = [entry.spark for entry in REFUSALS if entry.spark]
    assert len(texts) == 3
    for text in texts:
        assert "app-1" in text.format(app="app-1", query_id="q")
