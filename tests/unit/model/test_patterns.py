"""Patterns of stream paths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.model.limits import PATTERN_BYTES_MAX
from semel.model.patterns import Pattern, is_pattern, matched_names, pattern_problem

MATCHES = (
    ("a", "a", True),
    ("a", "b", False),
    ("a", "a/b", False),
    ("a/b", "a/b", True),
    ("*", "a", True),
    ("*", "a/b", False),
    ("a/*", "a/b", True),
    ("a/*", "a", False),
    ("a/*", "ab", False),
    ("a/*", "a/b/c", False),
    ("*/b", "a/b", True),
    ("a/*/c", "a/b/c", True),
    ("a/*/c", "a/c", False),
    ("**", "a", True),
    ("**", "a/b/c", True),
    ("a/**", "a", True),
    ("a/**", "a/b/c", True),
    ("a/**", "ab/c", False),
    ("a/**/z", "a/z", True),
    ("a/**/z", "a/b/c/z", True),
    ("a/**/z", "a/b/c", False),
    ("**/z", "z", True),
    ("**/b/**", "a/b", True),
    ("**/b/**", "a/c", False),
    ("a*", "ab", False),
    ("a*", "a*", True),
    ("a.c", "abc", False),
    ("é/*", "é/ü", True),
    ("a/*/b", "a//b", True),
    ("a/*", "a/\n", True),
)


@pytest.mark.parametrize(("pattern", "path", "is_match"), MATCHES)
def test_a_pattern_matches_whole_segments(pattern: str, path: str, is_match: bool) -> None:
    assert Pattern(pattern).matches(path) == is_match


@pytest.mark.parametrize("pattern", ["**", "__semel/**", "*/dead/g", "__semel/dead/g"])
def test_no_pattern_matches_a_reserved_path(pattern: str) -> None:
    assert not Pattern(pattern).matches("__semel/dead/g")


segments = st.sampled_from(["a", "b", "*", "**", "x.y"])
patterns = st.lists(segments, min_size=1, max_size=4).map("/".join)
paths = st.lists(st.sampled_from(["a", "b", "x.y", "xzy", "*"]), min_size=1, max_size=5)


def is_match(pattern: list[str], path: list[str]) -> bool:
    """Match segment by segment, without regular expressions."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(is_match(pattern[1:], path[at:]) for at in range(len(path) + 1))
    return bool(path) and pattern[0] in ("*", path[0]) and is_match(pattern[1:], path[1:])


@given(patterns, paths)
def test_a_pattern_matches_as_segment_by_segment(pattern: str, path: list[str]) -> None:
    is_any = Pattern(pattern).matches("/".join(path))
    assert is_any == is_match(pattern.split("/"), path)
    only, prefix = matched_names(pattern)
    text = "/".join(path)
    assert not is_any or text == only or (prefix is not None and text.startswith(prefix))


@given(patterns, st.lists(st.sampled_from(["a", "b", "x.y", "xzy", "*"]), min_size=1, max_size=4))
def test_it_is_known_whether_a_pattern_can_match_a_path_below_another(
    pattern: str, parent: list[str]
) -> None:
    below = any(is_match(pattern.split("/"), [*parent, last]) for last in ("a", "b", "x.y", "new"))
    assert Pattern(pattern).can_match_below("/".join(parent)) == below


@given(patterns, paths)
def test_all_paths_that_a_pattern_matches_have_its_first_and_last_segment(
    pattern: str, path: list[str]
) -> None:
    compiled = Pattern(pattern)
    if compiled.matches("/".join(path)):
        assert compiled.first in (None, path[0])
        assert compiled.last in (None, path[-1])
    assert (compiled.first is None) == pattern.startswith("*")
    assert (compiled.last is None) == pattern.endswith("*")


@given(patterns, paths)
def test_all_paths_that_a_pattern_matches_are_its_parent_or_below_it(
    pattern: str, path: list[str]
) -> None:
    compiled, text = Pattern(pattern), "/".join(path)
    if compiled.matches(text) and compiled.parent:
        assert f"{text}/".startswith(f"{compiled.parent}/")
    assert "*" not in compiled.parent.split("/")
    assert pattern.startswith(compiled.parent)


@pytest.mark.parametrize(
    ("pattern", "parent"),
    [("a/b", "a/b"), ("a/*", "a"), ("a/**", "a"), ("*", ""), ("**/a", ""), ("a/b/*/c/*", "a/b")],
)
def test_the_parent_of_a_pattern_ends_before_the_first_wildcard(pattern: str, parent: str) -> None:
    assert Pattern(pattern).parent == parent


@pytest.mark.parametrize(
    ("pattern", "only", "prefix"),
    [
        ("a/b", "a/b", None),
        ("a/*", None, "a/"),
        ("a/**", "a", "a/"),
        ("a/**/**", "a", "a/"),
        ("a/**/*", None, "a/"),
        ("a/**/b", None, "a/"),
        ("*", None, ""),
        ("**", None, ""),
        ("**/a", None, ""),
        ("a/b/*/c/*", None, "a/b/"),
    ],
)
def test_what_a_pattern_matches_is_one_path_or_begins_as_it_does(
    pattern: str, only: str | None, prefix: str | None
) -> None:
    assert matched_names(pattern) == (only, prefix)
    assert only is None or Pattern(pattern).matches(only)


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        ("a/*/**", True),
        ("**/a/**", True),
        ("**/a/**/b/**", False),
        ("", False),
        ("a//b", False),
        ("/a", False),
        ("a/", False),
        ("x" * PATTERN_BYTES_MAX, True),
        ("x" * (PATTERN_BYTES_MAX + 1), False),
        ("\ud800", False),
        ("a*", False),
        ("a/*b/**", False),
        ("***", False),
        ("__semel/**", False),
        ("__semel/dead/g", False),
        ("__semel", True),
        ("*/dead", True),
    ],
)
def test_a_pattern_has_no_empty_segment_and_few_long_wildcards(text: str, is_valid: bool) -> None:
    assert is_pattern(text) == is_valid
    assert (pattern_problem(text) is None) == is_valid


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "1 to 512 bytes"),
        ("a//b", "an empty segment"),
        ("**/a/**/b/**", "more than 2 segments"),
        ("t*", "* must be a whole segment"),
        ("__semel/*", "no pattern matches a path below __semel/"),
    ],
)
def test_what_is_not_a_pattern_has_a_reason(text: str, words: str) -> None:
    assert words in (pattern_problem(text) or "")


def test_matching_takes_no_time_that_grows_exponentially() -> None:
    pattern = "/".join(["**", *["*"] * 200, "**", "z"])
    assert not Pattern(pattern).matches("/".join(["a"] * 450))
