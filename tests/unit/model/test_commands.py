"""Commands and limits are immutable values."""

import pytest
from msgspec import Struct

from semel.model import commands, limits
from semel.model.commands import Batch

KINDS = [
    kind for kind in vars(commands).values() if isinstance(kind, type) and issubclass(kind, Struct)
]


@pytest.mark.parametrize("kind", [k for k in KINDS if k is not Struct], ids=lambda k: k.__name__)
def test_every_command_is_frozen(kind: type[Struct]) -> None:
    assert kind.__struct_config__.frozen


def test_a_batch_is_one_message_unless_it_says_otherwise() -> None:
    assert Batch(b"x") == Batch(b"x", 1, b"")


# rows: U04
def test_the_largest_number_survives_every_json_parser() -> None:
    assert int(float(limits.NUMBER_MAX)) == limits.NUMBER_MAX == 2**53 - 1
