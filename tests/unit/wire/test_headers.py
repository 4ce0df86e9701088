"""Header values are parsed strictly. An invalid value is refused with the name of the header."""

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.model.limits import NUMBER_MAX
from semel.model.offsets import print_offset
from semel.wire import headers as read
from semel.wire.problems import MalformedRequest, Problem
from tests.media_types import TYPES_WITH_COMMAS

OFFSET = print_offset(5)


def problem_of(call: Callable[[], object]) -> Problem:
    with pytest.raises(MalformedRequest) as caught:
        call()
    return caught.value.problem


@pytest.mark.parametrize("text", ["0", "7", "007", "0" * 400 + "7", str(NUMBER_MAX)])
def test_a_producer_number_is_digits_up_to_2_53(text: str) -> None:
    """Protocol 1.4 row 3: leading zeros are accepted."""
    assert read.read_number({"n": text}, "n") == int(text)


# rows: D36
@pytest.mark.parametrize(
    "text",
    [
        "", "-1", "+1", "1.5", "1e3", "1abc", "0xyz", "0x1", " 1", "1 ", "1, 1", "1_0",
        "\u0661", "\u00b2", "nan", str(NUMBER_MAX + 1), "9" * 400, "9" * 5000, "1\r\n2",
    ],
)  # fmt: skip
def test_everything_else_is_no_producer_number(text: str) -> None:
    """Reliability 5.4 "Headers"."""
    problem = problem_of(lambda: read.read_number({"producer-seq": text}, "producer-seq"))
    assert (problem.status, problem.code) == (400, "invalid_header")
    assert problem.facts == {"header": "Producer-Seq"}
    assert problem.message.startswith("Producer-Seq must be an integer")


@pytest.mark.parametrize("text", ["abc", "-1", "00060", "+60", "60.5", "1e3", "", "11", "9" * 20])
def test_a_canonical_number_has_no_leading_zeros_and_its_own_limit(text: str) -> None:
    """Protocol 1.3 row 2."""
    problem = problem_of(lambda: read.read_canonical({"stream-ttl": text}, "stream-ttl", 10))
    assert problem.facts == {"header": "Stream-TTL"}


def test_an_absent_header_is_none() -> None:
    assert read.read_number({}, "n") is None
    assert read.read_canonical({}, "n") is None
    assert read.read_range({}, "n") is None
    assert read.read_instant({}, "n") is None
    assert read.read_text({}, "n", 1) is None
    assert read.read_if_match({}) is None
    assert read.read_content_type({}) is None
    assert not read.read_flag({}, "n")


def test_a_canonical_number_is_read() -> None:
    assert read.read_canonical({"n": "0"}, "n") == 0
    assert read.read_canonical({"n": "10"}, "n", 10) == 10


@pytest.mark.parametrize(("text", "found"), [("7", (7, 7)), ("3-5", (3, 5)), ("5-5", (5, 5))])
def test_a_range_is_one_number_or_two(text: str, found: tuple[int, int]) -> None:
    assert read.read_range({"n": text}, "n") == found


@pytest.mark.parametrize("text", ["", "-", "5-3", "1-", "-1", "1-2-3", "a-b", "1 - 2"])
def test_anything_else_is_no_range(text: str) -> None:
    problem_of(lambda: read.read_range({"n": text}, "n"))


@pytest.mark.parametrize(
    ("text", "found"), [("true", True), ("TRUE", True), ("True", True), ("false", False),
                        ("1", False), ("", False), (" true", False), ("true, true", False)],
)  # fmt: skip
def test_only_true_sets_a_flag(text: str, found: bool) -> None:
    """Protocol 1.1: any other value is ignored and is not an error."""
    assert read.read_flag({"stream-closed": text}, "stream-closed") is found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:01+00:00", 1000),
        ("1970-01-01t00:00:01z", 1000),
        ("1970-01-01T00:00:00.5Z", 500),
        ("1970-01-01T00:00:00.123456789Z", 123),
        ("1970-01-01T02:00:00+02:00", 0),
        ("1969-12-31T23:30:00-00:30", 0),
        ("2024-02-29T00:00:00Z", 1_709_164_800_000),
        ("1969-12-31T23:59:59.999Z", -1),
    ],
)
def test_an_instant_is_rfc_3339(text: str, found: int) -> None:
    """Protocol 1.3 row 3: `Z` and `+00:00` must be accepted."""
    assert read.read_instant({"e": text}, "e") == found


