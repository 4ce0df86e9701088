"""Provokes the refusals of topics, and of groups whose members share work, by plain HTTP.

A script has the name of the code it provokes (docs/reference/errors.md).
"""

from typing import Any, Final

from tests.golden.exchanges import Response
from tests.golden.plain import (
    Scripts,
    append,
    begin,
    call,
    create,
    dense,
    fields,
    post,
    set_group,
)
from tests.golden.recorder import Sender

script: Final = Scripts()
_JSON: Final = {"Content-Type": "application/json"}


def topic(ask: Sender, name: str, partitions: int = 2, **more: Any) -> Response:
    return ask("PUT", f"/v1/topics/{name}", {"partitions": partitions, **more}, _JSON)


def change(ask: Sender, name: str, **members: Any) -> Response:
    return ask("PATCH", f"/v1/topics/{name}", members, _JSON)


def put_into(ask: Sender, name: str, **headers: Any) -> Response:
    """Append a message to a topic."""
    given = {"Content-Type": "text/plain", **fields(headers)}
    return ask("POST", f"/v1/topics/{name}", b"x", given)


def join(ask: Sender, group: str, **subscription: Any) -> str:
    """Join a group; return the id of the member."""
    found = post(ask, f"/v1/groups/{group}/members", **subscription)
    assert found.status == 201, found
    member: str = found.json["member"]
    return member


# ---- topics --------------------------------------------------------------------------------------


@script
def topic_not_found(ask: Sender) -> None:
    ask("GET", "/v1/topics/nowhere")
    put_into(ask, "nowhere")
    change(ask, "nowhere", closed=True)
    ask("DELETE", "/v1/topics/nowhere")
    post(ask, "/v1/groups/tg/members", topics=["nowhere"])


@script
def stream_exists(ask: Sender) -> None:
    create(ask, "tt/1")
    topic(ask, "tt")
    ask("DELETE", "/v1/stream/tt/1")
    topic(ask, "tt", content_type="text/plain")


@script
def topic_conflict(ask: Sender) -> None:
    topic(ask, "tt", 3, content_type="text/plain")
    topic(ask, "tt", content_type="text/plain", partitioner="murmur2")


@script
def is_topic(ask: Sender) -> None:
    ask("GET", "/v1/stream/tt?offset=-1")
    append(ask, "tt")
    post(ask, "/v1/groups/tg/members", streams=["tt"])


@script
def stream_in_topic(ask: Sender) -> None:
    ask("DELETE", "/v1/stream/tt/0")
    append(ask, "tt/0", stream_closed="true")
    ask("PATCH", "/v1/stream/tt/0", None, fields({"stream_dedup": "off"}))


@script
def partitions_changed(ask: Sender) -> None:
    put_into(ask, "tt", topic_partitions=3)
    put_into(ask, "tt", topic_partitions="2;partitioner=murmur2")


@script
def partition_not_found(ask: Sender) -> None:
    put_into(ask, "tt", stream_partition=2)


@script
def keys_would_move(ask: Sender) -> None:
    put_into(ask, "tt", message_key="k")
    change(ask, "tt", partitions=3)


@script
def too_few_partitions(ask: Sender) -> None:
    change(ask, "tt", partitions=1)


@script
def stale_leader(ask: Sender) -> None:
    put_into(ask, "tt", leader_epoch=999)


@script
def invalid_request_about_a_topic(ask: Sender) -> None:
    topic(ask, "bad", 0)
    topic(ask, "bad", partitioner="md5")
    topic(ask, "bad", ttl_seconds=-1)
    change(ask, "tt", partitions=3, dedup="on")
    change(ask, "tt", closed=False)


@script
def invalid_header_of_an_append_to_a_topic(ask: Sender) -> None:
    put_into(ask, "tt", message_key="k", message_key_pointer="/a")
    put_into(ask, "tt", message_key_pointer="a")
    put_into(ask, "tt", stream_partition="x")
    put_into(ask, "tt", stream_seq="1")
    put_into(ask, "tt", **dense("tp", 0, 5))


# ---- groups --------------------------------------------------------------------------------------


@script
def group_not_found(ask: Sender) -> None:
    ask("GET", "/v1/groups/nobody")
    ask("DELETE", "/v1/groups/nobody")


@script
def unknown_member(ask: Sender) -> None:
    post(ask, "/v1/groups/tg/members/nobody")
    ask("DELETE", "/v1/groups/tg/members/nobody")


@script
def illegal_generation(ask: Sender) -> None:
    create(ask, "shared", body=b"0")
    move: dict[str, Any] = {"offsets": {"shared": 0}, "member": "m-1", "epochs": {"shared": 1}}
    post(ask, "/v1/groups/tg/offsets", **move)
    begin(ask, "txn-tg")
    call(ask, "txn-tg", "offsets", group="tg", **move)
    call(ask, "txn-tg", "abort")


@script
def group_is_shared(ask: Sender) -> None:
    join(ask, "tg", streams=["shared"])
    set_group(ask, "tg", shared=0)
    set_group(ask, "th", shared=0)


@script
def group_in_use(ask: Sender) -> None:
    ask("DELETE", "/v1/groups/tg")


@script
def invalid_request_of_a_member(ask: Sender) -> None:
    post(ask, "/v1/groups/tg/members")
    post(ask, "/v1/groups/tg/members", streams=["shared"], session_timeout_ms=1)
    post(ask, "/v1/groups/tg/members", streams=["shared"], start="now")
    post(ask, "/v1/groups/tg/offsets", offsets={"shared": 0}, member="m")
