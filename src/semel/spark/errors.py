"""The errors that readers and writers raise. Each message says what the user can do."""

from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from semel.client.credentials import CredentialsError
from semel.client.errors import ClientError
from semel.spark.options import SparkOptionError

# The timeout of the first request. If a server has never responded, it is more likely that the
# address is wrong than that the server is restarting. So the user should get the error soon.
FIRST_SECONDS: Final = 10.0
_CONTINUE: Final = 'To continue without the lost messages, set .option("failOnDataLoss", "false")'


class DataLossError(RuntimeError):
    """Raised if messages were lost before the query read them, or if a stream's tail moved back.

    `reason` says what happened. `advice` says how to continue the Spark query.
    """

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(reason, advice)
        self.reason = reason
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.reason}. {self.advice}"


class StreamMissing(LookupError):
    """Raised if a stream does not exist. The message lists streams with similar paths."""


class TopicMissing(LookupError):
    """Raised if a topic does not exist. The message lists topics with similar names."""


class ServerUnreachable(ConnectionError):
    """Raised if no semel server responds at the address. The message contains the address."""


class RowError(ValueError):
    """Raised if a row cannot be written. In that case no row of its batch is written."""

    def __init__(self, partition: int, row: int, what: str) -> None:
        super().__init__(partition, row, what)
        self.partition = partition
        self.row = row
        self.what = what

    def __str__(self) -> str:
        where = f"partition {self.partition}, row {self.row}"
        return f"{where}: {self.what}. No row of this batch was written"


class CheckpointError(RuntimeError):
    """Raised if the Spark checkpoint is not found, or if the sink cannot read one of its files.

    The sink needs the checkpoint's offset log to detect whether a batch is a repetition or a
    different batch with the same id.
    """


def server_unreachable(error: ClientError) -> ServerUnreachable:
    """Return the error for a server that did not respond in time."""
    return ServerUnreachable(
        f"{error.message}: start the server (`semel serve`) or correct the option 'url'."
        " The option 'retryTimeout' sets how long to wait for the server"
    )


def not_a_semel_server(url: str, error: ClientError | None = None) -> ServerUnreachable:
    """Return the error for a server that is not semel."""
    detail = f" ({error.message})" if error is not None else ""
    return ServerUnreachable(f"{url} is not a semel server{detail}: correct the option 'url'")


def topic_missing(url: str, topic: str, names: Sequence[str], advice: str = "") -> TopicMissing:
    """Return the error for a topic that does not exist. `names` are the topics that exist."""
    parent, _, number = topic.rpartition("/")
    if parent in names and number.isdecimal():
        return TopicMissing(
            f"there is no topic {topic} at {url}, but this can be a partition of the topic"
            f" {parent}: use the option topic={parent}, or stream={topic} for one partition"
        )
    hint = similar_names(topic, names) or f"the server has {', '.join(names[:3]) or 'no topics'};"
    return TopicMissing(
        f"there is no topic {topic} at {url}: {hint} `semel topics create {topic} --partitions N`"
        f" creates this topic{advice}"
    )


def similar_names(name: str, names: Sequence[str]) -> str | None:
    """Return a question that names those of `names` that are like `name`, or None."""
    near = get_close_matches(name, names, n=3)
    return f"did you mean {' or '.join(near)}?" if near else None


def stream_trimmed(stream: str, begin: int, head: int) -> DataLossError:
    """Return the error for messages that were trimmed before the query read them."""
    return DataLossError(
        f"{stream} now starts at offset {head}: offsets {begin} to {head - 1} were trimmed before"
        " the query read them",
        _CONTINUE,
    )


def stream_recreated(stream: str) -> DataLossError:
    """Return the error for a stream that was deleted and created again."""
    return DataLossError(
        f"{stream} was deleted and created again: the messages of the old stream that the query"
        " had not read are lost",
        "To make the query read all its streams again, start with a new checkpointLocation."
        f" {_CONTINUE}",
    )


def stream_deleted(stream: str) -> DataLossError:
    """Return the error for a stream that was deleted."""
    return DataLossError(
        f"{stream} was deleted while the query read it",
        "Create the stream again and start with a new checkpointLocation, or remove the stream from"
        f" the query. {_CONTINUE}",
    )


def stream_truncated(stream: str, position: int, tail: int) -> DataLossError:
    """Return the error for a stream whose tail is before the offset that the query has reached."""
    return DataLossError(
        f"{stream} ends at offset {tail}, but the query has read up to {position}: the server lost"
        " data, or an older backup was restored",
        f"Start with a new checkpointLocation. {_CONTINUE}",
    )


# ---- tracebacks ----------------------------------------------------------------------------------
# Spark prints the whole traceback of an error before the error's message. If the cause is the
# user's input or environment, the message is enough, and a long traceback would only hide the
# message.


P = ParamSpec("P")
T = TypeVar("T")
USER_ERRORS: Final = (
    CheckpointError,
    ClientError,
    CredentialsError,
    DataLossError,
    RowError,
    ServerUnreachable,
    SparkOptionError,
    StreamMissing,
    TopicMissing,
)


def hide_traceback(call: Callable[P, T]) -> Callable[P, T]:
    """Return a function that calls `call` and raises errors in USER_ERRORS without a traceback."""

    @wraps(call)
    def calling(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except USER_ERRORS as error:
            raise error.with_traceback(None) from None

    return calling


def hide_traceback_of_rows(batches: Iterator[T]) -> Iterator[T]:
    """Yield the items of `batches`. Errors in USER_ERRORS are raised without a traceback."""
    try:
        yield from batches
    except USER_ERRORS as error:
        raise error.with_traceback(None) from None
