"""`semel append`: write to a stream."""

import os
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, Final

import click
from msgspec import Struct

from semel.cli.exit_codes import EXIT_REFUSED, CommandRefused
from semel.cli.options import (
    HeaderPair,
    Offset,
    TokenText,
    error_report,
    path_argument,
    remote,
    require_together,
)
from semel.cli.output import ProgressLine, report, size_text
from semel.client.errors import ClientError, NotSupported, TooLarge
from semel.client.flows import Flow
from semel.client.producer.batches import BatchAck
from semel.client.producer.sync_producer import Producer
from semel.client.requests import AppendHeaders, ProducerHeaders
from semel.client.stream_calls import StreamCalls
from semel.client.sync.client import Client
from semel.client.values import Receipt, StreamInfo, extra_of
from semel.model.commands import DENSE, SPARSE, Batch
from semel.model.limits import BODY_BYTES_MAX
from semel.model.media import is_json as is_json_type
from semel.wire.bodies import encode_batch
from semel.wire.headers import BATCH
from semel.wire.json_mode import split_json

# ---- append lines --------------------------------------------------------------------------------
# `semel append --lines`: a message per line, stored once and in order by a producer.
#
# With `--producer` the number of a line is its sequence: the same input sent again under the same
# id sends only what is missing.


# ---- appending -----------------------------------------------------------------------------------
# What `semel append` was asked for.


class AppendOptions(Struct, frozen=True, kw_only=True):
    """The arguments and options, as they were given."""

    data: str | None = None
    file: str | None = None
    lines: bool = False
    content_type: str | None = None
    key: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    producer: str | None = None
    epoch: int | None = None
    seq: int | None = None
    idempotency_key: str | None = None
    close: bool = False
    if_match: str | None = None


# ---- append lines --------------------------------------------------------------------------------


_SHOW_EVERY: Final = 1_000


def append_input_lines(client: Client, path: str, wanted: AppendOptions, *, is_json: bool) -> None:
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
    report(f"stored {stored:,} lines in {path}{where}{before}", facts, is_json=is_json)


def _check(wanted: AppendOptions) -> None:
    others = (wanted.epoch, wanted.seq, wanted.idempotency_key, wanted.if_match)
    is_fitting = all(other is None for other in (*others, wanted.content_type))
    if wanted.data not in (None, "-") or wanted.close or not is_fitting:
        raise CommandRefused("--lines goes with --file, --producer, --key and --header only")


