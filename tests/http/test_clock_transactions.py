"""Transactions when the clock is moved: by a day, a week and a year."""

from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from semel.model.limits import HOUR_MS, OUTCOME_HOURS
from tests.http.harness import Answer, eventually
from tests.http.test_clock import AT_1970, AT_2026, AT_2099, Bed, a_bed

DAY_MS: Final = 24 * HOUR_MS
YEAR_MS: Final = 365 * DAY_MS


def call(bed: Bed, method: str, target: str, document: Any = None) -> Answer:
    body = b"" if document is None else msgspec.json.encode(document)
    return bed.call(method, target, body, content_type="application/json")


def begin(bed: Bed, name: str, **more: Any) -> Answer:
    owner = {"producer_id": f"p-{name}", "producer_epoch": 0} if "sink" not in more else {}
    return call(bed, "POST", "transactions", {"transaction_id": name, **owner, **more})


def decide(bed: Bed, name: str, action: str, **more: Any) -> Answer:
    owner = {"producer_id": f"p-{name}", "producer_epoch": 0}
    document = {"transaction_epoch": 1, **owner, **more}
    return call(bed, "POST", f"transactions/{name}/{action}", document)


def begin_branch(bed: Bed, name: str, version: int) -> None:
    sink = {"app": "app", "version": version, "partition": 0}
    assert begin(bed, name, kind="staged", sink=sink).status == 201


def stage(bed: Bed, name: str, body: bytes, seq: int) -> Answer:
    tag = {"transaction_id": name, "transaction_epoch": 1, "transaction_seq": seq}
    return bed.append("s", body, **tag)


def seal(bed: Bed, name: str) -> Answer:
    return call(bed, "POST", f"transactions/{name}/prepare", {"transaction_epoch": 1})


def commit_version(bed: Bed, version: int, name: str) -> Answer:
    tag = {"app": "app", "query_id": "q", "version": version}
    listed = [{"id": name, "epoch": 1}]
    return call(bed, "POST", "commits", {"sink": tag, "transactions": listed})


def undecided(bed: Bed) -> list[str]:
    listed = call(bed, "GET", "transactions").json["transactions"]
    return [each["transaction_id"] for each in listed]


def status(bed: Bed, name: str) -> Any:
    return call(bed, "GET", f"transactions/{name}").json


def test_what_a_sink_left_for_a_day_is_reaped_by_itself(tmp_path: Path) -> None:
    with a_bed(tmp_path, AT_2026) as bed:
        bed.ask("PUT", "s", content_type="text/plain")
        for name in ("left", "sealed", "touched"):
            begin_branch(bed, name, 1)
            assert stage(bed, name, name.encode(), 0).status == 200
        assert seal(bed, "sealed").status == 200
        bed.clock.let_pass(DAY_MS - 1)
        assert stage(bed, "touched", b"!", 1).status == 200
        assert undecided(bed) == ["left", "sealed", "touched"]
        bed.clock.let_pass(1)
        assert eventually(lambda: undecided(bed) == ["touched"]), "not reaped by itself"
        for name in ("left", "sealed"):
            found = status(bed, name)
            assert (found["state"], found["reason"]) == ("aborted", "reaped")
            refused = commit_version(bed, 1, name)
            assert (refused.status, refused.json["code"]) == (409, "branch_missing")
        late = stage(bed, "left", b"late", 1)
        assert (late.status, late.json["code"]) == (409, "INVALID_TXN_STATE")
    with a_bed(tmp_path, AT_2026 + DAY_MS) as bed:
        assert undecided(bed) == ["touched"]
        assert status(bed, "sealed")["reason"] == "reaped"
        assert seal(bed, "touched").status == 200
        assert commit_version(bed, 1, "touched").status == 200
        assert bed.ask("GET", "s?isolation=read_committed").body == b"touched!"


