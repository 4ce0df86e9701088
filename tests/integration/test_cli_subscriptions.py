"""`semel subscriptions`, against a real server."""

from collections.abc import Iterator
from typing import Any

import pytest

from semel import Client
from tests.integration.test_cli_streams import Served, serving
from tests.spec.process import offset_of
from tests.spec.txn_calls import fresh


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("subscriptions") / "data") as served:
        ok(served, "create", "wakes", "--content-type", "application/json")
        yield served


@pytest.fixture
def name(served: Served) -> str:
    """A subscription to two streams; the first one has two messages that are pending."""
    name = fresh("sub")
    for number in range(2):
        ok(served, "create", f"{name}/{number}", "--content-type", "application/json")
    ok(served, "subscriptions", "create", name, "--pattern", f"{name}/*", "--wake-stream", "wakes")
    for _ in range(2):
        ok(served, "append", f"{name}/0", "1")
    return name


def shown(served: Served, name: str) -> dict[str, Any]:
    found: dict[str, Any] = served.json("subscriptions", "show", name)[0]
    return found


def ok(served: Served, *command: str) -> str:
    result = served.semel(*command)
    assert result.exit_code == 0, result.output
    text: str = result.stdout
    return text


def test_a_creation_is_reported_once_as_new(served: Served) -> None:
    name = fresh("sub")
    options = ("--stream", "a", "--stream", "b", "--wake-stream", "wakes", "--lease", "2.5")
    command = ("subscriptions", "create", name, *options)
    hint = "which follows 0 streams now: none of them exists yet"
    assert ok(served, *command) == f"created {name} (pull-wake), {hint}\n"
    assert "already exists with this configuration" in ok(served, *command)
    (again,) = served.json(*command)
    assert (again["created"], again["lease_ttl_ms"]) == (False, 2500)
    said = served.refused(1, *command, "--description", "other")
    assert "SUBSCRIPTION_ALREADY_EXISTS" in said
    assert "`semel subscriptions show`" in said


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--pattern", "a"), "either --webhook or --wake-stream"),
        (("--pattern", "a", "--wake-stream", "w", "--webhook", "https://x/"), "either --webhook"),
        (("--wake-stream", "wakes"), "pass --pattern, --stream, or both"),
        (("--pattern", "a", "--wake-stream", "wakes", "--lease", "601"), "from 1 to 600"),
        (("--pattern", "a", "--wake-stream", "wakes", "--lease", "0.5"), "from 1 to 600"),
    ],
)
def test_options_that_cannot_be_right_are_refused(
    served: Served, options: tuple[str, ...], reason: str
) -> None:
    assert reason in served.refused(64, "subscriptions", "create", "x", *options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--pattern", "a*", "--wake-stream", "wakes"), "* must be a whole segment"),
        (("--pattern", "a", "--wake-stream", "none"), "none cannot be the wake stream"),
        (("--pattern", "a", "--webhook", "http://10.0.0.1/"), "WEBHOOK_URL_REJECTED"),
        (("--pattern", "a", "--webhook", "http://10.0.0.1/"), "`semel serve --webhook-allow`"),
    ],
)
def test_what_the_server_refuses_says_why(
    served: Served, options: tuple[str, ...], reason: str
) -> None:
    assert reason in served.refused(1, "subscriptions", "create", "x", *options)


def test_a_refusal_has_its_code_once(served: Served) -> None:
    options = ("--pattern", "a*", "--wake-stream", "wakes")
    said = served.refused(1, "subscriptions", "create", "x", *options)
    assert said.lower().count("invalid_request") == 1


def test_a_pattern_that_matches_nothing_is_mentioned(served: Served) -> None:
    options = ("--pattern", "no/such/*", "--wake-stream", "wakes")
    said = ok(served, "subscriptions", "create", fresh("sub"), *options)
    assert said.endswith("which follows 0 streams now: none matches yet\n")


def test_subscriptions_are_listed_and_shown(served: Served, name: str) -> None:
    assert ok(served, "subscriptions", "ls", "--prefix", name) == f"{name}\n"
    (entry,) = served.json("subscriptions", "ls", "--prefix", name, "--limit", "1")
    assert (entry["stream_count"], entry["pending_count"], entry["status"]) == (2, 1, "active")
    assert "streams" not in entry
    ok(served, "subscriptions", "link", name, "not/yet")
    text = ok(served, "subscriptions", "show", name)
    assert "not/yet  explicit; it does not exist\n" in text
    ok(served, "subscriptions", "unlink", name, "not/yet")
    first, second = offset_of(0), offset_of(2)
    assert f"{first}  {name}/0  glob; pending up to {second}\n" in text
    assert f"{first}  {name}/1  glob; nothing pending\n" in text
    assert "wake stream wakes" in text
    assert [each["path"] for each in shown(served, name)["streams"]] == [f"{name}/0", f"{name}/1"]
    limited = ok(served, "subscriptions", "show", name, "--limit", "1")
    assert "and 1 stream more; --limit 1 was reached" in limited


def test_a_worker_and_failed_deliveries_are_shown(served: Served, name: str) -> None:
    with Client(served.url) as client:
        client.subscriptions.claim(name, worker="me")
        assert "claimed by    me" in ok(served, "subscriptions", "show", name)
        hook = fresh("hook")
        client.subscriptions.create(
            hook, streams=[f"{name}/0"], webhook_url="http://127.0.0.1:1024/"
        )
    text = ok(served, "subscriptions", "show", hook)
    assert "http://127.0.0.1:1024/" in text
    assert "ds_" in text
    assert ok(served, "subscriptions", "resume", hook) == f"{hook} is active\n"


def test_streams_are_linked_and_unlinked(served: Served, name: str) -> None:
    assert ok(served, "subscriptions", "link", name, "x/y", "z").startswith(f"{name} names 2")
    streams = shown(served, name)["streams"]
    kinds = {each["path"]: each["link_type"] for each in streams}
    assert kinds["x/y"] == kinds["z"] == "explicit"
    ok(served, "subscriptions", "unlink", name, "x/y", "z")
    assert len(shown(served, name)["streams"]) == 2


def test_a_deletion_asks_first(served: Served, name: str) -> None:
    refused = served.semel("subscriptions", "delete", name, given=b"n\n")
    assert refused.exit_code == 1
    assert "was not deleted" in refused.stderr
    done = ok(served, "subscriptions", "delete", name, "--yes")
    assert done == f"deleted the subscription {name}\n"
    for command in (
        ("show", name),
        ("delete", name, "--yes"),
        ("resume", name),
        ("link", name, "a"),
    ):
        said = served.refused(1, "subscriptions", *command)
        assert "SUBSCRIPTION_NOT_FOUND" in said
        assert "`semel subscriptions ls` lists the subscriptions" in said