@pytest.mark.parametrize(
    "text",
    [
        "", "tomorrow", "0", "2030-01-01", "2030-01-01T00:00:00", "2030-01-01 00:00:00Z",
        "2030-13-01T00:00:00Z", "2030-02-30T00:00:00Z", "2030-01-01T24:00:00Z",
        "2030-01-01T00:00:60Z", "2030-01-01T00:00:00.Z", "2030-01-01T00:00:00+0000",
        "2030-01-01T00:00:00+24:00", "2030-1-1T00:00:00Z", "0000-01-01T00:00:00Z",
        "9999-12-31T23:59:59-00:01", "0001-01-01T00:00:00+00:01", "20300101T000000Z",
        "2030-01-01T00:00:00Z ", "\u0662030-01-01T00:00:00Z", "Wed, 01 Jan 2030 00:00:00 GMT",
    ],
)  # fmt: skip
def test_no_other_date_is_taken(text: str) -> None:
    problem_of(lambda: read.read_instant({"stream-expires-at": text}, "stream-expires-at"))


@given(st.datetimes())
def test_a_printed_instant_reads_back(moment: object) -> None:
    text = f"{moment}".replace(" ", "T") + "Z"
    instant = read.read_instant({"e": text}, "e")
    assert instant is not None
    assert read.read_instant({"e": read.print_instant(instant)}, "e") == instant


def test_an_instant_is_printed_with_milliseconds() -> None:
    assert read.print_instant(0) == "1970-01-01T00:00:00.000Z"
    assert read.print_instant(1_709_164_800_120) == "2024-02-29T00:00:00.120Z"


@pytest.mark.parametrize("text", ["", "long", "\x00", "a\tb", "é", "a\r\n"])
def test_a_text_is_short_printable_ascii(text: str) -> None:
    """Reliability 5.4 "Headers": empty, 8-bit bytes, CRLF inside values."""
    problem_of(lambda: read.read_text({"n": text}, "n", 3))


def test_a_text_may_be_as_long_as_its_limit() -> None:
    assert read.read_text({"n": "a b"}, "n", 3) == "a b"


@pytest.mark.parametrize(
    "text",
    [
        "text/plain",
        "APPLICATION/JSON",
        "text/plain; charset=utf-8",
        "text/plain;charset=x",
        "a/b ;",
        "a/b;;\tc;d=e ; f",
        'a/b;c="d, e/f"',
        'a/b; c="\\",e/f" ;d=""',
    ],
)
def test_a_content_type_is_kept_as_given(text: str) -> None:
    assert read.read_content_type({"content-type": text}) == text


def test_an_empty_content_type_is_none() -> None:
    assert read.read_content_type({"content-type": ""}) is None


@pytest.mark.parametrize(
    "text", ["text", "text/", "/plain", "a/b c", "a b/c", "a/é", "a/" + "b" * 255]
)
def test_what_is_no_media_type_is_refused(text: str) -> None:
    problem_of(lambda: read.read_content_type({"content-type": text}))


@pytest.mark.parametrize("text", ['a/b;c="', 'a/b;c=d"e"', 'a/b;c="d"e', 'a/b;"c"', 'a/b;c="\\"'])
def test_a_quote_is_only_around_the_value_of_a_parameter(text: str) -> None:
    problem_of(lambda: read.read_content_type({"content-type": text}))


