"""Rows A17 to A20 of `docs/reference/transactions.md`. See `position_stories.py`."""

from semel.model.commands import TXN_STAGED, Delete, PositionResult, StreamResult, TxnResult
from semel.model.outcomes import InvalidRequest, OffsetBeyondTail
from semel.model.outcomes_txn import (
    BY_DELETION,
    BY_INCARNATION,
    BY_MOVE,
    BY_MOVER,
    BY_OFFSET,
    BY_VERSION,
    CommitDone,
    PositionsSet,
    StreamRefused,
)
from tests.unit.machine.position_words import (
    BEYOND,
    HELD_BY_U,
    MOVED_BY_Q,
    SEEN,
    THREE,
    Expected,
    Story,
    conflict,
    held,
    move,
    name,
    named,
    once,
    one_done,
    result_of,
    sets,
    start,
    start_sink,
    version_of,
)
from tests.unit.machine.txn_builders import abort, commit, one_shot, prepare

MOVED = conflict(3, 1, BY_MOVE)

AT_ONCE = (
    Story(
        "A17",
        "a sequence that is repeated compares nothing",
        (
            *THREE,
            once(move(1, 0)),
            sets(move(3)),
            Expected(
                once(move(1, 0)),
                CommitDone(None, None, result_of((("s", 1),), ()), is_duplicate=True),
                is_still=True,
            ),
        ),
    ),
    Story(
        "A17",
        "nor does a version of a sink",
        (
            *THREE,
            version_of(1, move(1, 0)),
            sets(move(3)),
            Expected(
                version_of(1, move(1, 0)),
                CommitDone(None, None, result_of((("s", 1),), ()), is_duplicate=True),
                is_still=True,
            ),
        ),
    ),
    Story(
        "A18",
        "one position in two of its parts",
        (
            *THREE,
            start("t", kind=TXN_STAGED),
            start("u", kind=TXN_STAGED),
            name(move(1, 0)),
            name(move(2, 0), txn="u"),
            Expected(once(listed="tu"), InvalidRequest("positions")),
            Expected(once(move(1, 7), listed="t"), InvalidRequest("positions")),
            prepare(),
            Expected(once(move(1, 0), listed="t"), InvalidRequest("positions")),
            Expected(once(move(0, path="r"), listed="t"), one_done(("r", 0), ("s", 1))),
        ),
    ),
    Story(
        "A18",
        "its own, by the rows of naming",
        (
            *THREE,
            *MOVED_BY_Q,
            Expected(
                once(move(3, 7, incarnation="x")),
                conflict(2, 1, BY_INCARNATION, incarnation=SEEN),
            ),
            Expected(once(move(3, 0)), conflict(2, 1, BY_OFFSET)),
            Expected(once(move(3, 2, version=0)), conflict(2, 1, BY_VERSION)),
            Expected(once(move(3)), conflict(2, 1, BY_MOVER, mover="q")),
            Expected(version_of(1, move(3)), conflict(2, 1, BY_MOVER, mover="q")),
            Expected(once(move(4, 2)), BEYOND),
            Expected(once(move(3), producer="q"), one_done(("s", 3))),
        ),
    ),
    Story(
        "A18",
        "held goes before the offset",
        (
            *THREE,
            *HELD_BY_U,
            Expected(once(move(1, 7)), held()),
            Expected(version_of(1, move(1)), held()),
        ),
    ),
    Story(
        "A18",
        "the tail is the one after the commit",
        (
            *THREE,
            Expected(
                one_shot(("s", b"x"), positions=(move(5),)),
                StreamRefused("s", OffsetBeyondTail(4)),
            ),
            Expected(
                one_shot(("s", b"x"), positions=(move(4),)),
                CommitDone(
                    None,
                    None,
                    TxnResult((StreamResult("s", 3, 4, 1),), (PositionResult("g", "s", 4),)),
                ),
            ),
        ),
    ),
    Story(
        "A18",
        "a listed one that is not prepared is compared",
        (
            *THREE,
            start("t", kind=TXN_STAGED),
            name(move(1, 0), move(0, 0, path="r")),
            sets(move(3)),
            Expected(once(listed="t"), MOVED),
            Expected(once(move(0, 9, group="h"), listed="t"), conflict(0, 0, BY_OFFSET, group="h")),
            Delete("r", 0),
            Expected(once(listed="t"), conflict(0, 0, BY_DELETION, path="r")),
        ),
    ),
    Story(
        "A18",
        "what another one holds is not moved by a listed one either",
        (
            *THREE,
            start("t", kind=TXN_STAGED),
            name(move(1, 0)),
            *HELD_BY_U,
            Expected(once(listed="t"), held()),
        ),
    ),
    Story(
        "A18",
        "a listed one that is prepared is not compared",
        (
            *THREE,
            start("t", kind=TXN_STAGED),
            name(move(1, 0), move(0, path="r")),
            prepare(),
            Delete("s", 0),
            Expected(once(listed="t"), one_done(("r", 0), deleted=("s",))),
        ),
    ),
    Story(
        "A18",
        "what it fences holds nothing",
        (
            *THREE,
            *HELD_BY_U,
            Expected(once(move(1), producer="q"), held()),
            Expected(once(move(1, 0), producer="q", epoch=1), one_done(("s", 1))),
        ),
    ),
    Story(
        "A18",
        "nor does what it supersedes in its sink",
        (
            *THREE,
            start_sink("k", 2),
            name(move(2, 0), txn="k"),
            prepare("k"),
            Expected(version_of(1, move(1)), held("k")),
            Expected(version_of(2, move(1, 0)), one_done(("s", 1))),
        ),
    ),
    Story(
        "A19",
        "a plain set by its rows",
        (
            *THREE,
            *MOVED_BY_Q,
            Expected(
                sets(move(3, 7, incarnation="x")),
                conflict(2, 1, BY_INCARNATION, incarnation=SEEN),
            ),
            Expected(sets(move(3, 0)), conflict(2, 1, BY_OFFSET)),
            Expected(sets(move(3, 2, version=0)), conflict(2, 1, BY_VERSION)),
            Expected(sets(move(4)), BEYOND),
            Expected(sets(move(3), move(0, path="r"), move(1, group="h")), PositionsSet((2, 1, 1))),
            Expected(sets(move(3)), PositionsSet((3,))),
        ),
    ),
    Story(
        "A19",
        "what is compared goes before what is held",
        (
            *THREE,
            *HELD_BY_U,
            Expected(sets(move(3, 1)), conflict(0, 0, BY_OFFSET)),
            Expected(sets(move(3, version=1)), conflict(0, 0, BY_VERSION)),
            Expected(sets(move(4, 0)), held()),
        ),
    ),
    Story(
        "A19",
        "no older worker undoes a rewind",
        (
            *THREE,
            *MOVED_BY_Q,
            start(),
            name(move(3, 2)),
            sets(move(0)),
            Expected(commit(), conflict(0, 2, BY_MOVE)),
            sets(move(2)),
            Expected(commit(), conflict(2, 3, BY_MOVE)),
        ),
    ),
    Story(
        "A20",
        "a sink's transaction holds, and moves with its version",
        (
            *THREE,
            start_sink("k"),
            Expected(name(move(2, 1), txn="k"), conflict(0, 0, BY_OFFSET)),
            name(move(2), txn="k"),
            sets(move(1)),
            Expected(prepare("k"), conflict(1, 1, BY_MOVE)),
            abort("k"),
            start_sink("l"),
            name(move(2, 1), txn="l"),
            prepare("l"),
            Expected(sets(move(0)), held("l")),
            Expected(version_of(1, listed="l"), one_done(("s", 2))),
            start(),
            Expected(name(move(3)), conflict(2, 2, BY_MOVER, mover="sink:app")),
            start_sink("m", 2),
            Expected(name(move(3), txn="m"), named(txn="m")),
        ),
    ),
    Story(
        "A20",
        "a position in a stream that ended does not stop its version",
        (
            *THREE,
            start_sink("k"),
            name(move(2), move(0, path="r"), txn="k"),
            prepare("k"),
            Delete("s", 0),
            Expected(version_of(1, listed="k"), one_done(("r", 0), deleted=("s",))),
        ),
    ),
)
