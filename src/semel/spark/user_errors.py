"""Errors as a user should see them: what is wrong and what to do, without our own way to it.

Spark prints the whole traceback of what a data source raises, and the message last. The errors here
say all there is to know by themselves, so that no frame of ours stands before them.
"""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Final, NoReturn, ParamSpec, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from semel.client.errors import ClientError
from semel.spark.errors import DataLossError, ServerUnreachable, StreamMissing
from semel.spark.options import SparkOptionError
from semel.spark.sink.commit import CheckpointError
from semel.spark.sink.rows import RowError

P = ParamSpec("P")
T = TypeVar("T")
USER_ERRORS: Final = (
    CheckpointError,
    ClientError,
    DataLossError,
    RowError,
    ServerUnreachable,
    SparkOptionError,
    StreamMissing,
)


def hide_traceback(call: Callable[P, T]) -> Callable[P, T]:
    """Let a method raise such an error as if it had just been made."""

    @wraps(call)
    def calling(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except USER_ERRORS as error:
            raise error.with_traceback(None) from None

    return calling


def hide_traceback_of_rows(batches: Iterator[T]) -> Iterator[T]:
    """Hand on what a task reads; its errors are raised as if they had just been made."""
    try:
        yield from batches
    except USER_ERRORS as error:
        raise error.with_traceback(None) from None


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stands for a reader that cannot be: whatever Spark asks first is answered with why.

    Spark takes an error while a reader is made for one of its own, which hides the message.
    """

    def __init__(self, error: SparkOptionError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        """Say why."""
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Say why."""
        self._refuse()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Say why."""
        self._refuse()

    def prepareForTriggerAvailableNow(self) -> None:
        """Say why."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Say why."""
        self._refuse()

    def stop(self) -> None:
        """Nothing is held."""

    def _refuse(self) -> NoReturn:
        raise self._error.with_traceback(None)
