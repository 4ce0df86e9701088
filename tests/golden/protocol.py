"""Plain HTTP calls that succeed and that the public client does not make."""

from typing import Any, Final

from tests.golden.plain import (
    Scripts,
    append,
    begin,
    begin_task,
    call,
    commit,
    create,
    dense,
    fields,
    inside,
    offset,
    post,
    set_group,
)
from tests.golden.recorder import Sender

script: Final = Scripts()
_PADDED: Final = {"producer_epoch": "0" * 20, "producer_seq": "01"}
_RECEIPTS_KEPT: Final = 64
_RESULTS_KEPT: Final = 64


@script
def preflights_are_answered(ask: Sender) -> None:
    ask("OPTIONS", "/v1/stream/orders")
    ask("OPTIONS", "*")
    create(ask, "orders", "application/json")
    append(ask, "orders", b"[1]", "application/json")


@script
def streams_are_created(ask: Sender) -> None:
    create(ask, "orders", "application/json")
    create(ask, "closed", body=b"all", stream_closed="true")
    create(ask, "short", stream_ttl=60)
    create(ask, "dated", stream_expires_at="2100-01-02T03:04:05+01:00")
    ask("PUT", "/v1/stream/untyped")
    source = {"Stream-Forked-From": "/v1/stream/orders", "Stream-Fork-Offset": offset(1)}
    ask("PUT", "/v1/stream/fork", b"[7]", source)
    ask("HEAD", "/v1/stream/fork")
    ask("DELETE", "/v1/stream/untyped")


@script
def streams_are_read(ask: Sender) -> None:
    read = "/v1/stream/orders?offset=-1"
    append(ask, "orders", b"[2, 3]", "application/json")
    ask("GET", "/v1/stream/orders")
    found = ask("GET", read)
    for etag in (found.headers["etag"], f'"x", W/{found.headers["etag"]}', "*", '"x"', "x"):
        ask("GET", read, headers={"If-None-Match": etag})
    ask("GET", read, headers={"Accept": "application/vnd.semel.frames"})
    ask("GET", f"{read}&isolation=read_committed")
    ask("GET", "/v1/stream/orders?offset=now")
    ask("GET", f"/v1/stream/orders?offset={offset(2)}&unknown=1")
    ask("GET", "/v1/stream/closed?offset=-1")
    append(ask, "orders", b'["%s"]' % (b"long" * 300), "application/json")
    ask("GET", read, headers={"Accept-Encoding": "gzip"})


@script
def json_is_kept_as_it_is(ask: Sender) -> None:
    create(ask, "exact", "application/json")
    for body in (
        b' [ 1.50 , "\\ud800" , {"b":1, "a":[ ] } ] ',
        b"123456789012345678901234567890",
        b"[1e400, -0.0]",
        b"[[]]",
        b'"\xc3\xa4\\u00e4"',
        b"[" * 60 + b"]" * 60,
    ):
        append(ask, "exact", body, "application/json")
    ask("GET", "/v1/stream/exact?offset=-1")
    append(ask, "exact", b"1", "application/json; charset=utf-8", **dense("padded", 0, 0))
    append(ask, "exact", b"1", "application/json", producer_id="padded", **_PADDED)


@script
def streams_are_followed(ask: Sender) -> None:
    ask("GET", f"/v1/stream/orders?offset={offset(0)}&live=long-poll")
    ask("GET", "/v1/stream/orders?offset=now&live=long-poll")
    ask("GET", "/v1/stream/closed?offset=now&live=long-poll")
    ask("GET", "/v1/stream/closed?offset=-1&live=sse")
    create(ask, "lines", body=b"one\r\n two\n", stream_closed="true")
    ask("GET", "/v1/stream/lines?offset=-1&live=sse")
    create(ask, "binary", "application/octet-stream", b"\x00\xff", stream_closed="true")
    ask("GET", "/v1/stream/binary?offset=-1&live=sse")
    ask.follow("/v1/stream/orders?offset=-1&live=sse", 1)
    ask.follow("/v1/stream/orders?offset=now&live=sse&cursor=1", 1)


@script
def streams_are_listed(ask: Sender) -> None:
    ask("GET", "/v1/streams?limit=2")
    ask("GET", "/v1/streams?prefix=clo&after=&limit=1")
    ask("GET", "/v1/streams?after=zzz")
    ask("HEAD", "/v1/streams")
    ask("GET", "/health")


@script
def streams_are_trimmed_and_switched(ask: Sender) -> None:
    ask("DELETE", f"/v1/stream/orders?before={offset(1)}")
    ask("DELETE", "/v1/stream/orders?before=2")
    for state in ("off", "off", "on", "on"):
        ask("PATCH", "/v1/stream/orders", headers={"Stream-Dedup": state})
        ask("HEAD", "/v1/stream/orders")


