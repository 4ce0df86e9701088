"""Three small state machines for connections. A phase and an event determine the next phase.

- `CONNECTION`: which part of a request is being read, or which step of closing is reached.
- `INPUT`: whether the transport delivers more bytes (back-pressure). Reading can pause in several
  phases of `CONNECTION`, so this is a separate machine. Reading never pauses in a request body.
- `EXCHANGE`: whether the response to one request has begun, and whether it is complete.

If an event is not listed for the current phase, there is a bug, and `PhaseTable.next` raises
InvariantBroken. A test compares the tables with the page `docs/contributing/connections.md`.
"""

from collections.abc import Mapping
from enum import IntEnum, auto
from typing import Final, Generic, TypeVar

from semel.model.errors import InvariantBroken

PhaseT = TypeVar("PhaseT", bound=IntEnum)
EventT = TypeVar("EventT", bound=IntEnum)


class PhaseTable(Generic[PhaseT, EventT]):
    """The legal transitions. In `phase`, `event` leads to `rows[phase][event]`."""

    __slots__ = ("rows",)

    def __init__(self, rows: Mapping[PhaseT, Mapping[EventT, PhaseT]]) -> None:
        self.rows: Final = rows

    def next(self, phase: PhaseT, event: EventT) -> PhaseT:
        """Return the next phase. Raises InvariantBroken if `event` is illegal in `phase`."""
        try:
            return self.rows[phase][event]
        except KeyError:
            raise InvariantBroken(
                f"the event {event.name} is illegal in the phase {phase.name}"
            ) from None


class ConnectionPhase(IntEnum):
    """The phase of a connection.

    From FRESH to BODY, the connection reads requests. From FINISHING to CLOSED, the connection
    is being closed step by step.
    """

    FRESH = auto()  # no request has been received yet
    IDLE = auto()  # between two requests; responses can still be owed
    HEAD = auto()  # a part of a request head has been received
    CONTINUE = auto()  # the client waits for 100 Continue before it sends the body
    BODY = auto()  # a part of a request body has been received
    FINISHING = auto()  # no more requests are read; at least one response is still owed
    HALF_CLOSED = auto()  # like FINISHING, and the client has closed its side
    FLUSHING = auto()  # the last response is complete; it is written after the current read
    LINGERING = auto()  # our side is closed; the client must read the response and close its side
    CLOSED = auto()  # the transport is closed, or closes as soon as its buffer is empty


class ConnectionEvent(IntEnum):
    """The events that move a connection from one phase to the next."""

    HEAD_BEGUN = auto()  # the first bytes of a request head arrived
    BODY_BEGUN = auto()  # a request head is complete, and its body is not complete
    CONTINUE_EXPECTED = auto()  # like BODY_BEGUN, with `Expect: 100-continue` and no body bytes
    CONTINUE_SENT = auto()
    BODY_RECEIVED = auto()  # the client sent body bytes without waiting for 100 Continue
    REQUEST_RECEIVED = auto()  # a request is complete
    READING_ENDED = auto()  # because of the last request, a refusal, a failed handler or a shutdown
    CLIENT_ENDED = auto()  # the client has closed its side and can still read responses
    LAST_RESPONSE = auto()  # the response that closes the connection is complete
    OUTPUT_ENDED = auto()  # the last response is written, and our side is closed
    TRANSPORT_CLOSED = auto()  # we closed the connection, or it was lost


class InputPhase(IntEnum):
    """Says whether the transport is allowed to deliver bytes."""

    RUNNING = auto()
    PAUSED = auto()  # too many responses are owed, or the client does not read
    RESUMING = auto()  # there is capacity again; reading resumes on the next turn of the loop


class InputEvent(IntEnum):
    """The events that pause and resume the input."""

    OVERFULL = auto()  # no new request can be accepted now
    CAPACITY = auto()  # a response was sent, or the client reads again
    STILL_FULL = auto()  # the new capacity is not enough to continue
    RESUMED = auto()  # there is enough capacity, and parsing continues
    OUTPUT_ENDED = auto()  # our side is closed; only the client's close is expected now


class ExchangePhase(IntEnum):
    """The progress of one response. In COMPLETE and GONE, the handler can send nothing more."""

    WAITING = auto()  # the handler has not responded yet
    STREAMING = auto()  # the response has begun; its length is unknown
    COMPLETE = auto()  # sent, or held until the earlier responses are sent
    GONE = auto()  # the client is gone; everything that is still sent is dropped


class ExchangeEvent(IntEnum):
    """The events that change the phase of an exchange: a request and its response."""

    RESPONSE_BEGUN = auto()  # the status and the headers of a response in parts were sent
    RESPONSE_COMPLETE = auto()  # a whole response, or its last part, was sent
    CLIENT_GONE = auto()


