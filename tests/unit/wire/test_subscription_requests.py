"""Requests about subscriptions: what is parsed, and what is refused."""

import json
from typing import Any, Final

import pytest

from semel.model.limits import NUMBER_MAX, PATH_BYTES_MAX
from semel.model.subscription_commands import (
    PULL_WAKE,
    WEBHOOK,
    ClaimWake,
    CreateSubscription,
    LinkStreams,
    WakeAck,
)
from semel.wire.problems import Problem
from semel.wire.subscriptions import (
    LinksQuery,
    SubscriptionsQuery,
    no_deliveries,
    parse_ack,
    parse_create,
    parse_link,
    parse_links_query,
    parse_release,
    parse_subscriptions_query,
    parse_wake_claim,
    url_rejected,
)
from tests.unit.wire.builders import refused

JSON: Final = {"content-type": "application/json"}
URL: Final = "https://example.com/hook"
HOOK: Final = {"type": "webhook", "pattern": "events/*", "webhook": {"url": URL}}
PULL: Final = {"type": "pull-wake", "streams": ["a"], "wake_stream": "wakes"}
OFFSET: Final = "0000000000000000_0000000000000007"


def create(document: object, headers: dict[str, str] = JSON) -> CreateSubscription | Problem:
    return parse_create("s", headers, json.dumps(document).encode(), now_ms=1)


