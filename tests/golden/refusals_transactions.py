"""Provokes the refusals of transactions, commits, groups and sinks, by plain HTTP.

A script has the name of the code it provokes (docs/reference/errors.md).
"""

from typing import Any, Final

from tests.golden.plain import (
    NUMBER_MAX,
    Scripts,
    append,
    begin,
    begin_task,
    call,
    commit,
    commit_version,
    create,
    dense,
    incarnation_of,
    inside,
    offset,
    post,
    set_group,
)
from tests.golden.recorder import Sender

script: Final = Scripts()


# ---- transactions --------------------------------------------------------------------------------


@script
def invalid_request(ask: Sender) -> None:
    for path in ("a", "b"):
        create(ask, path, body=b"0")
    begin(ask, "")
    begin(ask, "\xe4")
    begin(ask, "x" * 257)
    for more in ({"kind": "odd"}, {"timeout_ms": 0}, {"timeout_ms": 900_001}, {"streams": [""]}):
        begin(ask, "odd", **more)
    begin(ask, "odd", epoch=-1)
    begin(ask, "odd", epoch=NUMBER_MAX + 1)
    post(ask, "/v1/transactions", transaction_id="odd")
    post(ask, "/v1/transactions", transaction_id="odd", producer_id="p")
    sink = {"app": "app", "version": 0, "partition": 0}
    begin(ask, "odd", sink=sink)
    for more in ({"kind": "inline"}, {"timeout_ms": 5}):
        post(ask, "/v1/transactions", transaction_id="odd", sink=sink, **more)
    for app, version, partition in (("", 0, 0), ("x" * 257, 0, 0), ("a", -1, 0), ("a", 0, -1)):
        begin_task(ask, "odd", app, version, partition)


@script
def invalid_request_on_a_transaction(ask: Sender) -> None:
    begin(ask, "inline", implicit=True)
    call(ask, "inline", "fence")
    call(ask, "inline", "commit", producer_id="inline")
    call(ask, "inline", "streams", streams=[])
    call(ask, "inline", "offsets", group="g", offsets={})
    call(ask, "inline", "offsets", group="", offsets={"a": 0})
    call(ask, "inline", "offsets", group="g", offsets={"a": {"to": 0, "version": -1}})
    tag = dense("inline", 0, 0)
    append(ask, "a", **inside("inline"), **tag, stream_closed="true")
    append(ask, "a", **inside("inline"), idempotency_key="k")
    append(ask, "a", **inside("inline"))
    append(ask, "a", **inside("inline"), **tag, producer_cursor="c")
    append(ask, "a", **inside("inline", seq=0), **tag)
    call(ask, "inline", "abort")
    begin(ask, "staged", kind="staged", implicit=True)
    append(ask, "a", **inside("staged"))
    append(ask, "a", **inside("staged", seq=0), **dense("staged", 0, 0))
    append(ask, "a", **inside("staged", seq=0), stream_seq="1")
    append(ask, "a", **inside("staged", seq=0), if_match=0)
    call(ask, "staged", "abort")


