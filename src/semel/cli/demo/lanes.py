"""The demo's two producers. One has a producer id, and the other only retries."""

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Final

from msgspec import Struct

from semel.client.errors import ClientError, Indeterminate
from semel.client.producer.outcomes import BatchAck
from semel.client.sync.client import Client
from semel.client.sync.stream import Stream
from semel.model.messages import JSON_MEDIA_TYPE
from semel.model.offsets import print_offset
from semel.testing.fault_plan import FaultPlan
from semel.testing.fault_proxy import FaultProxy

PRODUCER_ID: Final = "order-service"
_PAUSE_SECONDS: Final = 0.1


class Produced(Struct):
    """Counters for one producer: orders, retries and batches so far."""

    confirmed: int = 0  # orders
    retried: int = 0  # requests that were sent again
    refused: int = 0  # batches that the server recognised as duplicates
    misplaced: int = 0  # batches that were not stored at the expected offset


class ProducerLane:
    """A producer that sends the orders from its own thread, through a proxy that loses responses.

    If `is_naive`, the producer has no id, so the messages that it sends again are stored again.
    """

    def __init__(
        self,
        name: str,
        path: str,
        messages: Sequence[bytes],
        batch_messages: int,
        *,
        is_naive: bool,
    ) -> None:
        self.name = name
        self.path = path
        self.produced = Produced()
        self._messages = messages
        self._batch_messages = batch_messages
        self._is_naive = is_naive
        self._is_stopped = False
        self._error: BaseException | None = None
        self._stack = ExitStack()
        self._thread = threading.Thread(target=self._run, name=path, daemon=True)
        self._proxy: FaultProxy
        self._client: Client

    @property
    def dropped(self) -> int:
        """The number of lost responses to successful appends."""
        return self._proxy.dropped_after_commit

    @property
    def is_running(self) -> bool:
        """True if the thread is still sending. If an error ended the thread, raises that error."""
        if self._error is not None:
            raise self._error
        return self._thread.is_alive()

    def start(self, url: str, plan: FaultPlan) -> None:
        """Create the stream, then start to send the orders.

        The proxy injects the faults in `plan` only after the stream has been created.
        """
        self._proxy = self._stack.enter_context(FaultProxy(url))
        self._client = Client(self._proxy.url, retry_appends=not self._is_naive)
        self._stack.callback(self._end)
        self._client.stream(self.path).create(JSON_MEDIA_TYPE)
        self._proxy.plan = plan
        self._thread.start()

    def close(self) -> None:
        """Stop the producer, even if it has not sent all orders."""
        self._is_stopped = True
        self._stack.close()

    def _end(self) -> None:
        with suppress(ClientError):  # messages that are not stored yet are dropped
            self._client.close(0.0)
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        stream = self._client.stream(self.path)
        try:
            if self._is_naive:
                self._produce_naively(stream)
            else:
                self._produce(stream)
        except BaseException as error:  # noqa: BLE001 - is_running raises it
            if not self._is_stopped:
                self._error = error

    def _produce(self, stream: Stream) -> None:
        with stream.producer(
            PRODUCER_ID,
            max_batch_messages=self._batch_messages,
            on_batch_ack=self._confirm,
        ) as producer:
            for message in self._messages:
                producer.append(message)
            producer.flush()
            self.produced.retried = producer.stats.retries

    def _confirm(self, ack: BatchAck) -> None:
        produced = self.produced
        produced.misplaced += ack.offset != print_offset(produced.confirmed)
        produced.confirmed += ack.count
        produced.refused += ack.duplicate

    def _produce_naively(self, stream: Stream) -> None:
        size = self._batch_messages
        for at in range(0, len(self._messages), size):
            batch = self._messages[at : at + size]
            self.produced.retried += append_with_plain_retries(stream, batch)
            self.produced.confirmed += len(batch)
            if self._is_stopped:
                return


def append_with_plain_retries(stream: Stream, messages: Sequence[bytes]) -> int:
    """Append messages. Repeat the request until a response comes. Return the number of retries.

    The client of `stream` must have retry_appends=False, so that the server cannot recognise a
    repeat.
    """
    retries = 0
    while True:
        try:
            stream.append_many(messages)
            return retries
        except Indeterminate:
            retries += 1
            time.sleep(_PAUSE_SECONDS)
