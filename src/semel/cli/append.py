"""`semel append`: append one message, a batch of JSON messages, or each line of an input."""

import os
import secrets
import sys
from typing import Any

import click
from msgspec import to_builtins

from semel.cli.append_lines import LineOptions, append_input_lines, key_of, unreadable_file
from semel.cli.options import (
    HeaderPair,
    Name,
    Number,
    Offset,
    TokenText,
    is_utf8,
    path_argument,
    remote,
    require_together,
)
from semel.cli.output import (
    EXIT_REFUSED,
    ChangingCommand,
    CommandRefused,
    report,
    size_text,
)
from semel.client.errors import IsTopic, NotSupported
from semel.client.extras import extra_of
from semel.client.flows import Flow
from semel.client.requests import AppendHeaders, ProducerHeaders
from semel.client.stream_calls import StreamCalls
from semel.client.sync.client import Client
from semel.client.topic_calls import TopicCalls, partition_field
from semel.client.topic_values import TopicReceipt
from semel.client.values import Receipt, StreamInfo
from semel.model.commands import Batch
from semel.model.limits import BODY_BYTES_MAX, PRODUCER_ID_BYTES_MAX, TOPIC_PARTITIONS_MAX
from semel.model.messages import is_json as is_json_type
from semel.model.messages import split_messages
from semel.wire.bodies import encode_batch
from semel.wire.headers import BATCH
from semel.wire.json_mode import split_json
from semel.wire.message_keys import KEY_POINTER, Pointer, read_pointer
from semel.wire.problems import MalformedRequest


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


