"""Decisions on what was staged: one commit for each version, and what to do if it is refused."""

import time
from collections.abc import Sequence
from typing import Final

from semel.client.errors import (
    AppBound,
    CheckpointDiverged,
    ClientError,
    Indeterminate,
    SinkRefused,
    Unavailable,
    VersionForgotten,
)
from semel.client.sink import Sink
from semel.client.txn_values import CommitResult
from semel.model.limits import TXN_LIST_MAX
from semel.spark.checkpoint import UNKNOWN, Digests
from semel.spark.doors import client_for
from semel.spark.options import SinkOptions, SparkOptionError
from semel.spark.troubles import away

_DROP_SECONDS_MAX: Final = 5.0


def sink_of(options: SinkOptions, app: str) -> Sink:
    """Name the sink that a write goes through."""
    return client_for(options.url, options.token, options.retry_seconds).sink(app)


def commit(
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
        raise away(error) from None
    except SinkRefused as error:
        error.advice = _advice(error, sink.app, query_id)
        raise


def _advice(error: SinkRefused, app: str, query_id: str) -> str:
    if isinstance(error, CheckpointDiverged):
        return (
            "this checkpoint was copied, or restored from an older one, and another run has written"
            " since: nothing of this batch was written. Go on with the checkpoint of that run; or"
            f" start with a new one, knowing that what it reads again is written again (sink {app})"
        )
    if isinstance(error, AppBound):
        return (
            f"another query has written under the name {app}, or this one with another checkpoint:"
            " give it a txnAppId of its own; or let it take over, with"
            f" `semel sinks rebind {app} --query-id {query_id} --last-version N`: it goes on behind"
            " batch N, and with N = -1 begins anew with batch 0"
        )
    assert isinstance(error, VersionForgotten)
    return f"the version is too old to tell a replay from new rows: go on behind the last of {app}"


def drop(options: SinkOptions, app: str, tokens: Sequence[str]) -> None:
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
