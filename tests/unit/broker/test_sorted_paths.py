"""`SortedPaths`, compared with sorting a set."""

from hypothesis import given
from hypothesis import strategies as st

from semel.broker.sorted_paths import SortedPaths

NAMES = st.text("ab/", max_size=3)
CHANGES = st.lists(st.tuples(st.booleans(), NAMES), max_size=200)


def expected(paths: set[str], after: str, prefix: str) -> list[str]:
    return sorted(path for path in paths if path > after and path.startswith(prefix))


@given(st.sets(NAMES.filter(bool)), CHANGES, NAMES, NAMES)
def test_it_walks_like_a_sorted_set(
    first: set[str], changes: list[tuple[bool, str]], after: str, prefix: str
) -> None:
    paths, ordered = set(first), SortedPaths(first)
    for is_new, path in changes:
        if is_new and path and path not in paths:
            paths.add(path)
            ordered.add(path)
        elif not is_new:
            paths.discard(path)
            ordered.discard(path)
    assert list(ordered.after(after, prefix)) == expected(paths, after, prefix)
    assert {name for name in {*paths, after, prefix} if name in ordered} == paths & {
        *paths,
        after,
        prefix,
    }


def test_many_paths_take_many_blocks_that_come_and_go() -> None:
    names = [f"{number * 7919 % 10_007:05d}" for number in range(10_007)]
    ordered = SortedPaths()
    for name in names:
        ordered.add(name)
    assert list(ordered.after("")) == sorted(names)
    assert list(ordered.after("04999", "05")) == sorted(name for name in names if name[:2] == "05")
    for name in names[:-1]:
        ordered.discard(name)
    assert list(ordered.after("")) == names[-1:]
    assert list(ordered.after(names[-1])) == []
    ordered.discard(names[-1])
    assert list(ordered.after("")) == []
    assert list(SortedPaths(names).after("10003")) == sorted(names)[-3:]
