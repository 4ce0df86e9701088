"""Measuring sides in turns, so that a noisy machine is noisy for all of them."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

T = TypeVar("T")
Side = Callable[[], Awaitable[T]]


async def take_turns(
    sides: Mapping[str, Side[T]], rounds: int, *, is_warmed: bool = True
) -> dict[str, list[T]]:
    """Run every side once to warm up, then `rounds` times, each time another one first."""
    names = list(sides)
    if is_warmed:
        for side in sides.values():
            await side()
    found: dict[str, list[T]] = {name: [] for name in names}
    for index in range(rounds):
        first = index % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(await sides[name]())
    return found
