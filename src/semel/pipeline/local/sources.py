"""Sources: generators whose messages an idempotent producer appends, with their cursors."""

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any, Final

import msgspec

from semel.client.errors import ClientError
from semel.client.producer.sync_producer import Producer
from semel.client.sync.client import Client
from semel.client.sync_driver import Stop
from semel.pipeline.evaluate import text_of
from semel.pipeline.executor import Gauge, RunState
from semel.pipeline.graph.graph import Graph
from semel.pipeline.graph.processors import Processor, takes_cursor
from semel.pipeline.values import ProcessorStopped

_DELIVERY_SECONDS: Final = 7 * 24 * 3600.0  # how long an unreachable server is retried
_GRACE_SECONDS: Final = 5.0  # the same after a stop

_PAUSE_SECONDS: Final = 0.005
YIELDED: Final = "yielded"  # the boundary between two messages


class SourceLoop:
    """Runs one source until it ends.

    Its messages are stored once and in order. With a cursor, the next run gets the last one that is
    stored; without, it starts from the beginning.
    """

    def __init__(
        self,
        client: Client,
        graph: Graph,
        processor: Processor,
        *,
        stop: Stop,
        gauge: Gauge,
        at: Callable[[str, str], None],
    ) -> None:
        self._client = client
        self._name = f"{graph.id}/{processor.id}"
        self._processor = processor
        self._stop = stop
        self._gauge = gauge
        self._at = at
        self._failed: list[ClientError] = []

    def run(self) -> None:
        """Append the messages of the generator. Raises ProcessorStopped."""
        (path,) = self._processor.outputs.values()
        function = self._processor.function
        has_cursor = takes_cursor(function)
        try:
            producer = self._client.stream(path).producer(
                self._name,
                delivery_timeout=_DELIVERY_SECONDS,
                on_error=lambda error, _batch: self._failed.append(error),
            )
            try:
                self._append_all(producer, function, has_cursor)
            finally:
                self._settle(producer)
        except ClientError as error:
            if not self._stop.is_set:
                raise ProcessorStopped(self._processor.id, str(error)) from error
        except Exception as error:
            raise ProcessorStopped(
                self._processor.id, f"the source raised {type(error).__name__}: {text_of(error)}"
            ) from error

    def _settle(self, producer: Producer) -> None:
        """Wait until everything is stored; after a stop, only for the grace period."""
        while producer.pending_count and not (self._failed or self._stop.is_set):
            self._stop.wait(_PAUSE_SECONDS)
        producer.close(_GRACE_SECONDS)
        if self._failed:
            raise self._failed[0]

    def _append_all(
        self, producer: Producer, function: Callable[..., Any], has_cursor: bool
    ) -> None:
        with closing(_started(function, producer.cursor, has_cursor)) as messages:
            self._gauge.state = RunState.RUNNING
            for item in messages:
                if self._failed or self._stop.is_set:
                    return
                cursor, value = item if has_cursor else (None, item)
                text = msgspec.json.encode(cursor).decode() if has_cursor else None
                producer.append(value, cursor=text)
                self._gauge.written += 1
                self._at(self._processor.id, YIELDED)


def _started(
    function: Callable[..., Any], stored: str | None, has_cursor: bool
) -> Generator[Any, None, None]:
    if not has_cursor:
        generator: Generator[Any, None, None] = function()
    else:
        generator = function(cursor=None if stored is None else msgspec.json.decode(stored))
    return generator