@script
def producers_are_recognised(ask: Sender) -> None:
    create(ask, "made")
    append(ask, "made", b"0", **dense("p", 2, 0), producer_cursor="line 1")
    append(ask, "made", b"0", **dense("p", 2, 0))
    append(ask, "made", b"other", **dense("p", 2, 0))
    append(ask, "made", b"1", **dense("p", 2, 1), producer_strict="true", stream_closed="false")
    session = {"producer_id": "s", "producer_session": "one"}
    append(ask, "made", b"a", **session, producer_seq=0)
    append(ask, "made", b"a", **session, producer_seq=0)
    append(ask, "made", b"b", producer_id="s", producer_session="two", producer_seq=0)
    sparse = {"producer_id": "lines", "producer_mode": "sparse"}
    append(ask, "made", b"3-5", **sparse, producer_seq="3-5")
    append(ask, "made", b"3-5", **sparse, producer_seq="3-5")
    append(ask, "made", b"?", producer_mode="sparse", producer_seq=7)
    append(ask, "made", b"k", idempotency_key="k")
    append(ask, "made", b"k", idempotency_key="k")


@script
def a_receipt_is_no_longer_held(ask: Sender) -> None:
    for seq in range(_RECEIPTS_KEPT + 3):
        given = {"Content-Type": "text/plain", **fields(dense("many", 0, seq))}
        assert ask.unrecorded("POST", "/v1/stream/made", b"x", given).status == 200
    append(ask, "made", b"x", **dense("many", 0, 1))
    ask("GET", "/v1/producers/explain?stream=made&id=many&seq=1&epoch=0")


@script
def producers_of_the_older_dialect_are_recognised(ask: Sender) -> None:
    ask("POST", "/v1/stream/made/producer")
    append(ask, "made", b"0", x_producer_id="x", x_producer_seq=0)
    append(ask, "made", b"0", x_producer_id="x", x_producer_seq=0)
    append(ask, "made", b"1", x_producer_id="x", x_producer_seq=1, x_producer_epoch=1)


@script
def producers_without_recognition(ask: Sender) -> None:
    create(ask, "unguarded", stream_dedup="off")
    append(ask, "unguarded", b"0", **dense("p", 2, 5))
    append(ask, "unguarded", b"0", x_producer_id="x", x_producer_seq=9)
    append(ask, "unguarded", b"0", idempotency_key="k")
    ask("GET", "/v1/producers/explain?stream=unguarded&id=p&seq=0&epoch=0")


@script
def producers_are_looked_after(ask: Sender) -> None:
    ask("POST", "/v1/producers")
    post(ask, "/v1/producers")
    post(ask, "/v1/producers", producer_id="till")
    post(ask, "/v1/producers", producer_id="till")
    claim = {"stream": "made", "producer_id": "p"}
    for session in ("fresh", "fresh", "fresher"):
        post(ask, "/v1/producers/claim", **claim, session=session)
    post(ask, "/v1/producers/claim", stream="made", producer_id="l", session="1", mode="sparse")
    ask("GET", "/v1/producers?stream=made&limit=2")
    ask("GET", "/v1/producers?stream=made&after=many&limit=100")
    ask("GET", "/v1/producers?stream=made&id=p")
    ask("GET", "/v1/producers?id=till")
    ask("GET", "/v1/producers?id=nobody")
    ask("HEAD", "/v1/producers?id=till")
    ask("GET", "/v1/producers/explain?stream=made&id=s&seq=0&session=two")
    ask("GET", "/v1/producers/explain?stream=made&id=lines&seq=4-6&mode=sparse")
    ask("GET", "/v1/producers/explain?stream=made&id=p&seq=0&epoch=4")
    ask("GET", "/v1/producers/explain?stream=made&id=p&seq=0&epoch=9")
    ask("GET", "/v1/producers/explain?stream=made&id=p&seq=7&session=unheard")
    ask("DELETE", "/v1/producers?stream=made&id=p")


@script
def transactions_are_carried_out(ask: Sender) -> None:
    create(ask, "a")
    begin(ask, "t", "bank", streams=["a"], timeout_ms=50_000)
    begin(ask, "t", "bank", streams=["a"])
    call(ask, "t", "streams", streams=["a", "made"], producer_id="bank", producer_epoch=0)
    append(ask, "a", b"1", **inside("t"), **dense("bank", 0, 0))
    append(ask, "a", b"1", **inside("t"), **dense("bank", 0, 0))
    append(ask, "a", b"other", **inside("t"), **dense("bank", 0, 0))
    moves = {"a": {"from": 0, "to": 1, "version": 0}}
    call(ask, "t", "offsets", group="g", offsets=moves)
    ask("GET", "/v1/stream/a?offset=-1&isolation=read_committed")
    ask("GET", "/v1/stream/a?offset=-1&isolation=read_committed&live=long-poll")
    ask.follow("/v1/stream/a?offset=-1&isolation=read_committed&live=sse", 1)
    for query in ("", "?stream=a", "?stream=b", "?transaction=t"):
        ask("GET", f"/v1/groups/g/offsets{query}")
    call(ask, "t", "prepare", producer_id="bank", producer_epoch=0)
    call(ask, "t", "prepare")
    ask("GET", "/v1/groups/g/offsets")
    call(ask, "t", "commit", producer_id="bank", producer_epoch=0)
    call(ask, "t", "commit", operator=True)
    begin(ask, "t", "bank", implicit=True)
    append(ask, "a", b"2", **inside("t", 2), **dense("bank", 0, 1))
    call(ask, "t", "abort", 2)
    call(ask, "t", "abort", 2)
    ask("GET", "/v1/stream/a?offset=-1&isolation=read_committed")