@script
def invalid_request_in_a_commit(ask: Sender) -> None:
    commit(ask, "p", 0)
    post(ask, "/v1/commits", producer_id="p", appends=[{"stream": "a", "messages": ["x"]}])
    post(ask, "/v1/commits", appends=[{"stream": "a", "messages": ["x"]}])
    sink = {"app": "app", "query_id": "q", "version": 0}
    commit(ask, "p", 0, sink=sink)
    commit(ask, "p", -1, offsets={"g": {"a": 0}})
    commit(ask, "", 0, offsets={"g": {"a": 0}})
    commit(ask, "p", 0, transactions=[{"id": "t", "epoch": 1}, {"id": "t", "epoch": 1}])
    commit(ask, "p", 0, transactions=[{"id": "", "epoch": 1}])
    commit(ask, "p", 0, transactions=[{"id": "t", "epoch": -1}])
    commit(ask, "p", 0, offsets={"": {"a": 0}})
    begin(ask, "mover", "p", kind="staged")
    call(ask, "mover", "offsets", group="g", offsets={"a": 0})
    both: dict[str, Any] = {
        "offsets": {"g": {"a": 0}},
        "transactions": [{"id": "mover", "epoch": 1}],
    }
    commit(ask, "p", 0, **both)
    call(ask, "mover", "abort")
    for query_id, version in (("", 0), ("x" * 257, 0), ("q", -1)):
        commit_version(ask, "app", version, query_id)
    commit_version(ask, "app", 0, input="x" * 257)
    set_group(ask, "g")
    set_group(ask, "g", a={"to": 0, "version": -1})
    post(ask, "/v1/groups/g/snapshot", number=-1, ranges={}, hash="h")
    post(ask, "/v1/groups/g/snapshot", number=1, ranges={}, hash="x" * 257)
    post(ask, "/v1/sinks/app/rebind", query_id="", last_version=0)
    post(ask, "/v1/sinks/app/rebind", query_id="q", last_version=-2)


@script
def invalid_offset_in_a_document(ask: Sender) -> None:
    for wrong in ("x", -1, NUMBER_MAX + 1, "-1", "now"):
        set_group(ask, "g", a=wrong)
    set_group(ask, "g", a={"from": "x", "to": 0})
    set_group(ask, "g", a={"to": "x"})
    commit(ask, "p", 0, expects={"a": "x"})
    post(ask, "/v1/groups/g/snapshot", number=1, ranges={"a": step("i", -1)}, hash="h")


@script
def invalid_txn_id(ask: Sender) -> None:
    ask("GET", "/v1/transactions/never")
    for action in ("commit", "abort", "prepare"):
        call(ask, "never", action)
    call(ask, "never", "fence", operator=True)
    append(ask, "a", **inside("never"), **dense("p", 0, 0))
    begin(ask, "known")
    call(ask, "known", "commit", 2)
    ask("GET", "/v1/transactions/known?epoch=2")
    call(ask, "known", "commit")


@script
def invalid_txn_state(ask: Sender) -> None:
    call(ask, "known", "prepare")
    call(ask, "known", "streams", streams=["a"])
    call(ask, "known", "offsets", group="g", offsets={"a": 0})
    append(ask, "a", **inside("known"), **dense("known", 0, 0))
    begin(ask, "sealed", implicit=True)
    call(ask, "sealed", "prepare")
    begin(ask, "sealed")
    append(ask, "a", **inside("sealed"), **dense("sealed", 0, 0))
    call(ask, "sealed", "abort")
    append(ask, "a", **inside("sealed"), **dense("sealed", 0, 0))
    begin_task(ask, "task", "app", 0)
    call(ask, "task", "commit")
    call(ask, "task", "abort")
    begin(ask, "listed", "lister")
    commit(ask, "lister", 0, transactions=[{"id": "listed", "epoch": 1}])
    commit(ask, "known", 0, transactions=[{"id": "known", "epoch": 1}])


@script
def producer_fenced_in_a_transaction(ask: Sender) -> None:
    begin(ask, "known", implicit=True)
    call(ask, "known", "commit", 1)
    begin(ask, "newer")
    call(ask, "newer", "abort")
    begin(ask, "newer")
    call(ask, "newer", "prepare", 0)
    call(ask, "newer", "abort", 2, producer_id="thief", producer_epoch=0)
    call(ask, "newer", "abort", 2, producer_id="newer", producer_epoch=3)
    commit(ask, "thief", 0, transactions=[{"id": "newer", "epoch": 2}])
    call(ask, "newer", "abort", 2)
    call(ask, "known", "abort", 2)


@script
def transaction_timed_out(ask: Sender) -> None:
    begin(ask, "slow", implicit=True, timeout_ms=1)
    ask.recording.pause(0.02)
    call(ask, "slow", "commit")
    append(ask, "a", **inside("slow"), **dense("slow", 0, 0))
    call(ask, "slow", "prepare")


