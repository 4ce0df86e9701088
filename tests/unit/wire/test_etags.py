"""ETags and If-None-Match: protocol 1.10."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.wire.responses import etag_of, is_match

TAG = etag_of("abc", 0, 5)


def test_every_difference_makes_another_tag() -> None:
    """Append, close, incarnation, isolation, format and encoding each change the ETag."""
    flags = itertools.product([False, True], repeat=5)
    names = ("is_up_to_date", "is_closed", "is_committed", "is_frames", "is_gzip")
    tags = {etag_of("a", 0, 5, **dict(zip(names, row, strict=True))) for row in flags}
    tags |= {etag_of("b", 0, 5), etag_of("a", 1, 5), etag_of("a", 0, 6)}
    assert len(tags) == 32 + 3
    assert TAG == '"abc:0:5:"'


@pytest.mark.parametrize(
    "text",
    [
        TAG,
        f"W/{TAG}",
        f'"x", {TAG}',
        f'"x",W/"y" ,\t{TAG} ',
        "*",
        " * ",
        f"{TAG}, broken",
        f",{TAG}",
        f'"x",, , {TAG},',
    ],
)
def test_a_tag_is_found_in_a_list(text: str) -> None:
    assert is_match(TAG, text)


@pytest.mark.parametrize(
    "text",
    ["", '""', '"x"', "abc:0:5:", f"w/{TAG}", '"*"', f"broken, {TAG}", f"{TAG}x", f'"x"{TAG}'],
)
def test_anything_else_does_not_match(text: str) -> None:
    assert not is_match(TAG, text)


@given(st.text(max_size=30))
def test_no_text_breaks_the_comparison(text: str) -> None:
    assert is_match(TAG, text) == (text.strip() == "*")
