"""Messages of a stream as Arrow columns, and as the body of an append: no Python for each row."""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from semel.model.extras import NO_KEY, NO_TIMESTAMP, pack_columns, pack_headers
from semel.model.media import is_json
from semel.wire.bodies import decode_batch, encode_batch, pack_batch

_MESSAGE_BYTES: Final = 16  # its length, that of its key, and its time
_SHOWN_BYTES_MAX: Final = 60


class RowError(ValueError):
    """A row cannot be written; nothing of its batch will be seen."""

    def __init__(self, partition: int, row: int, what: str) -> None:
        super().__init__(partition, row, what)
        self.partition = partition
        self.row = row
        self.what = what

    def __str__(self) -> str:
        place = f"partition {self.partition}, row {self.row}"
        return f"{place}: {self.what}; nothing of this batch is written"


class Rows(Struct, frozen=True):
    """Messages of one stream, column by column; `numbers` count the rows of the partition."""

    path: str
    content_type: str
    values: pa.Array
    numbers: Any
    keys: pa.Array | None = None
    headers: pa.Array | None = None
    times: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.values)

    def cut(self, start: int, end: int) -> "Rows":
        """Keep those from `start` up to `end`; nothing is copied."""
        columns = [
            None if column is None else column.slice(start, end - start)
            for column in (self.values, self.keys, self.headers, self.times)
        ]
        numbers = self.numbers[start:end]
        return Rows(self.path, self.content_type, columns[0], numbers, *columns[1:])

    def take(self, places: Any) -> "Rows":
        """Keep those at `places`, in that order."""
        columns = [
            None if column is None else column.take(pa.array(places))
            for column in (self.values, self.keys, self.headers, self.times)
        ]
        numbers = self.numbers[places]
        return Rows(self.path, self.content_type, columns[0], numbers, *columns[1:])

    def sizes(self) -> Any:
        """Tell what each adds to a body; headers come on top."""
        sizes = lengths_of(self.values) + _MESSAGE_BYTES
        if self.keys is not None:
            sizes += pc.fill_null(pc.binary_length(self.keys), 0).to_numpy(zero_copy_only=False)
        return sizes

    def body(self) -> bytes:
        """Pack them in the batch format."""
        offsets, data = _buffers(self.values)
        lengths = np.diff(offsets).astype("<u4").tobytes()
        return pack_batch(
            self.content_type, lengths, [data[offsets[0] : offsets[-1]]], self._extras()
        )

    def _extras(self) -> bytes:
        times = lengths = keys = headers = b""
        if self.times is not None and self.times.null_count < len(self):
            times = _milliseconds(self.times)
        if self.keys is not None and self.keys.null_count < len(self):
            lengths, keys = _key_column(self.keys)
        if self.headers is not None and pc.max(pc.list_value_length(self.headers)).as_py():
            headers = pack_headers([_pairs(found) for found in self.headers.to_pylist()])
        return pack_columns(timestamps=times, key_lengths=lengths, keys=keys, headers=headers)

    def fault(self) -> tuple[int, str] | None:
        """Find the first message the server cannot take: its row, and what is wrong with it."""
        if not is_json(self.content_type):
            return None
        messages = self.values.view(pa.binary()).to_pylist()  # what is no UTF-8 is no text
        for number, message in zip(self.numbers, messages, strict=True):
            wrong = decode_batch(encode_batch(self.content_type, [message])).error
            if wrong is not None:
                return int(number), f"{wrong}: {message[:_SHOWN_BYTES_MAX]!r}"
        return None


def joined(pieces: list[Rows]) -> Rows:
    """Put rows of one stream together, in order."""
    if len(pieces) == 1:
        return pieces[0]
    first = pieces[0]
    columns = [
        None
        if getattr(first, name) is None
        else pa.concat_arrays([getattr(piece, name) for piece in pieces])
        for name in ("values", "keys", "headers", "times")
    ]
    numbers = np.concatenate([piece.numbers for piece in pieces])
    return Rows(first.path, first.content_type, columns[0], numbers, *columns[1:])


# ---- columns as bytes ----------------------------------------------------------------------------


def compact(array: pa.Array) -> pa.Array:
    """Give texts and bytes the layout with 32-bit offsets."""
    if array.type in (pa.string(), pa.binary()):
        return array
    is_text = array.type in (pa.large_string(), pa.string_view())
    return array.cast(pa.string() if is_text else pa.binary())


def _buffers(array: pa.Array) -> tuple[Any, memoryview]:
    _, offsets, data = array.buffers()
    found = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return found, memoryview(b"" if data is None else data)


def lengths_of(array: pa.Array) -> Any:
    """Tell how many bytes each text has."""
    return np.diff(_buffers(array)[0]).astype(np.int64)


def nulls_as_json(values: pa.Array) -> pa.Array:
    """Say null in JSON where a value is null."""
    if not values.null_count:
        return values
    return pc.fill_null(values, "null" if values.type == pa.string() else b"null")


def _milliseconds(times: pa.Array) -> bytes:
    micros = pc.cast(pc.cast(times, pa.timestamp("us")), pa.int64())
    found = np.floor_divide(pc.fill_null(micros, 0).to_numpy(zero_copy_only=False), 1000)
    if times.null_count:
        found[times.is_null().to_numpy(zero_copy_only=False)] = NO_TIMESTAMP
    raw: bytes = found.astype("<i8").tobytes()
    return raw


def _key_column(keys: pa.Array) -> tuple[bytes, bytes]:
    empty = "" if keys.type == pa.string() else b""
    offsets, data = _buffers(pc.fill_null(keys, empty) if keys.null_count else keys)
    lengths = np.diff(offsets).astype("<u4")
    if keys.null_count:
        lengths[keys.is_null().to_numpy(zero_copy_only=False)] = NO_KEY
    return lengths.tobytes(), bytes(data[offsets[0] : offsets[-1]])


def _pairs(found: list[dict[str, Any] | None] | None) -> list[tuple[str, bytes]] | None:
    if not found:
        return None
    pairs = [tuple(pair.values()) for pair in found if pair is not None]
    return [(name, _bytes(value)) for name, value in pairs]


def _bytes(value: str | bytes | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""
