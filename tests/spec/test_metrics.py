"""The metrics that the reference page lists one by one."""

import re
from pathlib import Path

import pytest

from tests.spec.process import Server, Stream
from tests.spec.test_transactions import figures
from tests.spec.txn_calls import begun, call

PAGE = Path(__file__).parents[2] / "docs/reference/http.md"
LISTED = re.findall(r"^\| `rivven_(\w+)` \| `semel_(\w+)` \| (\w+) \|", PAGE.read_text(), re.M)


# rows: R38
def test_every_metric_of_the_table_exists_with_its_type(server: Server) -> None:
    text = server.ask("GET", "/metrics").body.decode()
    names = {there for there, _, _ in LISTED}
    assert names == {
        *(
            f"transactions_{what}_total"
            for what in ("started", "committed", "aborted", "timed_out")
        ),
        *("transactions_active", "idempotent_producers_active", "idempotent_duplicates_total"),
    }
    for there, here, kind in LISTED:
        assert there == here
        assert f"# TYPE semel_{here} {kind}" in text
        assert re.search(rf"^semel_{here} \d", text, re.M)


# rows: R38
def test_every_metric_of_the_table_moves(server: Server, stream: Stream) -> None:
    def moved(name: str) -> float:
        return figures(server)[f"semel_{name}"] - before[f"semel_{name}"]

    stream.create()
    before = figures(server)
    txn = begun(stream)
    assert moved("transactions_started_total") == moved("transactions_active") == 1
    txn.post(stream, b"x")
    assert moved("idempotent_producers_active") == 1
    txn.post(stream, b"x", producer_seq=0)
    assert moved("idempotent_duplicates_total") == 1
    txn.commit()
    assert moved("transactions_committed_total") == 1
    assert moved("transactions_active") == 0
    stale = begun(stream)
    call(server, "POST", "/v1/producers", {"producer_id": stale.producer})
    assert moved("transactions_aborted_total") == 1
    late = begun(stream, timeout_ms=1)
    while late.status().json["state"] == "open":
        pass
    assert moved("transactions_timed_out_total") == 1
    assert moved("transactions_aborted_total") == 2
    for seq in (0, 0):
        appended = stream.post(b"y", producer_id="plain", producer_epoch=0, producer_seq=seq)
        assert appended.status in (200, 204)
    assert moved("idempotent_duplicates_total") == 2
    assert moved("idempotent_producers_active") == pytest.approx(2)
