"""The phase tables: every transition occurs, any other is a bug, and the page shows all."""

import asyncio
import re
from collections.abc import Callable, Iterator
from enum import IntEnum
from itertools import product
from pathlib import Path
from typing import Any, Final, cast

import pytest

from semel.broker.settings import SystemClock
from semel.model.errors import InvariantBroken
from semel.server.browsers import BrowserPolicy
from semel.server.connection import ServerConnection
from semel.server.exchange import Exchange
from semel.server.http import Request, Responder, Response
from semel.server.limits_http import HttpLimits
from semel.server.listener import ConnectionSet
from semel.server.phases import (
    CONNECTION,
    EXCHANGE,
    INPUT,
    ConnectionEvent,
    ConnectionPhase,
    ExchangeEvent,
    ExchangePhase,
    InputEvent,
    InputPhase,
    PhaseTable,
)
from semel.server.unread_budget import UnreadBudget
from tests.http.harness import get, post, put

Phase = ConnectionPhase
Event = ConnectionEvent
Transition = tuple[str, str, str, str]  # names: phase type, phase, event, next phase

PAGE: Final = Path(__file__).parents[2] / "docs/contributing/connections.md"
TABLES: Final[dict[str, PhaseTable[Any, Any]]] = {
    "Connection": CONNECTION,
    "Input": INPUT,
    "Exchange": EXCHANGE,
}
POST: Final = post(b"abc")
EXPECTING: Final = post(b"abc", "Expect: 100-continue")[:-3]
LAST: Final = put("/last").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
START: Final = POST[:9]  # the common prefix of POST and EXPECTING
assert EXPECTING.startswith(START)


def named(phase: IntEnum, event: IntEnum, after: IntEnum) -> Transition:
    """Return the names of a transition; members of different enums may compare equal."""
    assert type(phase) is type(after)
    return type(phase).__name__, phase.name, event.name, after.name


def transitions(table: PhaseTable[Any, Any]) -> list[tuple[Any, Any, Any]]:
    return [(phase, event, row[event]) for phase, row in table.rows.items() for event in row]


class FakeTransport(asyncio.Transport):
    """Accepts all data; with `breaks` it closes at the next write, as after a reset."""

    def __init__(self) -> None:
        super().__init__()
        self.breaks = False
        self.has_closed = False

    def write(self, data: object) -> None:
        del data
        self.has_closed |= self.breaks

    def writelines(self, list_of_data: object) -> None:
        self.write(list_of_data)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del high, low

    def is_closing(self) -> bool:
        return self.has_closed

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        self.has_closed = True

    def abort(self) -> None:
        self.has_closed = True


