"""Groups whose members share streams: joins, heartbeats, releases, leases and fencing."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spec.process import Server, offset_of
from tests.spec.topic_calls import InBackground, Member, Topic
from tests.spec.txn_calls import Txn, call, commit, fresh, positions, refusal


@pytest.fixture
def topic(server: Server) -> Topic:
    return Topic(server).create(4)


@pytest.fixture
def group() -> str:
    return fresh("g")


def journal_end(server: Server) -> float:
    text = server.ask("GET", "/metrics").body.decode()
    return float(text.partition("\nsemel_journal_end_bytes ")[2].partition("\n")[0])


def settle(*members: Member) -> None:
    """Send heartbeats until no member has to release anything."""
    while True:
        for member in members:
            assert member.beat().status == 200
        if not any(member.state["release"] for member in members):
            return
        for member in members:
            if member.state["release"]:
                assert member.release().status == 200


# ---- joining and sharing -------------------------------------------------------------------------


def test_the_first_member_gets_all_streams(topic: Topic, group: str) -> None:
    topic.post([1, 2], stream_partition=1)
    member = Member(topic.server, group, topics=[topic.name], session_timeout_ms=6_000)
    assert member.state["heartbeat_ms"] == 2_000
    assert member.state["session_timeout_ms"] == 6_000
    assert (member.state["group"], member.state["release"]) == (group, [])
    incarnations = {each["stream"]: each["incarnation"] for each in partitions(topic)}
    assert member.state["assigned"] == [
        {
            "stream": path,
            "incarnation": incarnations[path],
            "epoch": 1,
            "position": offset_of(0),
            "version": 0,
            "starts": 0,
            "limit": None,
        }
        for path in sorted(incarnations)
    ]


def partitions(topic: Topic) -> list[dict[str, str]]:
    found: list[dict[str, str]] = topic.show().json["partitions"]
    return found


def test_streams_are_released_before_they_are_given(topic: Topic, group: str) -> None:
    first = Member(topic.server, group, topics=[topic.name])
    second = Member(topic.server, group, topics=[topic.name])
    assert second.owned == set(), "nothing is free yet"
    first.beat()
    assert (len(first.owned), len(first.state["release"])) == (4, 2)
    second.beat()
    assert second.owned == set()
    assert first.release().status == 200
    second.beat()
    assert (len(first.owned), len(second.owned)) == (2, 2)
    assert not first.owned & second.owned
    assert set(first.epochs.values()) == {1}
    assert set(second.epochs.values()) == {2}, "the epoch rises with the new owner"


def test_members_share_evenly_and_keep_what_they_have(topic: Topic, group: str) -> None:
    members = [Member(topic.server, group, topics=[topic.name]) for _ in range(2)]
    settle(*members)
    before = [member.owned for member in members]
    members.append(Member(topic.server, group, topics=[topic.name]))
    settle(*members)
    assert sorted(len(member.owned) for member in members) == [1, 1, 2]
    assert all(members[each].owned <= before[each] for each in range(2))
    assert members.pop().leave().status == 204
    settle(*members)
    assert [len(member.owned) for member in members] == [2, 2]
    assert all(members[each].owned >= before[each] & members[each].owned for each in range(2))


def test_a_member_names_streams_topics_and_patterns(server: Server, group: str) -> None:
    prefix = fresh("names")
    for name in ("a", "b/c", "b/c/d"):
        server.stream(f"{prefix}/{name}").create()
    member = Member(server, group, streams=[f"{prefix}/a"], patterns=[f"{prefix}/*/*"])
    assert member.owned == {f"{prefix}/a", f"{prefix}/b/c"}
    whole = Member(server, fresh("g"), patterns=[f"{prefix}/**"])
    assert whole.owned == {f"{prefix}/{name}" for name in ("a", "b/c", "b/c/d")}


def test_a_new_stream_that_matches_is_given(server: Server, group: str) -> None:
    prefix = fresh("new")
    member = Member(server, group, patterns=[f"{prefix}/*"])
    assert member.owned == set()
    server.stream(f"{prefix}/a").create()
    while not member.owned:
        assert member.wait().status == 200
    assert member.owned == {f"{prefix}/a"}
    server.stream(f"{prefix}/a").delete()
    while member.owned:
        assert member.wait().status == 200


def test_partitions_of_a_growth_are_given(topic: Topic, group: str) -> None:
    member = Member(topic.server, group, topics=[topic.name])
    assert topic.patch(partitions=6).status == 200
    while len(member.owned) < 6:
        assert member.wait().status == 200


def test_after_a_growth_the_group_first_reads_what_was_there(topic: Topic, group: str) -> None:
    topic.post([1, 2], stream_partition=0)
    member = Member(topic.server, group, topics=[topic.name])
    assert topic.patch(partitions=5, keys_may_move=True).status == 200
    while len(member.owned) < 5:
        assert member.wait().status == 200
    limits = {each["stream"]: each["limit"] for each in member.state["assigned"]}
    assert limits[f"{topic.name}/0"] is None, "nothing before the growth is left in the others"
    assert limits[f"{topic.name}/1"] == limits[f"{topic.name}/4"] == offset_of(0)
    assert member.move(f"{topic.name}/0", 2).status == 200
    while any(each["limit"] for each in member.state["assigned"]):
        assert member.wait().status == 200


def test_a_group_can_begin_at_the_end(topic: Topic, group: str) -> None:
    topic.post([1, 2], stream_partition=0)
    member = Member(topic.server, group, topics=[topic.name], start="latest")
    begins = {each["stream"]: each["position"] for each in member.state["assigned"]}
    assert begins[f"{topic.name}/0"] == offset_of(2)
    assert positions(topic.server, group) == {f"{topic.name}/0": offset_of(2)}


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({}, "invalid_request"),
        ({"streams": ["a"], "session_timeout_ms": 999}, "invalid_request"),
        ({"streams": ["a"], "session_timeout_ms": 1_800_001}, "invalid_request"),
        ({"streams": ["a"], "rebalance_timeout_ms": 1}, "invalid_request"),
        ({"streams": ["a"], "start": "middle"}, "invalid_request"),
        ({"streams": ["a"], "instance": ""}, "invalid_request"),
        ({"patterns": ["a//b"]}, "invalid_request"),
        ({"streams": ["a"], "sesion": 1}, "bad_body"),
    ],
)
def test_a_bad_join_is_refused(
    server: Server, group: str, members: dict[str, object], code: str
) -> None:
    answer = call(server, "POST", f"/v1/groups/{group}/members", members)
    assert refusal(answer) == (400, code)


def test_a_join_names_what_is_missing(server: Server, group: str, topic: Topic) -> None:
    target = f"/v1/groups/{group}/members"
    missing = call(server, "POST", target, {"streams": ["not-there"]})
    assert refusal(missing) == (404, "stream_not_found")
    assert missing.json["stream"] == "not-there"
    assert refusal(call(server, "POST", target, {"topics": ["no"]})) == (404, "topic_not_found")
    is_topic = call(server, "POST", target, {"streams": [topic.name]})
    assert refusal(is_topic) == (409, "is_topic")
    assert refusal(call(server, "GET", f"/v1/groups/{group}")) == (404, "group_not_found")


# ---- heartbeats ----------------------------------------------------------------------------------


def test_a_heartbeat_writes_nothing(topic: Topic, group: str) -> None:
    member = Member(topic.server, group, topics=[topic.name])
    before = journal_end(topic.server)
    for _ in range(50):
        assert member.beat().status == 200
        assert member.wait(1).status == 200
    assert journal_end(topic.server) == before


def test_a_heartbeat_that_waits_hears_of_a_change_at_once(topic: Topic, group: str) -> None:
    first = Member(topic.server, group, topics=[topic.name])
    version = first.state["version"]
    waiting = InBackground(first.wait)
    second = Member(topic.server, group, topics=[topic.name])
    answer = waiting.answer()
    if answer.json["version"] == version:  # the server's long-polls are short
        answer = first.wait()
    assert len(answer.json["release"]) == 2
    waiting = InBackground(second.wait)
    first.release()
    answer = waiting.answer()
    if not answer.json["assigned"]:
        answer = second.wait()
    assert len(answer.json["assigned"]) == 2


def test_a_heartbeat_with_another_version_is_answered_at_once(topic: Topic, group: str) -> None:
    member = Member(topic.server, group, topics=[topic.name])
    known = member.state
    assert member.beat(wait_ms=10**9).json["version"] == known["version"]
    assert member.beat(wait_ms=10**9, version="other").json["assigned"] == known["assigned"]
    target = f"/v1/groups/{group}/members/{member.id}"
    assert topic.server.ask("POST", target).json["version"] == known["version"], "without a body"
    assert refusal(member.beat(wait_ms=-1)) == (400, "invalid_request")
    assert refusal(member.beat(wait=1)) == (400, "bad_body")


def test_an_unknown_member_must_join_again(topic: Topic, group: str) -> None:
    member = Member(topic.server, group, topics=[topic.name])
    assert member.leave().status == 204
    assert refusal(member.beat()) == (404, "unknown_member")
    assert refusal(member.beat(released=[f"{topic.name}/0"])) == (404, "unknown_member")
    assert refusal(member.leave()) == (404, "unknown_member")
    nobody = call(topic.server, "POST", f"/v1/groups/{fresh('g')}/members/m", {})
    assert refusal(nobody) == (404, "unknown_member")


def test_a_member_that_is_not_heard_expires(topic: Topic, group: str) -> None:
    topic.post([1], stream_partition=0)
    lost = Member(topic.server, group, topics=[topic.name], session_timeout_ms=1_000)
    other = Member(topic.server, group, topics=[topic.name], session_timeout_ms=60_000)
    while len(other.owned) < 4:
        assert other.wait().status == 200
    assert refusal(lost.beat()) == (404, "unknown_member"), "a late heartbeat does not revive it"
    starts = {each["stream"]: each["starts"] for each in other.state["assigned"]}
    assert starts[f"{topic.name}/0"] == 1, "something was left to read"
    assert starts[f"{topic.name}/1"] == 0
    assert set(other.epochs.values()) == {2}


def test_a_stream_that_is_not_released_is_taken(topic: Topic, group: str) -> None:
    slow = Member(topic.server, group, topics=[topic.name], rebalance_timeout_ms=1_000)
    other = Member(topic.server, group, topics=[topic.name])
    while len(other.owned) < 2:
        assert slow.beat().status == 200  # so it does not expire
        assert other.beat().status == 200
    assert len(slow.beat().json["assigned"]) == 2
    assert slow.state["release"] == []


def test_an_instance_replaces_the_member_before(topic: Topic, group: str) -> None:
    old = Member(topic.server, group, topics=[topic.name], instance="worker-1")
    new = Member(topic.server, group, topics=[topic.name], instance="worker-1")
    assert new.owned == old.owned
    assert set(new.epochs.values()) == {2}
    assert refusal(old.beat()) == (404, "unknown_member")
    assert refusal(old.move(f"{topic.name}/0", 0)) == (409, "ILLEGAL_GENERATION")


# ---- who may commit ------------------------------------------------------------------------------


def test_only_the_owner_moves_the_position(topic: Topic, group: str) -> None:
    topic.post([1, 2, 3], stream_partition=0)
    path = f"{topic.name}/0"
    member = Member(topic.server, group, topics=[topic.name])
    assert member.move(path, 1).json["versions"] == {path: 1}
    older = member.move(path, 2, epoch=0)
    assert refusal(older) == (409, "ILLEGAL_GENERATION")
    assert (older.json["epoch"], older.json["stream"], older.json["group"]) == (1, path, group)
    plain = {"offsets": {path: 3}}
    target = f"/v1/groups/{group}/offsets"
    assert refusal(call(topic.server, "POST", target, plain)) == (409, "group_is_shared")
    assert call(topic.server, "POST", target, {**plain, "operator": True}).status == 200
    assert member.leave().status == 204
    assert refusal(member.move(path, 3)) == (409, "ILLEGAL_GENERATION")
    assert call(topic.server, "POST", target, plain).status == 200, "nobody shares it any more"


@pytest.mark.parametrize(
    "members",
    [
        {"epochs": {"x": 1}},
        {"member": "m"},
        {"member": "m", "epochs": {"x": -1}},
        {"member": "m", "epochs": {"y": 1}},
        {"member": "m", "epochs": {"x": "1"}},
    ],
)
def test_a_member_and_its_epochs_are_sent_together(
    server: Server, group: str, members: dict[str, object]
) -> None:
    document = {"offsets": {"x": 0}, **members}
    answer = call(server, "POST", f"/v1/groups/{group}/offsets", document)
    assert answer.status == 400, answer
    answer = commit(
        server,
        producer_id="p",
        producer_epoch=0,
        producer_seq=0,
        offsets={group: {"x": 0}},
        **members,
    )
    assert answer.status == 400, answer


def test_a_worker_that_lost_a_stream_commits_no_output(topic: Topic, group: str) -> None:
    server, output = topic.server, topic.server.stream()
    output.create(content_type="application/json")
    topic.post([1], stream_partition=0)
    path = f"{topic.name}/0"
    zombie = Member(server, group, topics=[topic.name])
    owner = Member(server, group, topics=[topic.name], instance="i")
    zombie.beat()
    zombie.release()
    lost = next(iter(zombie.state["release"]), None)
    assert lost is None
    owner.beat()
    (stolen, *_) = sorted(owner.owned)

    def commit_as(member: Member, stream: str, epoch: int, seq: int) -> tuple[int, str]:
        answer = commit(
            server,
            producer_id=f"out-{member.id}",
            producer_epoch=0,
            producer_seq=seq,
            appends=[{"stream": output.path, "messages": [stream]}],
            offsets={group: {stream: {"from": 0, "to": 0}}},
            member=member.id,
            epochs={stream: epoch},
        )
        return (200, "") if answer.status == 200 else refusal(answer)

    assert commit_as(zombie, stolen, 1, 0) == (409, "ILLEGAL_GENERATION")
    assert output.text == "[]", "no part of the commit was applied"
    assert commit_as(owner, stolen, owner.epochs[stolen], 0) == (200, "")
    kept = next(iter(zombie.owned))
    assert commit_as(zombie, kept, 1, 0) == (200, ""), "what it did not lose is not disturbed"
    assert path in zombie.owned | owner.owned


def test_the_owner_is_checked_when_a_transaction_is_decided(topic: Topic, group: str) -> None:
    server = topic.server
    topic.post([1], stream_partition=0)
    path = f"{topic.name}/0"
    member = Member(server, group, topics=[topic.name], instance="one")
    txn = Txn(server)
    assert txn.begin().status == 201
    named = txn.call("offsets", group=group, offsets={path: 1}, member=member.id, epochs={path: 1})
    assert named.status == 200, named
    assert Member(server, group, topics=[topic.name], instance="one").epochs[path] == 2
    assert refusal(txn.commit()) == (409, "ILLEGAL_GENERATION")
    assert positions(server, group) == {}


def test_a_prepared_transaction_keeps_its_stream(topic: Topic, group: str) -> None:
    server = topic.server
    topic.post([1], stream_partition=0)
    path = f"{topic.name}/0"
    member = Member(server, group, topics=[topic.name])
    txn = Txn(server)
    assert txn.begin().status == 201
    txn.call("offsets", group=group, offsets={path: 1}, member=member.id, epochs={path: 1})
    assert txn.call("prepare").status == 200
    answer = member.beat(released=[path])
    assert refusal(answer) == (409, "unstable_offsets")
    assert member.leave().status == 204
    other = Member(server, group, topics=[topic.name])
    assert path not in other.owned
    assert txn.commit().status == 200
    while path not in other.owned:
        assert other.wait().status == 200
    begins = {each["stream"]: each["position"] for each in other.state["assigned"]}
    assert begins[path] == offset_of(1)


def test_a_commit_is_a_heartbeat(topic: Topic, group: str) -> None:
    topic.post(list(range(1_000)), stream_partition=0)
    path = f"{topic.name}/0"
    member = Member(topic.server, group, topics=[topic.name], session_timeout_ms=1_000)
    until = time.monotonic() + 1.5
    to = 0
    while time.monotonic() < until:
        to += 1
        assert member.move(path, to % 1_000).status == 200
    assert member.beat().status == 200


# ---- the end of a server, and a restart ----------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "data"


def test_a_heartbeat_that_waits_is_answered_at_the_end(data: Path, group: str) -> None:
    server = Server(data, "--long-poll-timeout", "60")
    try:
        topic = Topic(server).create(4)
        member = Member(server, group, topics=[topic.name])
        known = member.state["version"]
        waiting = InBackground(member.wait)
        while b"\nsemel_live_readers 1\n" not in server.ask("GET", "/metrics").body:
            assert not waiting.is_answered
        server.signal(signal.SIGTERM)
        answer = waiting.answer()
        assert (answer.status, answer.json["version"]) == (200, known)
        assert server.wait() == 0
    finally:
        server.kill()


def test_members_owners_and_epochs_survive_a_kill(data: Path, group: str) -> None:
    server = Server(data)
    try:
        topic = Topic(server).create(4)
        first = Member(server, group, topics=[topic.name])
        second = Member(server, group, topics=[topic.name])
        settle(first, second)
        owned, epochs = first.owned, second.epochs
        server.kill()
        server = Server(data)
        for member in (first, second):
            member.server = server
            assert member.beat().status == 200, "every lease starts anew"
        assert first.owned == owned
        assert second.epochs == epochs
        path = min(owned)
        assert first.move(path, 0).status == 200
        assert refusal(second.move(path, 0, epoch=1)) == (409, "ILLEGAL_GENERATION")
        second.leave()
        first.beat()
        raised = {stream: first.epochs[stream] for stream in epochs}
        assert raised == {stream: epoch + 1 for stream, epoch in epochs.items()}
        assert server.is_sound()
    finally:
        server.kill()
