"""`semel append`: append one message, or each line of an input."""

import os
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import click
from click.core import ParameterSource
from msgspec import Struct

from semel.cli.options import (
    HeaderPair,
    Name,
    Number,
    Offset,
    TokenText,
    error_report,
    is_utf8,
    path_argument,
    remote,
    require_together,
)
from semel.cli.output import (
    EXIT_REFUSED,
    ChangingCommand,
    CommandRefused,
    ProgressLine,
    report,
    size_text,
)
from semel.client.errors import ClientError, NotSupported, TooLarge
from semel.client.extras import extra_of
from semel.client.flows import Flow
from semel.client.producer.opening import ProducerOptions
from semel.client.producer.outcomes import BatchAck
from semel.client.producer.settings import generated_id
from semel.client.producer.sync_producer import Producer
from semel.client.requests import AppendHeaders, ProducerHeaders
from semel.client.stream_calls import StreamCalls
from semel.client.sync.client import Client
from semel.client.values import (
    Receipt,
    StreamInfo,
)
from semel.model.commands import DENSE, SPARSE, Batch
from semel.model.limits import BODY_BYTES_MAX, PRODUCER_ID_BYTES_MAX
from semel.model.messages import is_json as is_json_type
from semel.wire.bodies import encode_batch
from semel.wire.headers import BATCH
from semel.wire.json_mode import split_json