@contextmanager
def _source(wanted: AppendOptions) -> Iterator[IO[bytes]]:
    if wanted.file is None:
        yield sys.stdin.buffer
        return
    try:
        file = open(wanted.file, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        message = f"{wanted.file} cannot be read: {error.strerror}; correct --file"
        raise CommandRefused(message) from error
    with file:
        yield file


def _send(producer: Producer, source: IO[bytes], wanted: AppendOptions) -> None:
    try:
        with producer, ProgressLine() as steps:
            _append_all(producer, source, wanted, steps)
    except (CommandRefused, ClientError) as error:
        said = error if isinstance(error, CommandRefused) else error_report(error)
        count = producer.stats.messages_acked + producer.stats.messages_skipped
        advice = "" if wanted.producer is None else "; the same call again sends the rest"
        message = f"{said.format_message()}; {count:,} lines are stored{advice}"
        raise CommandRefused(message, said.code) from error


def _append_all(
    producer: Producer, source: IO[bytes], wanted: AppendOptions, steps: ProgressLine
) -> None:
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
                raise CommandRefused(f"line {number + 1}: {error}") from error
        if number % _SHOW_EVERY == 0:
            steps.show("lines", done if total else number, total)


def _size(source: IO[bytes]) -> int:
    """How many bytes there are to read; 0 if nobody can tell."""
    try:
        found = os.fstat(source.fileno())
    except OSError:  # a stream without a file, as in a test
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


# ---- append --------------------------------------------------------------------------------------


@click.command("append")
@path_argument
@click.argument("data", required=False)
@click.option("--file", metavar="FILE", help="Send what is in a file.")
@click.option("--lines", is_flag=True, help="Each line of standard input, or --file, is a message.")
@click.option(
    "--content-type", type=TokenText(), metavar="TYPE", help="The stream's own if not given."
)
@click.option("--key", help="The message's key, stored with it.")
@click.option(
    "--header",
    "headers",
    type=HeaderPair(),
    multiple=True,
    help="NAME=VALUE, stored with the message; may be given many times.",
)
@click.option("--producer", "producer", type=TokenText(), metavar="ID", help="Who writes.")
@click.option("--epoch", type=click.IntRange(min=0), help="The producer's epoch.")
@click.option("--seq", type=click.IntRange(min=0), help="The number of this append, from 0.")
@click.option(
    "--idempotency-key", type=TokenText(), help="Makes it safe to send again later, for a while."
)
@click.option("--close", is_flag=True, help="Let nothing follow.")
@click.option("--if-match", type=Offset(), help="Only if the stream ends there.")
@remote
def command(client: Client, path: str, *, is_json: bool, **given: Any) -> None:
    """Append DATA to the stream PATH; `-` reads it from standard input.

    To a JSON stream an array appends one message per element. An answer that is lost is asked for
    again, and the append is stored once. --json is about the output only.
    """
    wanted = AppendOptions(**given)
    if wanted.lines:
        append_input_lines(client, path, wanted, is_json=is_json)
        return
    body = _body(wanted)
    tag = _producer_headers(wanted)
    stream = client.stream(path)
    info = stream.head()
    conditions = AppendHeaders(
        None,
        wanted.if_match,
        wanted.idempotency_key or _fresh_key(info, tag, body),
        wanted.close,
        tag,
    )
    # It is there: from now on an answer that is lost is worth all the time there is.
    calls = stream.calls.retrying_forever()
    receipt = client.run(_sending(calls, info, wanted, body, conditions))
    _report(path, receipt, is_json=is_json, is_lone_close=not body)


def _producer_headers(wanted: AppendOptions) -> ProducerHeaders | None:
    if wanted.producer is not None and wanted.epoch is None and wanted.seq is None:
        return ProducerHeaders(wanted.producer, 0, session=secrets.token_hex(16))
    if not require_together(producer=wanted.producer, epoch=wanted.epoch, seq=wanted.seq):
        return None
    assert wanted.producer is not None
    assert wanted.seq is not None
    return ProducerHeaders(wanted.producer, wanted.seq, wanted.epoch)


def _fresh_key(info: StreamInfo, tag: ProducerHeaders | None, body: bytes) -> str | None:
    """Make this one call safe to repeat, where the stream can recognise it."""
    is_known = info.incarnation is not None and info.dedup
    return secrets.token_hex(16) if is_known and tag is None and body else None


def _sending(
    calls: StreamCalls,
    info: StreamInfo,
    wanted: AppendOptions,
    body: bytes,
    conditions: AppendHeaders,
) -> Flow[Receipt]:
    if not body:
        return calls.close(conditions)
    content_type = wanted.content_type or info.content_type
    if wanted.key is None and not wanted.headers:
        return calls.post(content_type, body, conditions)
    if info.incarnation is None:
        raise NotSupported("this server does not know --key and --header")
    return calls.post(BATCH, _with_extras(content_type, body, wanted), conditions)


def _with_extras(content_type: str, body: bytes, wanted: AppendOptions) -> bytes:
    if is_json_type(content_type):
        found = split_json(body)
        if not isinstance(found, Batch) or found.count != 1:
            reason = found if isinstance(found, str) else "the data is not one message"
            raise CommandRefused(f"--key and --header are for one message: {reason}")
        body = found.payload
    try:
        extra = extra_of(wanted.key, wanted.headers, None)
    except ValueError as error:
        raise CommandRefused(f"--key and --header cannot be stored: {error}") from error
    assert extra is not None
    return encode_batch(content_type, [body], keys=[extra.key], headers=[extra.headers])


def _body(wanted: AppendOptions) -> bytes:
    if wanted.data is not None and wanted.file is not None:
        raise CommandRefused("give the data itself or --file, not both")
    if wanted.file is not None:
        body = _read_file(wanted.file)
    elif wanted.data == "-":
        body = sys.stdin.buffer.read(BODY_BYTES_MAX + 1)
    elif wanted.data is not None:
        body = os.fsencode(wanted.data)
    elif wanted.close:
        return b""
    else:
        raise CommandRefused("nothing to append: give the data, - for standard input, or --file")
    if not body:
        raise CommandRefused(
            "nothing to append: what was given is empty; `semel close` only closes"
        )
    if len(body) > BODY_BYTES_MAX:
        raise CommandRefused(
            f"an append takes at most {size_text(BODY_BYTES_MAX)}; send it in parts, or --lines"
        )
    return body


def _read_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(BODY_BYTES_MAX + 1)
    except OSError as error:
        raise CommandRefused(f"{path} cannot be read: {error.strerror}; correct --file") from error


def _report(path: str, receipt: Receipt, *, is_json: bool, is_lone_close: bool) -> None:
    offset = receipt.next_offset
    # A close says 204 the first time, too.
    is_duplicate = receipt.duplicate and not is_lone_close
    facts = {
        "path": path,
        "next_offset": offset,
        "closed": receipt.closed,
        "duplicate": is_duplicate,
        "payload_mismatch": receipt.mismatch,
    }
    if is_duplicate:
        where = "its receipt is no longer kept" if offset is None else f"next offset {offset}"
        sentence = f"was stored in {path} before, {where}"
    else:
        sentence = f"stored in {path}, next offset {offset}"
    if receipt.closed:
        sentence = "closed: " + sentence if not is_lone_close else f"closed {path} at {offset}"
    report(sentence, facts, is_json=is_json)
    if receipt.mismatch:
        raise CommandRefused(
            "payload_mismatch: that sequence was stored before with another payload, which"
            " stays; find out why two messages got one number",
            EXIT_REFUSED,
        )
