"""How the tables of the state are declared, and how their keys become bytes.

The declarations are the annotated fields of `Dirty` in `state.py`: one field is one table of the
checkpoint, named like the field. Storing, loading, removing and verifying follow from it.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from msgspec import Struct

from semel.machine.rows import Row

_NUMBER: Final = struct.Struct(">Q")
_PAIR: Final = struct.Struct(">QQ")

# The owners of rows: see `Table.owner`.
OF_STREAM: Final = "stream"
OF_TXN: Final = "transaction"


class KeyCodec(Struct, frozen=True):
    """The two directions between a key and its bytes; bytes sort like the keys."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def _encode_owned(key: tuple[int, str]) -> bytes:
    number, name = key
    return _NUMBER.pack(number) + name.encode()


def _decode_owned(key: bytes) -> tuple[int, str]:
    return _NUMBER.unpack_from(key)[0], key[_NUMBER.size :].decode()


def _encode_pair(key: tuple[int, int]) -> bytes:
    return _PAIR.pack(*key)


def _decode_number(key: bytes) -> int:
    number: int = _NUMBER.unpack(key)[0]
    return number


NUMBER_KEY: Final = KeyCodec(_NUMBER.pack, _decode_number)
NAME_KEY: Final = KeyCodec(str.encode, bytes.decode)
OWNED_KEY: Final = KeyCodec(_encode_owned, _decode_owned)
PAIR_KEY: Final = KeyCodec(_encode_pair, _PAIR.unpack)


class Table(Struct, frozen=True):
    """One table of the state.

    `load(state, key, row)` puts a stored row back; tables are loaded in the order of their
    declaration. With an `owner`, keys begin with the number of a stream or a transaction, and its
    rows are removed with it.
    """

    key: KeyCodec
    row: type[Row]
    load: Callable[[Any, Any, Any], None]
    owner: str | None = None


def tables_of(holder: type) -> Mapping[str, Table]:
    """Return the tables that the annotated fields of a class declare, in their order."""
    hints = get_type_hints(holder, include_extras=True)
    return {
        name: get_args(hint)[1] for name, hint in hints.items() if get_origin(hint) is Annotated
    }