def changed(document: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {name: each for name, each in {**document, **changes}.items() if each is not ...}


# ---- creation ------------------------------------------------------------------------------------


def test_a_webhook_and_a_pull_wake_are_created() -> None:
    assert create(HOOK) == CreateSubscription(1, "s", WEBHOOK, "events/*", url=URL)
    assert create(PULL) == CreateSubscription(
        1, "s", PULL_WAKE, streams=("a",), wake_stream="wakes"
    )
    whole = changed(HOOK, streams=["a", "b/c"], lease_ttl_ms=1_000, description="what it is for")
    assert create(whole) == CreateSubscription(
        1, "s", WEBHOOK, "events/*", ("a", "b/c"), URL, None, 1_000, "what it is for"
    )


def test_slashes_around_a_path_do_not_count_and_neither_does_repetition() -> None:
    document = changed(
        PULL, streams=["/a/", "a", "//b/c"], pattern="/events/**/", wake_stream="/w/"
    )
    found = create(document)
    assert isinstance(found, CreateSubscription)
    assert (found.streams, found.pattern, found.wake_stream) == (("a", "b/c"), "events/**", "w")


@pytest.mark.parametrize("lease_ms", [1_000, 600_000])
def test_a_lease_can_be_as_short_and_as_long_as_its_limits(lease_ms: int) -> None:
    found = create(changed(HOOK, lease_ttl_ms=lease_ms))
    assert isinstance(found, CreateSubscription)
    assert found.lease_ms == lease_ms


def test_null_and_empty_members_are_as_if_absent() -> None:
    """The reference server of the protocol ignores them, too."""
    empty = changed(HOOK, streams=None, wake_stream=None, lease_ttl_ms=None, description=None)
    assert create(empty) == create(HOOK)
    assert create(changed(HOOK, streams=[], description="")) == create(HOOK)
    assert create(changed(PULL, webhook=None, pattern="", description="")) == create(PULL)


def test_unknown_members_are_ignored_as_the_reference_server_does() -> None:
    more = changed(HOOK, webhook_secret="x", headers={}, webhook={"url": URL, "secret": "x"})
    assert create(more) == create(HOOK)


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (changed(HOOK, type=...), "type"),
        (changed(HOOK, type=""), "type"),
        (changed(HOOK, type="Webhook"), "type"),
        (changed(HOOK, type="pull_wake"), "type"),
        (changed(HOOK, pattern=...), "streams"),
        (changed(HOOK, pattern="/"), "streams"),
        (changed(HOOK, pattern="", streams=[]), "streams"),
        (changed(HOOK, pattern="a*"), "pattern"),
        (changed(HOOK, pattern="a//b"), "pattern"),
        (changed(HOOK, pattern="**/**/**"), "pattern"),
        (changed(HOOK, pattern="__semel/*"), "pattern"),
        (changed(HOOK, pattern="a" * 513), "pattern"),
        (changed(HOOK, streams=[""]), "streams"),
        (changed(HOOK, streams=["/"]), "streams"),
        (changed(HOOK, streams=["a//b"]), "streams"),
        (changed(HOOK, streams=["."]), "streams"),
        (changed(HOOK, streams=["a/.."]), "streams"),
        (changed(HOOK, streams=["a\\b"]), "streams"),
        (changed(HOOK, streams=["a\u0000"]), "streams"),
        (changed(HOOK, streams=["a\r\nb"]), "streams"),
        (changed(HOOK, streams=["__ds/subscriptions/s"]), "streams"),
        (changed(HOOK, streams=["é" * (PATH_BYTES_MAX // 2 + 1)]), "streams"),
        (changed(HOOK, streams=["/".join("a" * 17)]), "streams"),
        (changed(HOOK, webhook=...), "webhook"),
        (changed(HOOK, webhook={"url": ""}), "webhook"),
        (changed(HOOK, wake_stream="w"), "wake_stream"),
        (changed(PULL, wake_stream=...), "wake_stream"),
        (changed(PULL, wake_stream=""), "wake_stream"),
        (changed(PULL, wake_stream="a//b"), "wake_stream"),
        (changed(PULL, webhook={"url": URL}), "webhook"),
        (changed(HOOK, lease_ttl_ms=999), "lease_ttl_ms"),
        (changed(HOOK, lease_ttl_ms=600_001), "lease_ttl_ms"),
        (changed(HOOK, lease_ttl_ms=0), "lease_ttl_ms"),
        (changed(HOOK, lease_ttl_ms=-1), "lease_ttl_ms"),
        (changed(HOOK, lease_ttl_ms=10**400), "lease_ttl_ms"),
    ],
    ids=repr,
)
def test_a_wrong_value_is_named(document: dict[str, Any], field: str) -> None:
    found = create(document)
    assert refused(found) == (400, "invalid_request")
    assert isinstance(found, Problem)
    assert found.facts == {"field": field}


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"null",
        b"1",
        b"{",
        b'{"type":1}',
        b'{"type":"webhook","streams":"a"}',
        b'{"type":"webhook","streams":[1]}',
        b'{"type":"webhook","pattern":["a"]}',
        b'{"type":"webhook","webhook":"https://example.com"}',
        b'{"type":"webhook","webhook":{}}',
        b'{"type":"webhook","lease_ttl_ms":"1000"}',
        b'{"type":"webhook","lease_ttl_ms":1000.5}',
        b'{"type":"webhook","lease_ttl_ms":true}',
        b'{"type":"webhook","lease_ttl_ms":NaN}',
        b'{"type":"webhook","description":1}',
        b'{"type":"webhook","streams":["\\ud800"]}',
        b'{"type":"webhook","description":"\xff"}',
        b'\xef\xbb\xbf{"type":"webhook"}',
        b"[" * 100_000,
        b'{"lease_ttl_ms":' + b"9" * 1_000_000 + b"}",
    ],
    ids=lambda body: repr(body[:40]),
)
def test_a_body_that_is_no_such_document_is_refused(body: bytes) -> None:
    assert refused(parse_create("s", JSON, body, now_ms=1)) == (400, "bad_body")


def test_of_a_member_that_occurs_twice_the_last_one_counts() -> None:
    body = json.dumps(HOOK).encode()[:-1] + b',"pattern":"other/*"}'
    found = parse_create("s", JSON, body, now_ms=1)
    assert isinstance(found, CreateSubscription)
    assert found.pattern == "other/*"


@pytest.mark.parametrize("headers", [{}, {"content-type": "text/plain"}])
def test_a_body_needs_the_content_type_of_json_as_pages_of_others_cannot_send_it(
    headers: dict[str, str],
) -> None:
    assert refused(create(HOOK, headers)) == (415, "unsupported_media_type")


def test_a_url_that_is_not_allowed_has_a_code_of_its_own() -> None:
    problem = url_rejected("the address is private")
    assert refused(problem) == (400, "WEBHOOK_URL_REJECTED")
    assert problem.message.endswith("to this URL: the address is private")
    assert problem.facts == {"field": "webhook"}


def test_a_server_that_cannot_deliver_says_why() -> None:
    problem = no_deliveries("start it with --public-url")
    assert refused(problem) == (400, "invalid_request")
    assert problem.message == "start it with --public-url"


# ---- links and claims ----------------------------------------------------------------------------


def test_a_subscription_is_linked_to_more_streams() -> None:
    found = parse_link("s", JSON, b'{"streams":["/a","a","b/c/"]}', now_ms=1)
    assert found == LinkStreams(1, "s", ("a", "b/c"))


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "bad_body"),
        (b"{}", "bad_body"),
        (b'{"streams":null}', "bad_body"),
        (b'{"streams":[]}', "invalid_request"),
        (b'{"streams":["a","/"]}', "invalid_request"),
    ],
)
def test_a_link_needs_streams(body: bytes, code: str) -> None:
    assert refused(parse_link("s", JSON, body, now_ms=1)) == (400, code)


def test_a_worker_claims_a_wake_by_its_name() -> None:
    assert parse_wake_claim("s", JSON, b'{"worker":"w-1"}', now_ms=1) == ClaimWake(1, "s", "w-1")
    for body in (b"", b"{}", b'{"worker":null}', b'{"worker":1}'):
        assert refused(parse_wake_claim("s", JSON, body, now_ms=1)) == (400, "bad_body")


# ---- acks ----------------------------------------------------------------------------------------


