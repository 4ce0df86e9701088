"""Resources other than streams, and error responses."""

import re
from typing import Any, Final
from uuid import uuid4

import pytest

from tests.spec.process import Server, Stream, offset_of

METHODS: Final = {"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"}


def words(value: str) -> set[str]:
    return {word.strip().lower() for word in value.split(",")}


# ---- the list of streams -------------------------------------------------------------------------


def list_all(server: Server, query: str) -> list[dict[str, Any]]:
    """Return the entries of all pages."""
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        answer = server.ask("GET", f"/v1/streams?{query}&after={after}")
        assert answer.status == 200
        found += answer.json["streams"]
        after = answer.json["next"]
        if after is None:
            return found


@pytest.mark.spec("design 7.2")
def test_the_list_is_paged_sorted_and_limited_to_a_prefix(server: Server) -> None:
    root = uuid4().hex
    names = [f"{root}/{number:02d}" for number in range(7)]
    for name in reversed(names):
        server.stream(name).create()
    server.stream(f"{root}-other").create()
    for limit in (1, 3, 7, 100):
        found = list_all(server, f"prefix={root}/&limit={limit}")
        assert [stream["path"] for stream in found] == names
    page = server.ask("GET", f"/v1/streams?prefix={root}/&limit=3&after={names[2]}").json
    assert [stream["path"] for stream in page["streams"]] == names[3:6]
    assert page["next"] == names[5]


@pytest.mark.spec("design 7.2")
def test_the_list_tells_how_each_stream_stands_and_forgets_deleted_ones(server: Server) -> None:
    stream = server.stream(f"{uuid4().hex}/café")
    stream.target = "/v1/stream/" + stream.path.replace("é", "%C3%A9")
    stream.create(b"[1,2,3]", "application/json", stream_closed="true")
    stream.delete("before=1")
    prefix = stream.path.partition("/")[0]
    (found,) = list_all(server, f"prefix={prefix}")
    assert found["path"] == stream.path
    assert found["content_type"] == "application/json"
    assert (found["first_offset"], found["next_offset"]) == (offset_of(1), offset_of(3))
    assert found["closed"] is True
    assert found["incarnation"] == stream.head().headers["stream-incarnation"]
    stream.delete()
    assert list_all(server, f"prefix={prefix}") == []


@pytest.mark.spec("design 7.2")
@pytest.mark.parametrize("limit", ["0", "-1", "x", "1001", "9" * 30, "", "1&limit=2"])
def test_a_page_of_nonsense_size_is_400(server: Server, limit: str) -> None:
    answer = server.ask("GET", f"/v1/streams?limit={limit}")
    assert (answer.status, answer.code) == (400, "invalid_query")


# ---- health and metrics --------------------------------------------------------------------------


@pytest.mark.spec("design 7.1")
def test_health_says_ok_and_how_far_the_journal_is_durable(stream: Stream) -> None:
    before = stream.server.ask("GET", "/health")
    stream.create()
    after = stream.server.ask("GET", "/health")
    assert (before.status, after.status) == (200, 200)
    assert before.json["status"] == after.json["status"] == "ok"
    assert after.json["durable"] > before.json["durable"]
    head = stream.server.ask("HEAD", "/health")
    assert (head.status, head.body) == (200, b"")


SAMPLE = re.compile(r'[a-z_]+(\{[a-z_]+="(?:[^"\\]|\\.)+"\})? [0-9]+(\.[0-9]+)?')


@pytest.mark.spec("design 7.1")
def test_metrics_are_in_the_text_format_and_count_outcomes(stream: Stream) -> None:
    def figures() -> dict[str, float]:
        answer = stream.server.ask("GET", "/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        lines = answer.body.decode().splitlines()
        samples = [line for line in lines if not line.startswith("#")]
        for sample in samples:
            assert SAMPLE.fullmatch(sample), sample
            name = sample.partition(" ")[0].partition("{")[0]
            assert any(line.startswith(f"# TYPE {name} ") for line in lines)
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in samples)}

    before = figures()
    stream.create()
    stream.post(b"x")
    after = figures()
    for name in ("semel_streams", 'semel_outcomes_total{outcome="Appended"}'):
        assert after[name] > before.get(name, 0)
    assert after["semel_journal_durable_bytes"] > before["semel_journal_durable_bytes"]
    assert after["semel_disk_full"] == 0


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.spec("protocol 1.1")
@pytest.mark.parametrize("method", ["TRACE", "COPY", "get"])
def test_a_method_nobody_serves_is_405_and_names_those_that_are(
    stream: Stream, method: str
) -> None:
    stream.create()
    answer = stream.server.ask(method, stream.target)
    assert (answer.status, answer.code) == (405, "method_not_allowed")
    assert {word.upper() for word in words(answer.headers["allow"])} == METHODS


@pytest.mark.spec("design 7.1")
@pytest.mark.parametrize("target", ["/health", "/metrics", "/v1/streams"])
def test_a_page_can_only_be_read(server: Server, target: str) -> None:
    answer = server.ask("POST", target, b"x")
    assert (answer.status, answer.code) == (405, "method_not_allowed")
    assert "POST" not in answer.headers["allow"]


@pytest.mark.spec("protocol 1.14")
@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE"])
def test_a_reserved_path_in_another_spelling_is_404_with_a_code(
    server: Server, method: str
) -> None:
    answer = server.ask(method, "/v1/stream/%5F_ds/subscriptions/a")
    assert (answer.status, answer.code) == (404, "reserved_path")


@pytest.mark.spec("protocol 1.14")
@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE"])
@pytest.mark.parametrize("path", ["__ds", "__ds/", "__ds/x", "__ds/subscription/a"])
def test_an_unknown_address_of_subscriptions_is_404_in_the_form_of_the_protocol(
    server: Server, method: str, path: str
) -> None:
    answer = server.ask(method, f"/v1/stream/{path}")
    assert (answer.status, answer.json["error"]["code"]) == (404, "no_such_address")


@pytest.mark.spec("design 7.2")
@pytest.mark.parametrize("target", ["/", "/v1", "/v1/stream", "/v2/stream/a", "/V1/STREAM/a"])
def test_an_address_nobody_serves_is_404_with_a_code(server: Server, target: str) -> None:
    answer = server.ask("GET", target)
    assert (answer.status, answer.code) == (404, "no_such_address")


@pytest.mark.spec("design 7.2")
def test_a_refusal_says_whether_anything_was_applied(stream: Stream) -> None:
    answer = stream.post(b"x")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.code == "stream_not_found"
    assert answer.json == {
        "code": "stream_not_found",
        "message": "there is no such stream",
        "applied": "no",
    }
