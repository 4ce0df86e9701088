"""What must hold for a group whose workers reject messages: each message is done with once."""

from collections import Counter

import msgspec

from tests.sim.demands import demand, demand_equal
from tests.sim.letters import DEAD, GROUP, INPUT, OUTPUT, REPLAYS, RETRY, origin_of
from tests.sim.reference import Model

Place = tuple[str, int]  # a stream and an offset in it


def demand_letters(model: Model, counts: Counter[str]) -> None:
    """Check the streams of the group against each other.

    Each message before the group's position is either in the output, once, or a dead letter, once.
    The retries are the dead letters before the position of the replays, in their order, and no dead
    letter is in the input.
    """
    if any(path not in model.streams for path in (INPUT, OUTPUT, DEAD, RETRY)):
        return
    dead = [origin_of(body) for body in bodies(model, DEAD)]
    retried = bodies(model, RETRY)
    demand(None not in dead, "a dead letter has no origin")
    demand(not any(map(origin_of, bodies(model, INPUT))), "a dead letter is in the input")
    until = model.txns.positions.at(REPLAYS, DEAD).offset
    demand(retried == bodies(model, DEAD)[:until], "the retries are not what was replayed")
    outputs = Counter(_place(body) for body in bodies(model, OUTPUT))
    ended: Counter[Place | None] = Counter()
    for path in (INPUT, RETRY):
        for offset in range(model.txns.positions.at(GROUP, path).offset):
            origin = (INPUT, offset) if path == INPUT else origin_of(retried[offset])
            demand(outputs[path, offset] < 2, f"{path}, {offset} was processed twice")
            ended[origin] += 1 - outputs.pop((path, offset), 0)
    demand(not +outputs, f"processed without the position: {outputs}")
    demand_equal(+ended, Counter(dead), "rejected messages and dead letters")
    counts["dead letters compared"] += len(dead)
    counts["replayed dead letters compared"] += len(retried)


def bodies(model: Model, path: str) -> list[bytes]:
    """Return the messages of a stream."""
    return [message.body for message in model.streams[path].messages]


def _place(body: bytes) -> Place:
    found = msgspec.json.decode(body)
    return found["stream"], found["offset"]