_Phase = ConnectionPhase
_Event = ConnectionEvent

CONNECTION: Final = PhaseTable[ConnectionPhase, ConnectionEvent](
    {
        _Phase.FRESH: {
            _Event.HEAD_BEGUN: _Phase.HEAD,
            _Event.BODY_BEGUN: _Phase.BODY,
            _Event.CONTINUE_EXPECTED: _Phase.CONTINUE,
            _Event.REQUEST_RECEIVED: _Phase.IDLE,
            _Event.READING_ENDED: _Phase.FINISHING,
            _Event.TRANSPORT_CLOSED: _Phase.CLOSED,
        },
        _Phase.IDLE: {
            _Event.HEAD_BEGUN: _Phase.HEAD,
            _Event.BODY_BEGUN: _Phase.BODY,
            _Event.CONTINUE_EXPECTED: _Phase.CONTINUE,
            _Event.READING_ENDED: _Phase.FINISHING,
            _Event.CLIENT_ENDED: _Phase.HALF_CLOSED,
            _Event.TRANSPORT_CLOSED: _Phase.CLOSED,
        },
        _Phase.HEAD: {
            _Event.BODY_BEGUN: _Phase.BODY,
            _Event.CONTINUE_EXPECTED: _Phase.CONTINUE,
            _Event.REQUEST_RECEIVED: _Phase.IDLE,
            _Event.READING_ENDED: _Phase.FINISHING,
            _Event.CLIENT_ENDED: _Phase.HALF_CLOSED,
            _Event.TRANSPORT_CLOSED: _Phase.CLOSED,
        },
        _Phase.CONTINUE: {
            _Event.CONTINUE_SENT: _Phase.BODY,
            _Event.BODY_RECEIVED: _Phase.BODY,
            _Event.READING_ENDED: _Phase.FINISHING,
            _Event.CLIENT_ENDED: _Phase.HALF_CLOSED,
            _Event.TRANSPORT_CLOSED: _Phase.CLOSED,
        },
        _Phase.BODY: {
            _Event.REQUEST_RECEIVED: _Phase.IDLE,
            _Event.READING_ENDED: _Phase.FINISHING,
            _Event.CLIENT_ENDED: _Phase.HALF_CLOSED,
            _Event.TRANSPORT_CLOSED: _Phase.CLOSED,
        },
        _Phase.FINISHING: {
            _Event.CLIENT_ENDED: _Phase.HALF_CLOSED,
            _Event.LAST_RESPONSE: _Phase.FLUSHING,
            _Event.TRANSPORT_CLOSED: _Phase.CLOSED,
        },
        _Phase.HALF_CLOSED: {
            _Event.OUTPUT_ENDED: _Phase.LINGERING,
            _Event.TRANSPORT_CLOSED: _Phase.CLOSED,
        },
        _Phase.FLUSHING: {
            _Event.OUTPUT_ENDED: _Phase.LINGERING,
            _Event.TRANSPORT_CLOSED: _Phase.CLOSED,
        },
        _Phase.LINGERING: {_Event.TRANSPORT_CLOSED: _Phase.CLOSED},
        _Phase.CLOSED: {},
    }
)

INPUT: Final = PhaseTable[InputPhase, InputEvent](
    {
        InputPhase.RUNNING: {InputEvent.OVERFULL: InputPhase.PAUSED},
        InputPhase.PAUSED: {
            InputEvent.CAPACITY: InputPhase.RESUMING,
            InputEvent.OUTPUT_ENDED: InputPhase.RUNNING,
        },
        InputPhase.RESUMING: {
            InputEvent.STILL_FULL: InputPhase.PAUSED,
            InputEvent.RESUMED: InputPhase.RUNNING,
            InputEvent.OUTPUT_ENDED: InputPhase.RUNNING,
        },
    }
)

EXCHANGE: Final = PhaseTable[ExchangePhase, ExchangeEvent](
    {
        ExchangePhase.WAITING: {
            ExchangeEvent.RESPONSE_BEGUN: ExchangePhase.STREAMING,
            ExchangeEvent.RESPONSE_COMPLETE: ExchangePhase.COMPLETE,
            ExchangeEvent.CLIENT_GONE: ExchangePhase.GONE,
        },
        ExchangePhase.STREAMING: {
            ExchangeEvent.RESPONSE_COMPLETE: ExchangePhase.COMPLETE,
            ExchangeEvent.CLIENT_GONE: ExchangePhase.GONE,
        },
        ExchangePhase.COMPLETE: {},
        ExchangePhase.GONE: {},
    }
)
