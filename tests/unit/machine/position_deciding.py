"""Rows A10 to A16 of `docs/reference/transactions.md`. See `position_stories.py`."""

from semel.model import commands as ask
from semel.model.commands import TXN_STAGED, Delete, Expire, Register
from semel.model.outcomes import StreamClosed
from semel.model.outcomes_txn import (
    BY_DELETION,
    BY_MOVE,
    BranchIncomplete,
    CommitDone,
    PositionsSet,
    Prepared,
    StreamRefused,
)
from tests.unit.machine.builders import append, create
from tests.unit.machine.position_words import (
    HELD_BY_U,
    THREE,
    Expected,
    Story,
    conflict,
    done,
    held,
    move,
    name,
    named,
    once,
    result_of,
    sets,
    start,
)
from tests.unit.machine.txn_builders import abort, begin, chunk, commit, fence, prepare

GONE = conflict(0, 0, BY_DELETION)
MOVED = conflict(3, 1, BY_MOVE)
TWO_NAMED = (*THREE, start(), name(move(0, 0, path="r"), move(1, 0)))

DECIDING = (
    *(
        Story(
            row,
            f"{decide.__name__}: what was moved",
            (
                *TWO_NAMED,
                sets(move(3)),
                Expected(decide(), MOVED),
                sets(move(0, path="r")),
                Expected(decide(), conflict(0, 1, BY_MOVE, path="r")),
                Delete("s", 0),
                Expected(decide(), GONE),
                abort(),
            ),
        )
        for row, decide in (("A10", prepare), ("A14", commit))
    ),
    *(
        Story(
            row,
            f"{decide.__name__}: what ended, also if it was created again",
            (
                *TWO_NAMED,
                Delete("s", 0),
                Expected(decide(), GONE),
                create("s", now=7),
                Expected(decide(), GONE),
                Expected(name(move(0, 0)), named(3)),
                Expected(decide(), GONE),
                Expected(sets(move(0, 0, version=0)), PositionsSet((1,))),
            ),
        )
        for row, decide in (("A10", prepare), ("A14", commit))
    ),
    *(
        Story(
            row,
            f"{decide.__name__}: what another one holds",
            (*TWO_NAMED, *HELD_BY_U, Expected(decide(), held()), abort("u"), decide()),
        )
        for row, decide in (("A10", prepare), ("A14", commit))
    ),
    Story(
        "A10",
        "after the counts",
        (
            *THREE,
            start(kind=TXN_STAGED),
            name(move(1, 0)),
            sets(move(3)),
            Expected(prepare(chunks=1), BranchIncomplete("t", 0, 0)),
            Expected(prepare(chunks=0), MOVED),
        ),
    ),
    Story(
        "A10",
        "one that is prepared is not looked at again",
        (
            *THREE,
            start(),
            name(move(1, 0)),
            prepare(),
            Delete("s", 0),
            Expected(prepare(), Prepared("t", 1, "t:1"), is_still=True),
        ),
    ),
    Story(
        "A11",
        "held until it is decided",
        (
            *THREE,
            *HELD_BY_U,
            Expected(sets(move(1)), held()),
            commit("u"),
            Expected(sets(move(1)), PositionsSet((2,))),
        ),
    ),
    Story(
        "A12",
        "a commit that is repeated compares nothing",
        (
            *THREE,
            start(),
            name(move(1, 0)),
            commit(),
            sets(move(0)),
            Delete("s", 0),
            Expected(
                commit(),
                CommitDone("t", 1, result_of((("s", 1),), ()), is_duplicate=True),
                is_still=True,
            ),
        ),
    ),
    Story(
        "A13",
        "a prepared one is committed, without what was deleted",
        (
            *TWO_NAMED,
            prepare(),
            Delete("s", 0),
            create("s", now=7),
            Expected(sets(move(0, 0)), PositionsSet((1,))),
            Expected(commit(), done("t", ("r", 0), deleted=("s",))),
            Expected(sets(move(0, 0, version=1)), PositionsSet((2,))),
        ),
    ),
    Story(
        "A13",
        "what it wrote and named is deleted once",
        (
            *THREE,
            begin(streams=("s",)),
            name(move(1, 0), move(1, 0, group="h")),
            prepare(),
            Delete("s", 0),
            Expected(commit(), done("t", deleted=("s",))),
        ),
    ),
    Story(
        "A14",
        "after the closed streams",
        (
            *THREE,
            start(kind=TXN_STAGED),
            chunk(0, path="r"),
            name(move(1, 0)),
            sets(move(3)),
            append(None, path="r", close=True),
            Expected(commit(), StreamRefused("r", StreamClosed(0))),
        ),
    ),
    Story(
        "A14",
        "an expired stream is one that ended",
        (
            create("x", ttl=5),
            start(),
            name(move(0, path="x")),
            Expire("x", 5, 5),
            Expected(commit(), conflict(0, 0, BY_DELETION, path="x")),
        ),
    ),
    Story(
        "A15",
        "nobody moves what is held",
        (
            *THREE,
            start(),
            name(move(1)),
            *HELD_BY_U,
            Expected(commit(), held()),
            Expected(once(move(1)), held()),
            Expected(once(move(1), producer="q"), held()),
            Expected(sets(move(0)), held()),
            Expected(commit("u"), done("u", ("s", 2))),
            Expected(commit(), conflict(2, 1, BY_MOVE)),
        ),
    ),
    *(
        Story(
            "A16",
            f"nothing is moved or held after {what}",
            (*THREE, *HELD_BY_U, end, Expected(sets(move(1, 0, version=0)), PositionsSet((1,)))),
        )
        for what, end in (
            ("an abort", abort("u")),
            ("a fence", fence("u")),
            ("a raised epoch", Register(0, "q")),
        )
    ),
    Story(
        "A16",
        "nor after a time-out",
        (
            *THREE,
            begin(streams=(), implicit=True, timeout=5),
            name(move(1, 0)),
            ask.ExpireTxn(5, "t", 1, 5),
            Expected(sets(move(2, 0, version=0)), PositionsSet((1,))),
        ),
    ),
)
