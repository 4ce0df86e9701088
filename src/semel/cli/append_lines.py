"""`semel append --lines`: a message per line, stored once and in order by a producer.

With `--producer` the number of a line is its sequence: the same input sent again under the same id
sends only what is missing.
"""

import os
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Final

from semel.cli.appending import Appending
from semel.cli.exits import Refused
from semel.cli.progress import Steps
from semel.cli.remote import complaint
from semel.cli.shown import tell
from semel.client.client import Client
from semel.client.errors import ClientError, TooLarge
from semel.client.producer import Producer
from semel.client.producer_batches import DENSE, SPARSE, BatchAck

_SHOW_EVERY: Final = 1_000


def append_lines(client: Client, path: str, wanted: Appending, *, is_json: bool) -> None:
    """Send each line, wait until all are stored, and say how many."""
    _check(wanted)
    stream = client.stream(path)
    acks: list[BatchAck] = []
    with _source(wanted) as source:
        producer = stream.producer(
            wanted.producer or f"semel-append-{secrets.token_hex(8)}",
            mode=DENSE if wanted.producer is None else SPARSE,
            on_batch_ack=acks.append,
        )
        _send(producer, source, wanted)
    if wanted.producer is None:
        with suppress(ClientError):  # nobody will ask for it again
            stream.forget_producer(producer.id)
    stored = sum(ack.count for ack in acks if not ack.duplicate)
    skipped = producer.stats.messages_skipped + sum(ack.count for ack in acks if ack.duplicate)
    next_offset = acks[-1].next_offset if acks else None
    facts = {
        "path": path,
        "stored": stored,
        "stored_before": skipped,
        "next_offset": next_offset,
        "producer_id": wanted.producer,
    }
    where = "" if next_offset is None else f", next offset {next_offset}"
    before = f"; {skipped:,} were stored before" if skipped else ""
    tell(f"stored {stored:,} lines in {path}{where}{before}", facts, is_json=is_json)


def _check(wanted: Appending) -> None:
    others = (wanted.epoch, wanted.seq, wanted.idempotency_key, wanted.if_match)
    is_fitting = all(other is None for other in (*others, wanted.content_type))
    if wanted.data not in (None, "-") or wanted.close or not is_fitting:
        raise Refused("--lines goes with --file, --producer, --key and --header only")


@contextmanager
def _source(wanted: Appending) -> Iterator[IO[bytes]]:
    if wanted.file is None:
        yield sys.stdin.buffer
        return
    try:
        file = open(wanted.file, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        message = f"{wanted.file} cannot be read: {error.strerror}; correct --file"
        raise Refused(message) from error
    with file:
        yield file


def _send(producer: Producer, source: IO[bytes], wanted: Appending) -> None:
    try:
        with producer, Steps() as steps:
            _append_all(producer, source, wanted, steps)
    except (Refused, ClientError) as error:
        said = error if isinstance(error, Refused) else complaint(error)
        count = producer.stats.messages_acked + producer.stats.messages_skipped
        advice = "" if wanted.producer is None else "; the same call again sends the rest"
        message = f"{said.format_message()}; {count:,} lines are stored{advice}"
        raise Refused(message, said.code) from error


def _append_all(producer: Producer, source: IO[bytes], wanted: Appending, steps: Steps) -> None:
    total = _size(source)
    is_sparse = wanted.producer is not None
    headers = wanted.headers or None
    done = 0
    for number, line in enumerate(source):
        done += len(line)
        message = line.removesuffix(b"\n")
        if message.strip():
            seq = number if is_sparse else None
            try:
                producer.append(message, key=wanted.key, headers=headers, seq=seq)
            except (ValueError, TooLarge) as error:
                raise Refused(f"line {number + 1}: {error}") from error
        if number % _SHOW_EVERY == 0:
            steps.show("lines", done if total else number, total)


def _size(source: IO[bytes]) -> int:
    """How many bytes there are to read; 0 if nobody can tell."""
    try:
        found = os.fstat(source.fileno())
    except OSError:  # a stream without a file, as in a test
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0