@script
def staged_transactions_are_carried_out(ask: Sender) -> None:
    begin(ask, "staged", "bank", kind="staged", implicit=True)
    for body in (b"1", b"1", b"other"):
        append(ask, "a", body, **inside("staged", seq=0))
    append(ask, "made", b"2", **inside("staged", seq=1))
    call(ask, "staged", "prepare", chunks=2, messages={"a": 1, "made": 1})
    call(ask, "staged", "commit")


@script
def transactions_are_looked_at(ask: Sender) -> None:
    begin(ask, "one", streams=["a"])
    append(ask, "a", b"1", **inside("one"), **dense("one", 0, 0))
    begin(ask, "two", kind="staged", streams=["made"])
    call(ask, "two", "offsets", group="g", offsets={"made": 1})
    call(ask, "two", "prepare")
    begin_task(ask, "three", "app", 4, 2)
    for query in ("", "?state=open", "?state=prepared", "?state=stuck", "?stream=made", "?limit=1"):
        ask("GET", f"/v1/transactions{query}")
    ask("GET", "/v1/transactions?after=3&limit=1000")
    for name in ("one", "two", "three", "t", "t?epoch=1", "staged"):
        ask("GET", f"/v1/transactions/{name}")
    ask("HEAD", "/v1/transactions/one")
    call(ask, "one", "fence", operator=True)
    call(ask, "one", "fence", operator=True)
    ask("GET", "/v1/transactions/one")
    call(ask, "two", "abort", operator=True)
    call(ask, "three", "abort")
    begin(ask, "late", timeout_ms=1)
    ask.recording.pause(0.02)
    call(ask, "late", "abort")
    ask("GET", "/v1/transactions/late")


@script
def streams_are_deleted_under_a_transaction(ask: Sender) -> None:
    create(ask, "ending")
    begin(ask, "ended", streams=["a", "ending"])
    append(ask, "ending", b"1", **inside("ended"), **dense("ended", 0, 0))
    ask("DELETE", "/v1/stream/ending")
    ask("GET", "/v1/transactions/ended")
    call(ask, "ended", "commit")


@script
def commits_of_one_request(ask: Sender) -> None:
    create(ask, "values", "application/json")
    appends = [
        {"stream": "values", "messages": [{"b": 1, "a": [None]}, "ü"]},
        {"stream": "a", "messages": ["text", {"base64": "AP8="}]},
    ]
    moves = {"g": {"values": {"from": 0, "to": offset(1)}}, "h": {"values": 2}}
    parts: dict[str, Any] = {"appends": appends, "offsets": moves, "expects": {"values": 0}}
    for _ in range(2):
        commit(ask, "once", 0, **parts)
    commit(ask, "once", 0, appends=appends)
    for seq in range(1, _RESULTS_KEPT + 2):
        owner = {"producer_id": "once", "producer_epoch": 0, "producer_seq": seq}
        body = {**owner, "offsets": {"i": {"values": seq % 2}}}
        given = {"Content-Type": "application/json"}
        assert ask.unrecorded("POST", "/v1/commits", body, given).status == 200
    commit(ask, "once", 0, **parts)


@script
def groups_are_looked_after(ask: Sender) -> None:
    ask("GET", "/v1/groups/nobody/offsets")
    ask("HEAD", "/v1/groups/nobody/offsets")
    ask("GET", "/v1/groups/g/offsets?stable=true")
    set_group(ask, "g", values=0, a=offset(1))
    set_group(ask, "g", values={"from": 0, "to": 1, "version": 2})
    ask("GET", "/v1/groups/a%20group%2F%C3%BC/offsets")
    ask("GET", "/v1/groups/g/snapshot", headers={"Accept": "*/*"})


@script
def sinks_are_looked_after(ask: Sender) -> None:
    ask("GET", "/v1/sinks")
    sink = {"app": "app", "query_id": "q", "version": 0, "input": None, "previous": None}
    for _ in range(2):
        post(ask, "/v1/commits", sink=sink)
    ask("GET", "/v1/sinks/app")
    ask("HEAD", "/v1/sinks/app")
    post(ask, "/v1/sinks/app/rebind", query_id="r", last_version=-1)
    ask("DELETE", "/v1/sinks/app")
