"""The calls on topics, and on groups whose members share work, by plain HTTP."""

from typing import Final

from tests.golden.plain import Scripts, batch, dense, fields, post
from tests.golden.recorder import Sender
from tests.golden.refusals_topics import change, join, topic

script: Final = Scripts()
_JSON: Final = {"Content-Type": "application/json"}


@script
def topics_are_created_and_listed(ask: Sender) -> None:
    topic(ask, "sales", content_type="application/json")
    topic(ask, "sales", content_type="application/json")
    topic(ask, "others", 1, partitioner="murmur2", ttl_seconds=3_600, dedup="off")
    ask("GET", "/v1/topics/sales")
    ask("HEAD", "/v1/topics/sales")
    ask("GET", "/v1/topics?prefix=sa&limit=1")
    ask("GET", "/v1/topics?limit=1&after=sa")


@script
def messages_go_to_partitions(ask: Sender) -> None:
    ask("POST", "/v1/topics/sales", [{"n": 1}], {**_JSON, "Message-Key": "k"})
    ask("POST", "/v1/topics/sales", [{"n": 1}], {**_JSON, "Message-Key*": "UTF-8''%C3%A4"})
    keyed = {**_JSON, "Message-Key-Pointer": "/n"}
    ask("POST", "/v1/topics/sales", [{"n": number} for number in range(5)], keyed)
    ask("POST", "/v1/topics/sales", [1, 2], {**_JSON, "Stream-Partition": "1"})
    ask("POST", "/v1/topics/sales", [1, 2], {**_JSON, "Topic-Partition-Hint": "8"})
    body = batch(b"application/json", [b"1", b"2"])
    ask("POST", "/v1/topics/sales", body, {"Content-Type": "application/vnd.semel.batch"})
    parts = b"SMT1\2\0\0\0"
    for place in (0, 1):
        parts += place.to_bytes(4, "little") + len(body).to_bytes(4, "little") + body
    form = "application/vnd.semel.topic-batch"
    grouped = {"Content-Type": form, "Topic-Partitions": "2;partitioner=crc32"}
    ask("POST", "/v1/topics/sales", parts, grouped)
    for _ in range(2):
        ask("POST", "/v1/topics/sales", [1], {**_JSON, **fields(dense("tp", 0, 0))})
        ask("POST", "/v1/topics/sales", [2], {**_JSON, "Idempotency-Key": "once"})
    ask("GET", "/v1/producers?stream=sales")
    ask("GET", "/v1/producers?stream=sales&id=tp")
    ask("GET", "/v1/producers/explain?stream=sales&id=tp&epoch=0&seq=0")


@script
def members_share_streams(ask: Sender) -> None:
    member = join(ask, "billing", topics=["sales"], instance="one", session_timeout_ms=60_000)
    target = f"/v1/groups/billing/members/{member}"
    post(ask, target)
    move = {"offsets": {"sales/0": 1}, "member": member, "epochs": {"sales/0": 1}}
    post(ask, "/v1/groups/billing/offsets", **move)
    post(ask, "/v1/groups/billing/offsets", offsets={"sales/0": 0}, operator=True)
    ask("GET", "/v1/groups?prefix=bill")
    ask("GET", "/v1/groups/billing")
    second = join(ask, "billing", topics=["sales"], session_timeout_ms=60_000)
    post(ask, target)
    post(ask, target, released=["sales/1"])
    post(ask, f"/v1/groups/billing/members/{second}")
    ask("DELETE", f"/v1/groups/billing/members/{second}")
    ask("DELETE", target)
    ask("DELETE", "/v1/groups/billing")


@script
def topics_grow_and_end(ask: Sender) -> None:
    change(ask, "sales", partitions=3, keys_may_move=True)
    change(ask, "sales", dedup="off")
    change(ask, "sales", closed=True)
    ask("DELETE", "/v1/topics/sales")
    ask("DELETE", "/v1/topics/others")