@script
def txn_aborted_and_txn_committed(ask: Sender) -> None:
    call(ask, "sealed", "commit")
    call(ask, "known", "abort", 1)
    call(ask, "known", "fence", 1, operator=True)


@script
def concurrent_transactions(ask: Sender) -> None:
    begin(ask, "first", "one")
    begin(ask, "second", "one")
    begin(ask, "first", "two")
    begin(ask, "first", "one", kind="staged")
    call(ask, "first", "abort")


@script
def too_many_transactions(ask: Sender) -> None:
    for number in range(6):
        begin(ask, f"many-{number}", "many", kind="staged")
    post(ask, "/v1/producers", producer_id="many")


@script
def partition_not_in_txn(ask: Sender) -> None:
    begin(ask, "strict", streams=["b"])
    append(ask, "a", **inside("strict"), **dense("strict", 0, 0))
    call(ask, "strict", "abort")


@script
def stream_in_transaction(ask: Sender) -> None:
    begin(ask, "holding", implicit=True)
    append(ask, "a", **inside("holding"), **dense("holding", 0, 0))
    append(ask, "a", stream_closed="true")
    ask("POST", "/v1/stream/a", b"", {"Stream-Closed": "true"})
    ask("PATCH", "/v1/stream/a", headers={"Stream-Dedup": "off"})
    ask("DELETE", "/v1/producers?stream=a&id=holding")


@script
def offset_unstable(ask: Sender) -> None:
    ask("DELETE", f"/v1/stream/a?before={offset(2)}")
    source = {"Stream-Forked-From": "/v1/stream/a", "Stream-Fork-Offset": offset(2)}
    ask("PUT", "/v1/stream/fork", headers=source)
    call(ask, "holding", "abort")


@script
def producer_seq_conflict_in_a_transaction(ask: Sender) -> None:
    begin(ask, "gaps", implicit=True)
    append(ask, "a", **inside("gaps"), **dense("gaps", 0, 5))
    call(ask, "gaps", "abort")
    begin(ask, "chunks", kind="staged", implicit=True)
    append(ask, "a", **inside("chunks", seq=3))
    append(ask, "a", **inside("chunks", seq=0))
    append(ask, "a", b"other", **inside("chunks", seq=0), producer_strict="true")


@script
def stream_closed_under_a_transaction(ask: Sender) -> None:
    create(ask, "closing")
    append(ask, "closing", **inside("chunks", seq=1))
    ask("POST", "/v1/stream/closing", b"", {"Stream-Closed": "true"})
    call(ask, "chunks", "commit")
    append(ask, "closing", **inside("chunks", seq=2))


@script
def branch_incomplete(ask: Sender) -> None:
    call(ask, "chunks", "prepare", chunks=9)
    call(ask, "chunks", "prepare", messages={"a": 9, "closing": 1})
    call(ask, "chunks", "abort")
    begin_task(ask, "unprepared", "sink", 0)
    commit_version(ask, "sink", 0, transactions=[{"id": "unprepared", "epoch": 1}])


@script
def branch_missing(ask: Sender) -> None:
    commit_version(ask, "sink", 0, transactions=[{"id": "nothing", "epoch": 1}])


# ---- groups --------------------------------------------------------------------------------------


