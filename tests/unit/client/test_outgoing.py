import pytest

from semel.client.addresses import parse_address
from semel.client.requests import Request, fixed_lines, own_headers, render

ADDRESS = parse_address("http://127.0.0.1:4437")


def test_a_request_is_rendered_with_its_length() -> None:
    fixed = fixed_lines(ADDRESS, [("X-A", "grün")])
    request = Request("POST", "/v1/stream/a", (("Content-Type", "text/plain"),), b"hello")
    assert render(request, fixed) == (
        b"POST /v1/stream/a HTTP/1.1\r\nHost: 127.0.0.1:4437\r\nX-A: gr\xfcn\r\n"
        b"Content-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
    )


def test_no_body_is_not_an_empty_body() -> None:
    assert b"Content-Length" not in render(Request("GET", "/"), b"")
    assert b"Content-Length: 0\r\n" in render(Request("POST", "/", (), b""), b"")


@pytest.mark.parametrize("value", ["a\r\nX: y", "a\nb", "a\x00b", "a\x7f", "€", " a", "a\t"])
def test_a_value_that_would_end_the_line_or_change_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="cannot be sent as the value"):
        render(Request("GET", "/", (("X-A", value),)), b"")


@pytest.mark.parametrize("name", ["", "a b", "a:", "ä", "a\r\n"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a valid header name"):
        own_headers(None, {name: "x"})


@pytest.mark.parametrize("name", ["Host", "content-length", "Transfer-Encoding", "CONNECTION"])
def test_the_headers_of_the_connection_are_not_the_callers(name: str) -> None:
    with pytest.raises(ValueError, match="the client sets this header itself"):
        own_headers(None, {name: "x"})


def test_a_token_becomes_a_header() -> None:
    assert own_headers("abc", {"X": "1"}) == (("X", "1"), ("Authorization", "Bearer abc"))
    with pytest.raises(ValueError, match="not both"):
        own_headers("abc", {"authorization": "Basic x"})
    with pytest.raises(ValueError, match="Authorization"):
        own_headers("abc\r\n", None)
