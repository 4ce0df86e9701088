"""Subscriptions over HTTP: the table of the protocol, row by row, and what semel adds."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from semel.wire.webhook_signatures import verify
from tests.spec.process import ZERO, Answer, Server, Stream, offset_of, sound_server
from tests.spec.subscription_calls import (
    JSON,
    Receiver,
    Subscription,
    Wake,
    ask,
    error_of,
    pull,
    receiving,
    refusal,
    until,
)
from tests.spec.txn_calls import Txn, fresh

HOOK_URL: Final = "https://example.com/hook"
NEVER: Final = "never/created"  # so that nothing is delivered to HOOK_URL


@pytest.fixture
def source(server: Server) -> Stream:
    """A JSON stream with one message."""
    stream = server.stream()
    stream.create(b"[1]", JSON)
    return stream


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as it:
        yield it


def post(stream: Stream, *messages: object) -> str:
    answer = stream.post(json.dumps(list(messages)).encode(), content_type=JSON)
    assert answer.status == 204, answer
    return answer.next_offset


def hook(server: Server, receiver: Receiver, *streams: Stream, **more: Any) -> Subscription:
    names = [each.path for each in streams]
    document = {"type": "webhook", "streams": names, "webhook": {"url": receiver.url}, **more}
    return Subscription(server).create(document)


def delivered(subscription: Subscription, receiver: Receiver) -> Wake:
    body, _ = receiver.next()
    document = json.loads(body)
    return Wake(subscription, document, "callback", document["callback_token"])


# ---- creation ------------------------------------------------------------------------------------


def test_a_creation_is_201_and_its_repeat_200_and_another_configuration_409(
    server: Server,
) -> None:
    it = Subscription(server)
    document = {
        "type": "webhook",
        "pattern": f"{it.id}/*",
        "streams": [f"{NEVER}/b", f"/{NEVER}/a/"],
        "webhook": {"url": HOOK_URL},
        "lease_ttl_ms": 1_000,
        "description": "what it is for",
    }
    created = it.put(document)
    assert created.status == 201
    assert created.headers["content-type"] == JSON
    shown = created.json
    assert shown["id"] == shown["subscription_id"] == it.id
    assert (
        shown.items()
        >= {
            "type": "webhook",
            "pattern": f"{it.id}/*",
            "lease_ttl_ms": 1_000,
            "description": "what it is for",
            "status": "active",
        }.items()
    )
    again = it.put({**document, "streams": [f"{NEVER}/{each}" for each in "aba"]})
    assert (again.status, again.json) == (200, shown)
    changes: list[dict[str, Any]] = [
        {"pattern": f"{it.id}/**"},
        {"streams": [f"{NEVER}/a"]},
        {"webhook": {"url": HOOK_URL + "2"}},
        {"lease_ttl_ms": 1_001},
        {"description": "something else"},
    ]
    for change in changes:
        assert refusal(it.put({**document, **change})) == (409, "SUBSCRIPTION_ALREADY_EXISTS")
    assert it.state == shown


def test_a_webhook_is_shown_with_the_key_of_the_server_and_without_a_secret(
    server: Server,
) -> None:
    it = Subscription(server)
    document = {
        "type": "webhook",
        "streams": [NEVER],
        "webhook": {"url": HOOK_URL, "secret": "s"},
        "webhook_secret": "s",
    }
    for answer in (it.put(document), it.put(document), it.show()):
        assert "secret" not in answer.body.decode()
        signing = answer.json["webhook"]["signing"]
        assert signing["alg"] == "ed25519"
        assert signing["jwks_url"] == f"{server.url}/v1/stream/__ds/jwks.json"
        keys = ask(server, "GET", "jwks.json")
        assert keys.headers["content-type"] == "application/jwk-set+json"
        assert keys.headers["cache-control"] == "public, max-age=300"
        (key,) = keys.json["keys"]
        assert key["kid"] == signing["kid"]
        assert key["kid"].startswith("ds_")
        assert (key["kty"], key["crv"], key["alg"]) == ("OKP", "Ed25519", "EdDSA")
        assert "d" not in key


def test_a_host_that_a_client_has_invented_is_in_no_url(server: Server) -> None:
    it = Subscription(server).create(
        {"type": "webhook", "streams": [NEVER], "webhook": {"url": HOOK_URL}}
    )
    local = f"localhost:{server.port}"
    target = f"/v1/stream/__ds/{it.target}"
    found = server.ask("GET", target, host=local).json["webhook"]["signing"]["jwks_url"]
    assert found == f"http://{local}/v1/stream/__ds/jwks.json"


@pytest.mark.parametrize(
    "url",
    ["http://10.0.0.1/hook", "http://example.com/", "ftp://127.0.0.1/", "file:///etc/passwd", "x"],
)
def test_a_url_that_is_not_allowed_has_a_code_of_its_own(server: Server, url: str) -> None:
    it = Subscription(server)
    answer = it.put({"type": "webhook", "streams": [NEVER], "webhook": {"url": url}})
    assert refusal(answer) == (400, "WEBHOOK_URL_REJECTED")
    assert error_of(answer)["field"] == "webhook"
    assert it.show().status == 404


def test_a_name_of_the_server_s_streams_and_a_topic_are_refused(server: Server) -> None:
    topic = fresh("topic")
    document = {"partitions": 1}
    assert server.ask("PUT", f"/v1/topics/{topic}", json.dumps(document).encode()).status == 201
    for path, status, code in ((topic, 409, "is_topic"), ("__semel/x", 403, "reserved_stream")):
        answer = Subscription(server).put(
            {"type": "webhook", "streams": [path], "webhook": {"url": HOOK_URL}}
        )
        assert refusal(answer) == (status, code)
        assert error_of(answer)["stream"] == path


def test_the_wake_stream_must_be_an_open_json_stream_that_is_not_followed(server: Server) -> None:
    text, closed = server.stream(), server.stream()
    text.create()
    closed.create(content_type=JSON, stream_closed="true")
    for path in (text.path, closed.path, fresh("absent")):
        document = {"type": "pull-wake", "streams": [NEVER], "wake_stream": path}
        answer = Subscription(server).put(document)
        assert refusal(answer) == (409, "wake_stream_refused")
        assert error_of(answer)["stream"] == path
        answer = Subscription(server).put({**document, "streams": [path]})
        assert refusal(answer) == (400, "INVALID_REQUEST")


# ---- showing and deleting ------------------------------------------------------------------------


def test_an_unknown_subscription_is_404_for_every_call_except_its_deletion(server: Server) -> None:
    it = Subscription(server)
    assert refusal(it.show()) == (404, "SUBSCRIPTION_NOT_FOUND")
    missing: list[Answer] = [
        it.call("streams", {"streams": ["a"]}),
        it.call("claim", {"worker": "w"}),
        it.call("resume"),
        it.call("ack", {"wake_id": "w", "generation": 1}, "wake1.1.dw.x"),
        it.call("callback", {"wake_id": "w", "generation": 1}, "wake1.1.dw.x"),
        it.call("release", {"wake_id": "w", "generation": 1}, "wake1.1.dw.x"),
        ask(server, "DELETE", f"{it.target}/streams/a"),
    ]
    for answer in missing:
        assert refusal(answer) == (404, "SUBSCRIPTION_NOT_FOUND")
    for _ in range(2):
        answer = ask(server, "DELETE", it.target)
        assert (answer.status, answer.body) == (204, b"")


def test_a_deletion_can_be_repeated_and_the_id_used_again(server: Server, source: Stream) -> None:
    it = pull(server, source)
    post(source, 2)
    old = it.claim()
    for _ in range(2):
        assert ask(server, "DELETE", it.target).status == 204
    assert it.show().status == 404
    again = pull(server, source)
    it.create(
        {"type": "pull-wake", "streams": [source.path], "wake_stream": again.state["wake_stream"]}
    )
    post(source, 3)
    new = it.claim()
    assert new.generation == old.generation == 1, "it begins again"
    assert old.ack().status == 409, "the old token is of the same generation, and another wake"
    assert refusal(old.ack(token=new.token)) == (409, "FENCED")
    assert new.finish().status == 200


def test_streams_are_listed_in_pages(server: Server) -> None:
    streams = [server.stream() for _ in range(3)]
    for stream in streams[1:]:
        stream.create(b"[1]", JSON)
    it = pull(server, *streams)
    whole = it.state
    assert (whole["stream_count"], whole["pending_count"]) == (2, 0)
    assert whole["streams"][0] == {
        "path": streams[0].path,
        "link_type": "explicit",
        "acked_offset": "-1",
        "tail_offset": "-1",
        "has_pending": False,
    }
    assert "streams_next" not in whole
    first = it.show("?streams_limit=1").json
    second = it.show(f"?streams_limit=1&streams_after={first['streams_next']}").json
    assert first["streams"] + second["streams"] == whole["streams"]
    for query in ("?streams_limit=0", "?streams_after=x"):
        assert refusal(it.show(query)) == (400, "INVALID_REQUEST")


def test_subscriptions_are_listed_in_pages(server: Server) -> None:
    prefix = fresh("page")
    names = [f"{prefix}-{n}" for n in range(3)]
    for name in names:
        Subscription(server, name).create(
            {"type": "webhook", "streams": [NEVER], "webhook": {"url": HOOK_URL}}
        )
    whole = ask(server, "GET", f"subscriptions?prefix={prefix}").json
    assert [each["id"] for each in whole["subscriptions"]] == names
    assert whole["next"] is None
    one = Subscription(server, names[0]).state
    assert whole["subscriptions"][0] == {key: one[key] for key in one if key != "streams"}
    first = ask(server, "GET", f"subscriptions?prefix={prefix}&limit=2").json
    assert first["next"] == names[1]
    second = ask(server, "GET", f"subscriptions?prefix={prefix}&limit=2&after={names[1]}").json
    assert first["subscriptions"] + second["subscriptions"] == whole["subscriptions"]


# ---- links ---------------------------------------------------------------------------------------


def test_a_named_stream_is_followed_from_its_tail_and_a_later_one_from_its_start(
    server: Server, source: Stream
) -> None:
    later = server.stream(f"{source.path}/later")
    it = pull(server, later)
    assert it.call("streams", {"streams": [f"/{source.path}/"]}).status == 204
    assert it.link(source.path)["acked_offset"] == source.tail
    later.create(b"[1]", JSON)
    wake = it.claim()
    assert [(each["path"], each["acked_offset"]) for each in wake.streams] == [(later.path, "-1")]


@pytest.mark.parametrize("spelling", ["{0}%2Fb", "{0}%2fb", "{0}/b", "%2F{0}/b%2F"])
def test_the_path_of_a_link_can_have_encoded_slashes(server: Server, spelling: str) -> None:
    name = fresh("manual")
    it = pull(server, server.stream(f"{name}/a"), server.stream(f"{name}/b"))
    target = f"{it.target}/streams/{spelling.format(name)}"
    for _ in range(2):
        answer = ask(server, "DELETE", target)
        assert (answer.status, answer.body) == (204, b"")
    assert [each["path"] for each in it.state["streams"]] == [f"{name}/a"]


def test_a_name_wins_over_the_pattern_and_its_end_leaves_the_link(
    server: Server, source: Stream
) -> None:
    it = pull(server, source, pattern=source.path)
    assert it.link(source.path)["link_type"] == "explicit"
    assert ask(server, "DELETE", f"{it.target}/streams/{source.path}").status == 204
    assert it.link(source.path)["link_type"] == "glob"
    source.delete()
    assert it.state["streams"] == []


def test_a_creation_with_a_body_wakes_and_is_linked_from_its_start(server: Server) -> None:
    folder = fresh("events")
    wakes = server.stream()
    wakes.create(content_type=JSON)
    it = Subscription(server).create(
        {"type": "pull-wake", "pattern": f"{folder}/*", "wake_stream": wakes.path}
    )
    stream = server.stream(f"{folder}/new")
    stream.create(b'{"event":"created"}', JSON)
    (message,) = json.loads(wakes.text)
    assert message.pop("ts") > 1_700_000_000_000
    assert message == {
        "type": "wake",
        "subscription_id": it.id,
        "stream": stream.path,
        "generation": 1,
    }
    assert it.claim().streams == [
        {
            "path": stream.path,
            "link_type": "glob",
            "acked_offset": "-1",
            "tail_offset": stream.tail,
            "has_pending": True,
        }
    ]


# ---- claims and acks -----------------------------------------------------------------------------


def test_a_wake_is_claimed_acked_and_followed_by_the_next(server: Server, source: Stream) -> None:
    it = pull(server, source, lease_ttl_ms=60_000)
    assert refusal(it.call("claim", {"worker": "w-1"})) == (409, "NO_PENDING_WORK")
    post(source, 2)
    wake = it.claim()
    assert wake.document["lease_ttl_ms"] == 60_000
    assert sorted(wake.document) == ["generation", "lease_ttl_ms", "streams", "token", "wake_id"]
    assert it.state["worker"] == "w-1"
    busy = it.call("claim", {"worker": "w-2"})
    assert refusal(busy) == (409, "ALREADY_CLAIMED")
    assert error_of(busy)["current_holder"] == "w-1"
    assert error_of(busy)["generation"] == wake.generation
    post(source, 3)
    done = wake.finish()
    assert (done.status, done.body) == (200, b'{"ok":true,"next_wake":true}')
    assert it.link(source.path)["acked_offset"] == wake.streams[0]["tail_offset"]
    following = it.claim("w-2")
    assert following.generation == wake.generation + 1
    done = following.finish()
    assert (done.status, done.body) == (200, b'{"ok":true,"next_wake":false}')
    link = it.link(source.path)
    assert (link["acked_offset"], link["has_pending"]) == (link["tail_offset"], False)


def test_the_wake_exists_when_the_append_is_answered(server: Server, source: Stream) -> None:
    it = pull(server, source)
    for n in range(20):
        post(source, n)
        assert it.claim().finish().json == {"ok": True, "next_wake": False}


def test_a_finished_wake_is_fenced_for_every_call(server: Server, source: Stream) -> None:
    it = pull(server, source)
    post(source, 2)
    wake = it.claim()
    wake.finish()
    for answer in (wake.finish(), wake.ack(), wake.release()):
        assert refusal(answer) == (409, "FENCED")
        assert error_of(answer)["generation"] == wake.generation


def test_an_ack_without_done_moves_the_offset_and_keeps_the_wake(
    server: Server, source: Stream
) -> None:
    it = pull(server, source)
    post(source, 2, 3)
    wake = it.claim()
    part = [{"path": f"/{source.path}", "offset": 2}]
    assert wake.ack(acks=part).body == b'{"ok":true,"next_wake":false}'
    assert it.link(source.path)["acked_offset"] == offset_of(2)
    assert wake.ack().status == 200, "a heartbeat"
    assert wake.ack(acks=part).status == 200, "the same offset again"
    assert wake.finish().status == 200


def test_none_of_the_acks_is_applied_if_one_is_wrong(server: Server, source: Stream) -> None:
    other = server.stream()
    other.create(b"[1]", JSON)
    it = pull(server, source, other)
    post(source, 2)
    wake = it.claim()
    good = {"stream": source.path, "offset": 2}
    wrong: list[dict[str, Any]] = [
        {"stream": other.path, "offset": "-1"},
        {"stream": other.path, "offset": -1},
        {"stream": other.path, "offset": ZERO},
        {"stream": other.path, "offset": 2},
        {"stream": other.path, "offset": "9999999999999999_9999999999999999"},
        {"stream": fresh("absent"), "offset": 1},
        good,
    ]
    for each in wrong:
        answer = wake.ack(acks=[good, each], done=True)
        assert refusal(answer) == (409, "INVALID_OFFSET"), each
        assert error_of(answer)["stream"] == each["stream"]
    assert it.link(source.path)["acked_offset"] == offset_of(1)
    assert wake.ack(acks=[good], done=True).status == 200


def test_a_release_and_the_end_of_a_lease_make_another_wake(server: Server, source: Stream) -> None:
    it = pull(server, source, lease_ttl_ms=1_000)
    post(source, 2)
    first = it.claim()
    assert first.release().status == 204
    assert refusal(first.finish()) == (409, "FENCED")
    second = it.claim("w-2")
    assert second.generation == first.generation + 1
    began = time.monotonic()
    until(lambda: it.state["worker"] is None)
    assert time.monotonic() - began > 0.9, "it ends late, but never early"
    assert refusal(second.ack()) == (409, "FENCED")
    third = it.claim("w-3")
    assert third.generation > second.generation
    assert third.streams == first.streams, "nothing is lost"


def test_an_open_transaction_wakes_nobody(server: Server, source: Stream) -> None:
    it = pull(server, source)
    txn = Txn(server)
    txn.begin(streams=[source.path])
    assert txn.post(source, b"[2]", content_type=JSON).status in (200, 204)
    assert refusal(it.call("claim", {"worker": "w"})) == (409, "NO_PENDING_WORK")
    assert txn.call("commit").status == 200
    assert it.claim().finish().status == 200


# ---- webhooks ------------------------------------------------------------------------------------


def test_a_delivery_is_signed_and_called_back(
    server: Server, source: Stream, receiver: Receiver
) -> None:
    it = hook(server, receiver, source)
    post(source, 2)
    body, signature = receiver.next()
    jwks = ask(server, "GET", "jwks.json").body
    now_s = int(time.time())
    assert verify(body, signature, jwks, now_s)
    assert not verify(body + b" ", signature, jwks, now_s)
    document = json.loads(body)
    assert document["subscription_id"] == it.id
    assert document["callback_url"] == f"{server.url}/v1/stream/__ds/subscriptions/{it.id}/callback"
    wake = Wake(it, document, "callback", document["callback_token"])
    assert wake.streams == [
        {
            "path": source.path,
            "link_type": "explicit",
            "acked_offset": offset_of(1),
            "tail_offset": offset_of(2),
            "has_pending": True,
        }
    ]
    assert wake.finish().body == b'{"ok":true,"next_wake":false}'
    assert refusal(wake.finish()) == (409, "FENCED")


def test_done_in_the_response_acks_the_delivery(server: Server, source: Stream) -> None:
    with receiving({"done": True}) as receiver:
        it = hook(server, receiver, source)
        offset = post(source, 2)
        receiver.next()
        until(lambda: it.link(source.path)["acked_offset"] == offset)
        assert it.state["attempts"] == 0


def test_an_id_that_must_be_encoded_is_called_back(
    server: Server, source: Stream, receiver: Receiver
) -> None:
    it = Subscription(server, f"{fresh('a')}/é ?%2F")
    it.create({"type": "webhook", "streams": [source.path], "webhook": {"url": receiver.url}})
    post(source, 2)
    wake = delivered(it, receiver)
    url = wake.document["callback_url"]
    assert url == f"{server.url}/v1/stream/__ds/{it.target}/callback"
    assert wake.finish().status == 200


# ---- the order of the checks ---------------------------------------------------------------------


def test_what_is_checked_first_is_answered(
    server: Server, source: Stream, receiver: Receiver
) -> None:
    """W5, with each fault alone and with all that are checked after it."""
    webhook, it = hook(server, receiver, source), pull(server, source)
    other = pull(server, source)
    post(source, 2)
    wake, others, delivery = it.claim(), other.claim(), delivered(webhook, receiver)
    bad = wake.body(acks=[{"stream": "absent", "offset": 1}])
    stale = {**bad, "generation": wake.generation + 1}
    absent = Subscription(server)
    for action in ("ack", "callback", "release"):
        for them in (it, webhook, absent):
            answer = them.call(action, stale)
            assert refusal(answer) == (401, "TOKEN_INVALID")
            assert answer.headers["www-authenticate"].startswith("Bearer")
        assert refusal(absent.call(action, stale, "x")) == (404, "SUBSCRIPTION_NOT_FOUND")
    wrong_type = [
        webhook.call("ack", stale, "x"),
        webhook.call("release", stale, delivery.token),
        webhook.call("claim", {"worker": "w"}),
        it.call("callback", stale, wake.token),
    ]
    for answer in wrong_type:
        assert refusal(answer) == (400, "INVALID_REQUEST")
        assert error_of(answer)["cause"] == "wrong_type"
    for token in ("x", others.token, delivery.token, wake.token[:-1], wake.token + "A"):
        for action in ("ack", "release"):
            assert refusal(it.call(action, stale, token)) == (401, "TOKEN_INVALID")
    assert refusal(it.call("ack", stale, wake.token)) == (409, "FENCED")
    assert refusal(it.call("ack", {**bad, "wake_id": "w_x"}, wake.token)) == (409, "FENCED")
    assert refusal(it.call("release", stale, wake.token)) == (409, "FENCED")
    assert refusal(it.call("ack", bad, wake.token)) == (409, "INVALID_OFFSET")
    assert wake.finish().status == others.finish().status == delivery.finish().status == 200


def test_the_token_of_an_earlier_wake_is_fenced(server: Server, source: Stream) -> None:
    it = pull(server, source)
    post(source, 2)
    first = it.claim()
    first.release()
    second = it.claim()
    assert refusal(second.ack(token=first.token)) == (409, "FENCED")
    assert refusal(first.ack(token=second.token)) == (409, "FENCED")
    assert second.ack().status == 200


def test_a_body_is_not_received_without_the_token_of_a_wake(server: Server, source: Stream) -> None:
    it = pull(server, source)
    post(source, 2)
    wake = it.claim()
    other = pull(server, source)

    def head(token: str | None, *lines: str, action: str = "ack") -> bytes:
        sent = [] if token is None else [f"Authorization: Bearer {token}"]
        target = f"/v1/stream/__ds/{it.target}/{action}"
        head_lines = [f"POST {target} HTTP/1.1", "Host: localhost", *sent, *lines]
        return "\r\n".join([*head_lines, "Content-Length: 4000000", "", ""]).encode()

    post(source, 3)
    for token in (None, "x", other.claim().token):
        for lines in ((), ("Expect: 100-continue",), (f"Content-Type: {JSON}",)):
            for action in ("ack", "release", "callback"):
                answer = server.raw(head(token, *lines, action=action))
                assert answer is not None
                # The type is checked before the token, but after whether there is one.
                is_other_type = action == "callback" and token is not None
                expected = (400, "INVALID_REQUEST") if is_other_type else (401, "TOKEN_INVALID")
                assert refusal(answer) == expected
                assert answer.headers["connection"] == "close"
    with server.dial() as line:
        line.sendall(head(wake.token, "Expect: 100-continue"))
        assert line.recv(100).startswith(b"HTTP/1.1 100 Continue")


# ---- acks in commits -----------------------------------------------------------------------------


def commit(server: Server, document: dict[str, Any]) -> Answer:
    return server.ask("POST", "/v1/commits", json.dumps(document).encode())


def test_outputs_and_ack_are_one_commit(server: Server, source: Stream) -> None:
    output = server.stream()
    output.create(content_type=JSON)
    it = pull(server, source)
    post(source, 2)
    wake = it.claim()
    producer = {"producer_id": fresh("p"), "producer_epoch": 0, "producer_seq": 0}
    document = {
        **producer,
        "appends": [{"stream": output.path, "messages": ["out"]}],
        "subscriptions": {it.id: wake.body(acks=wake.acks, done=True, token=wake.token)},
    }
    first = commit(server, document)
    assert first.status == 200, first
    assert first.json["subscriptions"] == {it.id: {"next_wake": False}}
    assert refusal(wake.ack()) == (409, "FENCED")
    again = commit(server, document)
    assert (again.status, again.json["duplicate"]) == (200, True), "whatever became of the wake"
    assert "subscriptions" not in again.json
    assert output.text == '["out"]'
    assert it.link(source.path)["has_pending"] is False
    late = {**document, "producer_seq": 1}
    answer = commit(server, late)
    assert (answer.status, answer.code) == (409, "FENCED")
    assert answer.json["subscription"] == it.id
    assert output.text == '["out"]', "nothing is applied"


def test_a_commit_whose_output_is_followed_says_that_more_is_pending(
    server: Server, source: Stream
) -> None:
    it = pull(server, source)
    post(source, 2)
    wake = it.claim()
    answer = commit(
        server,
        {
            "producer_id": fresh("p"),
            "producer_epoch": 0,
            "producer_seq": 0,
            "appends": [{"stream": source.path, "messages": [3]}],
            "subscriptions": {it.id: wake.body(acks=wake.acks, done=True)},
        },
    )
    assert answer.status == 200, answer
    assert answer.json["subscriptions"] == {it.id: {"next_wake": True}}
    assert it.claim().generation == wake.generation + 1


def test_refused_acks_of_a_commit_are_problems_that_name_the_subscription(
    server: Server, source: Stream
) -> None:
    output = server.stream()
    output.create(content_type=JSON)
    it, other = pull(server, source), pull(server, source)
    post(source, 2)
    wake, others = it.claim(), other.claim()

    def answer_to(name: str, entry: dict[str, Any]) -> tuple[int, str, str]:
        answer = commit(
            server,
            {
                "producer_id": fresh("p"),
                "producer_epoch": 0,
                "producer_seq": 0,
                "appends": [{"stream": output.path, "messages": [1]}],
                "subscriptions": {name: entry},
            },
        )
        return answer.status, answer.code, answer.json["subscription"]

    absent = fresh("absent")
    assert answer_to(absent, wake.body()) == (404, "SUBSCRIPTION_NOT_FOUND", absent)
    assert answer_to(it.id, wake.body(token=others.token)) == (401, "TOKEN_INVALID", it.id)
    assert answer_to(it.id, {**wake.body(), "generation": 9}) == (409, "FENCED", it.id)
    too_far = [{"stream": source.path, "offset": 9}]
    assert answer_to(it.id, wake.body(acks=too_far)) == (409, "INVALID_OFFSET", it.id)
    assert output.text == "[]"


def test_the_commit_of_a_transaction_acks_a_wake(server: Server, source: Stream) -> None:
    output = server.stream()
    output.create(content_type=JSON)
    it = pull(server, source)
    post(source, 2)
    wake = it.claim()
    txn = Txn(server)
    txn.begin(streams=[output.path])
    assert txn.post(output, b"[1]", content_type=JSON).status in (200, 204)
    acks = {it.id: wake.body(acks=wake.acks, done=True, token=wake.token)}
    answer = txn.call("commit", subscriptions=acks)
    assert answer.status == 200, answer
    assert answer.json["subscriptions"] == {it.id: {"next_wake": False}}
    again = txn.call("commit", subscriptions=acks)
    assert (again.status, again.json["duplicate"]) == (200, True)
    assert "subscriptions" not in again.json


# ---- addresses and methods -----------------------------------------------------------------------


def test_an_unknown_control_address_is_404_in_the_form_of_the_protocol(server: Server) -> None:
    for target in ("", "a", "subscriptions/", "subscriptions/s/x", "jwks.json/"):
        answer = ask(server, "GET", target)
        assert answer.status == (400 if target == "subscriptions/" else 404)
        error_of(answer)
    error_of(server.ask("GET", "/v1/stream/__ds"))


def test_another_method_is_405_with_those_that_are_allowed(server: Server) -> None:
    for method, target, allowed in (
        ("POST", "subscriptions", "GET, HEAD, OPTIONS"),
        ("POST", "subscriptions/s", "GET, HEAD, PUT, DELETE, OPTIONS"),
        ("PATCH", "subscriptions/s", "GET, HEAD, PUT, DELETE, OPTIONS"),
        ("GET", "subscriptions/s/claim", "POST, OPTIONS"),
        ("PUT", "jwks.json", "GET, HEAD, OPTIONS"),
    ):
        answer = ask(server, method, target)
        assert refusal(answer) == (405, "method_not_allowed")
        assert answer.headers["allow"] == allowed


def test_head_and_options_are_answered(server: Server, source: Stream) -> None:
    it = pull(server, source)
    for target in (it.target, "subscriptions", "jwks.json"):
        answer = ask(server, "HEAD", target)
        assert (answer.status, answer.body) == (200, b"")
        assert int(answer.headers["content-length"]) > 10
    assert ask(server, "HEAD", "subscriptions/absent").status == 404
    answer = ask(server, "OPTIONS", it.target)
    assert answer.status == 204
    assert "Authorization" in answer.headers["access-control-allow-headers"]


def test_pipelined_requests_are_answered_in_their_order(server: Server, source: Stream) -> None:
    it = pull(server, source)
    post(source, 2)
    target = f"/v1/stream/__ds/{it.target}"
    claim = b'{"worker":"w"}'
    requests = b"".join(
        f"{line} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {JSON}\r\n"
        f"Content-Length: {len(body)}\r\n{end}\r\n".encode()
        + body
        for line, body, end in (
            (f"POST {target}/claim", claim, ""),
            (f"POST {target}/claim", claim, ""),
            (f"GET {target}", b"", ""),
            (f"DELETE {target}", b"", ""),
            (f"GET {target}", b"", "Connection: close\r\n"),
        )
    )
    with server.dial() as line:
        line.sendall(requests)
        data = b""
        while part := line.recv(65_536):
            data += part
    statuses = [int(each[:3]) for each in data.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [200, 409, 200, 204, 404]


# ---- after a restart -----------------------------------------------------------------------------


def test_subscriptions_wakes_and_tokens_survive_a_kill(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    try:
        source = server.stream("in")
        source.create(b"[1]", JSON)
        it = pull(server, source)
        post(source, 2)
        wake, keys = it.claim(), ask(server, "GET", "jwks.json").body
        before = it.state
    finally:
        server.kill()
    with sound_server(tmp_path / "data") as again:
        it = Subscription(again, it.id)
        assert it.state == before
        assert ask(again, "GET", "jwks.json").body == keys
        assert refusal(it.call("claim", {"worker": "w-2"})) == (409, "ALREADY_CLAIMED")
        late = Wake(it, wake.document, "ack", wake.token)
        assert late.finish().json == {"ok": True, "next_wake": False}


def test_the_file_of_keys_is_for_its_owner_and_is_created_when_it_is_needed(
    tmp_path: Path,
) -> None:
    with sound_server(tmp_path / "data") as server:
        file = tmp_path / "data" / "webhook.key"
        assert ask(server, "GET", "subscriptions").json["subscriptions"] == []
        assert not file.exists()
        assert ask(server, "GET", "jwks.json").status == 200
        assert file.stat().st_mode & 0o777 == 0o600
