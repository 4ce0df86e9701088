"""Lets the public client suite drive our client: python -m tests.interop.client_adapter.

The suite starts this program, writes one command per line to its standard input, as JSON, and reads
one result per line. `make client-suite` runs the suite. With `--async`, the commands run on an
AsyncClient, otherwise on a Client.
"""

import asyncio
import json
import sys
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from semel import Client, __version__, errors
from semel.client.aio.stream import AsyncStream
from semel.model.messages import is_json, is_text
from tests.integration.both import client_of

Command = Mapping[str, Any]
Result = dict[str, Any]

# The time limit of a command if the suite sets none. The limit of the suite itself is 30 s.
TIMEOUT_SECONDS: Final = 20.0
READ_MS: Final = 5000
POLL_SECONDS: Final = 0.01
FEATURES: Final = (
    *("batching", "sse", "longPoll", "auto", "streaming"),
    *("dynamicHeaders", "batchItems", "strictZeroValidation"),
)
# The suite's names of our options, which it looks for in error messages.
OPTIONS: Final = {"max_batch_bytes": "maxBatchBytes", "max_batch_messages": "maxBatchItems"}
CODES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (errors.StreamNotFound, "NOT_FOUND"),
    (errors.StreamClosed, "STREAM_CLOSED"),
    (errors.StreamSeqConflict, "SEQUENCE_CONFLICT"),
    (errors.SequenceGap, "SEQUENCE_CONFLICT"),
    (errors.ProducerFenced, "FORBIDDEN"),
    (errors.ConfigConflict, "CONFLICT"),
    (errors.ContentTypeConflict, "CONFLICT"),
    (errors.BadRequest, "INVALID_OFFSET"),
    (errors.DamagedResponse, "PARSE_ERROR"),
    (errors.UndecodableMessage, "PARSE_ERROR"),
    (errors.Unavailable, "NETWORK_ERROR"),
    (errors.Indeterminate, "NETWORK_ERROR"),
    (errors.NotSupported, "NOT_SUPPORTED"),
    (errors.ClientError, "UNEXPECTED_STATUS"),
    (ValueError, "INVALID_ARGUMENT"),
    (TypeError, "INVALID_ARGUMENT"),
)


