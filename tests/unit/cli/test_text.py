"""Data that is printed cannot move the cursor of the terminal."""

import pytest

from semel.cli.output import printable, size_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders", "orders"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("line\nbreak\r", "line\\nbreak\\r"),
        ("\u202eright to left", "\\u202eright to left"),
        ("größe 商品", "größe 商品"),
    ],
)
def test_control_characters_are_escaped_and_letters_are_not(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (3 * 1024**3, "3.0 GiB")],
)
def test_sizes_are_easy_to_read(count: int, shown: str) -> None:
    assert size_text(count) == shown
