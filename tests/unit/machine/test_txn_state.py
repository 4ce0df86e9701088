"""The state of transactions: replayed, stored in a checkpoint and loaded, and its views."""

import pytest
from msgspec.structs import replace

from semel.machine import State, apply, decide
from semel.machine.events import (
    SECTION_CONTROL,
    ChunkStaged,
    Decided,
    Ended,
    Section,
    StreamAppended,
    TxnBegun,
    TxnPublished,
)
from semel.machine.rows import ChunkBlockRow, TailRow
from semel.machine.state import STATE_TABLES, Dirty
from semel.machine.txn import views
from semel.machine.txn.draft import pack_extent
from semel.model.commands import (
    Delete,
    PinSnapshot,
    PositionMove,
    SetPositions,
    SinkTag,
    SnapshotRange,
    Trim,
    TxnResult,
)
from semel.model.errors import InvariantBroken
from tests.unit.machine.builders import append, create, dense, reloaded, snapshot
from tests.unit.machine.txn_builders import (
    FRAME_BYTES,
    TxnMachine,
    abort,
    add_positions,
    begin,
    by,
    chunk,
    commit,
    one_shot,
    prepare,
    publish,
    stage,
    sunk,
    txn_machine,
)


def busy_machine() -> TxnMachine:
    """Return a machine with rows in every table."""
    machine = txn_machine(append(by=dense(0, epoch=0)), create("d"))
    machine.execute(begin("done"))
    machine.execute(publish(0, txn="done"))
    machine.execute(commit("done"))
    machine.execute(begin("q", by("q")))
    machine.execute(publish(txn="q", tag=dense(0, epoch=0, name="q"), path="r"))
    machine.execute(begin("open", streams=("s", "r", "d")))
    machine.execute(publish(0, txn="open", path="r"))
    machine.execute(publish(1, txn="open"))
    machine.execute(SetPositions(0, (PositionMove("g", "s", 1), PositionMove("g", "r", 0))))
    machine.execute(add_positions(("s", 1), txn="open"))
    machine.execute(begin("lost", by("l"), streams=()))
    machine.execute(add_positions(("s", 1), ("d", 0), txn="lost"))
    machine.execute(Delete("d", 0))
    machine.execute(stage("chunks", sunk(2)))
    for seq in range(300):
        machine.execute(chunk(seq, txn="chunks"))
    machine.execute(add_positions(("r", 0), txn="chunks", group="h"))
    machine.execute(prepare("chunks"))
    pinned = SnapshotRange("s", "i-s-0", 0, 1)
    machine.execute(PinSnapshot(0, "g", 0, (pinned,), "h"))
    machine.execute(one_shot(("s", b"a"), producer="p", seq=0))
    machine.execute(one_shot(sink=SinkTag("app", "query", 1, "i1")))
    machine.execute(Trim("s", 0, 1))
    return machine


def comparable(state: State) -> dict[str, object]:
    return {
        "streams": {
            path: [getattr(stream, name) or None for name in stream.__struct_fields__]
            for path, stream in sorted(state.by_path.items())
        },
        "open": {path: list(stream.open or ()) for path, stream in state.by_path.items()},
        "txns": {n: (txn.row, txn.streams, txn.chunk_blocks) for n, txn in state.by_txn.items()},
        "ids": {txn_id: txn.row.number for txn_id, txn in state.transactions.items()},
        "counters": (state.meta_row(), state.sink_txn_count, state.producer_counts.live),
        "tables": (state.owned, state.sinks, state.snapshots, state.groups, state.registry),
        "named": state.named,
    }


def test_a_state_with_transactions_goes_through_a_checkpoint() -> None:
    state = busy_machine().state
    assert comparable(reloaded(state)) == comparable(state)


def test_a_carried_state_decides_as_the_first_one_would() -> None:
    machine, twin = busy_machine(), busy_machine()
    twin.state = reloaded(twin.state)
    held = SetPositions(0, (PositionMove("h", "r", 0),))
    for command in (commit("lost"), held, commit("open"), abort("q"), one_shot(("r", b"b"), seq=1)):
        assert machine.execute(command) == twin.execute(command)
    assert machine.state.transactions.keys() == {"lost", "chunks"}
    assert comparable(machine.state) == comparable(twin.state)
    assert machine.aborted == twin.aborted


def test_the_same_frames_fold_into_the_same_state() -> None:
    machine = busy_machine()
    twin = State()
    for number, written in enumerate(machine.journal, 1):
        apply(twin, *written, number * FRAME_BYTES)
    assert snapshot(comparable(twin)) == snapshot(comparable(machine.state))


def test_deciding_changes_nothing() -> None:
    machine = busy_machine()
    before = snapshot(comparable(machine.state))
    for command in (commit("open"), abort("chunks"), begin("new", by("z", 3)), chunk(300)):
        decide(machine.state, command)
    assert snapshot(comparable(machine.state)) == before


def test_pages_that_do_not_join_are_refused() -> None:
    state = reloaded(busy_machine().state)
    number = next(iter(state.by_txn))
    with pytest.raises(KeyError):
        STATE_TABLES["parts"].load(state, (number, 99), ChunkBlockRow(b""))