class ProducerId(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.5
    """The id of a producer. An id that is not ASCII is also accepted."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        is_text = is_utf8(text) and text.isprintable() and text == text.strip()
        if not (is_text and 0 < len(text.encode()) <= PRODUCER_ID_BYTES_MAX):
            self.fail(
                f"{text!r} is not a producer id; expected 1 to {PRODUCER_ID_BYTES_MAX} bytes of"
                " printable UTF-8 text without leading or trailing spaces",
                param,
                ctx,
            )
        return text


class AppendOptions(Struct, frozen=True, kw_only=True):
    """The arguments and options of `semel append`."""

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


# ---- append --lines ------------------------------------------------------------------------------
# A producer stores each line as one message, once and in order. With `--producer`, the sequence of
# a message is its line number. If the same input is sent again with the same producer id, only the
# missing lines are stored. Without `--producer`, the id is new, and the server removes it when the
# command ends, even after Ctrl-C or a line that cannot be stored. After a kill, the id expires.


def append_input_lines(client: Client, path: str, options: AppendOptions, *, is_json: bool) -> None:
    """Append each line of the input. When all lines are stored, print how many lines were new."""
    _check(options)
    stream = client.stream(path)
    acks: list[BatchAck] = []
    with _source(options) as source:
        producer = stream.producer(
            options.producer or generated_id("semel-append"),
            **_producer_options(client, options, acks),
        )
        _send(producer, source, options)
    # A duplicate is a batch that this command has sent twice: the producer skips the lines that
    # were stored before, and nobody else has used its id since then.
    stored, skipped = producer.stats.messages_acked, producer.stats.messages_skipped
    next_offset = acks[-1].next_offset if acks else None
    facts = {
        "path": path,
        "stored": stored,
        "stored_before": skipped,
        "next_offset": next_offset,
        "producer_id": options.producer,
    }
    where = "" if next_offset is None else f", next offset {next_offset}"
    before = f"; {_lines(skipped, 'was', 'were')} already stored" if skipped else ""
    report(f"stored {_lines(stored)} in {path}{where}{before}", facts, is_json=is_json)


def _producer_options(
    client: Client, options: AppendOptions, acks: list[BatchAck]
) -> ProducerOptions:
    """Return the options of the producer. A --timeout that was given limits its retries."""
    mode = DENSE if options.producer is None else SPARSE
    found: ProducerOptions = {"mode": mode, "on_batch_ack": acks.append}
    source = click.get_current_context().get_parameter_source("timeout")
    if source is not ParameterSource.DEFAULT:
        found["delivery_timeout"] = client.timeout
    return found


def _lines(count: int, singular: str = "", plural: str = "") -> str:
    """Return a number of lines as text, with the form of a verb that fits."""
    text = f"{count:,} line {singular}" if count == 1 else f"{count:,} lines {plural}"
    return text.rstrip()


def _check(options: AppendOptions) -> None:
    others = (options.epoch, options.seq, options.idempotency_key, options.if_match)
    is_fitting = all(other is None for other in (*others, options.content_type))
    if options.data not in (None, "-") or options.close or not is_fitting:
        raise CommandRefused("only --file, --producer, --key and --header can be used with --lines")


@contextmanager
def _source(options: AppendOptions) -> Iterator[IO[bytes]]:
    if options.file is None:
        yield sys.stdin.buffer
        return
    try:
        file = open(options.file, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise _unreadable(options.file, error) from error
    with file:
        yield file


def _send(producer: Producer, source: IO[bytes], options: AppendOptions) -> None:
    try:
        with producer, ProgressLine() as steps:
            _append_all(producer, source, options, steps)
    except (CommandRefused, ClientError) as error:
        refusal = error if isinstance(error, CommandRefused) else error_report(error)
        count = producer.stats.messages_acked + producer.stats.messages_skipped
        advice = "" if options.producer is None else "; run the same command again to send the rest"
        message = f"{refusal.format_message()}; {_lines(count, 'is', 'are')} stored{advice}"
        raise CommandRefused(message, refusal.code) from error


def _append_all(
    producer: Producer, source: IO[bytes], options: AppendOptions, steps: ProgressLine
) -> None:
    total = _size(source)
    is_sparse = options.producer is not None
    headers = options.headers or None
    done = 0
    for number, line in enumerate(source):
        done += len(line)
        message = line.removesuffix(b"\n")
        if message.strip():
            seq = number if is_sparse else None
            try:
                producer.append(message, key=options.key, headers=headers, seq=seq)
            except (ValueError, TooLarge) as error:
                raise CommandRefused(f"input line {number + 1}: {error}") from error
        if number % 1_000 == 0:
            steps.show("lines", done if total else number, total)


def _size(source: IO[bytes]) -> int:
    """Return the size of the input in bytes, or 0 if the size is unknown, as for a pipe."""
    try:
        status = os.fstat(source.fileno())
    except OSError:  # the input has no file descriptor, as in a test
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


# ---- append --------------------------------------------------------------------------------------


@click.command("append", cls=ChangingCommand)
@path_argument
@click.argument("data", required=False)
@click.option("--file", metavar="FILE", help="Append the content of this file.")
@click.option("--lines", is_flag=True, help="Append each line of --file or standard input.")
@click.option(
    "--content-type",
    type=TokenText(),
    metavar="TYPE",
    help="Content type of DATA. The default is the stream's content type.",
)
@click.option("--key", type=Name(can_be_empty=True), help="Key to store with the message.")
@click.option(
    "--header",
    "headers",
    type=HeaderPair(),
    multiple=True,
    help="Header to store with the message; the option can be repeated.",
)
@click.option("--producer", "producer", type=ProducerId(), metavar="ID", help="Producer id.")
@click.option("--epoch", type=Number(), help="Epoch of the producer.")
@click.option("--seq", type=Number(), help="Sequence of this append: 0, 1, 2, ...")
@click.option(
    "--idempotency-key",
    type=TokenText(),
    help="While the server remembers this key, an append with the same key is not stored again.",
)
@click.option("--close", is_flag=True, help="Close the stream after the append.")
@click.option("--if-match", type=Offset(), help="Append only if this is the stream's next offset.")
@remote
def append_command(client: Client, path: str, *, is_json: bool, **values: Any) -> None:
    """Append DATA to the stream PATH.

    If DATA is `-`, the data is read from standard input. In a JSON stream, each element of an array
    is one message. --json affects only the output.

    If the stream recognises duplicates and a response is lost, the request is repeated until
    --timeout, and the data is stored only once. For other streams, the request is not repeated.

    With --lines, --timeout limits each request, and the time until a line that was read is stored,
    with all retries. By default, a request can take 30 seconds, and a line 120 seconds.
    """
    options = AppendOptions(**values)
    if options.lines:
        append_input_lines(client, path, options, is_json=is_json)
        return
    body = _body(options)
    tag = _producer_headers(options)
    stream = client.stream(path)
    info = stream.head()
    conditions = AppendHeaders(
        None,
        options.if_match,
        options.idempotency_key or _fresh_key(info, tag, body),
        options.close,
        tag,
    )
    # `head` has shown that the server is reachable. From now on, a request whose response is lost
    # is retried until the timeout.
    calls = stream.calls.retrying_forever()
    receipt = client.run(_sending(calls, info, options, body, conditions))
    _report(path, receipt, is_json=is_json, is_lone_close=not body)


def _producer_headers(options: AppendOptions) -> ProducerHeaders | None:
    if options.producer is not None and options.epoch is None and options.seq is None:
        return ProducerHeaders(options.producer, 0, session=secrets.token_hex(16))
    if not require_together(producer=options.producer, epoch=options.epoch, seq=options.seq):
        return None
    assert options.producer is not None
    assert options.seq is not None
    return ProducerHeaders(options.producer, options.seq, options.epoch)


def _fresh_key(info: StreamInfo, tag: ProducerHeaders | None, body: bytes) -> str | None:
    """Return a new idempotency key for an append.

    Return None if the append has a producer, if `body` is empty, or if the stream does not support
    idempotency keys.
    """
    is_supported = info.incarnation is not None and info.dedup
    return secrets.token_hex(16) if is_supported and tag is None and body else None


def _sending(
    calls: StreamCalls,
    info: StreamInfo,
    options: AppendOptions,
    body: bytes,
    conditions: AppendHeaders,
) -> Flow[Receipt]:
    if not body:
        return calls.close(conditions)
    content_type = options.content_type or info.content_type
    if options.key is None and not options.headers:
        return calls.post(content_type, body, conditions)
    if info.incarnation is None:
        raise NotSupported("this server does not support --key and --header")
    return calls.post(BATCH, _with_extras(content_type, body, options), conditions)


def _with_extras(content_type: str, body: bytes, options: AppendOptions) -> bytes:
    if is_json_type(content_type):
        batch = split_json(body)
        if not isinstance(batch, Batch) or batch.count != 1:
            reason = (
                batch if isinstance(batch, str) else "the array is empty or has several elements"
            )
            raise CommandRefused(f"--key and --header require exactly one message: {reason}")
        body = batch.payload
    try:
        extra = extra_of(options.key, options.headers, None)
    except ValueError as error:
        raise CommandRefused(f"--key and --header cannot be stored: {error}") from error
    assert extra is not None
    return encode_batch(content_type, [body], keys=[extra.key], headers=[extra.headers])


def _body(options: AppendOptions) -> bytes:
    if options.data is not None and options.file is not None:
        raise CommandRefused("DATA and --file cannot be used together; pass one of them")
    if options.file is not None:
        body = _read_file(options.file)
    elif options.data == "-":
        body = sys.stdin.buffer.read(BODY_BYTES_MAX + 1)
    elif options.data is not None:
        body = os.fsencode(options.data)
    elif options.close:
        return b""
    else:
        raise CommandRefused("nothing to append; pass DATA, - (standard input) or --file")
    if not body:
        raise CommandRefused(
            "the data is empty, so nothing was appended; to close a stream, use `semel close`"
        )
    if len(body) > BODY_BYTES_MAX:
        raise CommandRefused(
            f"the data is larger than {size_text(BODY_BYTES_MAX)}, the limit for one append; send"
            " the data in parts, or use --lines"
        )
    return body


def _read_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(BODY_BYTES_MAX + 1)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: OSError) -> CommandRefused:
    return CommandRefused(f"{path} cannot be read: {error.strerror}; correct --file")


def _report(path: str, receipt: Receipt, *, is_json: bool, is_lone_close: bool) -> None:
    offset = receipt.next_offset
    # The response to a close without data is always 204. Here, 204 does not mean a duplicate.
    is_duplicate = receipt.duplicate and not is_lone_close
    facts = {
        "path": path,
        "next_offset": offset,
        "closed": receipt.closed,
        "duplicate": is_duplicate,
        "payload_mismatch": receipt.mismatch,
    }
    if is_duplicate:
        where = "at an unknown offset" if offset is None else f"next offset {offset}"
        sentence = f"already stored in {path}, {where}"
    else:
        sentence = f"stored in {path}, next offset {offset}"
    if receipt.closed:
        sentence = "closed: " + sentence if not is_lone_close else f"closed {path} at {offset}"
    report(sentence, facts, is_json=is_json)
    if receipt.mismatch:
        raise CommandRefused(
            "payload_mismatch: the payload was not stored, because this sequence is already stored"
            " with a different payload; find out why two messages have the same sequence",
            EXIT_REFUSED,
        )
