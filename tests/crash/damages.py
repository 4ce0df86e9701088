"""Random damage to a checkpoint file: where it is, what it is, and how it is done.

The places are chosen so that every part of the LMDB file is hit often: keys of every table, page
headers, both meta pages, the catalogue of the tables, pages of long values, and unused bytes.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

import lmdb

_PAGE_BYTES: Final = 4096
_SECTOR_BYTES: Final = 512
_HEADER_BYTES: Final = 16
_META_BYTES: Final = 168  # of each meta page, the rest is unused
_CATALOGUE: Final = b"outcome_owners"  # only the catalogue contains the name of a table
# The tables whose rows are looked up one by one. A row whose key is damaged is not found.
LOOKED_UP: Final = ("aborted", "outcomes")


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes to write at a position of the file, or, if `data` is None, its new length."""

    kind: str
    position: int
    data: bytes | None

    def __str__(self) -> str:
        if self.data is None:
            return f"{self.kind}: cut to {self.position} bytes"
        return f"{self.kind}: byte {self.position} becomes {self.data[:8].hex()}"

    def apply(self, path: Path) -> None:
        """Damage a file in place. A process that has mapped the file sees the damage."""
        descriptor = os.open(path, os.O_RDWR)
        try:
            if self.data is None:
                os.truncate(descriptor, self.position)
            else:
                os.pwrite(descriptor, self.data, self.position)
        finally:
            os.close(descriptor)


class Damages:
    """Chooses damage for one checkpoint file."""

    def __init__(self, path: Path) -> None:
        self._data = path.read_bytes()
        self._used = [at for at, byte in enumerate(self._data) if byte]
        self.keys, self._values = _rows_of(path, self._data)
        catalogue = range(0, len(self._data), _PAGE_BYTES)
        self._catalogues = [
            at for at in catalogue if _CATALOGUE in self._data[at : at + _PAGE_BYTES]
        ]

    def choose(self, random: Random) -> Damage:
        """Return random damage."""
        choices = (self._key, self._page, self._used_bit, self._any_bit, self._many_bits)
        return random.choices(choices, (3, 2, 2, 1, 1))[0](random)

    def _key(self, random: Random) -> Damage:
        table = random.choice((*LOOKED_UP, *self.keys))
        return self.flip(f"key in {table}", random.choice(self.keys[table]), random)

    def _used_bit(self, random: Random) -> Damage:
        return self.flip("used", random.choice(self._used), random)

    def _any_bit(self, random: Random) -> Damage:
        return self.flip("any", random.randrange(len(self._data)), random)

    def _page(self, random: Random) -> Damage:
        """Return a flip in the header of a page, in a meta page, or in the catalogue."""
        match random.choice(("header", "meta", "catalogue")):
            case "header":
                page = random.randrange(0, len(self._data), _PAGE_BYTES)
                return self.flip("header", page + random.randrange(2 * _HEADER_BYTES), random)
            case "meta":
                page = random.choice((0, _PAGE_BYTES))
                return self.flip("meta", page + random.randrange(_META_BYTES), random)
        page = random.choice(self._catalogues)
        used = [at for at in self._used if page <= at < page + _PAGE_BYTES]
        return self.flip("catalogue", random.choice(used), random)

    def _many_bits(self, random: Random) -> Damage:
        """Return a random byte, a sector of zeros, or a cut."""
        match random.choice(("byte", "sector", "cut")):
            case "byte":
                return Damage("byte", random.choice(self._used), random.randbytes(1))
            case "sector":
                sector = random.choice(self._used) // _SECTOR_BYTES * _SECTOR_BYTES
                return Damage("sector", sector, bytes(_SECTOR_BYTES))
        return Damage("cut", random.randrange(1, len(self._data)), None)

    def choose_in_row(self, random: Random) -> Damage:
        """Return random damage to the key or to the value of a row, and to nothing else."""
        part, places = random.choice((("key", self.keys), ("value", self._values)))
        table = random.choice((*LOOKED_UP, *places))
        position = random.choice(places[table])
        if random.random() < 0.2:
            return Damage(f"byte of a {part} in {table}", position, random.randbytes(1))
        return self.flip(f"bit of a {part} in {table}", position, random)

    def flip(self, kind: str, position: int, random: Random) -> Damage:
        """Return the flip of one random bit of a byte."""
        return self.flip_bit(kind, position, random.randrange(8))

    def flip_bit(self, kind: str, position: int, bit: int) -> Damage:
        return Damage(kind, position, bytes([self._data[position] ^ 1 << bit]))


Places = dict[str, list[int]]


def _rows_of(path: Path, data: bytes) -> tuple[Places, Places]:
    """Return, for each table, the positions of the bytes of its keys, and those of its values.

    A page that is no longer used can still contain a row. Such positions are included.
    """
    keys: Places = {}
    values: Places = {}
    env = lmdb.open(str(path), subdir=False, max_dbs=64, readonly=True, lock=False)
    with env.begin() as transaction:
        for name in [key for key, _ in transaction.cursor()]:
            table = env.open_db(name, transaction, create=False)
            rows = list(transaction.cursor(table))
            if rows:
                keys[name.decode()] = _places(data, [key for key, _ in rows])
                values[name.decode()] = _places(data, [value for _, value in rows])
    env.close()
    return keys, values


def _places(data: bytes, parts: list[bytes]) -> list[int]:
    found: set[int] = set()
    for part in parts:
        at = data.find(part)
        while at >= 0:
            found.update(range(at, at + len(part)))
            at = data.find(part, at + 1)
    return sorted(found)
