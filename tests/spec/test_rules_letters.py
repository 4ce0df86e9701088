"""Table L as far as it is HTTP: the streams with a group's dead letters and retries."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from tests.access.rig import AccessServer, access_server
from tests.spec.process import Answer, Server, Stream, offset_of
from tests.spec.rules_calls import JSON, Member, filled, group_target, join, try_join
from tests.spec.txn_calls import call, commit, fresh, refusal

GROUP = "billing"
RESERVED = (403, "reserved_stream")


def encoded(group: str) -> str:
    """Return a group's name as a segment of a path, which cannot be `.` or `..`."""
    return {".": "%2E", "..": "%2E%2E"}.get(group) or quote(group, safe="")


def dead(group: str) -> str:
    return f"__semel/dead/{encoded(group)}"


def retry(group: str) -> str:
    return f"__semel/retry/{encoded(group)}"


def replay(group: str) -> str:
    return f"__semel/replay/{encoded(group)}"


def address(path: str) -> str:
    """Return the address of a stream; its path can have percent signs of its own."""
    return f"/v1/stream/{quote(path)}"


def made(server: Server, path: str) -> None:
    answer = server.ask("PUT", address(path), content_type=JSON)
    assert answer.status in (200, 201), answer


def letters(server: Server, path: str) -> list[Any]:
    answer = server.ask("GET", f"{address(path)}?offset=-1&isolation=read_committed")
    assert answer.status == 200, answer
    found: list[Any] = msgspec.json.decode(answer.body)
    return found


def reject(owner: Member, stream: Stream, number: int, *, producer: str, **more: Any) -> Answer:
    """Send the commit by which a member gives up the message at `number`."""
    letter = {"stream": stream.path, "offset": offset_of(number), "cause": "bad"}
    document = {
        "producer_id": producer,
        "producer_epoch": 0,
        "producer_seq": 0,
        "appends": [{"stream": dead(owner.group), "messages": [letter]}],
        "offsets": {owner.group: {stream.path: {"from": number, "to": number + 1}}},
        "member": owner.id,
        "epochs": {stream.path: owner.epoch(stream)},
        **more,
    }
    return commit(owner.server, **document)


def position(server: Server, group: str, path: str) -> str | None:
    answer = call(server, "GET", f"{group_target(group)}/offsets")
    assert answer.status == 200, answer
    found: str | None = answer.json["offsets"].get(path)
    return found


def test_the_letter_and_the_position_are_one_commit(server: Server) -> None:
    group, producer = fresh("g"), fresh("p")
    (stream,) = filled(server, 1)
    made(server, dead(group))
    member = join(server, group, stream)
    first = reject(member, stream, 0, producer=producer)
    assert first.status == 200, first
    again = reject(member, stream, 0, producer=producer)
    assert (again.status, again.json["duplicate"]) == (200, True)
    assert [each["offset"] for each in letters(server, dead(group))] == [offset_of(0)]
    assert position(server, group, stream.path) == offset_of(1)
    other = reject(member, stream, 0, producer=fresh("p"))
    assert refusal(other) == (409, "position_conflict")
    assert len(letters(server, dead(group))) == 1


def test_a_member_that_lost_the_stream_writes_no_letter(server: Server) -> None:
    group = fresh("g")
    (stream,) = filled(server, 1)
    made(server, dead(group))
    old = join(server, group, stream)
    assert old.leave().status == 204
    new = join(server, group, stream)
    refused = reject(old, stream, 0, producer=fresh("p"))
    assert refusal(refused) == (409, "ILLEGAL_GENERATION")
    stranger = reject(old, stream, 0, producer=fresh("p"), member=None, epochs={})
    assert refusal(stranger) == (409, "group_is_shared")
    assert letters(server, dead(group)) == []
    assert position(server, group, stream.path) is None
    assert reject(new, stream, 0, producer=fresh("p")).status == 200


def test_a_commit_does_not_make_the_stream_of_dead_letters(server: Server) -> None:
    group = fresh("g")
    (stream,) = filled(server, 1)
    member = join(server, group, stream)
    refused = reject(member, stream, 0, producer=fresh("p"))
    assert refusal(refused) == (404, "stream_not_found")
    assert position(server, group, stream.path) is None


def replayed(server: Server, group: str, start: int, end: int, **more: Any) -> Answer:
    """Copy dead letters to the retry stream, and move the position of the replays."""
    return commit(
        server,
        **{
            "producer_id": fresh("p"),
            "producer_epoch": 0,
            "producer_seq": 0,
            "appends": [
                {"stream": retry(group), "messages": letters(server, dead(group))[start:end]}
            ],
            "offsets": {replay(group): {dead(group): {"from": start, "to": end}}},
            **more,
        },
    )


