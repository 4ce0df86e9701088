"""Every row of the seeds names its test from outside, a replacement or a plan; faults are found."""

import pytest

from tests import rows
from tests.outside import is_outside
from tests.row_mutants.registry import MUTANTS
from tests.rows import Found, Named, Row

OUTSIDE = "tests/spec/test_producers.py::test_a_json_array_is_one_batch_and_one_sequence"
INSIDE = "tests/unit/machine/test_dense.py::test_10_the_next_sequence_is_accepted"


def complaints(page: list[Row], *named: tuple[str, str]) -> list[str]:
    return list(rows.complaints(page, Found([Named(*one) for one in named], [])))


def test_every_row_is_shown_from_outside_or_replaced_or_planned(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = rows.main([])
    printed = capsys.readouterr()
    assert (code, printed.err) == (0, "")
    assert "NO TEST" not in printed.out


def test_the_page_has_every_row_once_and_in_order() -> None:
    found = [row.id for row in rows.rows_of(rows.PAGE.read_text(encoding="utf-8"))]
    counts = {"D": 47, "P": 26, "U": 14, "R": 43, "C": 41, "X": 29, "K": 18}
    assert found == [
        f"{seed}{n:02d}" for seed, count in counts.items() for n in range(1, count + 1)
    ]


def test_no_row_is_only_planned() -> None:
    page = rows.rows_of(rows.PAGE.read_text(encoding="utf-8"))
    assert [row.id for row in page if row.note.startswith(rows.LATER)] == []


def test_every_seeded_bug_belongs_to_a_row_with_a_test() -> None:
    tests = {row.id: row.tests for row in rows.rows_of(rows.PAGE.read_text(encoding="utf-8"))}
    assert all(tests[row] for row in MUTANTS)


# ---- faults --------------------------------------------------------------------------------------


def test_a_kept_row_must_name_a_test_from_outside() -> None:
    assert complaints([Row("D98", "promise")], ("D98", OUTSIDE)) == [
        "D98 names neither a test from outside nor a replacement"
    ]
    assert complaints([Row("D98", "promise", "", (OUTSIDE,))], ("D98", OUTSIDE)) == []


def test_a_test_of_a_single_module_does_not_count() -> None:
    (complaint,) = complaints([Row("D98", "promise", "", (INSIDE,))], ("D98", INSIDE))
    assert complaint == f"D98 names {INSIDE}, which uses no real process"


def test_a_row_and_its_test_name_each_other() -> None:
    (complaint,) = complaints([Row("D98", "promise", "", (OUTSIDE,))])
    assert complaint == f"D98 names {OUTSIDE}, which does not exist or does not name D98"


def test_a_replaced_row_may_have_a_test_or_none() -> None:
    note = "replaced: by another, because"
    assert complaints([Row("D98", "promise", note)]) == []
    assert complaints([Row("D98", "promise", note, (OUTSIDE,))], ("D98", OUTSIDE)) == []


def test_a_planned_row_that_has_a_test_is_noticed() -> None:
    row = Row("D98", "promise", "planned: later")
    assert complaints([row]) == []
    assert complaints([row], ("D98", INSIDE)) == ["D98 is planned and has a test: drop the note"]


def test_a_note_of_another_kind_is_noticed() -> None:
    (complaint,) = complaints([Row("D98", "promise", "not needed")])
    assert "neither 'replaced: ' nor 'planned: '" in complaint


def test_a_seeded_bug_without_a_test_is_noticed() -> None:
    row = next(iter(MUTANTS))
    assert complaints([Row(row, "promise", "replaced: by another")]) == [
        f"{row} has a seeded bug and no test that could find it"
    ]


def test_an_unknown_row_and_one_that_occurs_twice_are_reported() -> None:
    assert complaints([], ("D99", OUTSIDE)) == [f"{OUTSIDE} names the unknown row 'D99'"]
    row = Row("D98", "promise", "replaced: by another")
    assert complaints([row, row]) == ["D98 occurs twice"]


# ---- reading tests and pages ---------------------------------------------------------------------


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
    page = (
        "| id | promise | note | test |\n|---|---|---|---|\n"
        "| D01 | one | | `a.py::test_a`, `b.py::test_b` |\n| D02 | two | planned: x | |\n"
    )
    assert rows.rows_of(page) == [
        Row("D01", "one", "", ("a.py::test_a", "b.py::test_b")),
        Row("D02", "two", "planned: x"),
    ]


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        # by a fixture of conftest.py, by a helper, by a class, by a command, and by Spark
        (OUTSIDE, True),
        (f"{OUTSIDE}_", False),
        ("tests/crash/test_kill.py::test_nothing_acked_is_lost_doubled_or_torn_by_kills", True),
        ("tests/integration/test_pipeline_local.py::test_a_graph_forks_and_joins", True),
        ("tests/integration/test_semel_bench.py::test_an_unknown_benchmark_is_refused", True),
        ("tests/spark/test_sink.py::test_a_batch_without_rows_is_committed_too", True),
        # an engine in the process of the test, a simulation, a single module, no file
        (
            "tests/integration/test_engine.py::test_a_failed_write_stops_the_engine_and_answers_"
            "nobody",
            False,
        ),
        ("tests/sim/test_simulation.py::test_a_seeded_bug_is_caught", False),
        (INSIDE, False),
        ("tests/spec/test_nothing.py::test_a", False),
    ],
)
def test_a_test_from_outside_uses_a_real_process(test: str, expected: bool) -> None:
    assert is_outside(test) is expected
