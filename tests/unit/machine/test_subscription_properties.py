"""Random commands: every way to the state of subscriptions leads to the same state.

The state is computed by commands, by a replay of all frames, and by a checkpoint with a replay of
the frames after it. In each of them, what is derived from the rows (the watchers of streams, what
is pending, who needs a wake) equals what is computed from the rows alone.
"""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from semel.machine import State, apply
from semel.machine.rows import OF_STREAM, OF_TXN
from semel.machine.state import STATE_TABLES
from semel.machine.subscription_views import claim_view, delivery_view, subscription_view
from semel.model.commands import Delete, EngineCommand, Expire, Trim
from semel.model.outcomes import Refusal
from semel.model.subscription_commands import WEBHOOK, AckWake, WakeAck
from semel.model.topic_commands import CloseTopic, DeleteTopic
from tests.unit.machine.builders import JSON, append, create, fork, rows_of, snapshot
from tests.unit.machine.subscription_builders import (
    WakeMachine,
    check_derived,
    claim_wake,
    delete,
    expire,
    failed,
    hook,
    link,
    pull,
    release,
    resume,
    unlink,
    wake_id_of,
)
from tests.unit.machine.topic_builders import append_topic, create_topic, grow
from tests.unit.machine.txn_builders import abort, begin, commit, one_shot, publish

PATHS = ("a/x", "a/y", "b", "t/0")
PATTERNS = (None, "a/*", "**", "t/*", "b")
path = st.sampled_from(PATHS)
name = st.sampled_from(("h", "p", "q"))
names = st.lists(st.sampled_from((*PATHS, "t", "none", "w")), max_size=2)
small = st.integers(0, 4)

COMMANDS: dict[str, st.SearchStrategy[EngineCommand]] = {
    "create": st.builds(lambda p, body: create(p, batch=body, ttl=9), path, st.none())
    | st.builds(lambda p: create(p, batch=append(b"x").batch, ttl=9), path),
    "wakes": st.builds(lambda p: create(p, kind=JSON), st.sampled_from(("w", "v"))),
    "fork": st.builds(fork, path, path),
    "append": st.builds(lambda p: append(path=p), path),
    "close": st.builds(lambda p: append(None, path=p, kind=JSON, close=True), st.just("w")),
    "trim": st.builds(lambda p, n: Trim(p, 0, n), path, small),
    "delete": st.builds(lambda p: Delete(p, 0), st.sampled_from((*PATHS, "w"))),
    "expire": st.builds(lambda p: Expire(p, 99, 99), path),
    "topic": st.sampled_from(
        (create_topic("t", 1), grow("t", 2), DeleteTopic("t", 0), CloseTopic("t", 0))
    ),
    "append_topic": st.just(append_topic((b"k", b"1"), (b"l", b"2"), path="t")),
    "begin": st.builds(lambda p: begin(streams=(p,)), path),
    "publish": st.builds(lambda p, n: publish(n, path=p), path, small),
    "end": st.sampled_from((commit(), abort())),
    "hook": st.builds(
        lambda ns, p: hook("h", *ns, pattern=p, now=len(ns)), names, st.sampled_from(PATTERNS)
    ),
    "pull": st.builds(
        lambda n, ns, p: pull(n, *ns, pattern=p, wakes="w" if n == "p" else "v"),
        st.sampled_from(("p", "q")),
        names,
        st.sampled_from(PATTERNS),
    ),
    "unsubscribe": st.builds(delete, name),
    "link": st.builds(lambda n, ns: link(*ns, name=n), name, names),
    "unlink": st.builds(unlink, st.sampled_from((*PATHS, "none")), name),
    "claim": st.builds(lambda n: claim_wake(name=n), name),
    "failed": st.builds(lambda n: failed(attempts_max=n), small),
    "resume": st.just(resume()),
}
ACTS = ("ack", "done", "delivered", "release", "expire", "commit", "checkpoint", "later")
steps = st.one_of(*COMMANDS.values()) | st.tuples(st.sampled_from(ACTS), name, path, small)


