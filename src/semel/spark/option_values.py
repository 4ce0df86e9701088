"""The texts of options as values: each reader is given the option's name, for its error."""

import re
from typing import Final

from semel.client.addresses import checked_path
from semel.model.limits import NUMBER_MAX

_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s|m|h)?")
_UNIT_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_WORDS: Final = {"true": True, "false": False}


class Secret(str):
    """A text that is not shown with the options it stands among."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'...'"


class SparkOptionError(ValueError):
    """An option is missing, unknown or makes no sense; the message says what to write."""


def read_path(name: str, text: str) -> str:
    """Read the path of a stream."""
    try:
        return checked_path(text)
    except ValueError as error:
        raise SparkOptionError(f"{name}: {text!r} is no name of a stream: {error}") from None


def read_paths(name: str, text: str) -> tuple[str, ...]:
    """Read paths with commas between them."""
    paths = [read_path(name, part.strip()) for part in text.split(",") if part.strip()]
    if not paths:
        raise SparkOptionError(
            f'{name} is empty: write paths with commas between, "orders,refunds"'
        )
    return tuple(sorted(set(paths)))


def read_pattern(name: str, text: str) -> str:
    """Read a regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise SparkOptionError(f"{name}: {text!r} is no regular expression: {error}") from None
    return text


def read_natural(name: str, text: str) -> int:
    """Read a number from 0."""
    if not (text.isascii() and text.isdigit()) or int(text) > NUMBER_MAX:
        raise SparkOptionError(f"{name} is a number from 0, not {text!r}")
    return int(text)


def read_positive(name: str, text: str) -> int:
    """Read a number from 1."""
    number = read_natural(name, text)
    if not number:
        raise SparkOptionError(f"{name} is a number from 1, not {text!r}")
    return number


def read_flag(name: str, text: str) -> bool:
    """Read a true or false."""
    value = _WORDS.get(text.lower())
    if value is None:
        raise SparkOptionError(f"{name} is true or false, not {text!r}")
    return value


def read_secret(name: str, text: str) -> Secret | None:
    """Read what nobody is to see; an empty text is as none."""
    del name
    return Secret(text) if text else None


def read_seconds(name: str, text: str) -> float:
    """Read a time such as `120s`."""
    found = _DURATION.fullmatch(text)
    seconds = float(found[1]) * _UNIT_SECONDS[found[2] or "s"] if found else 0.0
    if not seconds:
        raise SparkOptionError(f"{name} is a time such as 120s, 500ms or 2m, not {text!r}")
    return seconds
