"""Values that the options of the stream commands accept, or refuse before a request is sent."""

from datetime import UTC, datetime

import click
import pytest

from semel.cli.options import (
    HeaderPair,
    Moment,
    Offset,
    Path,
    Seconds,
    TokenText,
    client_errors,
    require_together,
)
from semel.cli.output import CommandRefused
from semel.cli.server_choice import ServerChoice

PRINTED = "0000000000000000_0000000000000005"


@pytest.mark.parametrize("text", ["5", PRINTED])
def test_an_offset_is_a_number_or_as_printed(text: str) -> None:
    assert Offset().convert(text, None, None) == PRINTED


@pytest.mark.parametrize("text", ["-1", "now", "05", "x", "", "5_5", "99999999999999999999"])
def test_what_is_no_offset_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Offset().convert(text, None, None)


@pytest.mark.parametrize("text", ["-1", "now"])
def test_a_reader_may_name_the_beginning_and_the_end(text: str) -> None:
    assert Offset(is_for_reading=True).convert(text, None, None) == text


@pytest.mark.parametrize("text", ["a", "a/b", "ä b", "%41", "a?b#c"])
def test_a_path_a_server_takes_is_taken_as_it_is(text: str) -> None:
    assert Path().convert(text, None, None) == text


@pytest.mark.parametrize("text", ["", "/a", "a//b", "../a", "a\\b", "a\n", "\udcff", "x" * 513])
def test_a_path_no_server_takes_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Path().convert(text, None, None)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "x", "", "11"])
def test_a_time_is_above_zero_and_below_its_limit(text: str) -> None:
    assert Seconds(10).convert("10", None, None) == 10.0
    with pytest.raises(click.BadParameter):
        Seconds(10).convert(text, None, None)


def test_options_that_belong_together_come_together() -> None:
    assert require_together(a=1, b=0)
    assert not require_together(a=None, b=None)
    with pytest.raises(CommandRefused, match="--b-c is missing"):
        require_together(a=1, b_c=None)


@pytest.mark.parametrize(
    "url",
    ["", "x", "ftp://a", "http://", "http://a:x", "http://a:99999", "http://u:p@a", "http://a?b"],
)
def test_a_url_that_names_no_server_is_refused(url: str) -> None:
    server = ServerChoice(url)
    with pytest.raises(CommandRefused, match="--url") as refused, client_errors(server, 1.0):
        pass
    assert refused.value.message.count("http://127.0.0.1:4437") <= 1


@pytest.mark.parametrize("value", ["a\r\nX: y", "ä", "\x00", " a"])
def test_a_word_that_could_be_misread_is_never_sent(value: str) -> None:
    assert TokenText().convert("a b", None, None) == "a b"
    with pytest.raises(click.BadParameter, match="printable ASCII"):
        TokenText().convert(value, None, None)


def test_a_header_is_a_name_and_a_value() -> None:
    assert HeaderPair().convert("a=b=c", None, None) == ("a", "b=c")
    assert HeaderPair().convert("a=", None, None) == ("a", "")
    for wrong in ("a", "=b", ""):
        with pytest.raises(click.BadParameter):
            HeaderPair().convert(wrong, None, None)


def test_a_time_is_read_as_a_server_would() -> None:
    found = Moment().convert("2030-01-31T13:00:00.5+01:00", None, None)
    assert found == datetime(2030, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC)
    for wrong in ("soon", "2030-01-31", "2030-02-31T12:00:00Z"):
        with pytest.raises(click.BadParameter):
            Moment().convert(wrong, None, None)