@script
def position_conflict(ask: Sender) -> None:
    read_from = {"from": 0, "to": 1, "version": 0, "incarnation": incarnation_of(ask, "b")}
    commit(ask, "mover", 0, offsets={"workers": {"b": read_from}})
    commit(ask, "other", 0, offsets={"workers": {"b": read_from}})
    commit(ask, "other", 0, offsets={"workers": {"b": {"from": 1, "to": 1, "version": 0}}})
    commit(ask, "other", 0, offsets={"workers": {"b": 1}})
    another = {"to": 1, "incarnation": "0123456789abcdef"}
    commit(ask, "other", 0, offsets={"workers": {"b": another}})
    set_group(ask, "workers", b={"from": 0, "to": 1})
    begin(ask, "naming", "other")
    call(ask, "naming", "offsets", group="workers", offsets={"b": {"from": 1, "to": 1}})
    call(ask, "naming", "offsets", group="workers", offsets={"b": {"from": 0, "to": 0}})
    set_group(ask, "workers", b=0)
    call(ask, "naming", "prepare")
    call(ask, "naming", "commit")
    call(ask, "naming", "abort")
    create(ask, "ending")
    begin(ask, "naming", "other")
    call(ask, "naming", "offsets", 2, group="workers", offsets={"ending": 0})
    ask("DELETE", "/v1/stream/ending")
    call(ask, "naming", "commit", 2)
    call(ask, "naming", "abort", 2)


@script
def unstable_offsets(ask: Sender) -> None:
    begin(ask, "holder", implicit=True)
    call(ask, "holder", "offsets", group="held", offsets={"b": {"from": 0, "to": 1}})
    ask("GET", "/v1/groups/held/offsets?stable=true")
    ask("GET", "/v1/groups/held/offsets?stable=true&transaction=holder")
    call(ask, "holder", "prepare")
    ask("GET", "/v1/groups/held/offsets?stable=true&stream=b")
    set_group(ask, "held", b=0)
    commit(ask, "other", 0, offsets={"held": {"b": 0}})
    call(ask, "holder", "abort")


def step(incarnation: str, to: int = 1) -> dict[str, Any]:
    return {"incarnation": incarnation, "from": 0, "to": to}


@script
def snapshot_not_found(ask: Sender) -> None:
    ask("GET", "/v1/groups/pinned/snapshot")


@script
def snapshot_conflict(ask: Sender) -> None:
    ranges = {"b": step(incarnation_of(ask, "b"))}
    for number in (3, 5):
        post(ask, "/v1/groups/pinned/snapshot", number=number, ranges=ranges, hash="h")


@script
def incarnation_conflict(ask: Sender) -> None:
    ranges = {"b": step("0123456789abcdef")}
    post(ask, "/v1/groups/pinned/snapshot", number=4, ranges=ranges, hash="h")
    create(ask, "anew")
    begin_task(ask, "early", "sink", 0)
    append(ask, "anew", **inside("early", seq=0))
    call(ask, "early", "prepare")
    ask("DELETE", "/v1/stream/anew")
    commit_version(ask, "sink", 0, transactions=[{"id": "early", "epoch": 1}])
    create(ask, "anew")
    commit_version(ask, "sink", 0, transactions=[{"id": "early", "epoch": 1}])


# ---- sinks ---------------------------------------------------------------------------------------


@script
def unknown_sink(ask: Sender) -> None:
    ask("GET", "/v1/sinks/nobody")
    ask("DELETE", "/v1/sinks/nobody")
    post(ask, "/v1/sinks/nobody/rebind", query_id="q", last_version=0)


@script
def app_bound(ask: Sender) -> None:
    commit_version(ask, "bound", 0, input="i0")
    commit_version(ask, "bound", 1, "another", input="i1")


@script
def checkpoint_diverged(ask: Sender) -> None:
    commit_version(ask, "bound", 0, input="not i0")
    commit_version(ask, "bound", 1, input="i1", previous="not i0")


@script
def version_forgotten(ask: Sender) -> None:
    post(ask, "/v1/sinks/bound/rebind", query_id="r", last_version=7)
    commit_version(ask, "bound", 3, "r", input="i3")


@script
def not_the_owner_of_a_task(ask: Sender) -> None:
    begin_task(ask, "theirs", "other sink", 0)
    call(ask, "theirs", "prepare")
    commit_version(ask, "bound", 8, "r", transactions=[{"id": "theirs", "epoch": 1}])
