"""Errors of the user's input or environment, raised without semel's internal traceback.

Spark prints the whole traceback of an error before its message. The messages of these errors are
complete, so the frames of semel would only hide them.
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
    """Decorate a function: it raises the errors in USER_ERRORS without a traceback."""

    @wraps(call)
    def calling(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except USER_ERRORS as error:
            raise error.with_traceback(None) from None

    return calling


def hide_traceback_of_rows(batches: Iterator[T]) -> Iterator[T]:
    """Yield batches; raise the errors in USER_ERRORS without a traceback."""
    try:
        yield from batches
    except USER_ERRORS as error:
        raise error.with_traceback(None) from None


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Takes the place of a reader with wrong options: its methods raise the error.

    An error while a reader is created would be wrapped by Spark, which hides the message.
    """

    def __init__(self, error: SparkOptionError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._refuse()

    def getDefaultReadLimit(self) -> ReadLimit:
        self._refuse()

    def prepareForTriggerAvailableNow(self) -> None:
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        self._refuse()

    def stop(self) -> None:
        """Do nothing."""

    def _refuse(self) -> NoReturn:
        raise self._error.with_traceback(None)
