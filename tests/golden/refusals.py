"""Provokes the refusals of streams and producers, by plain HTTP.

A script has the name of the code it provokes (docs/reference/errors.md).
"""

import struct
from typing import Any, Final

from tests.golden.plain import (
    NUMBER_MAX,
    Scripts,
    append,
    batch,
    begin,
    commit,
    create,
    dense,
    offset,
    post,
    set_group,
)
from tests.golden.recorder import Sender

script: Final = Scripts()


# ---- the stream ----------------------------------------------------------------------------------


@script
def stream_not_found(ask: Sender) -> None:
    nowhere = "/v1/stream/nowhere"
    for method in ("GET", "HEAD", "DELETE"):
        ask(method, nowhere)
    ask("GET", f"{nowhere}?offset=-1&live=long-poll")
    ask("GET", f"{nowhere}?offset=-1&live=sse")
    ask("DELETE", f"{nowhere}?before=0")
    ask("PATCH", nowhere, headers={"Stream-Dedup": "off"})
    append(ask, "nowhere")
    ask("POST", nowhere, b"", {"Stream-Closed": "true"})
    ask("PUT", "/v1/stream/fork", headers={"Stream-Forked-From": nowhere})
    post(ask, "/v1/producers/claim", stream="nowhere", producer_id="p", session="s")
    ask("GET", "/v1/producers?stream=nowhere")
    ask("GET", "/v1/producers/explain?stream=nowhere&id=p&seq=0")
    ask("DELETE", "/v1/producers?stream=nowhere&id=p")
    begin(ask, "lost", streams=["nowhere"])
    commit(ask, "p", 0, appends=[{"stream": "nowhere", "messages": [1]}])
    commit(ask, "p", 0, expects={"nowhere": 0})
    set_group(ask, "g", nowhere=0)
    part = {"incarnation": "i", "from": 0, "to": 0}
    post(ask, "/v1/groups/g/snapshot", number=1, ranges={"nowhere": part}, hash="h")


@script
def stream_gone(ask: Sender) -> None:
    create(ask, "gone", body=b"x")
    ask("PUT", "/v1/stream/heir", headers={"Stream-Forked-From": "/v1/stream/gone"})
    ask("DELETE", "/v1/stream/gone")
    for method in ("GET", "HEAD", "DELETE"):
        ask(method, "/v1/stream/gone")
    append(ask, "gone")
    create(ask, "gone")
    set_group(ask, "g", gone=0)


@script
def fork_source_gone(ask: Sender) -> None:
    ask("PUT", "/v1/stream/fork", headers={"Stream-Forked-From": "/v1/stream/gone"})


@script
def stream_closed(ask: Sender) -> None:
    create(ask, "closed", body=b"x", stream_closed="true")
    append(ask, "closed")
    append(ask, "closed", **dense("p", 0, 0))
    commit(ask, "p", 0, appends=[{"stream": "closed", "messages": ["x"]}])


@script
def config_conflict(ask: Sender) -> None:
    create(ask, "set", stream_ttl=60)
    create(ask, "set", "application/json", stream_ttl=60)
    create(ask, "set", stream_ttl=61)
    create(ask, "set", stream_expires_at="2100-01-01T00:00:00Z")
    create(ask, "set", stream_ttl=60, stream_closed="true")
    create(ask, "set", stream_ttl=60, stream_dedup="off")
    create(ask, "set", stream_ttl=60, stream_dedup="on")
    create(ask, "set", stream_ttl=60, stream_dedup="inherit")
    create(ask, "set", stream_ttl=60, stream_forked_from="/v1/stream/closed")


@script
def content_type_conflict(ask: Sender) -> None:
    create(ask, "texts")
    create(ask, "values", "application/json")
    append(ask, "texts", b"1", "application/json")
    append(ask, "values", b"x")
    append(ask, "values", batch(b"text/plain", [b"x"]), "application/vnd.semel.batch")


@script
def stream_seq_conflict(ask: Sender) -> None:
    append(ask, "texts", stream_seq="b")
    append(ask, "texts", stream_seq="a")


@script
def precondition_failed(ask: Sender) -> None:
    append(ask, "texts", if_match=f'"{offset(7)}"')
    append(ask, "texts", if_match="0")
    commit(ask, "p", 0, expects={"texts": offset(7)})


