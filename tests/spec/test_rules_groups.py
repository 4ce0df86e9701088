"""Tables G and H, row by row, by requests to a real server: members of groups that share work."""

import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from semel.wire.bodies import decode_frames
from semel.wire.headers import FRAMES
from tests.spec.clock_rig import TEN_YEARS_MS, Machine, eventually
from tests.spec.process import Answer, Server, Stream, offset_of
from tests.spec.rules_calls import (
    JSON,
    Member,
    Topic,
    filled,
    group_target,
    join,
    ordinal,
    settle,
    shared_machine,
    shown,
    stream_rows,
    try_join,
)
from tests.spec.txn_calls import COMMITTED, Txn, begun, call, commit, fresh, positions, refusal

ILLEGAL: Final = (409, "ILLEGAL_GENERATION")
SHARED: Final = (409, "group_is_shared")
UNSTABLE: Final = (409, "unstable_offsets")
SESSION_MS: Final = 10_000  # of members on a machine whose clock is moved


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine whose clock the tests of this module move. Each uses names of its own."""
    with shared_machine(tmp_path_factory.mktemp("shared")) as it:
        yield it


@pytest.fixture
def group() -> str:
    return fresh("g")


def move(server: Server, group: str, offsets: dict[str, Any], **more: Any) -> Answer:
    return call(server, "POST", f"{group_target(group)}/offsets", {"offsets": offsets, **more})


def handed_over(server: Server, group: str, *streams: Stream) -> tuple[Member, Member]:
    """Return a member that has lost all its streams, and the one that owns them now."""
    old = join(server, group, *streams)
    new = join(server, group, *streams)
    assert old.beat(released=old.streams).status == 200
    while new.streams != sorted(stream.path for stream in streams):
        assert old.leave().status in (204, 404)
        assert new.beat().status == 200
    return old, new


# ---- join and heartbeat --------------------------------------------------------------------------


def test_a_lone_member_gets_every_stream_with_its_position(server: Server, group: str) -> None:
    one, two = filled(server, 2)
    move(server, group, {one.path: 1})
    member = join(server, group, one, two)
    answer = member.joined.json
    assert (answer["group"], answer["release"]) == (group, [])
    assert (answer["session_timeout_ms"], answer["heartbeat_ms"]) == (30_000, 10_000)
    wanted = {
        one.path: (1, offset_of(1), 1, 0),
        two.path: (1, offset_of(0), 0, 0),
    }
    found = {
        path: (row["epoch"], row["position"], row["version"], row["starts"])
        for path, row in member.rows.items()
    }
    assert found == wanted
    assert member.rows[one.path]["incarnation"] == one.head().headers["stream-incarnation"]
    beat = member.beat()
    assert (beat.status, beat.json["assigned"]) == (200, answer["assigned"])


def test_the_heartbeat_is_a_third_of_the_session_timeout(server: Server, group: str) -> None:
    (stream,) = filled(server, 1)
    for timeout in (1_000, 1_800_000):
        answer = try_join(server, group, streams=[stream.path], session_timeout_ms=timeout)
        assert answer.json["session_timeout_ms"] == timeout
        assert answer.json["heartbeat_ms"] == timeout // 3


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"streams": []},
        {"streams": "s"},
        {"streams": [1]},
        {"streams": [""]},
        {"topics": [""]},
        {"patterns": [""]},
        {"patterns": ["a//*"]},
        {"patterns": ["x" * 600]},
        {"patterns": ["**/" * 300 + "x"]},
        {"streams": ["s"], "session_timeout_ms": 999},
        {"streams": ["s"], "session_timeout_ms": 1_800_001},
        {"streams": ["s"], "session_timeout_ms": "30000"},
        {"streams": ["s"], "session_timeout_ms": None},
        {"streams": ["s"], "rebalance_timeout_ms": 0},
        {"streams": ["s"], "rebalance_timeout_ms": -1},
        {"streams": ["s"], "start": "now"},
        {"streams": ["s"], "instance": ""},
        {"streams": ["s"], "instance": "x" * 300},
        {"streams": ["s"], "instance": 7},
        {"streams": ["s"], "member": "mine"},
        {"streams": [f"s{n}" for n in range(1_001)]},
        {"patterns": [f"s{n}/*" for n in range(101)]},
        [],
    ],
)
def test_a_join_that_cannot_be_is_400(server: Server, group: str, document: Any) -> None:
    answer = call(server, "POST", f"{group_target(group)}/members", document)
    assert answer.status == 400, answer
    assert answer.code
    assert refusal(call(server, "GET", group_target(group))) == (404, "group_not_found")


@pytest.mark.parametrize(
    "path", ["never-there", "a//b", "a\nb", "x" * 600, "../x", "\x00", "\u202e"]
)
def test_a_stream_or_topic_that_is_not_there_is_named(
    server: Server, group: str, path: str
) -> None:
    (stream,) = filled(server, 1)
    for kind in ("streams", "topics"):
        answer = try_join(server, group, **{"streams": [stream.path], kind: [path, stream.path]})
        assert refusal(answer) in [
            (404, "stream_not_found"),
            (404, "topic_not_found"),
            (400, "invalid_request"),
        ]
    assert refusal(call(server, "GET", group_target(group))) == (404, "group_not_found")


@pytest.mark.parametrize(
    "pattern", ["a\nb", "*\n", "(", "[a-z]", ".*", "\\d", "*x*", "\U0001f642/**"]
)
def test_a_pattern_is_no_regular_expression(server: Server, group: str, pattern: str) -> None:
    (stream,) = filled(server, 1)
    answer = try_join(server, group, streams=[stream.path], patterns=[pattern])
    if answer.status == 201:
        assert Member(server, group, answer).streams == [stream.path]
    else:
        assert refusal(answer) == (400, "invalid_request")


@pytest.mark.parametrize(
    "member", ["m-0", "x", "%00", "a%2Fb", "%0a", "%E2%82%AC", "%ff", "m" * 300]
)
def test_an_unknown_member_is_404(server: Server, group: str, member: str) -> None:
    (stream,) = filled(server, 1)
    join(server, group, stream)
    target = f"{group_target(group)}/members/{member}"
    for method in ("POST", "DELETE"):
        answer = call(server, method, target)
        assert answer.status in (400, 404), answer
        if answer.status == 404:
            assert answer.code == "unknown_member"
    released = call(server, "POST", target, {"released": [stream.path]})
    assert released.status in (400, 404)


def test_a_member_belongs_to_one_group(server: Server, group: str) -> None:
    (stream,) = filled(server, 1)
    member, other = join(server, group, stream), join(server, fresh("g"), stream)
    target = f"{group_target(group)}/members/{other.id}"
    assert refusal(call(server, "POST", target)) == (404, "unknown_member")
    assert other.streams == member.streams == [stream.path], "groups do not share with each other"


@pytest.mark.parametrize(
    "document",
    [
        {"released": "s"},
        {"released": [1]},
        {"wait_ms": -1},
        {"wait_ms": 2**60},
        {"wait_ms": "1"},
        {"version": 1},
        {"extra": 1},
        [],
    ],
)
def test_a_heartbeat_that_cannot_be_is_400(server: Server, group: str, document: Any) -> None:
    (stream,) = filled(server, 1)
    member = join(server, group, stream)
    answer = call(server, "POST", member.target, document)
    assert answer.status == 400, answer
    assert member.beat().status == 200


def test_what_a_member_does_not_own_it_cannot_release(server: Server, group: str) -> None:
    mine, other = filled(server, 2)
    one, two = join(server, group, mine), join(server, group, other)
    for paths in ([other.path], ["never-there"], [mine.path + "/x"], ["\n", "é", ""]):
        answer = one.beat(released=paths)
        assert answer.status in (200, 400), answer
    two.beat()
    assert (one.beat().status, one.streams, two.streams) == (200, [mine.path], [other.path])
    assert two.epoch(other) == 1


# ---- rebalances ----------------------------------------------------------------------------------


def test_a_stream_is_given_only_after_it_was_released(server: Server, group: str) -> None:
    streams = filled(server, 4)
    one = join(server, group, *streams)
    two = join(server, group, *streams)
    assert two.streams == [], "they all have an owner"
    assert one.beat().status == 200
    asked = one.last["release"]
    assert len(asked) == 2, "an even share, and no more than that moves"
    assert len(one.streams) == 4, "until it releases them it owns them"
    rows = stream_rows(server, group)
    assert {path for path, row in rows.items() if row["phase"] == "revoking"} == set(asked)
    for path in asked:
        assert one.move(server.stream(path), 1).status == 200, "it may still commit"
    assert two.beat().json["assigned"] == []
    assert one.beat(released=[asked[0]]).status == 200
    assert two.beat().status == 200
    assert two.streams == [asked[0]]
    row = two.rows[asked[0]]
    assert (row["epoch"], row["position"], row["version"]) == (2, offset_of(1), 1)
    settle(one, two)
    assert two.streams == sorted(asked)
    assert sorted(one.streams + two.streams) == [stream.path for stream in streams]
    assert [one.epoch(path) for path in one.streams] == [1, 1], "what stays is not disturbed"


def test_the_assignment_is_even_and_sticky(server: Server, group: str) -> None:
    streams = filled(server, 12, messages=())
    members = [join(server, group, *streams)]
    for count in (2, 3, 5):
        before = {member.id: set(member.streams) for member in members}
        members += [join(server, group, *streams) for _ in range(count - len(members))]
        settle(*members)
        sizes = [len(member.streams) for member in members]
        assert sum(sizes) == 12
        assert max(sizes) - min(sizes) <= 1
        for member in members:
            old = before.get(member.id)
            assert old is None or set(member.streams) <= old, "an old member gets nothing new"
    kept = {member.id: set(member.streams) for member in members[1:]}
    assert members[0].leave().status == 204
    settle(*members[1:])
    for member in members[1:]:
        assert kept[member.id] <= set(member.streams)
    assert sum(len(member.streams) for member in members[1:]) == 12


def test_members_with_other_streams_get_only_their_own(server: Server, group: str) -> None:
    one, two, three = filled(server, 3)
    first, second = join(server, group, one, two), join(server, group, two, three)
    settle(first, second)
    assert one.path in first.streams
    assert three.path in second.streams
    assert sorted(first.streams + second.streams) == sorted([one.path, two.path, three.path])


def test_a_member_that_leaves_gives_up_everything_at_once(server: Server, group: str) -> None:
    streams = filled(server, 2)
    one, two = join(server, group, *streams), join(server, group, *streams)
    settle(one, two)
    (gone,) = one.streams
    assert one.leave().status == 204
    assert two.beat().status == 200
    assert (len(two.streams), two.epoch(gone), two.rows[gone]["starts"]) == (2, 2, 0)
    assert refusal(one.beat()) == (404, "unknown_member")
    assert refusal(one.leave()) == (404, "unknown_member")


def test_epochs_never_go_back_even_without_an_owner(server: Server, group: str) -> None:
    (stream,) = filled(server, 1)
    for epoch in (1, 2, 3):
        member = join(server, group, stream)
        assert member.epoch(stream) == epoch
        assert member.leave().status == 204
    row = stream_rows(server, group).get(stream.path)
    assert row is None or row["epoch"] in (0, 3)


@pytest.mark.parametrize("wait_ms", [5_000, 2**53 - 1])
def test_a_heartbeat_that_waits_hears_a_rebalance_at_once(
    server: Server, group: str, wait_ms: int
) -> None:
    streams = filled(server, 2)
    one = join(server, group, *streams)
    found: list[Answer] = []

    def listen() -> None:
        # The server ends each wait early in these tests, as it does with long polls.
        version = one.last["version"]
        while not found:
            answer = call(server, "POST", one.target, {"wait_ms": wait_ms, "version": version})
            if answer.status != 200 or answer.json["version"] != version:
                found.append(answer)

    thread = threading.Thread(target=listen)
    thread.start()
    two = join(server, group, *streams)
    thread.join(30)
    assert found
    assert len(found[0].json["release"]) == 1
    assert two.streams == []


def test_a_heartbeat_with_an_old_version_does_not_wait(server: Server, group: str) -> None:
    (stream,) = filled(server, 1)
    member = join(server, group, stream)
    begin = time.monotonic()
    assert member.beat(wait_ms=60_000, version="other").status == 200
    assert member.beat(wait_ms=60_000).status == 200
    assert time.monotonic() - begin < 30


def test_a_stream_that_is_not_released_in_time_is_taken(shared: Machine, group: str) -> None:
    server = shared.server
    streams = filled(server, 2)
    one = join(server, group, *streams, session_timeout_ms=60_000, rebalance_timeout_ms=SESSION_MS)
    two = join(server, group, *streams, session_timeout_ms=60_000)
    assert one.beat().status == 200
    (asked,) = one.last["release"]
    taken = server.stream(asked)
    shared.let_pass(SESSION_MS // 2)
    assert (one.beat().status, two.beat().status) == (200, 200)
    assert two.streams == []
    shared.let_pass(SESSION_MS)
    assert eventually(lambda: two.beat().status == 200 and two.streams == [asked])
    assert two.epoch(asked) == 2
    assert two.rows[asked]["starts"] == 0, "a member that is heard has not crashed"
    assert refusal(one.move(taken, 1)) == ILLEGAL
    assert one.beat().status == 200, "it is still a member"
    assert asked not in one.streams
    assert len(one.streams) == 1


# ---- expiry --------------------------------------------------------------------------------------


def test_a_member_that_is_not_heard_loses_its_streams(shared: Machine, group: str) -> None:
    server = shared.server
    streams = filled(server, 2)
    one = join(server, group, *streams, session_timeout_ms=SESSION_MS)
    two = join(server, group, *streams, session_timeout_ms=60_000)
    settle(one, two)
    (lost,) = one.streams
    shared.let_pass(SESSION_MS // 2)
    assert one.beat().status == 200
    shared.let_pass(SESSION_MS // 2 + 1_000)
    assert one.beat().status == 200, "each heartbeat renews the session"
    shared.let_pass(SESSION_MS + 1_000)
    assert eventually(lambda: two.beat().status == 200 and len(two.streams) == 2)
    assert two.epoch(lost) == 2
    assert two.rows[lost]["starts"] == 1, "it may be the message that has ended the member"
    assert refusal(one.beat()) == (404, "unknown_member"), "a heartbeat does not revive it"
    assert refusal(one.beat(released=[lost])) == (404, "unknown_member")
    assert refusal(one.move(server.stream(lost), 1)) == ILLEGAL
    assert two.beat().status == 200
    assert len(two.streams) == 2


def test_a_stream_s_starts_count_crashes_while_the_position_stands_still(
    shared: Machine, group: str
) -> None:
    server = shared.server
    (stream,) = filled(server, 1)

    def crash() -> None:
        shared.let_pass(SESSION_MS + 1_000)
        assert eventually(lambda: not shown(server, group)["members"])

    starts = []
    for step in range(5):
        member = join(server, group, stream, session_timeout_ms=SESSION_MS)
        starts.append(member.rows[stream.path]["starts"])
        assert member.epoch(stream) == step + 1
        if step == 2:
            assert member.move(stream, 1).status == 200
            assert member.beat().json["assigned"][0]["starts"] == 0
        crash()
    assert starts == [0, 1, 2, 1, 2]


@pytest.mark.parametrize("way", ["positions", "transaction", "one-shot"])
def test_a_commit_counts_as_a_heartbeat(shared: Machine, group: str, way: str) -> None:
    server = shared.server
    (stream,) = filled(server, 1, messages=[b"x"] * 6)
    member = join(server, group, stream, session_timeout_ms=SESSION_MS)
    producer = fresh("p")
    for seq in range(4):
        shared.let_pass(SESSION_MS * 2 // 3)
        mine = {"member": member.id, "epochs": {stream.path: 1}}
        if way == "positions":
            answer = member.move(stream, seq + 1)
        elif way == "transaction":
            txn = begun(stream, timeout_ms=600_000)
            answer = txn.call(
                "offsets", group=group, offsets={stream.path: {"from": seq, "to": seq + 1}}, **mine
            )
            assert txn.commit().status == 200
        else:
            answer = commit(
                server,
                producer_id=producer,
                producer_epoch=0,
                producer_seq=seq,
                offsets={group: {stream.path: seq + 1}},
                **mine,
            )
        assert answer.status == 200, answer
    assert member.beat().status == 200
    assert member.streams == [stream.path]


def test_after_a_restart_every_session_starts_anew(machine: Machine, group: str) -> None:
    streams = filled(machine.server, 2)
    one = join(machine.server, group, *streams, session_timeout_ms=SESSION_MS)
    two = join(machine.server, group, *streams, session_timeout_ms=SESSION_MS)
    settle(one, two)
    before = {member.id: member.rows for member in (one, two)}
    machine.let_pass(SESSION_MS - 1_000)
    machine.restart()
    one.server = two.server = machine.server
    machine.let_pass(SESSION_MS - 1_000)
    for member in (one, two):
        assert member.beat().status == 200
        assert member.rows == before[member.id], "members, epochs and assignment are there"
    machine.let_pass(SESSION_MS + 1_000)
    assert eventually(lambda: not shown(machine.server, group)["members"])


@pytest.mark.crash
def test_epochs_never_go_back_in_kills(tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = Server(data)
    try:
        (stream,) = filled(server, 1)
        old = join(server, "g", stream)
        new = join(server, "g", stream)
        assert old.leave().status == 204
        for ends_orderly in (False, True):
            if ends_orderly:  # then it writes a checkpoint
                server.signal(15)
                assert server.wait() == 0
            server.kill()
            server = Server(data)
            old.server = new.server = server
            stream = server.stream(stream.path)
            assert new.beat().status == 200
            epoch = new.epoch(stream)
            assert (
                refusal(move(server, "g", {stream.path: 1}, member=old.id, epochs={stream.path: 1}))
                == ILLEGAL
            )
            assert refusal(old.beat()) == (404, "unknown_member")
            assert new.leave().status == 204
            assert join(server, "g", stream).leave().status == 204
            new = join(server, "g", stream)
            assert new.epoch(stream) == epoch + 2
    finally:
        server.kill()


# ---- instances -----------------------------------------------------------------------------------


def test_an_instance_that_joins_again_keeps_its_streams(server: Server, group: str) -> None:
    streams = filled(server, 4)
    one = join(server, group, *streams, instance="a")
    two = join(server, group, *streams, instance="b")
    settle(one, two)
    kept = one.streams
    again = join(server, group, *streams, instance="a")
    assert again.id != one.id
    assert again.streams == kept, "at once"
    assert [again.epoch(path) for path in kept] == [one.epoch(path) + 1 for path in kept]
    assert refusal(one.beat()) == (404, "unknown_member")
    assert refusal(one.move(server.stream(kept[0]), 1)) == ILLEGAL
    assert again.move(server.stream(kept[0]), 1).status == 200
    before = two.rows
    assert two.beat().status == 200
    assert two.rows == before, "the others are not disturbed"
    assert {member["instance"] for member in shown(server, group)["members"]} == {"a", "b"}


@pytest.mark.parametrize("instance", ["é", "a/b", "a b", "%2F", "x" * 256, "\U0001f642"])
def test_an_instance_has_any_name(server: Server, group: str, instance: str) -> None:
    (stream,) = filled(server, 1)
    first = join(server, group, stream, instance=instance)
    second = join(server, group, stream, instance=instance)
    assert (second.streams, second.epoch(stream)) == ([stream.path], 2)
    assert refusal(first.beat()) == (404, "unknown_member")


# ---- topics, patterns, streams that come and go --------------------------------------------------


def test_a_topic_means_all_its_partitions_also_later_ones(server: Server, group: str) -> None:
    topic = Topic(server).create(3)
    one = join(server, group, topics=[topic.name])
    two = join(server, group, topics=[topic.name])
    settle(one, two)
    assert sorted(one.streams + two.streams) == [f"{topic.name}/{n}" for n in range(3)]
    assert topic.patch(partitions=5).status == 200

    def has_all() -> bool:
        settle(one, two)
        return sorted(one.streams + two.streams) == [f"{topic.name}/{n}" for n in range(5)]

    assert eventually(has_all)
    assert topic.delete().status == 204
    settle(one, two)
    assert one.streams + two.streams == []


def test_a_member_is_told_how_far_to_read_after_a_growth(server: Server, group: str) -> None:
    topic = Topic(server).create(2)
    for partition in (0, 0, 1):
        topic.post(b"x", stream_partition=partition)
    member = join(server, group, topics=[topic.name])
    assert {row["limit"] for row in member.rows.values()} == {None}
    assert topic.patch(partitions=3).status == 200
    for partition in range(3):
        topic.post(b"new", stream_partition=partition)

    def limits() -> list[str | None]:
        assert member.beat().status == 200
        return [row["limit"] for row in member.rows.values()]

    assert eventually(lambda: limits() == [offset_of(2), offset_of(1), offset_of(0)])
    assert member.move(topic.part(0), 2).status == 200
    assert limits() == [offset_of(2), None, offset_of(0)], "only partition 1 is not read yet"
    assert member.move(topic.part(1), 1).status == 200
    assert limits() == [None, None, None], "the group has passed the growth in all partitions"


def test_a_pattern_finds_streams_that_are_created_later(server: Server, group: str) -> None:
    word = fresh("w")
    server.stream(f"{word}/a/eu").create()
    member = join(server, group, patterns=[f"{word}/*/eu", f"{word}/deep/**"])
    assert member.streams == [f"{word}/a/eu"]
    for path in ("b/eu", "b/us", "deep/x/y", "eu", "a/b/eu"):
        server.stream(f"{word}/{path}").create()
    wanted = sorted(f"{word}/{path}" for path in ("a/eu", "b/eu", "deep/x/y"))
    assert eventually(lambda: member.beat().status == 200 and member.streams == wanted)
    gone = server.stream(f"{word}/b/eu")
    assert gone.delete().status == 204
    assert member.beat().status == 200
    assert member.streams == [path for path in wanted if path != gone.path], "in the same frame"
    assert gone.path not in stream_rows(server, group)
    gone.create()
    assert eventually(lambda: member.beat().status == 200 and member.streams == wanted)


def test_a_pattern_finds_no_reserved_stream(server: Server, group: str) -> None:
    (stream,) = filled(server, 1)
    member = join(server, group, patterns=["**"])
    # Very many streams are given in several frames.
    assert eventually(lambda: member.beat().status == 200 and stream.path in member.streams)
    assert not [path for path in member.streams if path.startswith("__semel/")]
    assert member.leave().status == 204


def test_a_deleted_stream_is_not_the_one_made_anew(server: Server, group: str) -> None:
    (stream,) = filled(server, 1)
    member = join(server, group, stream)
    old = dict(member.rows[stream.path])
    assert member.move(stream, 2).status == 200
    assert stream.delete().status == 204
    assert member.beat().json["assigned"] == []
    stream.create(b"new")
    assert eventually(lambda: member.beat().status == 200 and member.streams == [stream.path])
    row = member.rows[stream.path]
    assert (row["position"], row["version"]) == (offset_of(0), 0)
    assert row["incarnation"] != old["incarnation"]
    mine = {"member": member.id, "epochs": {stream.path: member.epoch(stream)}}
    late = move(server, group, {stream.path: {"to": 1, "incarnation": old["incarnation"]}}, **mine)
    assert refusal(late) == (409, "position_conflict")


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_group_begins_where_its_first_member_says(server: Server, group: str, start: str) -> None:
    old, known = filled(server, 2)
    move(server, group, {known.path: 1})
    member = join(server, group, old, known, start=start)
    wanted = {"earliest": offset_of(0), "latest": offset_of(2)}[start]
    assert member.rows[old.path]["position"] == wanted
    assert member.rows[known.path]["position"] == offset_of(1), "a position that is set stays"
    old.post(b"c")
    assert member.leave().status == 204
    again = join(server, group, old, start="latest")
    if start == "latest":
        assert again.rows[old.path]["position"] == wanted, "it was set when the group began"


def test_latest_skips_nothing_of_a_stream_that_comes_later(server: Server, group: str) -> None:
    word = fresh("w")
    member = join(server, group, patterns=[f"{word}/*"], start="latest")
    late = server.stream(f"{word}/late")
    late.create(b"first")
    assert eventually(lambda: member.beat().status == 200 and member.streams == [late.path])
    assert member.rows[late.path]["position"] == offset_of(0)


# ---- table G: who may commit ---------------------------------------------------------------------


def send_positions(server: Server, group: str, stream: Stream, to: Any, **more: Any) -> Answer:
    return move(server, group, {stream.path: to}, **more)


def send_in_transaction(server: Server, group: str, stream: Stream, to: Any, **more: Any) -> Answer:
    """Move in a transaction; return the first refusal, or the answer to the commit."""
    output = server.stream()
    output.create()
    txn = begun(output)
    assert txn.post(output, b"effect").status == 200
    answer = txn.call("offsets", group=group, offsets={stream.path: to}, **more)
    if answer.status == 200:
        answer = txn.commit()
    seen = output.get(f"offset=-1&{COMMITTED}").body
    assert seen == (b"effect" if answer.status == 200 else b""), "output and position are one"
    if answer.status != 200:
        txn.abort()
    return answer


def send_one_shot(server: Server, group: str, stream: Stream, to: Any, **more: Any) -> Answer:
    output = server.stream()
    output.create(b"", JSON)
    answer = commit(
        server,
        producer_id=fresh("p"),
        producer_epoch=0,
        producer_seq=0,
        appends=[{"stream": output.path, "messages": [1]}],
        offsets={group: {stream.path: to}},
        **more,
    )
    assert output.text == ("[1]" if answer.status == 200 else "[]")
    return answer


Send = Callable[..., Answer]
WAYS: Final[dict[str, Send]] = {
    "alone": send_positions,
    "transaction": send_in_transaction,
    "one-shot": send_one_shot,
}
in_every_way = pytest.mark.parametrize("send", WAYS.values(), ids=WAYS.keys())


@in_every_way
def test_the_owner_commits_at_its_epoch(server: Server, group: str, send: Send) -> None:
    (stream,) = filled(server, 1)
    member = join(server, group, stream)
    mine = {"member": member.id, "epochs": {stream.path: 1}}
    assert send(server, group, stream, 1, **mine).status == 200
    assert positions(server, group) == {stream.path: offset_of(1)}
    wrong = send(server, group, stream, {"from": 0, "to": 2}, **mine)
    assert refusal(wrong) == (409, "position_conflict"), "from is compared as well"
    assert send(server, group, stream, {"from": 1, "version": 1, "to": 2}, **mine).status == 200
    beyond = send(server, group, stream, {"from": 2, "to": 3}, **mine)
    assert refusal(beyond) == (400, "OFFSET_BEYOND_TAIL")


@in_every_way
def test_an_older_or_later_epoch_and_another_owner_are_refused(
    server: Server, group: str, send: Send
) -> None:
    streams = filled(server, 2)
    old, new = handed_over(server, group, *streams)
    stream = streams[0]
    epoch = new.epoch(stream)
    assert epoch > 1
    for member, given in ((old.id, 1), (old.id, epoch), (new.id, epoch - 1), (new.id, epoch + 1)):
        answer = send(server, group, stream, 1, member=member, epochs={stream.path: given})
        assert refusal(answer) == ILLEGAL, (member, given)
        assert answer.json["epoch"] == epoch, "the epoch of the owner"
        assert answer.json["stream"] == stream.path
        assert answer.json["applied"] == "no"
    assert positions(server, group) == {}
    fresh_move = {"member": new.id, "epochs": {stream.path: epoch}}
    assert send(server, group, stream, 1, **fresh_move).status == 200


@in_every_way
def test_a_stream_that_nobody_owns_is_moved_by_no_member(
    server: Server, group: str, send: Send
) -> None:
    (stream,) = filled(server, 1)
    other = filled(server, 1)[0]
    member = join(server, group, stream)
    stays = join(server, group, other)
    assert member.leave().status == 204
    answer = send(server, group, stream, 1, member=member.id, epochs={stream.path: 1})
    assert refusal(answer) == ILLEGAL
    never = send(server, group, stream, 1, member=stays.id, epochs={stream.path: 0})
    assert refusal(never) == ILLEGAL
    assert positions(server, group) == {}


@in_every_way
def test_without_a_member_an_owned_stream_is_shared(server: Server, group: str, send: Send) -> None:
    stream, other = filled(server, 2)
    member = join(server, group, stream)
    assert refusal(send(server, group, stream, 1)) == SHARED
    assert send(server, group, other, 1).status == 200, "nobody owns this one"
    assert member.leave().status == 204
    assert send(server, group, stream, 1).status == 200, "as without membership"


def test_only_an_operator_sets_the_position_of_an_owned_stream(server: Server, group: str) -> None:
    (stream,) = filled(server, 1)
    member = join(server, group, stream)
    assert member.move(stream, 2).status == 200
    assert refusal(move(server, group, {stream.path: 0})) == SHARED
    assert refusal(move(server, group, {stream.path: 0}, operator=False)) == SHARED
    assert move(server, group, {stream.path: 0}, operator=True).status == 200
    assert positions(server, group) == {stream.path: offset_of(0)}
    late = member.move(stream, {"from": 2, "to": 2})
    assert refusal(late) == (409, "position_conflict"), "the rewind wins over what is under way"
    assert member.beat().json["assigned"][0]["position"] == offset_of(0)
    assert member.move(stream, {"from": 0, "to": 1}).status == 200


def test_nothing_is_applied_if_one_of_several_streams_was_lost(server: Server, group: str) -> None:
    streams = filled(server, 2)
    one, two = join(server, group, *streams), join(server, group, *streams)
    settle(one, two)
    ((mine,), (other,)) = one.streams, two.streams
    answer = move(
        server,
        group,
        {mine: 1, other: 1},
        member=one.id,
        epochs={mine: one.epoch(mine), other: two.epoch(other)},
    )
    assert refusal(answer) == ILLEGAL
    assert answer.json["stream"] == other
    assert positions(server, group) == {}


def test_a_mixed_move_without_an_epoch_for_one_stream_is_refused(
    server: Server, group: str
) -> None:
    one, two = filled(server, 2)
    member = join(server, group, one, two)
    answer = move(server, group, {one.path: 1, two.path: 1}, member=member.id, epochs={one.path: 1})
    assert answer.status in (400, 409), answer
    assert positions(server, group) == {}


@pytest.mark.parametrize(
    "more",
    [
        {"member": "m"},
        {"epochs": {"PATH": 1}},
        {"member": "m", "epochs": {}},
        {"member": "m", "epochs": {"other": 1}},
        {"member": "m", "epochs": {"PATH": -1}},
        {"member": "m", "epochs": {"PATH": "1"}},
        {"member": "m", "epochs": {"PATH": 2**60}},
        {"member": 1, "epochs": {"PATH": 1}},
        {"operator": "yes"},
    ],
)
@in_every_way
def test_a_member_and_its_epochs_come_together(
    server: Server, group: str, send: Send, more: dict[str, Any]
) -> None:
    (stream,) = filled(server, 1)
    join(server, group, stream)
    epochs = more.get("epochs")
    if epochs is not None:
        named = {stream.path if path == "PATH" else path: each for path, each in epochs.items()}
        more = {**more, "epochs": named}
    answer = send(server, group, stream, 1, **more)
    assert answer.status == 400, answer
    assert positions(server, group) == {}


def test_a_rebalance_elsewhere_disturbs_nobody(server: Server, group: str) -> None:
    streams = filled(server, 3)
    output = server.stream()
    output.create()
    one = join(server, group, *streams)
    two = join(server, group, *streams)
    settle(one, two)
    mine = server.stream(one.streams[0])
    txn = begun(output)
    assert txn.post(output, b"x").status == 200
    epochs = {mine.path: one.epoch(mine)}
    named = txn.call("offsets", group=group, offsets={mine.path: 1}, member=one.id, epochs=epochs)
    assert named.status == 200
    assert two.leave().status == 204
    three = join(server, group, *streams)
    one.beat()
    assert txn.commit().status == 200, "it has not lost this stream"
    assert three.beat().status == 200


def test_a_transaction_that_loses_its_stream_is_refused_when_it_is_decided(
    server: Server, group: str
) -> None:
    (stream,) = filled(server, 1)
    output = server.stream()
    output.create()
    old = join(server, group, stream)
    txn = begun(output)
    assert txn.post(output, b"effect").status == 200
    mine = {"member": old.id, "epochs": {stream.path: 1}}
    assert txn.call("offsets", group=group, offsets={stream.path: 1}, **mine).status == 200
    assert old.beat(released=[stream.path]).status == 200, "its transaction is open: accepted"
    assert old.leave().status == 204
    new = join(server, group, stream)
    assert new.epoch(stream) > 1
    assert refusal(txn.commit()) == ILLEGAL
    assert refusal(txn.call("prepare")) == ILLEGAL
    assert txn.status().json["state"] == "open", "nothing was applied"
    assert output.get(f"offset=-1&{COMMITTED}").body == b""
    assert txn.abort().status == 200
    assert positions(server, group) == {}
    assert new.move(stream, 1).status == 200


def test_a_transaction_that_got_its_stream_back_at_another_epoch_is_refused(
    server: Server, group: str
) -> None:
    (stream,) = filled(server, 1)
    member = join(server, group, stream, instance="i")
    output = server.stream()
    output.create()
    txn = begun(output)
    mine = {"member": member.id, "epochs": {stream.path: 1}}
    assert txn.call("offsets", group=group, offsets={stream.path: 1}, **mine).status == 200
    again = join(server, group, stream, instance="i")
    assert again.epoch(stream) == 2
    assert refusal(txn.commit()) == ILLEGAL
    assert txn.abort().status == 200


def prepared(server: Server, member: Member, stream: Stream) -> tuple[Txn, Stream]:
    """Return a prepared transaction of the member that moves its stream, and its output."""
    output = server.stream()
    output.create()
    txn = begun(output, timeout_ms=900_000)
    assert txn.post(output, b"effect").status == 200
    mine = {"member": member.id, "epochs": {stream.path: member.epoch(stream)}}
    named = txn.call("offsets", group=member.group, offsets={stream.path: 1}, **mine)
    assert named.status == 200, named
    assert txn.call("prepare").status == 200
    return txn, output


@pytest.mark.parametrize("outcome", ["commit", "abort"])
@pytest.mark.parametrize("way", ["release", "leave"])
def test_a_prepared_transaction_holds_its_stream(
    server: Server, group: str, way: str, outcome: str
) -> None:
    (stream,) = filled(server, 1)
    old = join(server, group, stream)
    txn, output = prepared(server, old, stream)
    if way == "release":
        assert refusal(old.beat(released=[stream.path])) == UNSTABLE
    assert old.leave().status in (204, 409)
    new = join(server, group, stream)
    for _ in range(3):
        assert new.beat().status == 200
        assert new.streams == [], "it is not given to anybody before it is decided"
    rows = stream_rows(server, group)
    assert rows[stream.path]["phase"] == "revoking"
    assert refusal(move(server, group, {stream.path: 2}, operator=True)) == UNSTABLE
    ended = txn.call(outcome)
    assert ended.status == 200, "a prepared transaction is never refused"
    assert eventually(lambda: new.beat().status == 200 and new.streams == [stream.path])
    row = new.rows[stream.path]
    done = outcome == "commit"
    assert (row["epoch"], row["position"]) == (2, offset_of(1 if done else 0))
    assert output.get(f"offset=-1&{COMMITTED}").body == (b"effect" if done else b"")


@pytest.mark.parametrize("has_restart", [False, True])
def test_a_prepared_transaction_of_an_expired_member_holds_its_stream(
    machine: Machine, group: str, has_restart: bool
) -> None:
    (stream,) = filled(machine.server, 1)
    old = join(machine.server, group, stream, session_timeout_ms=SESSION_MS)
    txn, _ = prepared(machine.server, old, stream)
    machine.let_pass(SESSION_MS + 1_000)
    assert eventually(lambda: old.beat().status == 404)
    new = join(machine.server, group, stream, session_timeout_ms=600_000)
    if has_restart:
        machine.restart()
        new.server = txn.server = machine.server
    assert new.beat().status == 200
    assert new.streams == []
    assert stream_rows(machine.server, group)[stream.path]["phase"] == "revoking"
    assert txn.commit().status == 200
    assert eventually(lambda: new.beat().status == 200 and new.streams == [stream.path])
    assert (new.epoch(stream), new.rows[stream.path]["position"]) == (2, offset_of(1))


def test_a_repeated_one_shot_commit_is_answered_after_the_loss(server: Server, group: str) -> None:
    (stream,) = filled(server, 1)
    output = server.stream()
    output.create(b"", JSON)
    old = join(server, group, stream)
    document = {
        "producer_id": fresh("p"),
        "producer_epoch": 0,
        "producer_seq": 0,
        "appends": [{"stream": output.path, "messages": [1]}],
        "offsets": {group: {stream.path: 1}},
        "member": old.id,
        "epochs": {stream.path: 1},
    }
    first = commit(server, **document)
    assert first.status == 200
    assert old.leave().status == 204
    join(server, group, stream)
    again = commit(server, **document)
    assert (again.status, again.json["duplicate"]) == (200, True)
    assert refusal(commit(server, **{**document, "producer_seq": 1})) == ILLEGAL
    assert output.text == "[1]"


def test_a_prepared_transaction_holds_its_stream_also_from_the_same_instance(
    server: Server, group: str
) -> None:
    held, free = filled(server, 2)
    old = join(server, group, held, free, instance="i")
    txn, _ = prepared(server, old, held)
    new = join(server, group, held, free, instance="i")
    assert free.path in new.streams
    if held.path in new.streams:
        row = new.rows[held.path]
        assert row["position"] == offset_of(1), "else another has to be decided first"
    assert txn.commit().status == 200
    assert eventually(lambda: new.beat().status == 200 and len(new.streams) == 2)
    row = new.rows[held.path]
    assert (row["epoch"], row["position"], row["version"]) == (2, offset_of(1), 1)


def test_a_transaction_with_several_streams_is_refused_for_one_that_was_lost(
    server: Server, group: str
) -> None:
    streams = filled(server, 2)
    output = server.stream()
    output.create()
    one = join(server, group, *streams)
    txn = begun(output)
    assert txn.post(output, b"effect").status == 200
    offsets, epochs = {each.path: 1 for each in streams}, {each.path: 1 for each in streams}
    named = txn.call("offsets", group=group, offsets=offsets, member=one.id, epochs=epochs)
    assert named.status == 200
    two = join(server, group, *streams)
    settle(one, two)
    (kept,), (lost,) = one.streams, two.streams
    refused = txn.commit()
    assert refusal(refused) == ILLEGAL
    assert refused.json["stream"] == lost
    assert positions(server, group) == {}
    assert txn.abort().status == 200
    assert one.move(server.stream(kept), 1).status == 200


def test_a_listed_transaction_of_a_member_that_lost_its_stream_is_refused(
    server: Server, group: str
) -> None:
    (stream,) = filled(server, 1)
    output = server.stream()
    output.create(b"", JSON)
    old = join(server, group, stream)
    txn = Txn(server)
    assert txn.begin(kind="staged", streams=[output.path]).status == 201
    assert txn.stage(output, b"[1]", 0, content_type=JSON).status == 200
    mine = {"member": old.id, "epochs": {stream.path: 1}}
    assert txn.call("offsets", group=group, offsets={stream.path: 1}, **mine).status == 200
    document = {
        "producer_id": txn.producer,
        "producer_epoch": 0,
        "producer_seq": 0,
        "transactions": [{"id": txn.id, "epoch": txn.epoch}],
    }
    assert old.leave().status == 204
    assert refusal(commit(server, **document)) == ILLEGAL, "nobody owns it"
    join(server, group, stream)
    assert refusal(commit(server, **document)) == ILLEGAL
    assert (output.text, positions(server, group)) == ("[]", {})


def test_a_position_named_before_anybody_joined_is_refused_when_it_is_decided(
    server: Server, group: str
) -> None:
    (stream,) = filled(server, 1)
    output = server.stream()
    output.create()
    txn = begun(output)
    assert txn.call("offsets", group=group, offsets={stream.path: 1}).status == 200
    member = join(server, group, stream)
    assert refusal(txn.commit()) == SHARED
    assert txn.abort().status == 200
    assert member.move(stream, 1).status == 200


def test_a_member_does_not_get_a_stream_that_a_stranger_holds(server: Server, group: str) -> None:
    (stream,) = filled(server, 1)
    output = server.stream()
    output.create()
    txn = begun(output)
    assert txn.call("offsets", group=group, offsets={stream.path: 1}).status == 200
    assert txn.call("prepare").status == 200
    member = join(server, group, stream)
    assert member.streams == [], "its position can still move"
    assert txn.commit().status == 200
    assert eventually(lambda: member.beat().status == 200 and member.streams == [stream.path])
    assert member.rows[stream.path]["position"] == offset_of(1)


def test_a_wrong_wall_clock_expires_nobody(machine: Machine, group: str) -> None:
    (stream,) = filled(machine.server, 1)
    member = join(machine.server, group, stream, session_timeout_ms=SESSION_MS)
    for offset in (TEN_YEARS_MS, -TEN_YEARS_MS, 0):
        machine.set_clock(offset)
        assert stream.post(b"x").status == 204
        time.sleep(1.2)  # more than a sweep
        assert member.beat().status == 200
    assert member.streams == [stream.path]


# ---- groups as a whole ---------------------------------------------------------------------------


def test_an_unknown_group_is_an_error(server: Server, group: str) -> None:
    target = group_target(group)
    assert refusal(call(server, "GET", target)) == (404, "group_not_found")
    assert refusal(call(server, "DELETE", target)) == (404, "group_not_found")
    names = [each["group"] for each in call(server, "GET", "/v1/groups?limit=1000").json["groups"]]
    assert group not in names
    assert call(server, "GET", target).status == 404, "asking makes no group"


def test_a_group_shows_members_and_assignment(server: Server, group: str) -> None:
    streams = filled(server, 3)
    one = join(server, group, *streams, instance="i")
    two = join(server, group, *streams, session_timeout_ms=5_000)
    settle(one, two)
    found = shown(server, group)
    assert found["group"] == group
    members = {each["member"]: each for each in found["members"]}
    assert set(members) == {one.id, two.id}
    assert sorted(members[one.id]["streams"]) == one.streams
    assert (members[one.id]["instance"], members[two.id]["instance"]) == ("i", None)
    assert members[two.id]["session_timeout_ms"] == 5_000
    assert all(0 <= each["heard_ms_ago"] < 60_000 for each in members.values())
    owners = {each["stream"]: each["owner"] for each in found["streams"]}
    assert owners == {path: member.id for member in (one, two) for path in member.streams}
    assert {each["phase"] for each in found["streams"]} == {"owned"}


def test_the_list_of_groups_has_pages_and_a_prefix(server: Server) -> None:
    (stream,) = filled(server, 1)
    word = fresh("list")
    for n in range(3):
        move(server, f"{word}/{n}", {stream.path: 1})
    join(server, f"{word}/3", stream)
    target = f"/v1/groups?prefix={word}"
    found = call(server, "GET", target).json
    assert [each["group"] for each in found["groups"]] == [f"{word}/{n}" for n in range(4)]
    assert [each["members"] for each in found["groups"]] == [0, 0, 0, 1]
    assert found["next"] is None
    page = call(server, "GET", f"{target}&limit=3").json
    rest = call(server, "GET", f"{target}&limit=3&after={page['next']}").json
    assert [each["group"] for each in rest["groups"]] == [f"{word}/3"]


def test_a_group_is_deleted_when_nobody_uses_it(server: Server, group: str) -> None:
    (stream,) = filled(server, 1)
    target = group_target(group)
    member = join(server, group, stream)
    assert member.move(stream, 1).status == 200
    in_use = call(server, "DELETE", target)
    assert refusal(in_use) == (409, "group_in_use")
    assert in_use.json["members"] == 1
    assert member.leave().status == 204
    txn = begun(stream)
    assert (
        txn.call("offsets", group=group, offsets={stream.path: {"from": 1, "to": 2}}).status == 200
    )
    assert refusal(call(server, "DELETE", target)) == (409, "group_in_use")
    assert txn.abort().status == 200
    assert call(server, "DELETE", target).status == 204
    assert refusal(call(server, "GET", target)) == (404, "group_not_found")
    assert positions(server, group) == {}
    assert stream.text == "ab", "the data is not touched"


NAMES: Final = [
    "a/b",
    "a//b",
    "/",
    "..",
    ".",
    "a\nb",
    "a\r\nX: y",
    "tab\t",
    "\x00",
    "\x7f",
    " ",
    "per%cent",
    "%2F",
    "caf\xe9",
    "\u65e5\u672c\u8a9e",
    "\U0001f642",
    "\u202e",
    "__semel/replay/x",
    "members",
    "offsets",
    "snapshot",
    "a?b#c",
    "x" * 256,
]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_group_has_any_name(server: Server, name: str) -> None:
    (stream,) = filled(server, 1)
    answer = try_join(server, name, streams=[stream.path])
    if answer.status != 201:
        assert answer.status in (400, 403, 404), answer
        assert answer.code
        assert server.is_sound()
        return
    member = Member(server, name, answer)
    assert answer.json["group"] == name
    assert member.beat().status == 200
    assert member.move(stream, 1).status == 200
    assert shown(server, name)["group"] == name
    # Another test can have moved a group with this name, in a stream of its own.
    assert positions_of(server, name)[stream.path] == offset_of(1)
    assert name in [
        each["group"] for each in call(server, "GET", "/v1/groups?limit=1000").json["groups"]
    ]
    assert member.leave().status == 204
    assert call(server, "DELETE", group_target(name)).status == 204
    assert server.is_sound()


def positions_of(server: Server, group: str) -> dict[str, str]:
    answer = call(server, "GET", f"{group_target(group)}/offsets")
    assert answer.status == 200, answer
    found: dict[str, str] = answer.json["offsets"]
    return found


def test_a_name_that_is_too_long_is_400(server: Server) -> None:
    for name in ("x" * 257, "\xe9" * 129):
        assert try_join(server, name, streams=["s"]).status == 400
        assert call(server, "GET", group_target(name)).status in (400, 404)


# ---- lag -----------------------------------------------------------------------------------------


def unread(stream: Stream, position: int) -> int:
    """Return how many committed messages a reader would still get from a position."""
    count, offset = 0, offset_of(position)
    while True:
        page = stream.get(f"offset={offset}&{COMMITTED}", accept=FRAMES)
        assert page.status == 200, page
        found = decode_frames(page.body)
        count += sum(len(list(piece.messages())) for piece in found.slices)
        if page.next_offset == offset or "stream-up-to-date" in page.headers:
            return count
        offset = page.next_offset


def written(server: Server) -> Stream:
    """Return a stream with plain messages, and with transactions of every outcome."""
    stream = server.stream()
    stream.create(b"", JSON)
    stream.post(b"[1,2,3]", content_type=JSON)
    for outcome in ("commit", "abort", "commit", "abort", "abort"):
        txn = begun(stream)
        txn.post(stream, b"[4,5]", content_type=JSON)
        stream.post(b"[6]", content_type=JSON)
        txn.post(stream, b"[7]", content_type=JSON)
        assert txn.call(outcome).status == 200
    stream.post(b"[8]", content_type=JSON)
    return stream


def test_the_lag_is_what_a_reader_would_still_get(server: Server, group: str) -> None:
    stream = written(server)
    end = ordinal(stream.tail)
    for position in range(end + 1):
        assert move(server, group, {stream.path: position}).status == 200
        (row,) = shown(server, group)["streams"]
        assert row["lag"] == unread(stream, position), position
        assert row["lag_bound"] == end - position
        assert row["end"] == offset_of(end)
        assert row["lag"] <= row["lag_bound"]
        assert row["lag_seconds"] is None or row["lag_seconds"] >= 0
    assert (row["lag"], row["lag_bound"], row["lag_seconds"]) == (0, 0, 0)


def test_an_open_transaction_bounds_the_lag(server: Server, group: str) -> None:
    stream = written(server)
    end = ordinal(stream.tail)
    txn = begun(stream)
    txn.post(stream, b"[9]", content_type=JSON)
    stream.post(b"[10,11]", content_type=JSON)
    assert move(server, group, {stream.path: 2}).status == 200
    (row,) = shown(server, group)["streams"]
    assert (row["end"], row["lag_bound"]) == (offset_of(end), end - 2)
    assert row["lag"] == unread(stream, 2)
    assert txn.abort().status == 200
    (row,) = shown(server, group)["streams"]
    assert row["lag_bound"] == end - 2 + 4, "the aborted message, two plain ones and a control"
    assert row["lag"] == unread(stream, 2)


def test_the_lag_of_a_group_is_a_sum_and_a_maximum(server: Server, group: str) -> None:
    topic = Topic(server).create(3, JSON)
    topic.post(b"[1,2,3,4,5]", content_type=JSON, stream_partition=0)
    topic.post(b"[1]", content_type=JSON, stream_partition=2)
    join(server, group, topics=[topic.name])
    found = shown(server, group)
    assert (found["lag"], found["lag_bound"]) == (6, 6)
    assert [each["lag"] for each in found["streams"]] == [5, 0, 1]
    seconds = [each["lag_seconds"] for each in found["streams"]]
    assert found["lag_seconds"] == max(seconds)
    assert seconds[1] == 0


def test_the_age_is_that_of_the_first_unread_message(shared: Machine, group: str) -> None:
    server = shared.server
    stream = server.stream()
    stream.create(b"old")
    shared.let_pass(100_000)
    stream.post(b"new")
    shared.let_pass(20_000)
    for position, seconds in ((0, 120), (1, 20)):
        assert move(server, group, {stream.path: position}).status == 200
        found = shown(server, group)["lag_seconds"]
        assert math.isclose(found, seconds, abs_tol=30)
    shared.let_pass(100_000)
    assert shown(server, group)["lag_seconds"] >= 120


def test_trimmed_messages_are_no_lag(server: Server, group: str) -> None:
    (stream,) = filled(server, 1, messages=[b"x"] * 5)
    join(server, group, stream)
    assert stream.delete("before=3").status == 204
    (row,) = shown(server, group)["streams"]
    assert (row["lag"], row["lag_bound"]) == (2, 2)


def test_a_fork_has_the_lag_of_what_it_shares(server: Server, group: str) -> None:
    source = written(server)
    fork = server.stream()
    assert fork.put(stream_forked_from=source.target).status == 201
    fork.post(b"[1]", content_type=JSON)
    for position in (0, 3, 7):
        assert move(server, group, {fork.path: position}).status == 200
        (row,) = shown(server, group)["streams"]
        wanted = unread(fork, position)
        assert row["lag"] in (wanted, None)
        assert row["lag_bound"] >= wanted


# ---- heartbeats write nothing --------------------------------------------------------------------


def test_a_heartbeat_writes_no_frame(server: Server, group: str) -> None:
    streams = filled(server, 2)
    members = [join(server, group, *streams) for _ in range(2)]
    settle(*members)

    def journal_bytes() -> int:
        page = server.ask("GET", "/metrics").body.decode()
        (found,) = re.findall(r"^semel_journal_end_bytes (\d+)$", page, re.MULTILINE)
        return int(found)

    assert eventually(lambda: journal_bytes() == journal_bytes())
    before = journal_bytes()
    for _ in range(50):
        for member in members:
            assert member.beat().status == 200
    # A frame has more than 64 bytes. The writer may add one watermark when it is idle.
    assert journal_bytes() - before <= 2 * 64
