"""Every row of the seeds has a test, a replacement or a plan, and a missing one is reported."""

import pytest

from tests import rows
from tests.rows import Found, Named, Row

TEST = "tests/test_a.py::test_a"


def complaints(page: list[Row], *named: str) -> list[str]:
    return list(rows.complaints(page, Found([Named(row, TEST) for row in named], [])))


def test_every_row_has_a_test_or_a_replacement(capsys: pytest.CaptureFixture[str]) -> None:
    code = rows.main()
    printed = capsys.readouterr()
    assert (code, printed.err) == (0, "")
    assert "NO TEST" not in printed.out


def test_the_page_has_every_row_once_and_in_order() -> None:
    found = [row.id for row in rows.rows_of(rows.PAGE.read_text(encoding="utf-8"))]
    counts = {"D": 44, "P": 26, "U": 14, "R": 43, "C": 41, "X": 29, "K": 18}
    assert found == [
        f"{seed}{n:02d}" for seed, count in counts.items() for n in range(1, count + 1)
    ]


def test_a_row_without_a_test_is_noticed() -> None:
    row = Row("D01", "promise", "")
    assert complaints([row]) == ["D01 has neither a test nor a replacement"]
    assert complaints([row], "D01") == []


def test_a_replaced_row_may_have_a_test_or_none() -> None:
    row = Row("D01", "promise", "replaced: by another, because")
    assert complaints([row]) == complaints([row], "D01") == []


def test_a_planned_row_that_has_a_test_is_noticed() -> None:
    row = Row("D01", "promise", "planned: later")
    assert complaints([row]) == []
    assert complaints([row], "D01") == ["D01 is planned and has a test: drop the note"]


def test_a_note_of_another_kind_is_noticed() -> None:
    (complaint,) = complaints([Row("D01", "promise", "not needed")], "D01")
    assert "neither 'replaced: ' nor 'planned: '" in complaint


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "PLANNED", {"Z": 4})


@pytest.mark.usefixtures("planned")
def test_an_unknown_row_is_noticed_and_one_of_a_planned_seed_is_not() -> None:
    assert complaints([], "Z04") == []
    assert complaints([], "D99") == [f"{TEST} names the unknown row 'D99'"]


@pytest.mark.usefixtures("planned")
def test_a_row_that_stands_twice_is_noticed() -> None:
    row = Row("D01", "promise", "")
    assert complaints([row, row], "D01") == ["D01 stands twice"]
    assert complaints([Row("Z04", "promise", "")], "Z04") == ["Z04 stands twice"]


SOURCE = """\
# rows: D01, U02
# rows: X03
@pytest.mark.crash
@pytest.mark.timeout(3)
def test_one() -> None: ...


class TestTwo:
    # rows: D02
    def test_two(self) -> None: ...


# rows: D03

def test_three() -> None: ...


# rows: D04
def no_test() -> None: ...
"""


def test_the_lines_above_a_test_are_its_rows_and_no_others() -> None:
    found = rows.named_in(SOURCE, "a.py")
    assert sorted(found.named) == [
        ("D01", "a.py::test_one"),
        ("D02", "a.py::test_two"),
        ("U02", "a.py::test_one"),
        ("X03", "a.py::test_one"),
    ]
    assert found.strays == [f"a.py:{line} names rows above no test" for line in (13, 18)]


def test_the_tables_of_a_page_are_read() -> None:
    page = "| id | promise | note |\n|---|---|---|\n| D01 | one | |\n| D02 | two | planned: x |\n"
    assert rows.rows_of(page) == [Row("D01", "one", ""), Row("D02", "two", "planned: x")]