class Checkpoint:
    """What is stored of a state, and how many frames it includes."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[Any, Any]] = {table: {} for table in STATE_TABLES}
        self.meta = State().meta_row()
        self.frames = 0

    def update(self, machine: WakeMachine) -> None:
        """Store what has changed since the last call."""
        dirty = machine.state.take_dirty()
        for table, rows in self.tables.items():
            for key, row in getattr(dirty, table).items():
                rows[key] = row
            owner = STATE_TABLES[table].owner
            dropped = {OF_STREAM: dirty.dropped, OF_TXN: dirty.decided}.get(owner or "", set())
            for key, row in [*rows.items()]:
                first = key[0] if isinstance(key, tuple) else key
                if row is None or (owner is not None and first in dropped):
                    del rows[key]
        self.meta, self.frames = machine.state.meta_row(), len(machine.journal)

    def load(self) -> State:
        """Return the state that is stored."""
        state = State()
        state.load_meta(self.meta)
        for table, declared in STATE_TABLES.items():
            for key, row in sorted(self.tables[table].items(), key=lambda item: item[0]):
                declared.load(state, key, row)
        state.load_links()
        return state


def command_of(machine: WakeMachine, act: tuple[str, str, str, int]) -> EngineCommand:
    """Return the command of a worker on the present wake of a subscription."""
    what, name, path, number = act
    subscription = machine.state.subscriptions.by_id.get(name)
    generation = 1 if subscription is None else subscription.wake.generation
    stream = machine.state.by_path.get(path)
    offset = number if stream is None or number > 2 else stream.tail.tail
    wake = WakeAck(name, wake_id_of(name, generation), generation, ((path, offset),))
    done = WakeAck(name, wake.wake_id, generation, done=True)
    commands: dict[str, EngineCommand] = {
        "ack": AckWake(0, wake),
        "done": AckWake(0, WakeAck(name, wake.wake_id, generation, wake.acks, done=True)),
        "delivered": AckWake(0, done, WEBHOOK, by_snapshot=True),
        "release": release(name, generation=generation),
        "expire": expire(name, generation=generation),
        "commit": replace(one_shot(("b", b"out"), seq=number), wakes=(wake,)),
    }
    return commands[what]


@settings(max_examples=300, deadline=None)
@given(st.lists(steps, min_size=1, max_size=40))
def test_live_replayed_and_loaded_states_are_equal(
    drawn: list[EngineCommand | tuple[str, str, str, int]],
) -> None:
    machine, stored = WakeMachine(), Checkpoint()
    for step in drawn:
        if not isinstance(step, tuple):
            machine.execute(step)
        elif step[0] == "checkpoint":
            stored.update(machine)
        elif step[0] == "later":
            machine.issues = not machine.issues
        else:
            machine.execute(command_of(machine, step))
        check_derived(machine.state)
    replayed, loaded = State(), stored.load()
    check_derived(loaded)
    for written in machine.journal:
        apply(replayed, *written)
    for written in machine.journal[stored.frames :]:
        apply(loaded, *written)
    for state in (replayed, loaded):
        check_derived(state)
        assert rows_of(state) == rows_of(machine.state)
        assert snapshot(state.subscriptions) == snapshot(machine.state.subscriptions)
    check_views(machine.state)


def check_views(state: State) -> None:
    """Check that the views of every subscription can be made and agree with its rows."""
    for name, each in state.subscriptions.by_id.items():
        view = subscription_view(state, name)
        assert view is not None
        linked = [stream for stream in view.streams if stream.tail is not None]
        assert len(linked) == view.stream_count == len(each.links)
        assert sum(stream.has_pending for stream in linked) == view.pending_count
        assert {stream.path for stream in view.streams} >= set(each.row.names)
        is_delivered = each.row.url is not None and bool(each.wake.wake_id)
        assert (delivery_view(state, name) is not None) == is_delivered
        assert (claim_view(state, name) is not None) == bool(each.wake.worker)


def test_the_random_commands_reach_every_outcome_that_matters() -> None:
    """Each kind of command is accepted in some order, so that the test above tests something."""
    machine = WakeMachine()
    story: list[EngineCommand | tuple[str, str, str, int]] = [
        create("a/x"),
        create("w", kind=JSON),
        create("v", kind=JSON),
        hook("h", "a/x", pattern="**"),
        pull("p", "a/x", pattern=None),
        append(path="a/x"),
        claim_wake(name="p"),
        failed(attempts_max=1),
        resume(),
        ("ack", "p", "a/x", 0),
        ("release", "p", "a/x", 0),
        append(path="a/x"),
        ("delivered", "h", "a/x", 0),
        ("expire", "h", "a/x", 0),
        link("none", name="h"),
        unlink("none", "h"),
        create("b"),
        ("commit", "h", "a/x", 0),
        ("done", "h", "a/x", 0),
        delete("h"),
    ]
    for step in story:
        command = command_of(machine, step) if isinstance(step, tuple) else step
        outcome = machine.execute(command)
        assert not isinstance(outcome, Refusal), (step, outcome)
