"""Stream paths: every row "Paths" of the list of bad inputs."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.model.limits import PATH_BYTES_MAX
from semel.wire.paths import (
    SEGMENTS_MAX,
    linked_path,
    names_in,
    origin_of,
    percent_decode,
    stream_path,
    stream_url,
)
from semel.wire.problems import Problem
from tests.unit.wire.builders import refused

BASE = "/v1/stream/"
ORIGIN = "http://127.0.0.1:4437"


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ("orders", "orders"),
        ("orders/eu-1/v2.0", "orders/eu-1/v2.0"),
        ("_hidden", "_hidden"),
        ("a/_b", "a/_b"),
        ("__dsx", "__dsx"),
        ("a/__ds", "a/__ds"),
        ("a...", "a..."),
        (".hidden", ".hidden"),
        ("...", "..."),
        ("CON", "CON"),
        ("checkpoint.mdb", "checkpoint.mdb"),
        ("a%20b", "a b"),
        ("%61", "a"),
        ("caf%C3%A9", "caf\u00e9"),
        ("caf\u00c3\u00a9", "caf\u00e9"),
        ("a:b@c,d;e=f", "a:b@c,d;e=f"),
        ("%25", "%"),
        ("%3F%23", "?#"),
    ],
)
def test_a_path_is_decoded_into_a_name(raw: str, path: str) -> None:
    assert stream_path(BASE + raw) == path


@pytest.mark.parametrize(
    "raw",
    [
        "", "/", "a/", "/a", "a//b", ".", "..", "a/../b", "a/./b", "../a", "%2e%2e%2f", "%2e%2e",
        "%2E", "..%5c", "..\\", "a%5Cb", "%00", "a\x00", "%0d%0a", "a\r\n", "%7f", "%C2%85", "a b",
        "a?b", "a#b", "%", "%2", "%zz", "a%2", "%C0%AF", "%ED%A0%80", "%ff", "a%2Fb", "a%2fb",
        "\u20ac", "\ud800",
    ],
)  # fmt: skip
def test_a_path_that_could_mean_two_things_is_refused(raw: str) -> None:
    """Reliability 5.4 "Paths"."""
    assert refused(stream_path(BASE + raw)) == (400, "invalid_path")


def test_a_name_has_512_bytes_at_most() -> None:
    assert stream_path(BASE + "a" * PATH_BYTES_MAX) == "a" * PATH_BYTES_MAX
    assert stream_path(BASE + "%C3%A9" * 256) == "\u00e9" * 256
    for raw in ("a" * (PATH_BYTES_MAX + 1), "%C3%A9" * 257, "a" * 100_000):
        assert refused(stream_path(BASE + raw)) == (400, "invalid_path")


@pytest.mark.parametrize("segment", ["a", "_a"])
def test_a_name_has_16_segments_at_most(segment: str) -> None:
    most = "/".join([segment] * SEGMENTS_MAX)
    assert stream_path(BASE + most) == most
    assert refused(stream_path(f"{BASE}{most}/a")) == (400, "invalid_path")
    assert refused(stream_path(BASE + "a/" * 200 + "a")) == (400, "invalid_path")


def test_names_of_other_bytes_are_other_names() -> None:
    """Paths that differ in case or Unicode normal form (NFC, NFD) are different streams."""
    composed, decomposed = stream_path(BASE + "%C3%A9"), stream_path(BASE + "e%CC%81")
    assert (composed, decomposed) == ("\u00e9", "e\u0301")
    assert stream_path(BASE + "A") != stream_path(BASE + "a")


@pytest.mark.parametrize("raw", ["__ds", "__ds/subscriptions/x", "%5f_ds/jwks.json"])
def test_the_control_prefix_is_no_stream(raw: str) -> None:
    """Protocol 1.14."""
    assert refused(stream_path(BASE + raw)) == (404, "reserved_path")


@pytest.mark.parametrize("raw", ["/", "/v1/streams", "/v1/stream", "/V1/stream/a", "orders"])
def test_other_paths_hold_no_streams(raw: str) -> None:
    assert refused(stream_path(raw)) == (404, "not_found")


@given(st.text(max_size=40))
def test_no_path_breaks_the_reader(raw: str) -> None:
    assert isinstance(stream_path(BASE + raw), str | Problem)


@given(st.text(min_size=1, max_size=40))
def test_the_url_of_a_name_leads_back_to_it(name: str) -> None:
    try:
        raw = stream_url("", name)
    except UnicodeEncodeError:
        return
    path = stream_path(raw)
    assert path == name or isinstance(path, Problem)


def test_a_url_escapes_only_what_it_must() -> None:
    """Protocol 1.3: Location is absolute and ends in the path."""
    assert stream_url(ORIGIN, "a/b:c@d") == f"{ORIGIN}/v1/stream/a/b:c@d"
    assert stream_url(ORIGIN, "é ?%") == f"{ORIGIN}/v1/stream/%C3%A9%20%3F%25"


@given(st.binary())
def test_percent_decoding_undoes_encoding(data: bytes) -> None:
    assert percent_decode(b"".join(b"%%%02x" % byte for byte in data)) == data


def test_a_stray_percent_is_not_decoded() -> None:
    assert percent_decode(b"a%") is None


@pytest.mark.parametrize("host", ["127.0.0.1:4437", "localhost", "[::1]:80", "a-b.example"])
def test_an_origin_is_read_from_the_host(host: str) -> None:
    assert origin_of(host) == f"http://{host}"
    assert origin_of(host, "https") == f"https://{host}"


@pytest.mark.parametrize(
    "host", [None, "", "a b", "a/b", "a@b", "a:b", "[::1", "a\r\nb", "a:123456"]
)
def test_what_is_no_host_gives_no_origin(host: str | None) -> None:
    assert origin_of(host) is None


def test_names_of_other_addresses_are_decoded_one_by_one() -> None:
    assert names_in("t-1/commit") == ("t-1", "commit")
    assert names_in("a%2Fb/caf%C3%A9") == ("a/b", "caf\u00e9")
    assert names_in("") == ("",)
    for raw in ("%", "a/%zz", "%ff"):
        problem = names_in(raw)
        assert isinstance(problem, Problem)
        assert (problem.status, problem.code) == (400, "invalid_path")


# ---- the streams of subscriptions ----------------------------------------------------------------


@pytest.mark.parametrize("text", ["a/b", "/a/b", "a/b/", "///a/b//"])
def test_slashes_at_the_ends_of_a_linked_path_are_removed(text: str) -> None:
    assert linked_path(text) == "a/b"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("/", "empty"),
        ("a//b", "empty"),
        ("a/../b", "'..'"),
        ("a\\b", "backslash"),
        ("a\x7f", "control"),
        ("a\x00", "control"),
        ("\ud800", "lone surrogate"),
        ("é" * 257, "longer than 512 bytes"),
        ("__ds/a", "reserved"),
        ("/".join("a" * 17), "16 segments"),
    ],
)
def test_a_linked_path_that_no_stream_can_have_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        linked_path(text)
