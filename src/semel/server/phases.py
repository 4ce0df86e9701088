"""The phases of a connection and of an exchange, as tables of transitions.

There are three small state machines. A table maps a phase and an event to the next phase. An event
that a table does not list for a phase is a bug: `PhaseTable.next` raises InvariantBroken.

- `CONNECTION`: which part of a request a connection reads, and the stages of its close.
- `INPUT`: whether the transport may deliver more bytes (back-pressure). It changes independently of
  `CONNECTION`: a connection may be paused before, between and after the parts of a request.
- `EXCHANGE`: whether the response to one request has begun, and whether it is complete.

Properties of a request (`is_head`, `closes`) and the data of a phase, such as the body that is
being received, are not in the tables. `docs/contributing/connections.md` shows the same tables. One
test compares the page with them, and another checks that every transition occurs.
"""

from collections.abc import Mapping
from enum import IntEnum, auto
from typing import Final, Generic, TypeVar

from semel.model.errors import InvariantBroken

PhaseT = TypeVar("PhaseT", bound=IntEnum)
EventT = TypeVar("EventT", bound=IntEnum)


class PhaseTable(Generic[PhaseT, EventT]):
    """The legal transitions between phases, by phase and event."""

    __slots__ = ("rows",)

    def __init__(self, rows: Mapping[PhaseT, Mapping[EventT, PhaseT]]) -> None:
        self.rows: Final = rows

    def next(self, phase: PhaseT, event: EventT) -> PhaseT:
        """Return the phase after `event`. Raises InvariantBroken if `event` is illegal here."""
        try:
            return self.rows[phase][event]
        except KeyError:
            raise InvariantBroken(f"event {event.name} in phase {phase.name}") from None


class ConnectionPhase(IntEnum):
    """What a connection reads, and the stages of its close. After BODY it reads no requests."""

    FRESH = auto()  # no request has been received yet
    IDLE = auto()  # between two requests; responses may be owed
    HEAD = auto()  # a part of a request head has been received
    CONTINUE = auto()  # the client waits for 100 Continue before it sends the body
    BODY = auto()  # a part of a request body has been received
    FINISHING = auto()  # no more requests are read; the last response is still owed
    HALF_CLOSED = auto()  # like FINISHING, and the client has closed its side
    FLUSHING = auto()  # the last response is complete, and is written when the current read ends
    LINGERING = auto()  # our side is closed; the client has to read the response and close its side
    CLOSED = auto()  # the transport is closed, or will be when its buffer is empty


class ConnectionEvent(IntEnum):
    """What moves a connection from one phase to the next."""

    HEAD_BEGUN = auto()  # the first bytes of a request head
    BODY_BEGUN = auto()  # a complete request head whose body is not complete
    CONTINUE_EXPECTED = auto()  # BODY_BEGUN with `Expect: 100-continue` and no byte of the body
    CONTINUE_SENT = auto()
    BODY_RECEIVED = auto()  # bytes of the body, without waiting for 100 Continue
    REQUEST_RECEIVED = auto()  # a complete request
    READING_ENDED = auto()  # the last request, a refusal, a failed handler, or a shutdown
    CLIENT_ENDED = auto()  # the client has closed its side and can still read responses
    LAST_RESPONSE = auto()  # the response that closes the connection is complete
    OUTPUT_ENDED = auto()  # the last response is written, and our side is closed
    TRANSPORT_CLOSED = auto()  # closed by us, or lost


class InputPhase(IntEnum):
    """Whether the transport may deliver bytes."""

    RUNNING = auto()
    PAUSED = auto()  # too many responses are owed, or the client does not read
    RESUMING = auto()  # there is capacity again: the loop will call back


class InputEvent(IntEnum):
    """What pauses and resumes the input."""

    OVERFULL = auto()  # nothing more is accepted for now
    CAPACITY = auto()  # a response was sent, or the client reads again
    STILL_FULL = auto()  # the capacity is not enough to continue
    RESUMED = auto()  # there is capacity: parsing continues
    OUTPUT_ENDED = auto()  # only the end of the client's side is expected now


class ExchangePhase(IntEnum):
    """The progress of one response. From COMPLETE on, nothing more is sent."""

    WAITING = auto()  # the handler has not responded yet
    STREAMING = auto()  # the response has begun; its length is unknown
    COMPLETE = auto()  # sent, or held until the earlier responses are sent
    GONE = auto()  # the client is gone; whatever else is sent is dropped


class ExchangeEvent(IntEnum):
    """What moves an exchange from one phase to the next."""

    RESPONSE_BEGUN = auto()  # status and headers of a response in parts
    RESPONSE_COMPLETE = auto()  # a whole response, or its last part
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