class KeyPointer(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.5
    """A JSON pointer, such as `/customer/id`."""

    name = "pointer"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Pointer | None:
        """Return the names in the pointer. It is parsed with the function that the server uses."""
        if isinstance(value, tuple):
            return value
        try:
            return read_pointer({KEY_POINTER: str(value)})
        except MalformedRequest:
            self.fail(f"{value!r} is not a JSON pointer; expected e.g. /customer/id", param, ctx)


class AppendOptions(LineOptions, frozen=True, kw_only=True):
    """The arguments and options of `semel append`."""

    data: str | None = None
    lines: bool = False
    topic: bool = False
    partition: int | None = None
    content_type: str | None = None
    epoch: int | None = None
    seq: int | None = None
    idempotency_key: str | None = None
    close: bool = False
    if_match: str | None = None


# ---- append --------------------------------------------------------------------------------------


@click.command("append", cls=ChangingCommand)
@path_argument
@click.argument("data", required=False)
@click.option("--topic", is_flag=True, help="PATH is the name of a topic.")
@click.option("--file", metavar="FILE", help="Append the content of this file.")
@click.option("--lines", is_flag=True, help="Append each line of --file or standard input.")
@click.option(
    "--content-type",
    type=TokenText(),
    metavar="TYPE",
    help="Content type of DATA. The default is the stream's content type.",
)
@click.option(
    "--key",
    type=Name(can_be_empty=True),
    help="Key to store with the message. In a topic, it selects the partition.",
)
@click.option(
    "--key-pointer",
    type=KeyPointer(),
    help="JSON pointer to the key in each message, such as /customer/id.",
)
@click.option(
    "--key-separator",
    type=Name(),
    metavar="TEXT",
    help="With --lines: each line is a key, this text, and the message.",
)
@click.option(
    "--partition",
    type=Number(0, TOPIC_PARTITIONS_MAX - 1),
    help="With --topic: append to this partition, whatever the keys are.",
)
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
    """Append DATA to the stream PATH, or to the topic PATH with --topic.

    If DATA is `-`, the data is read from standard input. In a JSON stream, each element of an array
    is one message. --json affects only the output.

    If the stream recognises duplicates and a response is lost, the request is repeated until
    --timeout, and the data is stored only once. For other streams, the request is not repeated.

    With --lines, --timeout limits each request, and the time until a line that was read is stored,
    with all retries. By default, a request can take 30 seconds, and a line 120 seconds.
    """
    options = AppendOptions(**values)
    _check(options)
    calls = TopicCalls(client.site, path) if options.topic else client.stream(path).calls
    if options.lines:
        append_input_lines(client, calls, options, is_json=is_json)
        return
    body = _body(options)
    tag = _producer_headers(options)
    info = client.run(_head(calls))
    conditions = AppendHeaders(
        None,
        options.if_match,
        options.idempotency_key or _fresh_key(info, tag, body),
        options.close,
        tag,
    )
    # `_head` has shown that the server is reachable. From now on, a request whose response is lost
    # is retried until the timeout.
    sender = calls.retrying_forever()
    receipt = client.run(_sending(sender, info, options, body, conditions))
    if isinstance(receipt, TopicReceipt):
        _report_topic(path, receipt, is_json=is_json)
    else:
        _report(path, receipt, is_json=is_json, is_lone_close=not body)


def _check(options: AppendOptions) -> None:
    """Raise CommandRefused if options cannot be used together."""
    others = (options.epoch, options.seq, options.idempotency_key, options.if_match)
    values = (*others, options.content_type, options.partition)
    is_fitting = all(value is None for value in values)
    if options.lines and (options.data not in (None, "-") or options.close or not is_fitting):
        raise CommandRefused(
            "only --topic, --file, --producer, --key, --key-pointer, --key-separator and --header"
            " can be used with --lines"
        )
    keys = (options.key, options.key_pointer, options.key_separator)
    if sum(key is not None for key in keys) > 1:
        raise CommandRefused("use only one of --key, --key-pointer and --key-separator")
    if options.key_separator is not None and not options.lines:
        raise CommandRefused("--key-separator requires --lines")
    if options.partition is not None and not options.topic:
        raise CommandRefused("--partition requires --topic")
    if options.topic and (options.close or options.if_match is not None):
        raise CommandRefused("--close and --if-match cannot be used with --topic")


def _head(calls: StreamCalls) -> Flow[StreamInfo]:
    """Return the state of a stream or a topic. If it is a topic, the error names --topic."""
    try:
        return (yield from calls.head())
    except IsTopic as error:
        raise CommandRefused(
            f"{error.code}: {calls.path} is a topic; to append to it, add --topic", EXIT_REFUSED
        ) from error


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
    fields = partition_field(options.partition)
    if options.key is None and options.key_pointer is None and not options.headers:
        return calls.post(content_type, body, conditions, fields)
    if info.incarnation is None:
        raise NotSupported("this server does not support --key, --key-pointer and --header")
    if options.key_pointer is not None and not options.headers:
        batch = _with_keys(content_type, body, options.key_pointer)
    else:
        batch = _with_extras(content_type, body, options)
    return calls.post(BATCH, batch, conditions, fields)


def _with_keys(content_type: str, body: bytes, pointer: Pointer) -> bytes:
    """Return a batch of all messages in the body, each with the key that it contains."""
    if not is_json_type(content_type):
        raise CommandRefused(f"--key-pointer requires JSON messages, not {content_type}")
    batch = split_json(body)
    if not isinstance(batch, Batch):
        raise CommandRefused(batch or "the array is empty")
    messages = [*split_messages(batch.payload, batch.count, batch.lengths, is_joined=True)]
    keys = []
    for index, message in enumerate(messages):
        try:
            keys.append(key_of(message, pointer))
        except ValueError as error:
            which = f"message {index} (counted from 0)" if len(messages) > 1 else "the message"
            raise CommandRefused(f"{which}: {error}; nothing was appended") from None
    return encode_batch(content_type, messages, keys=keys)


def _with_extras(content_type: str, body: bytes, options: AppendOptions) -> bytes:
    """Return a batch of the only message in the body, with its key and headers."""
    key: bytes | str | None = options.key
    if is_json_type(content_type):
        batch = split_json(body)
        if not isinstance(batch, Batch) or batch.count != 1:
            reason = (
                batch if isinstance(batch, str) else "the array is empty or has several elements"
            )
            raise CommandRefused(f"--key and --header require exactly one message: {reason}")
        body = batch.payload
    try:
        if options.key_pointer is not None:
            key = key_of(body, options.key_pointer)
        extra = extra_of(key, options.headers, None)
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
        raise unreadable_file(path, error) from error


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
    _refuse_mismatch(receipt)


def _report_topic(topic: str, receipt: TopicReceipt, *, is_json: bool) -> None:
    facts = {
        "topic": topic,
        "duplicate": receipt.duplicate,
        "payload_mismatch": receipt.mismatch,
        "parts": [to_builtins(part) for part in receipt.parts],
    }
    what = "already stored" if receipt.duplicate else "stored"
    parts = "; ".join(f"{part.stream}, next offset {part.next_offset}" for part in receipt.parts)
    report(f"{what} in {parts or f'{topic}, at unknown offsets'}", facts, is_json=is_json)
    _refuse_mismatch(receipt)


def _refuse_mismatch(receipt: Receipt) -> None:
    """Raise CommandRefused if the sequence of the append has another payload."""
    if receipt.mismatch:
        raise CommandRefused(
            "payload_mismatch: the payload was not stored, because this sequence is already stored"
            " with a different payload; find out why two messages have the same sequence",
            EXIT_REFUSED,
        )
