import socket
import time
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.client.addresses import Address, checked_path, parse_address, stream_reference
from semel.client.requests import query
from semel.client.transport import speaks_tls, transport_to
from semel.wire.paths import stream_path


@pytest.mark.parametrize(
    ("url", "address", "authority"),
    [
        ("http://127.0.0.1:4437", Address("http", "127.0.0.1", 4437), "127.0.0.1:4437"),
        ("http://Example.org/", Address("http", "example.org", 80), "example.org"),
        ("https://example.org", Address("https", "example.org", 443), "example.org"),
        ("http://[::1]:80/base/", Address("http", "::1", 80, "/base"), "[::1]"),
        ("https://h:8443/a/b c", Address("https", "h", 8443, "/a/b%20c"), "h:8443"),
    ],
)
def test_an_address_is_read(url: str, address: Address, authority: str) -> None:
    assert parse_address(url) == address
    assert address.authority == authority
    assert parse_address(address.url) == address


@pytest.mark.parametrize(
    "url",
    [
        *("", "127.0.0.1:4437", "ftp://host", "http://", "http://user@host", "http://u:p@host"),
        *("http://host?x=1", "http://host#x", "http://host:99999", "http://host:x", "http://[::1"),
        *("http://gr\u00fcn.example", "http://a..b", f"http://{'a' * 64}.example", "http://host:0"),
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"address|host name|port 0|a fragment"):
        parse_address(url)


def test_a_stream_is_quoted_below_the_prefix() -> None:
    address = parse_address("http://h/base")
    assert (
        address.stream_target("Größe/ä b?#%")
        == "/base/v1/stream/Gr%C3%B6%C3%9Fe/%C3%A4%20b%3F%23%25"
    )
    assert address.target("/health") == "/base/health"
    assert stream_reference("a b") == "/v1/stream/a%20b"


@pytest.mark.parametrize(
    "path", ["", "/a", "a//b", "a/../b", ".", "a\x00", "a\\b", "x" * 513, "\ud800"]
)
def test_a_name_no_stream_can_have_is_refused_before_anything_is_sent(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        checked_path(path)


@given(st.text(min_size=1, max_size=100))
def test_every_name_that_is_taken_is_read_back_by_the_server(path: str) -> None:
    try:
        target = parse_address("http://h").stream_target(path)
    except ValueError:
        return
    assert stream_path(target) == path


def test_a_query_holds_what_is_given() -> None:
    assert query(a=None) == ""
    assert query(a="x y&ä", b=None, c=1) == "?a=x%20y%26%C3%A4&c=1"


def test_a_server_is_not_asked_for_tls_after_the_deadline() -> None:
    """The timeout of the connection would be negative, and its socket would stay open."""
    transport = transport_to(
        "http://127.0.0.1:1", token=None, headers=None, timeout=1.0, connect_timeout=1.0, tls=None
    )
    with patch.object(socket, "create_connection", side_effect=AssertionError):
        assert not speaks_tls(transport, time.monotonic() - 1.0)
