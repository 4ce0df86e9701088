import json
from hashlib import sha256
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from semel.pipeline.values import Range, delivery_hash, step_of

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)
numbers = st.integers(0, 2**53 - 1)
ranges = st.lists(
    st.builds(Range, names, names, numbers, numbers), max_size=4, unique_by=lambda one: one.stream
)

Named = tuple[str, str, int, list[Range]]


# rows: X14
def test_the_hash_is_that_of_the_canonical_json() -> None:
    found = delivery_hash("g", "p", 7, [Range("é", "i2", 3, 9), Range("a", "i1", 0, 5)])
    text = '[1,"g","p",7,[["a","i1",0,5],["é","i2",3,9]]]'
    assert found == sha256(text.encode()).hexdigest()


# rows: C12
@given(names, names, numbers, ranges, st.randoms())
def test_the_hash_does_not_depend_on_the_order_of_the_inputs(
    graph: str, processor: str, number: int, found: list[Range], chance: Random
) -> None:
    shuffled = list(found)
    chance.shuffle(shuffled)
    step = step_of(graph, processor, number, found)
    assert step == step_of(graph, processor, number, shuffled)
    text = json.dumps(
        [1, graph, processor, number, step.ranges], separators=(",", ":"), ensure_ascii=False
    )
    assert step.hash == sha256(text.encode()).hexdigest()


@given(st.tuples(names, names, numbers, ranges), st.tuples(names, names, numbers, ranges))
def test_other_steps_have_other_hashes(one: Named, other: Named) -> None:
    is_same = (*one[:3], sorted(one[3])) == (*other[:3], sorted(other[3]))
    assert (step_of(*one).hash == step_of(*other).hash) == is_same
