"""Messages as a batch of Arrow, and back. Needs pyarrow, so nobody imports this at the top."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa


def batch_of(messages: Sequence[Any]) -> pa.RecordBatch:
    """Make a batch with a column for every name in any of the messages; TypeError if one has none.

    Arrow finds the types of the columns; what does not fit one type is refused by it.
    """
    for message in messages:
        if not isinstance(message, dict):
            raise TypeError(f"a batch takes JSON objects, not {type(message).__name__}")
    names = list(dict.fromkeys(name for message in messages for name in message))
    columns = [pa.array([message.get(name) for message in messages]) for name in names]
    return pa.RecordBatch.from_arrays(columns, names=names)


def messages_of(batch: Any) -> list[Any]:
    """Make a message of every row."""
    if not isinstance(batch, pa.RecordBatch):
        raise TypeError(f"an Arrow function returns a RecordBatch, not {type(batch).__name__}")
    return list(batch.to_pylist())