def test_a_replay_goes_to_the_retry_stream_once(server: Server) -> None:
    group = fresh("g")
    (stream,) = filled(server, 1)
    made(server, dead(group))
    made(server, retry(group))
    member = join(server, group, stream, server.stream(retry(group)))
    assert reject(member, stream, 0, producer=fresh("p")).status == 200
    assert reject(member, stream, 1, producer=fresh("p")).status == 200
    assert replayed(server, group, 0, 1).status == 200
    assert refusal(replayed(server, group, 0, 1)) == (409, "position_conflict"), "once"
    assert replayed(server, group, 1, 2).status == 200
    assert letters(server, retry(group)) == letters(server, dead(group))
    assert stream.text == "ab", "the source has no message more"
    assert member.streams == sorted([stream.path, retry(group)])
    moved = member.move(server.stream(retry(group)), {"from": 0, "to": 1})
    assert moved.status == 200, moved
    assert replay(group) in [
        each["group"]
        for each in call(server, "GET", f"/v1/groups?prefix={quote(replay(group))}").json["groups"]
    ]


def test_a_retry_stream_is_shared_like_any_other(server: Server) -> None:
    group = fresh("g")
    (stream,) = filled(server, 1)
    made(server, retry(group))
    named = [stream.path, retry(group)]
    one = Member(server, group, try_join(server, group, streams=named))
    two = Member(server, group, try_join(server, group, streams=named))
    assert one.beat().status == 200
    (asked,) = one.last["release"]
    assert one.beat(released=[asked]).status == 200
    assert two.beat().status == 200
    assert two.streams == [asked]


@pytest.mark.parametrize(
    "path",
    [
        "__semel/other",
        "__semel/audit",
        "__semel/dead",
        "__semel/retry",
        "__semel/dead/a/b",
        "__semel/dead/a b",
        "__semel/dead/caf\xe9",
        "__semel/dead/a%2fb",
        "__semel/dead/%61",
        "__semel/dead/a%2Eb",
        "__semel/dead/%2e",
        "__semel/dead/%ff",
        "__semel/dead/%",
        "__semel/retry/a/0",
        "__semel/replays/a",
    ],
)
def test_other_reserved_paths_are_refused(server: Server, path: str) -> None:
    put = server.ask("PUT", address(path), content_type=JSON)
    assert refusal(put) == RESERVED
    post = server.ask("POST", address(path), b"[1]", content_type=JSON)
    assert refusal(post) in [RESERVED, (404, "stream_not_found")]
    fork = server.ask("PUT", address(path), stream_forked_from=server.stream().target)
    assert refusal(fork) in [RESERVED, (404, "stream_not_found")]
    answer = commit(
        server,
        producer_id=fresh("p"),
        producer_epoch=0,
        producer_seq=0,
        appends=[{"stream": path, "messages": [1]}],
    )
    assert refusal(answer) in [RESERVED, (404, "stream_not_found")]
    begin = call(
        server,
        "POST",
        "/v1/transactions",
        {
            "transaction_id": fresh(),
            "producer_id": fresh("p"),
            "producer_epoch": 0,
            "streams": [path],
        },
    )
    assert refusal(begin) in [RESERVED, (404, "stream_not_found")]
    assert server.ask("HEAD", address(path)).status in (200, 404)


@pytest.mark.parametrize(
    "group",
    [
        "a/b",
        "a b",
        "caf\xe9",
        "\u65e5\u672c",
        "100%",
        "a\nb",
        "%2F",
        "a+b",
        "~",
        "a?b#c",
        ".",
        "..",
    ],
)
def test_a_group_of_any_name_has_dead_letters(server: Server, group: str) -> None:
    (stream,) = filled(server, 1)
    group = group if group in (".", "..") else f"{fresh('g')}{group}"
    made(server, dead(group))
    made(server, retry(group))
    member = join(server, group, stream)
    assert reject(member, stream, 0, producer=fresh("p")).status == 200
    assert replayed(server, group, 0, 1).status == 200
    assert len(letters(server, retry(group))) == 1
    for path in (dead(group), retry(group)):
        assert server.ask("DELETE", address(path)).status == 204


def test_no_pattern_and_no_topic_reaches_reserved_streams(server: Server) -> None:
    group = fresh("g")
    made(server, dead(group))
    made(server, retry(group))
    for pattern in ("**", "__semel/**", f"__semel/dead/{group}", "*/*/*"):
        other = fresh("g")
        answer = try_join(server, other, patterns=[pattern])
        assert answer.status in (201, 400), answer
        if answer.status == 201:
            member = Member(server, other, answer)
            assert not [path for path in member.streams if path.startswith("__semel/")]
            assert member.leave().status == 204


# ---- with access on ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AccessServer]:
    """A server with access on, which has an input, and dead letters of two groups."""
    folder: Path = tmp_path_factory.mktemp("letters")
    with access_server(folder / "data") as it:
        it.create("input", b"a", "text/plain")
        for group in (GROUP, "other"):
            for path in (dead(group), retry(group)):
                assert it.call(it.admin, "PUT", address(path), content_type=JSON).status == 201
        yield it


def scopes(group: str) -> tuple[str, ...]:
    return (f"group:{group}:read,write", "stream:input:read")


