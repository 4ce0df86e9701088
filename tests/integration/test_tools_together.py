"""A server that is killed, a network that loses responses, and the checker of histories."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from time import monotonic, sleep
from urllib.parse import urlsplit

import msgspec
import pytest

from semel.model.offsets import parse_offset
from semel.testing import (
    Action,
    FaultPlan,
    FaultProxy,
    History,
    InProcessServer,
    LocalServer,
    check_history,
    local,
)

STREAM = "/v1/stream/numbers"
RATES: dict[str, float] = {action: 0.03 for action in Action if action is not Action.PASS}
GIVE_UP_SECONDS = 60.0


def a_plan(seed: int) -> FaultPlan:
    return FaultPlan(
        RATES, seed=seed, stall_seconds=0.1, reorder_seconds=0.02, delay_seconds=(0.0, 0.02)
    )


class Asker:
    """A connection that is reopened after an error."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=2.0)

    def ask(self, method: str, target: str, body: bytes = b"", **fields: str) -> tuple[int, str]:
        """Return the status and the next offset of the response."""
        headers = {name.replace("_", "-"): value for name, value in fields.items()}
        try:
            self._connection.request(
                method, target, body, {"Content-Type": "application/json", **headers}
            )
            answer = self._connection.getresponse()
            answer.read()
            return answer.status, answer.headers.get("Stream-Next-Offset", "")
        except (OSError, http.client.HTTPException):
            self.close()
            raise

    def close(self) -> None:
        self._connection.close()


def produce(url: str, history: History, name: str, count: int, *, is_tagged: bool) -> None:
    """Append the values, and repeat each append until it has a response."""
    with closing(Asker(url)) as asker:
        for seq in range(count):
            value = f"{name}-{seq}"
            operation = history.append(value, producer=name, seq=seq)
            tag = {"Producer_Id": name, "Producer_Epoch": "0", "Producer_Seq": str(seq)}
            next_offset = until_answered(asker, value, tag if is_tagged else {})
            operation.ok(next_offset - 1)


def until_answered(asker: Asker, value: str, tag: dict[str, str]) -> int:
    until = monotonic() + GIVE_UP_SECONDS
    while monotonic() < until:
        try:
            status, printed = asker.ask("POST", STREAM, msgspec.json.encode(value), **tag)
        except (OSError, http.client.HTTPException):
            sleep(0.005)
            continue
        next_offset = parse_offset(printed)
        if status < 300 and next_offset is not None:
            return next_offset
        # http.client accepts a truncated head: a 2xx without an offset is not a response.
        assert status in (200, 204, 502), status
        asker.close()
    raise AssertionError(f"no response for {value}")


def run_all(*work: Callable[[], None]) -> None:
    """Run the functions on threads; raise the first error."""
    errors: list[BaseException] = []

    def guarded(one: Callable[[], None]) -> None:
        try:
            one()
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def create(url: str) -> None:
    with closing(Asker(url)) as asker:
        assert asker.ask("PUT", STREAM)[0] == 201


def content(url: str) -> list[str]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    try:
        connection.request("GET", f"{STREAM}?offset=-1")
        answer = connection.getresponse()
        body = answer.read()
        assert answer.headers["Stream-Up-To-Date"] == "true"
        return msgspec.json.decode(body, type=list[str])
    finally:
        connection.close()


@pytest.fixture
def process() -> Iterator[LocalServer]:
    with local() as server:
        yield server


def test_producers_on_a_bad_network_and_a_server_that_is_killed_write_everything_once(
    process: LocalServer,
) -> None:
    create(process.url)
    history = History()

    def kill_sometimes() -> None:
        for _ in range(3):
            sleep(0.3)
            process.kill()
            process.restart()

    with FaultProxy(process.url, a_plan(seed=3)) as proxy:
        run_all(
            kill_sometimes,
            *(
                lambda name=name: produce(proxy.url, history, name, 150, is_tagged=True)
                for name in ("a", "b", "c")
            ),
        )
    started_at = history.clock()
    log = content(process.url)
    history.read(log, invoked_at=started_at)
    assert check_history(history, log) == []
    assert proxy.dropped_after_commit > 0
    assert {name for name in RATES if not proxy.counts[name]} <= {Action.REORDER}


def test_the_same_without_producer_headers_is_found_out() -> None:
    history = History()
    with InProcessServer() as server, FaultProxy(server.url, a_plan(seed=3)) as proxy:
        create(server.url)
        produce(proxy.url, history, "a", 150, is_tagged=False)
        found = check_history(history, content(server.url))
    assert "duplicated" in {violation.name for violation in found}