@script
def offset_beyond_tail(ask: Sender) -> None:
    for query in ("", "&live=long-poll", "&live=sse", "&isolation=read_committed"):
        ask("GET", f"/v1/stream/texts?offset={offset(70)}{query}")
    ask("DELETE", f"/v1/stream/texts?before={offset(70)}")
    source = {"Stream-Forked-From": "/v1/stream/texts", "Stream-Fork-Offset": offset(70)}
    ask("PUT", "/v1/stream/fork", headers=source)
    set_group(ask, "g", texts=70)
    commit(ask, "p", 0, offsets={"g": {"texts": 70}})


@script
def offset_trimmed(ask: Sender) -> None:
    append(ask, "texts")
    ask("DELETE", f"/v1/stream/texts?before={offset(1)}")
    for query in ("", "&live=long-poll", "&live=sse"):
        ask("GET", f"/v1/stream/texts?offset={offset(0)}{query}")
    source = {"Stream-Forked-From": "/v1/stream/texts", "Stream-Fork-Offset": offset(0)}
    ask("PUT", "/v1/stream/fork", headers=source)


@script
def sub_offset_invalid(ask: Sender) -> None:
    source = {"Stream-Forked-From": "/v1/stream/texts", "Stream-Fork-Offset": offset(1)}
    ask("PUT", "/v1/stream/fork", headers={**source, "Stream-Fork-Sub-Offset": 50})


@script
def bad_body(ask: Sender) -> None:
    for body in (b"{", b"[]", b"[1,]", b"1 2", b"\xff", b'{"a":1,}', b"[" * 100, b"nul"):
        append(ask, "values", body, "application/json")
    create(ask, "fresh", "application/json", b"{")
    kind = "application/vnd.semel.batch"
    good = batch(b"text/plain", [b"x"])
    wrong_extras = struct.pack("<4sHHI", b"SMB1", 1, 10, 1) + b"text/plain"
    wrong_extras += struct.pack("<II", 1, 4) + struct.pack("<I", 64) + b"x"
    for body in (b"SMB", b"XXXX" + good[4:], good[:-1], good + b"x", wrong_extras):
        append(ask, "texts", body, kind)
    append(ask, "texts", batch(b"text/plain", [b""]), kind)
    append(ask, "texts", batch(b"text/plain", []), kind)
    append(ask, "values", batch(b"application/json", [b"{"]), kind)
    for messages in ("no list", [], [1], [{"base64": "?"}], [{"base32": ""}], [""]):
        commit(ask, "p", 0, appends=[{"stream": "texts", "messages": messages}])
    commit(ask, "p", 0, appends=[{"stream": "values", "messages": []}])


# ---- the producer --------------------------------------------------------------------------------


@script
def producer_fenced(ask: Sender) -> None:
    append(ask, "texts", **dense("fenced", 5, 0))
    append(ask, "texts", **dense("fenced", 4, 0))
    append(ask, "texts", x_producer_id="fenced", x_producer_epoch=4, x_producer_seq=0)
    for _ in range(2):
        post(ask, "/v1/producers", producer_id="registered")
    append(ask, "texts", **dense("registered", 0, 0))
    begin(ask, "fenced", "registered", 0)
    commit(ask, "registered", 0, 0, offsets={"g": {"texts": 0}})
    ask("GET", "/v1/producers/explain?stream=texts&id=fenced&seq=0&epoch=1")


def in_session(session: str, seq: int) -> dict[str, Any]:
    return {"producer_id": "sessions", "producer_session": session, "producer_seq": seq}


@script
def stale_session(ask: Sender) -> None:
    append(ask, "texts", **in_session("one", 0))
    append(ask, "texts", **in_session("two", 0))
    append(ask, "texts", **in_session("one", 1))


@script
def session_unknown(ask: Sender) -> None:
    append(ask, "texts", **in_session("three", 4))


@script
def session_unknown_after_a_claim(ask: Sender) -> None:
    post(ask, "/v1/producers/claim", stream="texts", producer_id="fresh", session="one")
    append(ask, "texts", producer_id="fresh", producer_session="two", producer_seq=4)


@script
def session_conflict(ask: Sender) -> None:
    claimed: dict[str, Any] = {"producer_id": "claimed", "producer_epoch": 1, "producer_seq": 0}
    append(ask, "texts", **claimed, producer_session="one")
    append(ask, "texts", b"y", **claimed, producer_session="two")
    post(ask, "/v1/producers/claim", stream="texts", producer_id="sessions", session="two")


