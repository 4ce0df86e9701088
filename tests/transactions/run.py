"""The whole run: a server and clients that are killed while they work, and the final check."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from threading import Event
from time import monotonic, sleep
from typing import Final, NamedTuple, Protocol

from semel import Client
from semel.client.errors import StreamInTransaction
from semel.testing import TransactionReport, local
from tests.transactions.crews import Crew, Job
from tests.transactions.hands import Hands, InProcesses, InThreads
from tests.transactions.judge import Evidence, Failed, gather, judge
from tests.transactions.notes import Notes
from tests.transactions.shared import SHARED, Operator
from tests.transactions.writers import INPUTS, INPUTS_COUNT, STREAMS

_LOOK_SECONDS: Final = 0.02
_DOWN_SECONDS_MAX: Final = 0.1
_SWEEP_SECONDS: Final = 0.5
_GIVE_UP_SECONDS: Final = 300.0
_JSON: Final = "application/json"


class Size(NamedTuple):
    """The size of a run, which ends when all of these numbers are reached.

    `committed`: commits, of which `taken` are by workers that share groups. `sets` and `deletes`:
    how often an operator sets a group and deletes an input. `client_kills`: how many client
    processes are killed. `fault_rate`: the share of requests through the fault proxy that meet each
    kind of fault.
    """

    committed: int
    taken: int
    sets: int
    deletes: int
    kills: int
    client_kills: int
    crews: int
    fault_rate: float
    seed: int


class Server(Protocol):
    """The server of the clients. Without kills it may run in this process."""

    @property
    def url(self) -> str: ...


class KillableServer(Server, Protocol):
    """A server in its own process."""

    def kill(self) -> None: ...

    def restart(self) -> None: ...


def run_in_processes(size: Size, folder: Path) -> TransactionReport:
    """Run each crew in its own process, kill some of them, and check the result."""
    with local(folder / "data", long_poll_timeout=2) as server:
        hands = InProcesses(_job(size, server, folder), size.crews)
        report = judge(_run(size, server, hands, server))
        if server.stderr:
            raise Failed(f"the server wrote to stderr: {server.stderr}")
        return report


def run_in_threads(
    size: Size, folder: Path, server: Server, killable: KillableServer | None = None
) -> Evidence:
    """Run in this process, without killing clients and without checking the result."""
    return _run(size, server, InThreads(_job(size, server, folder), size.crews), killable)


def _job(size: Size, server: Server, folder: Path) -> Job:
    return Job(server.url, folder, size.fault_rate, size.seed)


def _run(size: Size, server: Server, hands: Hands, killable: KillableServer | None) -> Evidence:
    notes = Notes(hands.job.folder / "operator.notes")
    operator = Operator(server.url, notes, Random(f"{size.seed}-operator"))
    with Client(server.url) as client:
        for stream in STREAMS:
            client.stream(stream).create(_JSON)
        client.stream(INPUTS).create(_JSON).append_many(range(INPUTS_COUNT))
        for stream in SHARED:
            operator.make(client, stream)
        hands.start()
        try:
            with _at_work(operator) as crew:
                _disturb(size, client, hands, operator, crew, killable)
        finally:
            try:
                hands.end_writers()
            finally:
                _close_all(client, operator)
                hands.end_readers()
        if killable is not None:
            killable.kill()  # drop requests that are still in flight
            killable.restart()
        notes.close()
        return gather(client, hands.job.folder)


@contextmanager
def _at_work(operator: Operator) -> Iterator[Crew]:
    """Run the operator on a thread until the end of the block."""
    over, crew = Event(), Crew()
    crew.start(operator.run, over)
    try:
        yield crew
    finally:
        over.set()
        crew.join()


def _disturb(
    size: Size,
    client: Client,
    hands: Hands,
    operator: Operator,
    crew: Crew,
    killable: KillableServer | None,
) -> None:
    """Kill and delete at random moments until the run has reached its size."""
    random = Random(size.seed)
    server_moments = _moments(random, size.committed, size.kills)
    client_moments = _moments(random, size.committed, size.client_kills)
    delete_moments = _moments(random, size.committed, size.deletes)
    give_up_at = monotonic() + _GIVE_UP_SECONDS
    sweep_at = 0.0
    while (
        hands.committed() < size.committed
        or hands.taken() < size.taken
        or operator.sets < size.sets
        or operator.deletes < size.deletes
        or server_moments
        or client_moments
    ):
        hands.require_alive()
        for error in crew.errors:
            raise error
        now = monotonic()
        if now > give_up_at:
            raise Failed(
                f"only {hands.committed()} commits, {hands.taken()} of workers, {operator.sets}"
                f" sets and {operator.deletes} deletes in {_GIVE_UP_SECONDS:g} seconds"
            )
        if killable is not None and server_moments and hands.committed() >= server_moments[0]:
            del server_moments[0]
            killable.kill()
            sleep(random.uniform(0, _DOWN_SECONDS_MAX))
            killable.restart()
        if client_moments and hands.committed() >= client_moments[0]:
            del client_moments[0]
            hands.kill_a_crew(random)
        if delete_moments and hands.committed() >= delete_moments[0]:
            del delete_moments[0]
            operator.delete_one()
        if now > sweep_at:
            sweep_at = now + _SWEEP_SECONDS
            operator.decide_prepared(client)
        sleep(_LOOK_SECONDS)


def _moments(random: Random, committed: int, count: int) -> list[float]:
    step = committed / max(1, count)
    return [step * (number + random.random()) for number in range(count)]


def _close_all(client: Client, operator: Operator) -> None:
    """Close each stream, which ends its tails, as soon as it has no open transaction."""
    streams: Sequence[str] = STREAMS
    give_up_at = monotonic() + _GIVE_UP_SECONDS
    while streams and monotonic() < give_up_at:
        operator.decide_prepared(client, is_over=True)
        streams = [stream for stream in streams if not _is_closed(client, stream)]
        sleep(_LOOK_SECONDS)
    if streams:
        raise Failed(f"{streams} cannot be closed")


def _is_closed(client: Client, stream: str) -> bool:
    try:
        client.stream(stream).close()
    except StreamInTransaction:
        return False
    return True
