"""`semel append`: write to a stream."""

import os
import sys
from typing import Any

import click
from msgspec import Struct

from semel.cli.exits import EXIT_REFUSED, Refused
from semel.cli.options import Offset, path_argument, remote, target_of, together
from semel.cli.remote import Answer, Server
from semel.cli.shown import tell
from semel.cli.text import size_text
from semel.model.limits import BODY_BYTES_MAX


class Appending(Struct, frozen=True, kw_only=True):
    """What was asked for."""

    data: str | None
    file: str | None
    content_type: str | None
    producer_id: str | None
    epoch: int | None
    seq: int | None
    close: bool
    if_match: str | None
    key: str | None


@click.command("append")
@path_argument
@click.argument("data", required=False)
@click.option("--file", metavar="FILE", help="Send what is in a file.")
@click.option("--content-type", metavar="TYPE", help="The stream's own if not given.")
@click.option("--producer-id", metavar="ID", help="Who writes; makes it safe to send again.")
@click.option("--epoch", type=click.IntRange(min=0), help="The producer's epoch.")
@click.option("--seq", type=click.IntRange(min=0), help="The number of this batch, from 0.")
@click.option("--close", is_flag=True, help="Let nothing follow.")
@click.option("--if-match", type=Offset(), help="Only if the stream ends there.")
@click.option("--key", help="An Idempotency-Key; makes it safe to send again, for a while.")
@remote
def command(server: Server, path: str, *, is_json: bool, **given: Any) -> None:
    """Append DATA to the stream PATH; `-` reads it from standard input.

    To a JSON stream an array appends one message per element. --json is about the output only.
    """
    wanted = Appending(**given)
    headers = _headers(wanted)
    body = _body(wanted)
    if body:
        headers["Content-Type"] = wanted.content_type or _own_type(server, path)
    answer = server.ask("POST", target_of(path), headers=headers, body=body)
    _report(path, wanted, answer, is_json=is_json, is_lone_close=not body)


def _own_type(server: Server, path: str) -> str:
    return server.ask("HEAD", target_of(path)).header("content-type")


def _headers(wanted: Appending) -> dict[str, str]:
    headers: dict[str, str] = {}
    if together(producer_id=wanted.producer_id, epoch=wanted.epoch, seq=wanted.seq):
        headers["Producer-Id"] = wanted.producer_id or ""
        headers["Producer-Epoch"] = str(wanted.epoch)
        headers["Producer-Seq"] = str(wanted.seq)
    if wanted.close:
        headers["Stream-Closed"] = "true"
    if wanted.if_match is not None:
        headers["If-Match"] = f'"{wanted.if_match}"'
    if wanted.key is not None:
        headers["Idempotency-Key"] = wanted.key
    return headers


def _body(wanted: Appending) -> bytes:
    if wanted.data is not None and wanted.file is not None:
        raise Refused("give the data itself or --file, not both")
    if wanted.file is not None:
        body = _read_file(wanted.file)
    elif wanted.data == "-":
        body = sys.stdin.buffer.read(BODY_BYTES_MAX + 1)
    elif wanted.data is not None:
        body = os.fsencode(wanted.data)
    elif wanted.close:
        return b""
    else:
        raise Refused("nothing to append: give the data, - for standard input, or --file")
    if not body:
        raise Refused("nothing to append: what was given is empty; `semel close` only closes")
    if len(body) > BODY_BYTES_MAX:
        raise Refused(f"an append takes at most {size_text(BODY_BYTES_MAX)}; send it in parts")
    return body


def _read_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(BODY_BYTES_MAX + 1)
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}; correct --file") from error


def _report(
    path: str, wanted: Appending, answer: Answer, *, is_json: bool, is_lone_close: bool
) -> None:
    is_tagged = wanted.producer_id is not None
    # A new batch of a producer is 200; without one, or for a lone close, 204 says nothing.
    is_duplicate = answer.status == 204 if is_tagged and not is_lone_close else None
    is_forgotten = "producer-receipt" in answer.headers
    offset = None if is_forgotten else answer.header("stream-next-offset")
    facts = {
        "path": path,
        "next_offset": offset,
        "closed": answer.is_closed,
        "duplicate": is_duplicate,
        "payload_mismatch": "producer-payload-mismatch" in answer.headers,
    }
    if is_duplicate:
        where = "its receipt is no longer kept" if offset is None else f"next offset {offset}"
        sentence = f"was stored in {path} before, {where}"
    else:
        sentence = f"stored in {path}, next offset {offset}"
    if answer.is_closed:
        sentence = "closed: " + sentence if not is_lone_close else f"closed {path} at {offset}"
    tell(sentence, facts, is_json=is_json)
    if facts["payload_mismatch"]:
        raise Refused(
            "payload_mismatch: that sequence was stored before with another payload, which"
            " stays; find out why two messages got one number",
            EXIT_REFUSED,
        )
