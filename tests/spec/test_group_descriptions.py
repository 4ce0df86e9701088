"""Lists and descriptions of groups, their lag, their deletion, and their metrics."""

import re

import pytest

from tests.spec.process import Server, Stream, offset_of
from tests.spec.topic_calls import Member, Topic
from tests.spec.txn_calls import begun, call, fresh, refusal


@pytest.fixture
def topic(server: Server) -> Topic:
    return Topic(server).create(3)


@pytest.fixture
def group() -> str:
    return fresh("g")


def describe(server: Server, group: str) -> dict[str, object]:
    answer = server.ask("GET", f"/v1/groups/{group}")
    assert answer.status == 200, answer
    found: dict[str, object] = answer.json
    return found


def append_often(stream: Stream, count: int) -> None:
    """Append messages by requests of their own, which are sent together."""
    request = f"POST {stream.target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
    with stream.server.dial() as line:
        for _ in range(count // 100):
            line.sendall(100 * f"{request}Content-Length: 1\r\n\r\nx".encode())
            answered = b""
            while answered.count(b"HTTP/1.1 20") < 100:
                answered += line.recv(65_536)


def test_an_unknown_group_is_an_error(server: Server, group: str) -> None:
    target = f"/v1/groups/{group}"
    assert refusal(server.ask("GET", target)) == (404, "group_not_found")
    assert refusal(server.ask("DELETE", target)) == (404, "group_not_found")


def test_a_group_is_described(topic: Topic, group: str) -> None:
    topic.post([1, 2, 3], stream_partition=1)
    member = Member(topic.server, group, topics=[topic.name], instance="one")
    member.move(f"{topic.name}/1", 1)
    found = topic.server.ask("GET", f"/v1/groups/{group}").json
    (shown,) = found["members"]
    assert shown.pop("heard_ms_ago") >= 0
    assert shown == {
        "member": member.id,
        "instance": "one",
        "session_timeout_ms": 30_000,
        "streams": sorted(member.owned),
    }
    stream = found["streams"][1]
    assert stream.pop("lag_seconds") >= 0
    assert stream == {
        "stream": f"{topic.name}/1",
        "owner": member.id,
        "epoch": 1,
        "phase": "owned",
        "starts": 0,
        "position": offset_of(1),
        "version": 1,
        "end": offset_of(3),
        "lag": 2,
        "lag_bound": 2,
    }
    assert (found["lag"], found["lag_bound"], found["version"]) == (2, 2, 1)
    Member(topic.server, group, topics=[topic.name])
    phases = {each["phase"] for each in describe(topic.server, group)["streams"]}  # type: ignore[attr-defined]
    assert phases == {"owned", "revoking"}


def test_a_group_without_members_is_described(topic: Topic, group: str) -> None:
    server, path = topic.server, f"{topic.name}/0"
    topic.post([1, 2], stream_partition=0)
    call(server, "POST", f"/v1/groups/{group}/offsets", {"offsets": {path: 2}})
    found = server.ask("GET", f"/v1/groups/{group}").json
    assert (found["members"], found["lag"], found["lag_seconds"]) == ([], 0, 0.0)
    assert [each["phase"] for each in found["streams"]] == ["unshared"]
    assert found["streams"][0]["owner"] is None


def test_the_lag_leaves_out_what_nobody_reads(server: Server, group: str) -> None:
    """Control records and aborted messages take offsets, but are no messages."""
    stream = server.stream()
    stream.create(content_type="text/plain")
    for decision in ("commit", "abort", "commit"):
        txn = begun(stream)
        txn.post(stream, b"x")
        assert txn.call(decision).status == 200
    stream.post(b"y")
    call(server, "POST", f"/v1/groups/{group}/offsets", {"offsets": {stream.path: 0}})
    found = server.ask("GET", f"/v1/groups/{group}").json
    assert (found["lag"], found["lag_bound"]) == (3, 7)
    assert found["lag_seconds"] > 0
    call(server, "POST", f"/v1/groups/{group}/offsets", {"offsets": {stream.path: 2}})
    assert server.ask("GET", f"/v1/groups/{group}").json["lag"] == 2
    txn = begun(stream)
    txn.post(stream, b"x")
    pending = server.ask("GET", f"/v1/groups/{group}").json
    assert (pending["lag"], pending["lag_bound"]) == (2, 5), "only up to the stable offset"
    txn.abort()


def test_a_lag_that_takes_too_long_to_count_is_a_bound(server: Server, group: str) -> None:
    stream = server.stream()
    stream.create()
    txn = begun(stream)
    txn.post(stream, b"x")
    txn.commit()
    append_often(stream, 10_100)
    call(server, "POST", f"/v1/groups/{group}/offsets", {"offsets": {stream.path: 0}})
    found = server.ask("GET", f"/v1/groups/{group}").json
    assert (found["lag"], found["lag_bound"]) == (None, 10_102)
    assert found["lag_seconds"] > 0
    call(server, "POST", f"/v1/groups/{group}/offsets", {"offsets": {stream.path: 10_000}})
    assert server.ask("GET", f"/v1/groups/{group}").json["lag"] == 102


def test_groups_are_listed_in_pages(topic: Topic) -> None:
    server, prefix = topic.server, fresh("list")
    for name in ("b", "a"):
        document = {"offsets": {f"{topic.name}/0": 0}}
        call(server, "POST", f"/v1/groups/{prefix}-{name}/offsets", document)
    Member(server, f"{prefix}-c", topics=[topic.name])
    page = server.ask("GET", f"/v1/groups?prefix={prefix}&limit=2").json
    assert page == {
        "groups": [
            {"group": f"{prefix}-a", "members": 0, "streams": 1},
            {"group": f"{prefix}-b", "members": 0, "streams": 1},
        ],
        "next": f"{prefix}-b",
    }
    rest = server.ask("GET", f"/v1/groups?prefix={prefix}&after={page['next']}").json
    assert rest == {
        "groups": [{"group": f"{prefix}-c", "members": 1, "streams": 3}],
        "next": None,
    }


def test_a_group_in_use_is_not_deleted(topic: Topic, group: str) -> None:
    server = topic.server
    member = Member(server, group, topics=[topic.name])
    member.move(f"{topic.name}/0", 0)
    used = server.ask("DELETE", f"/v1/groups/{group}")
    assert refusal(used) == (409, "group_in_use")
    assert used.json["members"] == 1
    member.leave()
    assert server.ask("DELETE", f"/v1/groups/{group}").status == 204
    assert refusal(server.ask("GET", f"/v1/groups/{group}")) == (404, "group_not_found")
    again = Member(server, group, topics=[topic.name])
    assert set(again.epochs.values()) == {1}


def test_the_metrics_count_groups(topic: Topic) -> None:
    server = topic.server

    def figure(name: str) -> float:
        text = server.ask("GET", "/metrics").body.decode()
        found = re.search(rf"^semel_{name} (\S+)$", text, re.M)
        assert found is not None, name
        return float(found[1])

    names = (
        "topics",
        "groups",
        "group_members",
        "group_streams_owned",
        "group_rebalances_total",
        "group_members_expired_total",
    )
    before = {name: figure(name) for name in names}
    messages = [*range(1_000)]  # so that others, of which there can be many, lag less
    topic.post(messages, stream_partition=0)
    group = fresh('g"x"')
    member = Member(server, group.replace('"', "%22"), topics=[topic.name])
    after = {name: figure(name) - before[name] for name in names}
    assert after["groups"] == after["group_members"] == 1
    assert after["group_streams_owned"] == 3
    assert after["group_rebalances_total"] == 1
    escaped = re.escape(group.replace('"', '\\"'))
    assert figure(rf'group_lag_offsets\{{group="{escaped}"\}}') == len(messages)
    member.leave()
    short = Member(server, fresh("g"), topics=[topic.name], session_timeout_ms=1_000)
    while short.server.ask("GET", f"/v1/groups/{short.group}").json["members"]:
        pass
    assert figure("group_members_expired_total") - before["group_members_expired_total"] >= 1