class Bed:
    """A connection on a fake transport; the test sends the responses."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.sends_at_once = False
        limits = HttpLimits()
        registry = ConnectionSet(limits, SystemClock(), UnreadBudget(limits), BrowserPolicy())
        self.connection = ServerConnection(self._handle, limits, registry)
        self.transport = FakeTransport()
        self.connection.connection_made(self.transport)
        self.feed = self.connection.data_received

    def _handle(self, _request: Request, responder: Responder) -> None:
        self.exchanges.append(cast("Exchange", responder))
        if self.sends_at_once:
            responder.send(Response(200, []))

    @property
    def phase(self) -> ConnectionPhase:
        return self.connection._phase

    def respond(self) -> None:
        for exchange in self.exchanges:
            if exchange.phase is ExchangePhase.WAITING:
                exchange.send(Response(200, []))

    def miss_deadlines(self) -> None:
        self.connection.check(1.0)
        self.connection.check(1_000.0)


@pytest.fixture
def occurred(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Transition]]:
    """Record every transition of every table."""
    record: list[Transition] = []
    follow, complete = PhaseTable.next, Exchange._complete

    def following(self: PhaseTable[Any, Any], phase: IntEnum, event: IntEnum) -> IntEnum:
        after: IntEnum = follow(self, phase, event)
        record.append(named(phase, event, after))
        return after

    def completing(self: Exchange, data: bytes) -> None:
        before = self.phase
        complete(self, data)  # sets the phase without the table
        record.append(named(before, ExchangeEvent.RESPONSE_COMPLETE, self.phase))

    monkeypatch.setattr(PhaseTable, "next", following)
    monkeypatch.setattr(Exchange, "_complete", completing)
    yield record


def run(script: Callable[[Bed], object]) -> None:
    """Run a script, and then the callbacks that it has scheduled."""

    async def main() -> None:
        script(Bed())
        await asyncio.sleep(0)

    asyncio.run(main())


# ---- the connection ------------------------------------------------------------------------------


def reach(bed: Bed, phase: ConnectionPhase, event: ConnectionEvent) -> None:
    """Bring a connection into a phase, with a pending response where that is possible."""
    if phase is Phase.FLUSHING:
        bed.sends_at_once = True
        bed.transport.breaks = event is Event.TRANSPORT_CLOSED
        bed.feed(LAST)
        return
    if phase is not Phase.FRESH:
        bed.feed(put("/owed"))
    if phase is Phase.HALF_CLOSED:
        bed.connection.eof_received()
    elif phase is Phase.LINGERING:
        bed.feed(LAST)
        bed.respond()
    else:
        bed.feed(
            {
                Phase.HEAD: START,
                Phase.CONTINUE: EXPECTING,
                Phase.BODY: POST[:-1],
                Phase.FINISHING: LAST,
            }.get(phase, b"")
        )
    assert bed.phase is phase


def provoke(bed: Bed, event: ConnectionEvent) -> None:
    """Make an event happen in the current phase of the connection."""
    skip = {Phase.HEAD: len(START), Phase.BODY: len(POST) - 1}.get(bed.phase, 0)
    parts = {
        Event.HEAD_BEGUN: START,
        Event.BODY_BEGUN: POST[skip:-1],
        Event.CONTINUE_EXPECTED: EXPECTING[skip:],
        Event.BODY_RECEIVED: b"a",
        Event.REQUEST_RECEIVED: POST[skip:],
    }
    if event in parts:
        bed.feed(parts[event])
    elif event is Event.READING_ENDED:
        end_reading(bed)
    elif event is Event.CLIENT_ENDED:
        bed.connection.eof_received()
    elif event is Event.TRANSPORT_CLOSED:
        bed.connection.connection_lost(None)
    else:
        bed.respond()


def end_reading(bed: Bed) -> None:
    if bed.phase is Phase.FRESH:
        bed.feed(b"\0")
    elif bed.phase is Phase.IDLE:
        bed.connection.drain()
    else:
        bed.miss_deadlines()


@pytest.mark.parametrize(
    ("phase", "event", "after"),
    [pytest.param(*row, id=f"{row[0].name}-{row[1].name}") for row in transitions(CONNECTION)],
)
def test_a_transition_of_a_connection_occurs(
    occurred: list[Transition],
    phase: ConnectionPhase,
    event: ConnectionEvent,
    after: ConnectionPhase,
) -> None:
    def script(bed: Bed) -> None:
        reach(bed, phase, event)
        provoke(bed, event)

    run(script)
    assert named(phase, event, after) in occurred


# ---- back-pressure and exchanges -----------------------------------------------------------------


def pause(bed: Bed) -> None:
    bed.feed(put("/a") + put("/b") + get("/read"))


def pause_and_resume(bed: Bed) -> None:
    pause(bed)
    bed.respond()


def stay_paused(bed: Bed) -> None:
    pause_and_resume(bed)
    bed.connection.pause_writing()


def end_paused(bed: Bed) -> None:
    pause(bed)
    bed.exchanges[0].fail()


def end_resuming(bed: Bed) -> None:
    pause(bed)
    bed.exchanges[0].send(Response(200, []))
    bed.exchanges[1].fail()


def stream(bed: Bed) -> None:
    bed.feed(put("/a"))
    bed.exchanges[0].start(200, []).end()


def leave(bed: Bed) -> None:
    bed.feed(put("/a") + put("/b"))
    bed.exchanges[0].start(200, [])
    bed.connection.connection_lost(None)


SCRIPTS: Final = (pause_and_resume, stay_paused, end_paused, end_resuming, stream, leave)


@pytest.mark.parametrize("table", [INPUT, EXCHANGE], ids=["input", "exchange"])
def test_every_other_transition_occurs(
    occurred: list[Transition], table: PhaseTable[Any, Any]
) -> None:
    for script in SCRIPTS:
        run(script)
    assert {named(*row) for row in transitions(table)} <= set(occurred)


# ---- the tables ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "phases", "events"),
    [
        (CONNECTION, ConnectionPhase, ConnectionEvent),
        (INPUT, InputPhase, InputEvent),
        (EXCHANGE, ExchangePhase, ExchangeEvent),
    ],
    ids=["connection", "input", "exchange"],
)
def test_an_event_that_a_table_does_not_list_is_a_bug(
    table: PhaseTable[Any, Any], phases: type[IntEnum], events: type[IntEnum]
) -> None:
    legal = {(phase, event) for phase, event, _ in transitions(table)}
    illegal = set(product(phases, events)) - legal
    assert illegal
    for phase, event in illegal:
        with pytest.raises(
            InvariantBroken, match=f"the event {event.name} is illegal in the phase {phase.name}"
        ):
            table.next(phase, event)


def shown(title: str) -> list[tuple[str, str, str]]:
    """Read the transitions from the page: `event` → `PHASE` in the last column."""
    text = PAGE.read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows: list[tuple[str, str, str]] = []
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) == 5 and (phase := re.fullmatch(r" `([A-Z_]+)` ", cells[1])):
            rows += [(phase[1], *pair) for pair in re.findall(r"(\w+) → `(\w+)`", cells[3])]
    return rows


@pytest.mark.parametrize("title", TABLES)
def test_the_page_shows_the_tables(title: str) -> None:
    rows = [
        (phase.name, event.name.lower(), after.name)
        for phase, event, after in transitions(TABLES[title])
    ]
    assert shown(title) == rows
