"""A program, run by `test_tables.py`, that adds a table to the state and checks its storage.

The tables of the store are derived from the fields of `Dirty` when `semel.journal` is imported, so
the field must exist before that import.
"""

import struct
from typing import Annotated

from semel.machine import state as state_module
from semel.machine.rows import OF_STREAM, OWNED_KEY, Row, Table, tables_of
from semel.machine.state import Dirty, State


class ColourRow(Row, frozen=True, array_like=True):
    red: int
    green: int


loaded: dict[tuple[int, str], ColourRow] = {}


def load_colour(_state: State, key: tuple[int, str], row: ColourRow) -> None:
    loaded[key] = row


class WiderDirty(Dirty):
    colours: Annotated[
        dict[tuple[int, str], ColourRow | None], Table(OWNED_KEY, ColourRow, load_colour, OF_STREAM)
    ] = {}  # noqa: RUF012 - msgspec copies it


state_module.Dirty = WiderDirty  # type: ignore[misc]
state_module.STATE_TABLES = tables_of(WiderDirty)  # type: ignore[misc]

from semel.journal.store import (  # noqa: E402 - after the table was added
    DIGESTED,
    TABLES,
    TableWriter,
)
from semel.journal.verify import verify  # noqa: E402
from semel.model.commands import Delete  # noqa: E402
from tests.unit.broker.bed import Bed  # noqa: E402

PATH = "s"


def colours(bed: Bed) -> dict[tuple[int, str], ColourRow | None]:
    dirty = bed.broker.state.dirty
    assert isinstance(dirty, WiderDirty)
    return dirty.colours


def is_sound(bed: Bed) -> bool:
    return verify(bed.disk, bed.store).is_sound


def damage(bed: Bed, key: tuple[int, str], value: bytes) -> None:
    """Store a row with a correct checksum and invalid content."""
    writer = bed.store.write()
    tables = TableWriter(writer)
    tables.put("colours", OWNED_KEY.encode(key), value)
    tables.finish()
    writer.commit()


def main() -> None:
    assert "colours" in TABLES
    assert "colours" in DIGESTED
    bed = Bed()
    bed.execute(bed.create(PATH))
    number = bed.broker.state.by_path[PATH].row.number

    # stored and loaded; a removed row is gone
    colours(bed).update({(number, "a"): ColourRow(1, 2), (number, "b"): ColourRow(3, 4)})
    bed.checkpoint()
    bed.execute(bed.append(path=PATH))
    colours(bed)[number, "a"] = None
    bed.checkpoint()
    bed.restart()
    assert loaded == {(number, "b"): ColourRow(3, 4)}

    # absorbed: the next checkpoint stores the rows of a failed one, and newer rows replace them
    colours(bed).update({(number, "c"): ColourRow(5, 6), (number, "d"): ColourRow(7, 8)})
    bed.execute(bed.append(path=PATH))
    cut = bed.broker.cut()
    assert cut is not None
    colours(bed)[number, "d"] = ColourRow(9, 9)
    bed.broker.cut_failed(cut)
    bed.checkpoint()
    loaded.clear()
    bed.restart()
    names = {"b": ColourRow(3, 4), "c": ColourRow(5, 6), "d": ColourRow(9, 9)}
    assert loaded == {(number, name): row for name, row in names.items()}

    # verified: the rows and their owner
    assert is_sound(bed)
    for key, value in (((number, "x"), b"\xc1"), ((77, "x"), struct.pack("BBB", 0x92, 1, 1))):
        damaged = Bed()
        damaged.execute(damaged.create(PATH))
        damaged.checkpoint()
        assert is_sound(damaged)
        damage(damaged, key, value)
        findings = verify(damaged.disk, damaged.store).findings
        assert any("table colours" in finding.message for finding in findings), findings

    # removed with its owner
    bed.execute(Delete(PATH, bed.now_ms))
    bed.checkpoint()
    loaded.clear()
    bed.restart()
    assert not loaded
    assert is_sound(bed)


if __name__ == "__main__":
    main()
