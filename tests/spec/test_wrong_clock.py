"""A real server with a wrong clock: ten years ahead for one append, behind, or moved later."""

import time
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from tests.spec.clock_rig import BUSY_MS, MINUTE_MS, TEN_YEARS_MS, Machine, eventually
from tests.spec.process import ZERO, Server
from tests.spec.test_sinks import Sink
from tests.spec.txn_calls import Txn, begun, call, committed, fresh, refusal

SIX_MONTHS_MS: Final = TEN_YEARS_MS // 20
TIMEOUT_MS: Final = 2_000
ROUNDING_MS: Final = 5  # clocks are compared in whole milliseconds


def listed(machine: Machine, state: str) -> list[str]:
    answer = call(machine.server, "GET", f"/v1/transactions?state={state}")
    return [each["transaction_id"] for each in answer.json["transactions"]]


def demand_times_out(machine: Machine, txn: Txn, since: float) -> None:
    """Check that a transaction is aborted after its timeout, and not before."""
    txn.server = machine.server
    assert eventually(lambda: txn.status().json["state"] == "aborted"), "it is never ended"
    assert (time.monotonic() - since) * 1000 >= TIMEOUT_MS - ROUNDING_MS, "it was ended early"
    assert txn.status().json["reason"] == "timeout"
    reader = machine.stream()
    assert "stream-blocked-since" not in committed(reader).headers
    assert b"inside" not in committed(reader).body
    assert reader.post(b"after,").status == 204
    assert committed(reader).body.endswith(b"after,"), "committed readers still wait"


def open_one(machine: Machine, **more: Any) -> Txn:
    """Begin a transaction and append in it."""
    txn = begun(machine.stream(), **{"timeout_ms": TIMEOUT_MS, **more})
    assert txn.post(machine.stream(), b"inside,").status == 200
    return txn


# ---- what a retry finds --------------------------------------------------------------------------


@pytest.mark.parametrize("has_restart", [False, True])
def test_a_clock_that_jumps_ahead_forgets_no_idempotency_key(
    machine: Machine, has_restart: bool
) -> None:
    stream = machine.stream()
    first = stream.post(b"once,", idempotency_key="k")
    machine.set_clock(TEN_YEARS_MS)
    assert stream.post(b"ten years later,", idempotency_key="other").status == 204
    if has_restart:
        machine.restart()
    again = machine.stream().post(b"once,", idempotency_key="k")
    assert again.headers.get("idempotent-replayed") == "true"
    assert again.next_offset == first.next_offset
    assert machine.stream().text == "first,once,ten years later,"


@pytest.mark.parametrize("has_restart", [False, True])
def test_a_clock_that_jumps_ahead_forgets_no_outcome(machine: Machine, has_restart: bool) -> None:
    txn = open_one(machine, timeout_ms=MINUTE_MS)
    first = txn.commit()
    machine.set_clock(TEN_YEARS_MS)
    assert machine.stream().post(b"ten years later,").status == 204
    if has_restart:
        machine.restart()
        txn.server = machine.server
    again = txn.commit()
    assert (first.status, again.status) == (200, 200)
    assert again.json["streams"] == first.json["streams"]
    assert machine.stream().text == "first,inside,ten years later,"


# ---- one wrong time: the clock was wrong for one append ------------------------------------------


@pytest.mark.parametrize("has_restart", [False, True])
def test_after_one_wrong_time_transactions_still_time_out(
    machine: Machine, has_restart: bool
) -> None:
    machine.be_wrong_once(machine.stream())
    if has_restart:
        machine.restart()
    since = time.monotonic()
    txn = open_one(machine)
    demand_times_out(machine, txn, since)


def test_after_one_wrong_time_a_transaction_that_was_open_at_a_restart_times_out(
    machine: Machine,
) -> None:
    machine.be_wrong_once(machine.stream())
    txn = open_one(machine)
    since = time.monotonic()
    machine.restart()
    demand_times_out(machine, txn, since)