@pytest.mark.parametrize(
    "text", [*TYPES_WITH_COMMAS, "text/html,", "text/plain, text/html", ",a/b"]
)
def test_two_media_types_are_refused(text: str) -> None:
    """Semel would use the first one, and a web browser the last one."""
    problem = problem_of(lambda: read.read_content_type({"content-type": text}))
    assert "must be one media type; a comma is allowed only in a quoted" in problem.message


def test_a_compressed_body_is_refused() -> None:
    """Reliability 5.4 "Bodies": a decompression bomb is never decompressed."""
    problem = problem_of(lambda: read.refuse_encoding({"content-encoding": "gzip"}))
    assert (problem.status, problem.code) == (415, "unsupported_encoding")
    read.refuse_encoding({"content-encoding": "Identity"})
    read.refuse_encoding({})


def test_a_single_valued_header_given_twice_is_refused() -> None:
    problem = problem_of(lambda: read.refuse_repeated({"accept", "producer-seq", "stream-seq"}))
    assert problem.facts == {"header": "Producer-Seq"}
    read.refuse_repeated({"accept", "if-none-match", "cookie"})


@pytest.mark.parametrize(
    ("text", "found"), [(OFFSET, 5), (f'"{OFFSET}"', 5), ("5", 5), ('"5"', 5), ("0", 0)]
)
def test_if_match_is_an_offset_quoted_or_bare(text: str, found: int) -> None:
    """Design 7.2."""
    assert read.read_if_match({"if-match": text}) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        '"',
        '""',
        "*",
        "-1",
        "05",
        '"5',
        f'W/"{OFFSET}"',
        f'"{OFFSET}", "x"',
        "now",
        "é",
        "0" * 17,
    ],
)
def test_if_match_is_nothing_else(text: str) -> None:
    assert problem_of(lambda: read.read_if_match({"if-match": text})).status == 400


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gzip", True), ("GZIP", True), ("deflate, gzip;q=0.5", True), ("gzip;q=0", False),
        ("gzip; q=0.000", False), ("x-gzip", True), ("gzip;q=0.5, identity", False),
        ("gzip;q=1.0, identity; q=0.5", True), ("gzip;q=2", False), ("gzip;q=x", False),
        ("gzip;a=b", True), ("*", False), ("br", False), ("", False), ("not-gzip-at-all", False),
    ],
)  # fmt: skip
def test_gzip_is_used_only_if_it_is_wanted(text: str, found: bool) -> None:
    assert read.accepts_gzip({"accept-encoding": text}) is found


def test_without_accept_encoding_nothing_is_compressed() -> None:
    assert not read.accepts_gzip({})


@pytest.mark.parametrize(
    ("text", "found"), [("a/b", True), ("c/d, A/B;q=0.1", True), ("a/b;q=0", False), ("*/*", False)]
)
def test_a_format_of_ours_must_be_asked_for_by_name(text: str, found: bool) -> None:
    assert read.accepts_type({"accept": text}, "a/b") is found
    assert not read.accepts_type({}, "a/b")


@given(st.text(max_size=60))
def test_no_text_breaks_a_reader(text: str) -> None:
    given_headers = dict.fromkeys(read.SINGLE | {"accept", "accept-encoding"}, text)
    for call in (
        lambda: read.read_number(given_headers, "stream-seq"),
        lambda: read.read_canonical(given_headers, "stream-seq"),
        lambda: read.read_range(given_headers, "stream-seq"),
        lambda: read.read_instant(given_headers, "stream-seq"),
        lambda: read.read_text(given_headers, "stream-seq", 50),
        lambda: read.read_content_type(given_headers),
        lambda: read.read_if_match(given_headers),
        lambda: read.refuse_encoding(given_headers),
        lambda: read.accepts_gzip(given_headers),
        lambda: read.accepts_type(given_headers, "a/b"),
        lambda: read.read_flag(given_headers, "stream-closed"),
    ):
        with contextlib.suppress(MalformedRequest):
            call()
