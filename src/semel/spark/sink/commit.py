"""Decisions on what was staged: one commit for each version, and what to do if it is refused."""

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
from semel.client.sync.sink import Sink
from semel.client.txn_values import CommitResult
from semel.model.limits import TXN_LIST_MAX
from semel.spark.client_cache import client_for
from semel.spark.errors import server_unreachable
from semel.spark.options import SinkOptions, SparkOptionError
from semel.wire.refusal_table import BY_CODE

# ---- checkpoint ----------------------------------------------------------------------------------
# What a batch was made of: digests of the offset log in Spark's checkpoint.
#
# A batch id names a range of the sources only within one offset log. The digest of its range, and
# of that of the batch before, make a chain; with it the server tells a replay from another
# history that uses the same numbers, such as a checkpoint that was copied or restored.


_HEAD_LINES: Final = 2  # the version of the log, and what is no range: watermark, time, settings
_SAME_AS: Final = {"s3a": "s3", "s3n": "s3"}


class CheckpointError(RuntimeError):
    """The offset log cannot be read, so that a replay could not be told from another history."""


class Digests(Struct, frozen=True):
    """What a batch and the one before it were made of; None where nobody can tell."""

    input: str | None = None
    previous: str | None = None


class _Metadata(Struct):
    id: str


UNKNOWN: Final = Digests()


def read_digests(checkpoint: str, batch_id: int) -> Digests:
    """Read a batch's range, and the one before it, in the offset log of a checkpoint.

    Nothing is known of a place that only Spark can read: such as one of a scheme of its own. The
    log must be there otherwise. The batch before is not, if this is the first one, or if Spark has
    dropped it.
    """
    place = _open(checkpoint)
    if place is None:
        return UNKNOWN
    files, path = place
    own = _digest(files, f"{path}/offsets/{batch_id}")
    if own is None:
        raise CheckpointError(
            f"there is no offsets/{batch_id} in the checkpoint {checkpoint}: write"
            " checkpointLocation as a whole URI, such as file:///data/checkpoint"
        )
    before = _digest(files, f"{path}/offsets/{batch_id - 1}") if batch_id else None
    return Digests(own, before)


def find_checkpoint(root: str, query_name: str | None, query_id: str) -> str:
    """Find a query's checkpoint below the directory that a setting names for all of them."""
    if query_name is not None:
        return f"{root.rstrip('/')}/{query_name}"
    place = _open(root)
    if place is None:
        return root
    files, path = place
    for found in files.get_file_info(FileSelector(path)):
        if found.type is FileType.Directory and _query_id(files, found.path) == query_id:
            return f"{root.rstrip('/')}/{found.base_name}"
    raise CheckpointError(
        f"no checkpoint below {root} is that of the query {query_id}: give the query its own"
        ' with .option("checkpointLocation", ...)'
    )


def _query_id(files: FileSystem, path: str) -> str | None:
    content = _read(files, f"{path}/metadata")
    if content is None:
        return None
    return msgspec.json.decode(content, type=_Metadata).id


def _digest(files: FileSystem, path: str) -> str | None:
    content = _read(files, path)
    if content is None:
        return None
    ranges = b"\n".join(content.split(b"\n")[_HEAD_LINES:])
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
            f"the checkpoint's {path} cannot be read: {error}; pyarrow needs access to it"
        ) from None


def _open(location: str) -> tuple[FileSystem, str] | None:
    """Find the file system of a path or URI; None if pyarrow knows none.

    Hadoop's paths are not escaped: a space is a space, and so is a percent sign.
    """
    scheme, _, rest = location.partition(":")
    if not rest or "/" in scheme:
        return LocalFileSystem(), os.path.abspath(location)
    if scheme == "file":
        path = rest[2:][rest[2:].find("/") :] if rest.startswith("//") else rest
        return LocalFileSystem(), path.rstrip("/")
    uri = f"{_SAME_AS.get(scheme, scheme)}:{quote(rest, safe='/:@?&=')}"
    try:
        files, path = FileSystem.from_uri(uri)
    except (ArrowInvalid, NotImplementedError):
        return None
    return files, path.rstrip("/")


# ---- decisions -----------------------------------------------------------------------------------


_DROP_SECONDS_MAX: Final = 5.0


def sink_of(options: SinkOptions, app: str) -> Sink:
    """Name the sink that a write goes through."""
    return client_for(options.url, options.token, options.retry_seconds).sink(app)


def commit_version(
    sink: Sink, query_id: str, version: int, tokens: Sequence[str], digests: Digests = UNKNOWN
) -> CommitResult:
    """Commit a version; a refusal says what to do in the words of Spark."""
    if len(tokens) > TXN_LIST_MAX:
        raise SparkOptionError(
            f"{len(tokens)} tasks had rows, and one commit takes {TXN_LIST_MAX}: coalesce the"
            f" frame to {TXN_LIST_MAX} partitions before it is written"
        )
    try:
        return sink.commit(
            version, tokens, query_id=query_id, input=digests.input, previous=digests.previous
        )
    except Unavailable as error:
        raise server_unreachable(error) from None
    except SinkRefused as error:
        error.advice = BY_CODE[error.code].spark.format(app=sink.app, query_id=query_id)
        raise


def abort_version(options: SinkOptions, app: str, tokens: Sequence[str]) -> None:
    """Drop what was staged as far as that is quick; the next commit drops the rest."""
    sink = sink_of(options, app)
    deadline = time.monotonic() + min(options.retry_seconds, _DROP_SECONDS_MAX)
    for token in tokens:
        left = deadline - time.monotonic()
        if left <= 0:
            return
        try:
            sink.abort(token, timeout=left)
        except (Unavailable, Indeterminate):
            return
        except ClientError:
            continue  # it is committed, or gone
