"""Commits each batch as a version of a sink. A streaming query also sends digests of its input."""

import hashlib
import os
import time
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

import msgspec
from msgspec import Struct
from pyarrow import ArrowInvalid
from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem

from semel.client.errors import ClientError, Indeterminate, SinkRefused, Unavailable
from semel.client.sync.transaction import Sink
from semel.client.values import CommitResult
from semel.model.limits import TXN_LIST_MAX
from semel.spark.errors import CheckpointError, server_unreachable
from semel.spark.options import SinkOptions, SparkOptionError, client_for
from semel.wire.refusal_table import BY_CODE

# ---- digests of the Spark checkpoint -------------------------------------------------------------
# Spark's batch ids are unique only within one offset log. If a Spark checkpoint was copied or
# restored, there can be two different batches with the same id. So a commit has two digests: one of
# the input ranges of its batch, and one of the input ranges of the previous batch. The digests
# allow the server to distinguish a repeated batch from a different batch with the same id.


# A file of the offset log begins with a line for the version of the log, and a line for metadata
# (watermark, time, settings).
_HEADER_LINES: Final = 2
_SCHEME_ALIASES: Final = {"s3a": "s3", "s3n": "s3"}


class Digests(Struct, frozen=True):
    """The digests that are sent with the commit of a batch. A digest is None if it is unknown.

    `input` is the digest of the source offsets at which the batch ends. `previous` is the digest of
    the source offsets at which the previous batch ended.
    """

    input: str | None = None
    previous: str | None = None


class _Metadata(Struct):
    id: str


UNKNOWN: Final = Digests()


def read_digests(checkpoint: str, batch_id: int) -> Digests:
    """Compute the digests of a batch from the offset log of a Spark checkpoint.

    Both digests are None if pyarrow does not support the URI scheme of `checkpoint`. `previous` is
    None if the log does not contain the previous batch.

    Raises CheckpointError if the log has no entry for this batch, or cannot be read.
    """
    location = _open(checkpoint)
    if location is None:
        return UNKNOWN
    files, path = location
    digest = _digest(files, f"{path}/offsets/{batch_id}")
    if digest is None:
        raise CheckpointError(
            f"the checkpoint {checkpoint} has no file offsets/{batch_id}: set checkpointLocation to"
            " a complete URI, such as file:///data/checkpoint"
        )
    previous = _digest(files, f"{path}/offsets/{batch_id - 1}") if batch_id else None
    return Digests(digest, previous)


def find_checkpoint(root: str, query_name: str | None, query_id: str) -> str:
    """Return the location of a query's Spark checkpoint below `root`.

    If the query has a name, its checkpoint is the directory with this name.

    If the query has no name, all checkpoints below `root` are searched for `query_id`. Raises
    CheckpointError if none of them has this id. Returns `root` if the search is not possible,
    because pyarrow does not support the URI scheme of `root`.
    """
    if query_name is not None:
        return f"{root.rstrip('/')}/{query_name}"
    location = _open(root)
    if location is None:
        return root  # pyarrow does not support the URI scheme, so the id cannot be looked up
    files, path = location
    for entry in files.get_file_info(FileSelector(path)):
        if entry.type is FileType.Directory and _query_id(files, entry.path) == query_id:
            return f"{root.rstrip('/')}/{entry.base_name}"
    raise CheckpointError(
        f"{root} contains no checkpoint of the query {query_id}: set the location of the"
        ' checkpoint with .option("checkpointLocation", ...)'
    )


def _query_id(files: FileSystem, path: str) -> str | None:
    content = _read(files, f"{path}/metadata")
    return None if content is None else msgspec.json.decode(content, type=_Metadata).id


def _digest(files: FileSystem, path: str) -> str | None:
    content = _read(files, path)
    if content is None:
        return None
    ranges = b"\n".join(content.split(b"\n")[_HEADER_LINES:])
    return f"sha256:{hashlib.sha256(ranges).hexdigest()}"


def _read(files: FileSystem, path: str) -> bytes | None:
    try:
        with files.open_input_stream(path) as stream:
            content: bytes = stream.read()
            return content
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(
            f"pyarrow cannot read the checkpoint file {path} ({error}): give pyarrow access to it"
        ) from None


def _open(location: str) -> tuple[FileSystem, str] | None:
    """Return the file system and the path of a Hadoop location.

    Return None if pyarrow does not support the URI scheme of the location.
    """
    scheme, _, rest = location.partition(":")
    if not rest or "/" in scheme:
        return LocalFileSystem(), os.path.abspath(location)
    if scheme == "file":
        path = rest[2:][rest[2:].find("/") :] if rest.startswith("//") else rest
        return LocalFileSystem(), path.rstrip("/")
    # In a Hadoop path, spaces and percent signs are literal. In the URI they must be escaped.
    uri = f"{_SCHEME_ALIASES.get(scheme, scheme)}:{quote(rest, safe='/:@?&=')}"
    try:
        files, path = FileSystem.from_uri(uri)
    except (ArrowInvalid, NotImplementedError):
        return None
    return files, path.rstrip("/")


# ---- commit --------------------------------------------------------------------------------------


_ABORT_SECONDS_MAX: Final = 5.0


def sink_of(options: SinkOptions, app: str) -> Sink:
    return client_for(options).sink(app)


def commit_staged(
    options: SinkOptions,
    app: str,
    query_id: str,
    version: int,
    tokens: Sequence[str],
    digests: Digests = UNKNOWN,
) -> CommitResult:
    """Commit the staged transactions of one batch to the sink `app`. Return the result.

    `version` is the batch id or the option txnVersion. `tokens` identifies the transactions. If
    this version of the sink is already committed, the result has `duplicate` set, and those of the
    transactions that are still pending are aborted.

    Raises ServerUnreachable if the server does not respond. Raises SinkRefused if the server
    refuses the commit. Raises SparkOptionError if there are too many tokens.
    """
    if len(tokens) > TXN_LIST_MAX:
        raise SparkOptionError(
            f"{len(tokens)} tasks wrote rows, but one commit can contain the rows of at most"
            f" {TXN_LIST_MAX} tasks: coalesce the DataFrame to {TXN_LIST_MAX} partitions before you"
            " write it"
        )
    try:
        result = sink_of(options, app).commit(
            version, tokens, query_id=query_id, input=digests.input, previous=digests.previous
        )
    except Unavailable as error:
        raise server_unreachable(error) from None
    except SinkRefused as error:
        error.advice = BY_CODE[error.code].spark.format(app=app, query_id=query_id)
        raise
    if result.duplicate:
        abort_staged(options, app, tokens)
    return result


def abort_staged(options: SinkOptions, app: str, tokens: Sequence[str]) -> None:
    """Abort the transactions of `tokens`, but stop trying after a few seconds.

    The sink's next commit aborts the transactions that remain.
    """
    sink = sink_of(options, app)
    deadline = time.monotonic() + min(options.retry_seconds, _ABORT_SECONDS_MAX)
    for token in tokens:
        timeout = deadline - time.monotonic()
        if timeout <= 0:
            return
        try:
            sink.abort(token, timeout=timeout)
        except (Unavailable, Indeterminate):
            return
        except ClientError:
            continue  # the transaction was already committed or aborted