@script
def unknown_producer_id(ask: Sender) -> None:
    append(ask, "texts", **dense("4711", 0, 0))
    post(ask, "/v1/producers", producer_id="4711")
    post(ask, "/v1/producers/claim", stream="texts", producer_id="4711", session="s")
    begin(ask, "numbered", "4711")
    ask("DELETE", "/v1/producers?stream=texts&id=nobody")


@script
def policy_not_found(ask: Sender) -> None:
    ask("DELETE", "/v1/policies?prefix=none")


@script
def dedup_off(ask: Sender) -> None:
    create(ask, "unguarded", stream_dedup="off")
    post(ask, "/v1/producers/claim", stream="unguarded", producer_id="p", session="s")


@script
def producer_mode_conflict(ask: Sender) -> None:
    sparse: dict[str, Any] = {"producer_id": "lines", "producer_mode": "sparse"}
    append(ask, "texts", **sparse, producer_seq="3-5")
    append(ask, "texts", **dense("lines", 0, 6))
    post(ask, "/v1/producers/claim", stream="texts", producer_id="lines", session="s")


@script
def sequence_hole(ask: Sender) -> None:
    sparse: dict[str, Any] = {"producer_id": "lines", "producer_mode": "sparse"}
    append(ask, "texts", b"9", **sparse, producer_seq=9)
    append(ask, "texts", b"7", **sparse, producer_seq=7)


@script
def sequence_expired(ask: Sender) -> None:
    sparse: dict[str, Any] = {"producer_id": "gaps", "producer_mode": "sparse"}
    for seq in (10, *range(100, 101 + 64)):
        append(ask, "texts", b".", **sparse, producer_seq=seq)
    append(ask, "texts", b".", **sparse, producer_seq=99)


@script
def batch_overlap(ask: Sender) -> None:
    sparse: dict[str, Any] = {"producer_id": "lines", "producer_mode": "sparse"}
    append(ask, "texts", b"8-10", **sparse, producer_seq="8-10")


@script
def epoch_must_start_at_zero(ask: Sender) -> None:
    append(ask, "texts", **dense("fenced", 6, 3))
    commit(ask, "nobody", 3, offsets={"g": {"texts": 0}})


@script
def epoch_exhausted(ask: Sender) -> None:
    begin(ask, "last", "last", NUMBER_MAX)
    post(ask, "/v1/producers", producer_id="last")
    append(ask, "texts", **dense("last one", NUMBER_MAX, 0))
    append(ask, "texts", producer_id="last one", producer_session="s", producer_seq=0)


@script
def producer_seq_conflict(ask: Sender) -> None:
    append(ask, "texts", **dense("fenced", 5, 3))
    append(ask, "texts", x_producer_id="fenced", x_producer_epoch=5, x_producer_seq=3)
    commit(ask, "commits", 0, offsets={"g": {"texts": 0}})
    commit(ask, "commits", 2, offsets={"g": {"texts": 0}})


@script
def retired_producers(ask: Sender) -> None:
    session: dict[str, Any] = {"producer_id": "ends", "producer_session": "s"}
    append(ask, "texts", **session, producer_seq=0, producer_expires=60)
    append(ask, "texts", **session, producer_seq=1, producer_expires=59)
    row = {"producer_id": "ends", "stream": "texts"}
    entries = [{**row, "session": "t"}, {**row, "producer_epoch": 0}, {**row, "session": "s"}]
    post(ask, "/v1/producers/retire", producers=entries)
    append(ask, "texts", **session, producer_seq=1)
    post(ask, "/v1/producers/retire", producers=[row])


@script
def producer_restart_ambiguous(ask: Sender) -> None:
    for seq in (0, 1):
        append(ask, "texts", x_producer_id="bare", x_producer_seq=seq)
    append(ask, "texts", b"another", x_producer_id="bare", x_producer_seq=1)


@script
def payload_mismatch(ask: Sender) -> None:
    append(ask, "texts", b"another", **dense("fenced", 5, 0), producer_strict="true")


@script
def idempotency_key_reused(ask: Sender) -> None:
    append(ask, "texts", b"one", idempotency_key="key")
    append(ask, "texts", b"two", idempotency_key="key")