def worker(server: AccessServer, group: str) -> str:
    """Return a token that may write as the group and read its input."""
    return server.make(*scopes(group), principal=fresh("worker"))


def join_with(server: AccessServer, token: str, group: str) -> dict[str, Any]:
    answer = server.call(
        token, "POST", f"{group_target(group)}/members", {"streams": ["input", retry(group)]}
    )
    assert answer.status == 201, answer
    found: dict[str, Any] = answer.json
    return found


def letter_from(
    server: AccessServer, token: str, member: dict[str, Any], path: str, **more: Any
) -> Answer:
    """Send the commit of a member that writes a letter to `path`."""
    epochs = {each["stream"]: each["epoch"] for each in member["assigned"]}
    document = {
        "producer_id": fresh("p"),
        "producer_epoch": 0,
        "producer_seq": 0,
        "appends": [{"stream": path, "messages": [{"cause": "bad"}]}],
        "offsets": {member["group"]: {"input": 1}},
        "member": member["member"],
        "epochs": {"input": epochs["input"]},
        **more,
    }
    return server.call(token, "POST", "/v1/commits", document)


def test_whoever_may_write_as_the_group_writes_its_letters(guarded: AccessServer) -> None:
    token = worker(guarded, GROUP)
    member = join_with(guarded, token, GROUP)
    assert letter_from(guarded, token, member, dead(GROUP)).status == 200
    assert guarded.call(token, "GET", f"{address(dead(GROUP))}?offset=-1").status == 200
    fresh_path = address(retry(GROUP))
    assert guarded.call(token, "DELETE", fresh_path).status == 204
    assert guarded.call(token, "PUT", fresh_path, content_type=JSON).status == 201
    left = guarded.call(token, "DELETE", f"{group_target(GROUP)}/members/{member['member']}")
    assert left.status == 204


def test_another_group_s_letters_are_refused(guarded: AccessServer) -> None:
    token = worker(guarded, GROUP)
    member = join_with(guarded, token, GROUP)
    before = guarded.read(quote(dead("other")))
    answer = letter_from(guarded, token, member, dead("other"))
    assert answer.status in (403, 404), answer
    assert guarded.read(quote(dead("other"))) == before
    for method, path in (
        ("GET", dead("other")),
        ("PUT", dead("third")),
        ("POST", retry("other")),
        ("DELETE", dead("other")),
    ):
        body = b"[1]" if method == "POST" else None
        refused = guarded.call(token, method, address(path), body, content_type=JSON)
        assert refused.status in (403, 404), (method, path, refused)
    theirs = guarded.call(token, "POST", f"{group_target('other')}/members", {"streams": ["input"]})
    assert theirs.status in (403, 404)
    left = guarded.call(token, "DELETE", f"{group_target(GROUP)}/members/{member['member']}")
    assert left.status == 204


@pytest.mark.parametrize(
    "scope",
    [
        "stream:*:read,write,create,delete,describe",
        "stream:__semel/*:read,write,create,delete,describe",
        f"stream:__semel/dead/{GROUP}:read,write,create,delete,describe",
        f"topic:__semel/dead/{GROUP}:read,write,create,delete,describe",
        "group:bill:read,write",
        f"group:{GROUP}x:read,write",
    ],
)
def test_a_right_on_streams_is_no_right_on_letters(guarded: AccessServer, scope: str) -> None:
    answer = guarded.call(guarded.admin, "POST", "/v1/tokens", {"scopes": [scope]})
    if answer.status == 400:
        return  # such a scope does not even exist
    token = answer.json["token"]
    path = address(dead(GROUP))
    before = guarded.read(quote(dead(GROUP)))
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE"):
        body = b"[1]" if method == "POST" else None
        refused = guarded.call(token, method, path, body, content_type=JSON)
        assert refused.status in (403, 404), (method, refused)
    assert guarded.read(quote(dead(GROUP))) == before


def test_who_may_only_read_the_group_writes_no_letter(guarded: AccessServer) -> None:
    token = guarded.make(f"group:{GROUP}:read", "stream:input:read", "cluster:IdempotentWrite")
    path = address(dead(GROUP))
    assert guarded.call(token, "GET", f"{path}?offset=-1").status == 200
    for method in ("POST", "DELETE"):
        body = b"[1]" if method == "POST" else None
        answer = guarded.call(token, method, path, body, content_type=JSON)
        assert answer.status == 403, (method, answer)
    member = guarded.call(token, "POST", f"{group_target(GROUP)}/members", {"streams": ["input"]})
    assert member.status == 403


def test_a_group_named_like_a_replay_belongs_to_its_group(guarded: AccessServer) -> None:
    stranger = worker(guarded, "third")
    target = f"{group_target(replay(GROUP))}/offsets"
    moved = guarded.call(stranger, "POST", target, {"offsets": {"input": 1}})
    assert moved.status in (403, 404), moved
    mine = worker(guarded, GROUP)
    assert guarded.call(mine, "POST", target, {"offsets": {"input": 1}}).status == 200
