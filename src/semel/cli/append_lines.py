"""`semel append --lines`: append each line of an input as one message.

A producer stores each line once and in order. With `--producer`, the sequence of a message is its
line number. If the same input is sent again with the same producer id, only the missing lines are
stored. Without `--producer`, the id is new, and the server removes it when the command ends, even
after Ctrl-C or a line that cannot be stored. After a kill, the id expires.
"""

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Final

import click
import msgspec
from click.core import ParameterSource
from msgspec import Struct

from semel.cli.options import error_report
from semel.cli.output import CommandRefused, ProgressLine, report
from semel.client.errors import ClientError, TooLarge
from semel.client.producer.opening import ProducerOptions
from semel.client.producer.outcomes import BatchAck
from semel.client.producer.settings import generated_id
from semel.client.producer.sync_producer import Producer
from semel.client.stream_calls import StreamCalls
from semel.client.sync.client import Client
from semel.model.commands import DENSE, SPARSE
from semel.wire.message_keys import Pointer, find_key

_PROGRESS_LINES: Final = 1_000


class LineOptions(Struct, frozen=True, kw_only=True):
    """The options of `semel append` that can be used with `--lines`.

    At most one of `key`, `key_pointer` and `key_separator` is set.
    """

    file: str | None = None
    producer: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    key: str | None = None
    key_pointer: Pointer | None = None
    key_separator: str | None = None


def append_input_lines(
    client: Client, calls: StreamCalls, options: LineOptions, *, is_json: bool
) -> None:
    """Append each line of the input. When all lines are stored, print how many lines were new.

    `calls` are those of a stream or of a topic.
    """
    acks: list[BatchAck] = []
    with _source(options.file) as source:
        producer = client.close_with_client(
            Producer(
                options.producer or generated_id("semel-append"),
                calls,
                client.transport,
                _producer_options(client, options, acks),
                run=client.run,
                response_timeout=client.timeout,
            )
        )
        _send(producer, source, options)
    # A duplicate is a batch that this command has sent twice: the producer skips the lines that
    # were stored before, and nobody else has used its id since then.
    path = calls.path
    stored, skipped = producer.stats.messages_acked, producer.stats.messages_skipped
    next_offset = acks[-1].next_offset if acks and calls.grouper is None else None
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
    client: Client, options: LineOptions, acks: list[BatchAck]
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


# ---- input ---------------------------------------------------------------------------------------


@contextmanager
def _source(file_name: str | None) -> Iterator[IO[bytes]]:
    if file_name is None:
        yield sys.stdin.buffer
        return
    try:
        file = open(file_name, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise unreadable_file(file_name, error) from error
    with file:
        yield file


def unreadable_file(file_name: str, error: OSError) -> CommandRefused:
    """Return the error for an input file that cannot be read."""
    return CommandRefused(f"{file_name} cannot be read: {error.strerror}; correct --file")


def _size(source: IO[bytes]) -> int:
    """Return the size of the input in bytes, or 0 if the size is unknown, as for a pipe."""
    try:
        status = os.fstat(source.fileno())
    except OSError:  # the input has no file descriptor, as in a test
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


# ---- sending -------------------------------------------------------------------------------------


def _send(producer: Producer, source: IO[bytes], options: LineOptions) -> None:
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
    producer: Producer, source: IO[bytes], options: LineOptions, steps: ProgressLine
) -> None:
    total = _size(source)
    is_sparse = options.producer is not None
    headers = options.headers or None
    split = _splitter(options)
    done = 0
    for number, line in enumerate(source):
        done += len(line)
        message = line.removesuffix(b"\n")
        if message.strip():
            seq = number if is_sparse else None
            try:
                key, value = split(message)
                producer.append(value, key=key, headers=headers, seq=seq)
            except (ValueError, TooLarge) as error:
                raise CommandRefused(f"input line {number + 1}: {error}") from error
        if number % _PROGRESS_LINES == 0:
            steps.show("lines", done if total else number, total)


def _splitter(options: LineOptions) -> Callable[[bytes], tuple[bytes | str | None, bytes]]:
    """Return a function that splits a line into a key and a message.

    The function raises ValueError if the line has no key.
    """
    separator, pointer = options.key_separator, options.key_pointer

    def split_at_separator(line: bytes) -> tuple[bytes, bytes]:
        assert separator is not None
        key, found, message = line.partition(separator.encode())
        if not found:
            raise ValueError(f"the line has no {separator!r} between the key and the message")
        return key, message

    def split_by_pointer(line: bytes) -> tuple[bytes, bytes]:
        assert pointer is not None
        return key_of(line, pointer), line

    if separator is not None:
        return split_at_separator
    return split_by_pointer if pointer is not None else lambda line: (options.key, line)


def key_of(message: bytes, pointer: Pointer) -> bytes:
    """Return the key of a JSON message. Raises ValueError if there is none."""
    try:
        msgspec.json.decode(message)  # `find_key` requires valid JSON
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"the message is not valid JSON: {error}") from None
    key = find_key(message, pointer)
    if isinstance(key, bytes):
        return key
    raise ValueError(key.replace("Message-Key-Pointer", "--key-pointer"))