def ack(**members: object) -> WakeAck | Problem:
    document = {"wake_id": "w", "generation": 3, **members}
    return parse_ack("s", JSON, json.dumps(document).encode())


def test_an_ack_names_streams_and_offsets() -> None:
    acks = [{"stream": "/a/", "offset": OFFSET}, {"path": "b", "offset": 8}]
    assert ack(acks=acks, done=True) == WakeAck("s", "w", 3, (("a", 7), ("b", 8)), done=True)
    assert ack() == WakeAck("s", "w", 3)
    assert ack(acks=None) == ack(acks=[]) == ack()
    both = {"stream": "a", "path": "b", "offset": 1}
    assert ack(acks=[both]) == WakeAck("s", "w", 3, (("a", 1),))


@pytest.mark.parametrize("offset", ["-1", -1, -(2**63)])
def test_an_offset_before_the_first_is_refused_by_the_machine_after_the_token(
    offset: str | int,
) -> None:
    assert ack(acks=[{"stream": "a", "offset": offset}]) == WakeAck("s", "w", 3, (("a", -1),))


def test_an_offset_of_another_server_is_after_every_tail() -> None:
    far = {"stream": "a", "offset": "9999999999999999_9999999999999999"}
    assert ack(acks=[far]) == WakeAck("s", "w", 3, (("a", NUMBER_MAX),))


@pytest.mark.parametrize(
    ("acks", "code"),
    [
        ([{"offset": 1}], "invalid_request"),
        ([{"stream": "a", "offset": ""}], "invalid_offset"),
        ([{"stream": "a", "offset": "now"}], "invalid_offset"),
        ([{"stream": "a", "offset": "1"}], "invalid_offset"),
        ([{"stream": "a", "offset": OFFSET + "0"}], "invalid_offset"),
        ([{"stream": "a", "offset": 2**53}], "invalid_offset"),
        ([{"stream": "a", "offset": 10**400}], "invalid_offset"),
        ([{"stream": "a"}], "bad_body"),
        ([{"stream": "a", "offset": True}], "bad_body"),
        ([{"stream": "a", "offset": 1.5}], "bad_body"),
        ([{"stream": "a", "offset": None}], "bad_body"),
        ([{"stream": 1, "offset": 1}], "bad_body"),
        ([1], "bad_body"),
        ({"a": 1}, "bad_body"),
    ],
    ids=repr,
)
def test_a_malformed_ack_is_refused(acks: object, code: str) -> None:
    assert refused(ack(acks=acks)) == (400, code)


@pytest.mark.parametrize(
    "members",
    [
        {"generation": "3"},
        {"generation": None},
        {"generation": 1.5},
        {"generation": True},
        {"wake_id": None},
        {"wake_id": 1},
        {"done": "true"},
        {"done": 1},
        {"done": None},
    ],
    ids=repr,
)
def test_a_wake_is_named_by_its_id_and_generation(members: dict[str, object]) -> None:
    assert refused(ack(**members)) == (400, "bad_body")


def test_acks_can_fill_a_long_body_but_not_with_too_many() -> None:
    def many(count: int) -> WakeAck | Problem:
        return ack(acks=[{"stream": f"{n:0{PATH_BYTES_MAX}}", "offset": n} for n in range(count)])

    found = many(1_000)
    assert isinstance(found, WakeAck)
    assert len(found.acks) == 1_000
    assert refused(many(10_000)) == (400, "invalid_request")


def test_a_release_names_the_wake() -> None:
    body = b'{"wake_id":"w","generation":3,"more":1}'
    assert parse_release("s", JSON, body) == WakeAck("s", "w", 3)
    for body in (b"", b'{"wake_id":"w"}', b'{"generation":3}'):
        assert refused(parse_release("s", JSON, body)) == (400, "bad_body")


# ---- queries -------------------------------------------------------------------------------------


def test_a_page_of_subscriptions() -> None:
    assert parse_subscriptions_query("") == SubscriptionsQuery("", "", 100)
    query = "prefix=a%2F&after=a%2Fb&limit=7&more=1"
    assert parse_subscriptions_query(query) == SubscriptionsQuery("a/", "a/b", 7)
    for wrong in ("limit=0", "limit=1001", "limit=x", "limit=", "after=a&after=b"):
        assert refused(parse_subscriptions_query(wrong)) == (400, "invalid_query")


def test_a_page_of_streams() -> None:
    assert parse_links_query("") == LinksQuery(0, 1_000)
    assert parse_links_query("streams_after=12&streams_limit=1000") == LinksQuery(12, 1_000)
    assert parse_links_query("streams_limit=1") == LinksQuery(0, 1)
    for wrong in (
        "streams_limit=0",
        "streams_limit=1001",
        "streams_limit=-1",
        "streams_limit=",
        "streams_after=x",
        "streams_after=-1",
        f"streams_after={2**53}",
        "streams_after=1&streams_after=1",
    ):
        assert refused(parse_links_query(wrong)) == (400, "invalid_query")
