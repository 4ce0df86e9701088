"""Requests about policies, and the headers that say where a setting comes from."""

import pytest

from semel.model.policies import DedupSource, DeletePolicy, SetPolicy
from semel.wire.policies import (
    dedup_fields,
    parse_delete_policy,
    parse_policy_query,
    parse_set_policy,
    policy_entry,
)
from semel.wire.problems import Problem

JSON = {"content-type": "application/json"}


def parsed(query: str, body: bytes = b'{"dedup":"off"}') -> SetPolicy | Problem:
    return parse_set_policy(query, JSON, body, now_ms=5)


def test_a_policy_is_parsed() -> None:
    assert parsed("prefix=orders%2Feu") == SetPolicy(5, "orders/eu", False)
    assert parsed("prefix=orders/eu", b'{"dedup":"on"}') == SetPolicy(5, "orders/eu", True)
    assert parsed("prefix=") == SetPolicy(5, "", False)
    assert parse_delete_policy("prefix=a", now_ms=5) == DeletePolicy(5, "a")
    assert parse_policy_query("prefix=a") == ("a",)
    assert parse_policy_query("prefix=") == ("",)
    assert parse_policy_query("") == (None,)


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("", "for the whole server"),
        ("prefix=a/", "empty"),
        ("prefix=/a", "empty"),
        ("prefix=a//b", "empty"),
        ("prefix=a/..", "'..'"),
        ("prefix=a%0Ab", "control character"),
        ("prefix=" + "a" * 501, "500 bytes"),
        ("prefix=" + "/".join("a" * 17), "16 segments"),
        ("prefix=a&prefix=b", "only once"),
    ],
)
def test_what_is_not_a_prefix_is_refused(query: str, reason: str) -> None:
    for problem in (parsed(query), parse_delete_policy(query, now_ms=5)):
        assert isinstance(problem, Problem)
        assert (problem.status, problem.code) == (400, "invalid_query")
        assert reason in problem.message


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "sets nothing"),
        (b"{}", "sets nothing"),
        (b'{"dedup":"maybe"}', "'on' or 'off'"),
        (b'{"dedup":null}', "Expected `str`"),
        (b'{"dedup":"on","retention":5}', "retention"),
        (b"[]", "object"),
    ],
)
def test_what_is_not_a_policy_is_refused(body: bytes, reason: str) -> None:
    problem = parsed("prefix=a", body)
    assert isinstance(problem, Problem)
    assert (problem.status, problem.code) == (400, "bad_body")
    assert reason in problem.message


def test_a_policy_is_shown() -> None:
    entry = policy_entry("a", True, 0)
    assert (entry.prefix, entry.dedup, entry.changed_at) == ("a", "on", "1970-01-01T00:00:00.000Z")
    assert policy_entry("", None, 0).dedup is None


def test_what_is_built_in_needs_no_headers() -> None:
    assert dedup_fields(0, DedupSource()) == []


def test_the_headers_say_where_a_setting_comes_from_and_what_is_pending() -> None:
    assert dedup_fields(None, DedupSource(is_own=True)) == [
        ("Stream-Dedup", "off"),
        ("Stream-Dedup-Source", "own"),
    ]
    assert dedup_fields(0, DedupSource(prefix="é/x", pending=False)) == [
        ("Stream-Dedup-Source", "policy"),
        ("Stream-Dedup-Policy", '"%C3%A9/x"'),
        ("Stream-Dedup-Pending", "off"),
    ]
    assert dict(dedup_fields(None, DedupSource(pending=True))) == {
        "Stream-Dedup": "off",
        "Stream-Dedup-Source": "built-in",
        "Stream-Dedup-Pending": "on",
    }