class Computed:
    """A header or a parameter whose value the suite has described. It records what was sent."""

    def __init__(self, command: Command) -> None:
        self._kind: str = command["valueType"]
        self._value: str = command.get("initialValue") or ""
        self._count = 0
        self.sent: str | None = None

    def begin(self) -> None:
        """Begin a command. The suite expects one value for each command."""
        self._count += 1
        self.sent = None

    def __call__(self) -> str:
        now = {"counter": str(self._count), "timestamp": str(time.time_ns() // 1_000_000)}
        self.sent = now.get(self._kind, self._value)
        return self.sent


class Following:
    """The pages of a tail, and when a command has enough of them."""

    def __init__(self, command: Command) -> None:
        self.live = command["live"] if isinstance(command["live"], str) else "auto"
        self.chunks: list[Result] = []
        self._page: list[Any] = []
        self._deadline = time.monotonic() + (command.get("timeoutMs") or READ_MS) / 1000
        self._chunks_max: int = command.get("maxChunks") or 100
        self._is_for_tail = bool(command.get("waitForUpToDate"))

    def add(self, message: Any) -> bool:
        """Add a message. Return True if these are enough pages."""
        self._page.append(message)
        if message.next_offset is not None:  # the last message of a response
            self.chunks.append(chunk_of(self._page, message.next_offset))
            self._page = []
        return len(self.chunks) >= self._chunks_max

    def is_over(self, tail: Any) -> bool:
        """Return True if there is nothing more to wait for."""
        is_at_tail = self._is_for_tail and tail.up_to_date and not self._page
        return is_at_tail or time.monotonic() >= self._deadline


class Adapter:
    """The state between the commands: the clients, the producers and the computed values."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._url = ""
        self._clients: dict[str, Any] = {}
        self._producers: dict[tuple[Any, ...], Any] = {}
        self._tails: dict[str, str | None] = {}
        self._closers: dict[str, set[str]] = {}  # the producers that have closed each stream
        self._headers: dict[str, Computed] = {}
        self._params: dict[str, Computed] = {}

    def _follow(self, stream: Any, offset: str, following: Following) -> Any:
        if self._kind == "sync":
            return follow(stream, offset, following)
        return stream.run(follow_async, offset, following)

    def run(self, command: Command) -> Result:
        """Return the result of a command, or an error in the form that the suite expects."""
        name = command["type"]
        handler: Callable[[Command], Result] = getattr(self, "do_" + name.replace("-", "_"))
        try:
            return {"type": name, "success": True, **handler(command)}
        except (errors.SemelError, ValueError, TypeError) as error:
            return failure(name, error)

    def _stream(self, command: Command) -> Any:
        """Return the stream of a command, from a client with the headers of the command."""
        given = command.get("headers") or {}
        key = json.dumps([given, sorted(self._headers), sorted(self._params)])
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = client_of(
                self._kind,
                self._url,
                headers={**self._headers, **given},
                params=self._params,
                timeout=TIMEOUT_SECONDS,
            )
        return client.stream(self._url + command["path"])

    def _sent(self) -> Result:
        return {
            name: {each: value.sent for each, value in values.items() if value.sent is not None}
            for name, values in (("headersSent", self._headers), ("paramsSent", self._params))
            if values
        }

    def _begin(self) -> None:
        for value in (*self._headers.values(), *self._params.values()):
            value.begin()

    # ---- the run ---------------------------------------------------------------------------------

    def do_init(self, command: Command) -> Result:
        self._url = command["serverUrl"]
        return {
            "clientName": f"semel ({self._kind})",
            "clientVersion": __version__,
            "features": dict.fromkeys(FEATURES, True),
        }

    def do_shutdown(self, command: Command) -> Result:
        return {}

    def do_set_dynamic_header(self, command: Command) -> Result:
        self._clients.clear()
        self._headers[command["name"]] = Computed(command)
        return {}

    def do_set_dynamic_param(self, command: Command) -> Result:
        self._clients.clear()
        self._params[command["name"]] = Computed(command)
        return {}

    def do_clear_dynamic(self, command: Command) -> Result:
        self._clients.clear()
        self._headers.clear()
        self._params.clear()
        return {}

    def do_validate(self, command: Command) -> Result:
        target = command["target"]
        if target["target"] != "idempotent-producer":
            raise errors.NotSupported(f"there is nothing like {target['target']}")
        given = {
            "epoch": target.get("epoch"),
            "max_batch_bytes": target.get("maxBatchBytes"),
            "max_batch_messages": target.get("maxBatchItems"),
        }
        options = {name: value for name, value in given.items() if value is not None}
        stream = Client(self._url).stream("validate").create("text/plain", exist_ok=True)
        stream.producer(target.get("producerId"), **options).close()
        return {}

    # ---- streams ---------------------------------------------------------------------------------

    def do_create(self, command: Command) -> Result:
        stream = self._stream(command)
        content_type = command.get("contentType") or "application/octet-stream"
        expires = command.get("expiresAt")
        options = {
            "ttl": command.get("ttlSeconds"),
            "expires_at": None if expires is None else datetime.fromisoformat(expires),
            "closed": bool(command.get("closed")),
            "body": encoded(command.get("data")),
        }
        try:
            stream.create(content_type, **options)
            status = 201
        except errors.StreamExists:
            status = 200
        offset = self._tails[command["path"]] = stream.head().next_offset
        return {"status": status, "offset": offset}

    def do_connect(self, command: Command) -> Result:
        return {"status": 200, "offset": self._stream(command).head().next_offset}

    def do_head(self, command: Command) -> Result:
        info = self._stream(command).head()
        return {
            "status": 200,
            "offset": info.next_offset,
            "contentType": info.content_type,
            "streamClosed": info.closed,
            "ttlSeconds": info.ttl,
        }

    def do_delete(self, command: Command) -> Result:
        self._stream(command).delete()
        return {"status": 200}

    def do_close(self, command: Command) -> Result:
        stream = self._stream(command)
        return {"finalOffset": stream.close(encoded(command.get("data"))).next_offset}

    # ---- writing ---------------------------------------------------------------------------------

    def do_append(self, command: Command) -> Result:
        stream = self._stream(command)
        data = command["data"]
        value = b64decode(data) if command.get("binary") else data.encode()
        seq = command.get("seq")
        self._begin()
        try:
            receipt = stream.append(value, seq=None if seq is None else str(seq))
        except errors.Indeterminate:
            # What the error advises: find out whether the message was stored. If the tail is where
            # it was after the command before, it was not, and can be appended again.
            if stream.head().next_offset != self._tails.get(command["path"]):
                raise
            receipt = stream.append(value, seq=None if seq is None else str(seq))
        self._tails[command["path"]] = receipt.next_offset
        return {"status": 200, "offset": receipt.next_offset, **self._sent()}

    def _producer(self, command: Command, **options: Any) -> Any:
        """Return a new producer for the command."""
        if command.get("autoClaim"):
            options["auto_claim"] = True
        else:
            options["epoch"] = command["epoch"]
        return self._stream(command).producer(command["producerId"], **options)

    def _kept_producer(self, command: Command) -> Any:
        """Return the producer that the commands with this id and this epoch share."""
        key = command["path"], command["producerId"], command["epoch"]
        if key not in self._producers:
            self._producers[key] = self._producer(command, max_in_flight=1)
        return self._producers[key]

    def do_idempotent_append(self, command: Command) -> Result:
        producer = self._kept_producer(command)
        producer.append(command["data"].encode())
        producer.flush()
        return {"status": 200}

    def do_idempotent_append_batch(self, command: Command) -> Result:
        count = command.get("maxInFlight") or 1
        size = {"max_batch_messages": 1} if count > 1 else {}
        with self._producer(command, max_in_flight=count, **size) as producer:
            for item in command["items"]:
                producer.append(item.encode())
        return {"status": 200}

    def do_idempotent_close(self, command: Command) -> Result:
        stream, producer = self._stream(command), self._kept_producer(command)
        close = getattr(producer, "close_stream", None)
        if close is None:
            raise errors.NotSupported("this producer cannot close its stream")
        # A repeated command is a retry: the last message belongs to the first one.
        is_first = producer.id not in self._closers.setdefault(command["path"], set())
        close(encoded(command.get("data")) if is_first else None)
        self._closers[command["path"]].add(producer.id)
        return {"status": 200, "finalOffset": stream.head().next_offset}

    def do_idempotent_detach(self, command: Command) -> Result:
        self._kept_producer(command).close()
        del self._producers[command["path"], command["producerId"], command["epoch"]]
        return {"status": 200}

    # ---- reading ---------------------------------------------------------------------------------

    def do_read(self, command: Command) -> Result:
        stream = self._stream(command)
        offset = command.get("offset") or "-1"
        self._begin()
        if not command.get("live"):
            read = stream.read(offset)
            found = list(read)
            chunks = [chunk_of(found, read.next_offset)] if found else []
        else:
            following = Following(command)
            read = self._follow(stream, offset, following)
            chunks = following.chunks
        is_silent = command.get("live") == "long-poll" and not chunks and not read.closed
        return {
            "status": 204 if is_silent else 200,  # the status of a long-poll without a message
            "chunks": chunks,
            "offset": read.next_offset,
            "upToDate": read.up_to_date,
            "streamClosed": read.closed,
            **self._sent(),
        }


def follow(stream: Any, offset: str, following: Following) -> Any:
    """Read a tail until another thread closes it or the command has enough. Return the tail."""
    tail = stream.tail(offset, live=following.live)
    is_done = threading.Event()

    def watch() -> None:
        while not is_done.wait(POLL_SECONDS):
            if following.is_over(tail):
                tail.close()
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        any(following.add(message) for message in tail)
    finally:
        is_done.set()
        thread.join()
        tail.close()
    return tail


async def follow_async(stream: AsyncStream, offset: str, following: Following) -> Any:
    """Read a tail until another task closes it or the command has enough. Return the tail."""
    tail = stream.tail(offset, live=following.live)

    async def watch() -> None:
        while not following.is_over(tail):  # noqa: ASYNC110 - the tail has no event for it
            await asyncio.sleep(POLL_SECONDS)
        await tail.close()

    watching = asyncio.create_task(watch())
    try:
        async for message in tail:
            if following.add(message):
                break
    finally:
        watching.cancel()
        await tail.close()
    return tail


def chunk_of(messages: list[Any], next_offset: str) -> Result:
    """Return the messages of one response, as the server has sent them."""
    first = messages[0]
    if is_json(first.content_type):
        values = [message.value for message in messages]
        data = json.dumps(values, separators=(",", ":"), ensure_ascii=False)
    else:
        raw = b"".join(message.raw for message in messages)
        data = raw.decode("utf-8", "strict" if is_text(first.content_type) else "replace")
    return {"data": data, "offset": next_offset}


def encoded(data: str | None) -> bytes | None:
    """Return the data of a command as one message. JSON stays as it is."""
    return None if data is None else data.encode()


def failure(command: str, error: Exception) -> Result:
    code = next(code for kind, code in CODES if isinstance(error, kind))
    message = str(error)
    for ours, theirs in OPTIONS.items():
        message = message.replace(ours, theirs)
    return {
        "type": "error",
        "success": False,
        "commandType": command,
        "status": getattr(error, "status", None),
        "errorCode": code,
        "message": message,
    }


def main() -> None:
    adapter = Adapter("async" if "--async" in sys.argv else "sync")
    for line in sys.stdin:
        command = json.loads(line)
        result = {name: value for name, value in adapter.run(command).items() if value is not None}
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()
        if command["type"] == "shutdown":
            return


if __name__ == "__main__":
    main()