def test_what_a_sink_left_is_reaped_a_day_after_a_restart(tmp_path: Path) -> None:
    """The new process does not know whether a day has passed, or the clock is wrong."""
    with a_bed(tmp_path, AT_2026) as bed:
        bed.ask("PUT", "s", content_type="text/plain")
        begin_branch(bed, "left", 1)
        stage(bed, "left", b"x", 0)
        seal(bed, "left")
    with a_bed(tmp_path, AT_2026 + DAY_MS) as bed:
        bed.clock.let_pass(DAY_MS - 1)
        assert undecided(bed) == ["left"]
        bed.clock.let_pass(1)
        refused = commit_version(bed, 1, "left")
        assert (refused.status, refused.json["code"]) == (409, "branch_missing")
        assert bed.ask("GET", "s").body == b""


def test_a_prepared_transaction_of_a_producer_waits_for_a_year(tmp_path: Path) -> None:
    with a_bed(tmp_path, AT_2026) as bed:
        bed.ask("PUT", "s", content_type="text/plain")
        begin(bed, "t", kind="staged", streams=["s"])
        stage(bed, "t", b"x", 0)
        assert decide(bed, "t", "prepare").status == 200
        bed.clock.let_pass(YEAR_MS)
        assert undecided(bed) == ["t"]
    with a_bed(tmp_path, AT_2026 + 2 * YEAR_MS) as bed:
        assert decide(bed, "t", "commit").status == 200
        assert bed.ask("GET", "s").body == b"x"


def test_what_comes_back_after_a_year_is_applied_by_nobody_twice(tmp_path: Path) -> None:
    producer = {"producer_id": "p-t", "producer_epoch": 0, "producer_seq": 0}
    inside = {**producer, "transaction_id": "t", "transaction_epoch": 1}
    one_shot = {**producer, "producer_id": "one", "appends": [{"stream": "s", "messages": ["1"]}]}
    with a_bed(tmp_path, AT_2026) as bed:
        bed.ask("PUT", "s", content_type="text/plain")
        bed.append("s", b"0", producer_id="plain", producer_epoch=0, producer_seq=0)
        first = call(bed, "POST", "commits", one_shot)
        assert first.status == 200
        begin(bed, "t", streams=["s"])
        assert bed.append("s", b"2", **inside).status == 200
        assert decide(bed, "t", "commit").status == 200
    with a_bed(tmp_path, AT_2026 + YEAR_MS) as bed:
        plain = bed.append("s", b"0", producer_id="plain", producer_epoch=0, producer_seq=0)
        assert plain.status == 204
        again = call(bed, "POST", "commits", one_shot)
        assert again.json == {**first.json, "duplicate": True}
        assert bed.append("s", b"2", **inside).status == 409
        assert decide(bed, "t", "commit").json["duplicate"]
        assert decide(bed, "t", "abort").status == 409
        bed.run_for(OUTCOME_HOURS + 1)
        for late in (
            bed.append("s", b"2", **inside),
            decide(bed, "t", "commit"),
            decide(bed, "t", "abort"),
        ):  # the outcome is forgotten after a week of operation
            assert (late.status, late.json["code"]) == (404, "INVALID_TXN_ID")
        assert bed.ask("GET", "s?isolation=read_committed").body == b"012"
        assert begin(bed, "t", streams=["s"]).json["transaction_epoch"] == 1


@pytest.mark.parametrize("wrong_ms", [AT_1970, AT_2099])
def test_a_clock_that_jumps_neither_ends_nor_keeps_a_transaction(
    tmp_path: Path, wrong_ms: int
) -> None:
    with a_bed(tmp_path, AT_2026) as bed:
        bed.ask("PUT", "s", content_type="text/plain")
        begin(bed, "t", streams=["s"], timeout_ms=60_000)
        bed.clock.time_ms = wrong_ms
        assert undecided(bed) == ["t"]
        bed.append("s", b"a frame with the wrong time")
        bed.clock.time_ms = AT_2026
        bed.clock.let_pass(59_999)
        assert undecided(bed) == ["t"]
        bed.clock.let_pass(1)
        late = decide(bed, "t", "commit")
        assert (late.status, late.json["code"]) == (409, "TRANSACTION_TIMED_OUT")
