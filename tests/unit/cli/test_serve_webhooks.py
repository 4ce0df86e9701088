"""What the options of `semel serve` about webhooks mean."""

import os

import pytest

from semel.cli.serve_webhooks import key_file, parse_public_url, target_policy
from semel.server.webhook_targets import check_url

LOCAL_URL = "http://127.0.0.1:8080/"


def allows_loopback(
    host: str, public_url: str | None = None, *allowed_hosts: str, is_guarded: bool = False
) -> bool:
    policy = target_policy(
        [],
        host=host,
        public_url=public_url,
        allowed_hosts=allowed_hosts,
        is_guarded=is_guarded,
    )
    assert (check_url(LOCAL_URL, policy) is None) is policy.allows_loopback
    return policy.allows_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1"])
def test_a_server_for_this_machine_delivers_to_this_machine(host: str) -> None:
    assert allows_loopback(host)
    assert allows_loopback(host, "http://127.0.0.1:80")
    assert allows_loopback(host, "https://localhost/base", "localhost", "[::1]")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "semel.example"])
def test_a_server_for_others_does_not(host: str) -> None:
    assert not allows_loopback(host)
    assert not allows_loopback(host, "http://localhost")


def test_a_server_for_others_by_a_proxy_does_not() -> None:
    assert not allows_loopback("127.0.0.1", "https://semel.example")
    assert not allows_loopback("127.0.0.1", "https://127.0.0.1.semel.example")
    for name in ("semel.example", "*", "*.localhost.example", "10.0.0.1"):
        assert not allows_loopback("127.0.0.1", None, "localhost", name)
    assert not allows_loopback("127.0.0.1", is_guarded=True)


def test_networks_are_allowed() -> None:
    policy = target_policy(
        ["10.1.0.0/16"],
        host="0.0.0.0",
        public_url=None,
        allowed_hosts=("semel.example",),
        is_guarded=True,
    )
    assert check_url("http://10.1.2.3/", policy) is None
    assert check_url(LOCAL_URL, policy)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://semel.example", "https://semel.example"),
        ("https://semel.example/", "https://semel.example"),
        ("https://Semel.Example:443", "https://semel.example"),
        ("http://semel.example:8080/a/b%20c/", "http://semel.example:8080/a/b%20c"),
        ("https://[FD00::1]:8443", "https://[fd00::1]:8443"),
    ],
)
def test_a_public_url_has_no_slash_at_its_end(text: str, expected: str) -> None:
    assert parse_public_url(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "semel.example",
        "ftp://semel.example",
        "https://",
        "https:///a",
        "https://semel.example?a=b",
        "https://semel.example/?a",
        "https://semel.example/#a",
        "https://user@semel.example",
        "https://semel.example//a",
        "https://semel.example/a b",
        "https://semel.example/\r\nx: y",
        "https://*",
    ],
)
def test_other_texts_are_no_public_url(text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        parse_public_url(text)


def test_the_file_with_the_keys_is_in_the_data_directory() -> None:
    assert key_file("data", None) == os.path.join("data", "webhook.key")
    assert key_file("data", "elsewhere") == "elsewhere"