def test_a_tail_from_before_transactions_is_stable() -> None:
    state = txn_machine(append()).state
    old = state.by_path["s"]
    tail = old.tail
    twin = State()
    STATE_TABLES["streams"].load(twin, old.row.number, old.row)
    before = TailRow(tail.head, tail.tail, False, False, None, tail.written_ms)
    STATE_TABLES["tails"].load(twin, old.row.number, before)
    assert twin.by_path["s"].tail.stable == 1


def test_what_an_abandoned_checkpoint_held_is_taken_back() -> None:
    machine = txn_machine(begin(), publish(0))
    older = machine.state.take_dirty()
    machine.execute(stage("u", by("q")))
    machine.execute(abort())
    newer: Dirty = machine.state.dirty
    newer.absorb(older)
    assert set(newer.transactions) == {1, 2}
    assert (1, 1) in newer.txn_streams
    assert (1, 0) in newer.parts
    assert newer.decided == {1}


# ---- frames that only a bug or a damaged journal can contain -------------------------------------


def broken(machine: TxnMachine, event: object, *sections: Section) -> None:
    with pytest.raises(InvariantBroken):
        apply(machine.state, event, sections, 0)  # type: ignore[arg-type]


def test_extents_that_do_not_join_are_refused() -> None:
    machine = txn_machine(stage("u"), chunk(0, txn="u"), chunk(1, txn="u"))
    number = machine.state.transactions["u"].row.number
    ended = (Ended(number, True, ""),)
    sound = [pack_extent(8, 1, 0, 1), pack_extent(16, 1, 1, 1)]
    for wrong in (
        [sound[0]],
        [*sound, pack_extent(24, 1, 2, 1)],
        [sound[0], pack_extent(16, 1, 2, 1)],
        [sound[0], pack_extent(16, 2, 0, 1)],
    ):
        broken(machine, Decided(ended, b"".join(wrong)))
    apply(machine.state, Decided(ended, b"".join(sound)), (), 0)
    assert machine.stream().tail.tail == 2


def test_a_frame_that_does_not_join_is_refused() -> None:
    machine = txn_machine(begin(), stage("u"))
    mark = StreamAppended(1)
    broken(machine, TxnBegun(9, "x", 1, "inline", by(), False, None))
    broken(machine, TxnBegun(3, "t", 1, "inline", by(), False, None))
    broken(machine, ChunkStaged(2, 1), Section(1, 0, 1, b"", kind=8))
    broken(machine, TxnPublished(1, mark), Section(1, 7, 1, b""))
    broken(machine, Decided(), Section(1, 7, 1, b""))
    ended = (Ended(1, False, "abort"),)
    broken(machine, Decided(ended), Section(1, 7, 1, b"", kind=SECTION_CONTROL))


# ---- views ---------------------------------------------------------------------------------------


def test_open_transactions_are_listed_by_state_and_stream() -> None:
    state = busy_machine().state
    assert [view.id for view in views.transactions(state)] == ["q", "open", "lost", "chunks"]
    assert [view.id for view in views.transactions(state, views.PREPARED)] == ["chunks"]
    assert [view.id for view in views.transactions(state, views.OPEN, "s")] == ["q", "open", "lost"]
    assert [view.id for view in views.transactions(state, stream="nope")] == []


def test_a_transaction_is_shown_with_its_streams_and_positions() -> None:
    state = busy_machine().state
    view = views.transaction(state, "open")
    assert view is not None
    assert (view.state, view.deleted, view.due_ms) == ("open", ("d",), 60_000)
    assert [(stream.path, stream.first_offset) for stream in view.streams] == [("s", 3), ("r", 1)]
    assert [(move.group, move.path, move.offset) for move in view.positions] == [("g", "s", 1)]
    staged = views.transaction(state, "chunks")
    assert staged is not None
    assert (staged.state, staged.chunks, staged.next_seq) == ("prepared", 300, 300)
    assert {stream.first_offset for stream in staged.streams} == {None}
    assert views.transaction(state, "done") is None


def test_who_holds_a_stream_is_told() -> None:
    state = busy_machine().state
    found = views.holding_view(state, "r")
    assert found is not None
    assert found.id == "q"
    assert views.holding_view(state, "nope") is None
    assert views.holding_view(txn_machine().state, "s") is None


def test_groups_and_sinks_are_shown() -> None:
    state = busy_machine().state
    shown = views.group_view(state, "g").positions
    assert {path: row.offset for path, row in shown.items()} == {"r": 0, "s": 1}
    assert views.group_view(state, "nope") == views.GroupView("nope", {}, ())
    step = views.snapshot(state, "g")
    assert step is not None
    assert (step.number, step.hash) == (0, "h")
    assert views.snapshot(state, "nope") is None
    (listed,) = views.sinks(state)
    sink = views.sink(state, "app")
    assert sink is not None
    assert listed == replace(sink, versions=())
    assert (sink.query_id, sink.last_version, sink.open_transactions) == ("query", 1, 1)
    (version,) = sink.versions
    assert (version.version, version.input, version.result) == (1, "i1", TxnResult())
    assert views.sink(state, "nope") is None