def test_each_chunk_renews_the_timeout_also_after_one_wrong_time(machine: Machine) -> None:
    machine.be_wrong_once(machine.stream())
    txn = begun(machine.stream(), kind="staged", timeout_ms=TIMEOUT_MS)
    for seq in range(3):  # together longer than the timeout
        machine.let_pass(TIMEOUT_MS * 2 // 3)
        assert txn.stage(machine.stream(), b"inside", seq).status == 200
    machine.let_pass(TIMEOUT_MS)
    late = txn.stage(machine.stream(), b"inside", 3)
    assert (late.status, late.code) == (409, "TRANSACTION_TIMED_OUT")


def test_after_one_wrong_time_the_dates_and_ages_of_a_transaction_are_true(
    machine: Machine,
) -> None:
    machine.be_wrong_once(machine.stream())
    txn = Txn(machine.server)
    answer = txn.begin(streams=["s"], timeout_ms=15 * MINUTE_MS)
    assert machine.is_near(answer.json["deadline"], machine.now_ms + 15 * MINUTE_MS)
    again = txn.begin(streams=["s"], timeout_ms=15 * MINUTE_MS)
    assert again.status == 200
    assert machine.is_near(again.json["deadline"], machine.now_ms + 15 * MINUTE_MS)
    move = {"s": {"from": ZERO, "to": machine.stream().tail}}
    assert txn.call("offsets", group="g", offsets=move).status == 200
    assert txn.post(machine.stream(), b"inside").status == 200
    began_ms = machine.now_ms
    machine.let_pass(5 * MINUTE_MS)

    shown = txn.status().json
    assert 5 * MINUTE_MS <= shown["age_ms"] < 5 * MINUTE_MS + BUSY_MS
    assert 5 * MINUTE_MS <= shown["idle_ms"] < 5 * MINUTE_MS + BUSY_MS
    assert machine.is_near(shown["begun_at"], began_ms)
    assert machine.is_near(shown["deadline"], began_ms + 15 * MINUTE_MS)
    pending = call(machine.server, "GET", "/v1/groups/g/offsets").json["pending"]["s"]
    assert machine.is_near(pending["deadline"], began_ms + 15 * MINUTE_MS)
    assert 9 * MINUTE_MS < pending["remaining_ms"] <= 10 * MINUTE_MS
    since = committed(machine.stream()).headers["stream-blocked-since"]
    assert machine.is_near(since, began_ms), since
    for name in ("oldest_transaction_seconds", "stable_lag_seconds"):
        assert 300 <= machine.metric(name) < 300 + BUSY_MS / 1000, name


def test_after_one_wrong_time_a_prepared_transaction_is_reported_as_stuck(machine: Machine) -> None:
    machine.be_wrong_once(machine.stream())
    txn = begun(machine.stream(), kind="staged")
    assert txn.call("prepare").status == 200
    machine.let_pass(14 * MINUTE_MS)
    assert listed(machine, "stuck") == []
    machine.let_pass(MINUTE_MS)
    assert listed(machine, "stuck") == [txn.id]
    machine.restart()
    assert listed(machine, "stuck") == [], "its true age is unknown now"
    machine.let_pass(15 * MINUTE_MS)
    assert listed(machine, "stuck") == [txn.id]


@pytest.mark.parametrize("has_restart", [False, True])
def test_after_one_wrong_time_streams_still_expire(machine: Machine, has_restart: bool) -> None:
    machine.be_wrong_once(machine.stream())
    if has_restart:
        machine.restart()
    since = time.monotonic()
    stream = machine.stream("short")
    stream.create(b"x", stream_ttl=2)
    assert eventually(lambda: stream.head().status == 404), "it never expires"
    assert (time.monotonic() - since) * 1000 >= 2_000 - ROUNDING_MS, "it expired early"


def test_a_stream_that_was_created_during_the_wrong_time_expires_by_the_right_clock(
    machine: Machine,
) -> None:
    machine.set_clock(TEN_YEARS_MS)
    sliding, dated = machine.stream("sliding"), machine.stream("dated")
    sliding.create(b"x", stream_ttl=2)
    date = datetime.fromtimestamp((machine.now_ms + MINUTE_MS) / 1000, UTC)
    dated.create(b"x", stream_expires_at=date.isoformat())
    machine.set_clock(0)
    assert eventually(lambda: sliding.head().status == 404)
    assert dated.head().status == 200
    machine.set_clock(TEN_YEARS_MS + MINUTE_MS)
    assert dated.head().status == 404


def test_an_idle_producer_still_expires_after_one_wrong_time(machine: Machine) -> None:
    machine.server.kill()
    machine.server = Server(machine.server.data, "--producer-idle-seconds", "600")
    stream = machine.stream()
    tag = {"producer_id": "p", "producer_epoch": 0}
    assert stream.post(b"0", **tag, producer_seq=0).status == 200
    machine.be_wrong_once(stream)
    sentinel = begun(stream, timeout_ms=1)
    assert eventually(lambda: sentinel.status().json["state"] == "aborted")
    assert stream.post(b"1", **tag, producer_seq=1).status == 200, "it expired early"
    machine.let_pass(10 * MINUTE_MS)

    def is_expired() -> bool:
        page = machine.server.ask("GET", "/v1/producers?stream=s&id=p").json
        return bool(page["producers"][0]["expired"])

    assert eventually(is_expired), "it never expires"
    late = stream.post(b"2", **tag, producer_seq=2)
    assert (late.status, late.code) == (409, "producer_state_expired")


def test_a_frame_time_ahead_of_the_clock_is_reported(machine: Machine) -> None:
    assert machine.metric("clock_ahead_seconds") == 0
    machine.be_wrong_once(machine.stream())
    ahead = machine.metric("clock_ahead_seconds")
    assert TEN_YEARS_MS - BUSY_MS < ahead * 1000 <= TEN_YEARS_MS
    assert eventually(lambda: machine.server.stderr.count("ahead of the clock") == 1)
    sentinel = begun(machine.stream(), timeout_ms=1)
    assert eventually(lambda: sentinel.status().json["state"] == "aborted")
    assert machine.server.stderr.count("ahead of the clock") == 1, "it is reported once"
    machine.restart()
    assert eventually(lambda: "ahead of the clock" in machine.server.stderr)


# ---- a clock that is behind, or that moves -------------------------------------------------------


def test_with_a_clock_ten_years_behind_transactions_time_out(machine: Machine) -> None:
    machine.set_clock(-TEN_YEARS_MS)
    since = time.monotonic()
    txn = open_one(machine)
    assert machine.is_near(txn.status().json["begun_at"], machine.now_ms)
    demand_times_out(machine, txn, since)


@pytest.mark.parametrize("offset_ms", [TEN_YEARS_MS, -TEN_YEARS_MS])
def test_a_clock_that_jumps_ends_nothing_early(machine: Machine, offset_ms: int) -> None:
    sliding = machine.stream("sliding")
    sliding.create(b"x", stream_ttl=3600)
    txn = open_one(machine, timeout_ms=15 * MINUTE_MS)
    machine.set_clock(offset_ms)
    sentinel = Txn(machine.server, fresh("other"))  # when it is ended, all timers have run
    assert sentinel.begin(streams=["s"], timeout_ms=1).status == 201
    assert eventually(lambda: sentinel.status().json["state"] == "aborted")
    shown = txn.status().json
    assert (shown["state"], shown["age_ms"] < BUSY_MS) == ("open", True), shown
    assert listed(machine, "stuck") == []
    assert machine.is_near(shown["deadline"], machine.now_ms + 15 * MINUTE_MS)
    assert sliding.head().status == 200
    assert machine.metric("oldest_transaction_seconds") < BUSY_MS / 1000
    assert txn.commit().status == 200


# rows: K18
@pytest.mark.crash
def test_a_sink_that_was_idle_for_months_has_its_last_version(machine: Machine) -> None:
    sink, stream = Sink(machine.server, "app"), machine.stream("out")
    stream.create()
    first = sink.commit(1, sink.filled(1, stream, b"a"), batch=1)
    for _ in range(2):
        machine.let_pass(SIX_MONTHS_MS)
        assert machine.stream().post(b"other,").status == 204
        shown = sink.look()
        assert (shown.status, shown.json.get("last_version")) == (200, 1)
        assert sink.commit(1, batch=1).json == {**first.json, "duplicate": True}
        machine.restart()
        sink.server = machine.server
    assert refusal(sink.commit(2, batch=2, previous="other")) == (409, "checkpoint_diverged")
    assert call(sink.server, "DELETE", "/v1/sinks/app").status == 204
    assert refusal(sink.look()) == (404, "unknown_sink")
