"""`client.subscriptions` and its workers, against a real server."""

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from semel import AsyncClient, Client, errors
from semel.client.subscription_values import WakeBatch
from semel.testing import FaultPlan, FaultProxy
from tests.integration.asgi import wait_for
from tests.integration.both import client_of
from tests.spec.process import Server, offset_of
from tests.spec.txn_calls import fresh

JSON = "application/json"


class Names:
    """The names of one test: of a subscription, the streams that it follows, and its outputs."""

    def __init__(self) -> None:
        self.id, self.base = fresh("sub"), fresh("in")
        self.wakes, self.out = fresh("wakes"), fresh("out")

    @property
    def pattern(self) -> str:
        return f"{self.base}/*"

    def input(self, number: int = 0) -> str:
        return f"{self.base}/{number}"


@pytest.fixture
def names() -> Names:
    return Names()


def created(client: Any, names: Names, **options: Any) -> None:
    """Create the streams, and a pull-wake subscription."""
    for path in (names.wakes, names.out, names.input()):
        client.stream(path).create(JSON, exist_ok=True)
    client.subscriptions.create(names.id, pattern=names.pattern, wake_stream=names.wakes, **options)


def values(client: Any, path: str) -> list[Any]:
    return [message.value for message in client.stream(path).read()]


def copies(names: Names) -> Callable[[WakeBatch], dict[str, list[Any]]]:
    return lambda batch: {names.out: [message.value for message in batch]}


# ---- subscriptions -------------------------------------------------------------------------------


def test_a_subscription_is_created_shown_changed_and_deleted(client: Any, names: Names) -> None:
    client.stream(names.wakes).create(JSON)
    client.stream(names.input()).create(JSON).append(1)
    subscriptions = client.subscriptions
    options = {"pattern": names.pattern, "wake_stream": names.wakes, "lease": 2.5}
    info = subscriptions.create(names.id, description="bills", **options)
    assert (info.type, info.status, info.lease_ttl_ms) == ("pull-wake", "active", 2500)
    assert (info.stream_count, info.pending_count) == (1, 0)
    with pytest.raises(errors.SubscriptionExists):
        subscriptions.create(names.id, description="bills", **options)
    again = subscriptions.create(names.id, description="bills", exist_ok=True, **options)
    assert again.created_at == info.created_at
    with pytest.raises(errors.SubscriptionExists):
        subscriptions.create(names.id, exist_ok=True, **options)

    other = fresh("other")
    subscriptions.link(names.id, other, client.stream(names.input()))
    links = {each.path: each.link_type for each in subscriptions.show(names.id).streams}
    assert links[names.input()] == "explicit"
    subscriptions.unlink(names.id, other, names.input())
    (stream,) = subscriptions.streams(names.id)
    assert (stream.path, stream.link_type, stream.acked_offset) == (
        names.input(),
        "glob",
        offset_of(1),
    )

    assert [each.id for each in subscriptions.list(names.id)] == [names.id]
    assert list(subscriptions.list(names.id, after=names.id)) == []
    subscriptions.resume(names.id)
    subscriptions.delete(names.id)
    subscriptions.delete(names.id)
    with pytest.raises(errors.SubscriptionNotFound):
        subscriptions.show(names.id)


def test_what_cannot_be_created_says_why(client: Any, names: Names) -> None:
    with pytest.raises(errors.WakeStreamRefused) as caught:
        client.subscriptions.create(names.id, pattern="a", wake_stream=names.wakes)
    assert "create it first" in (caught.value.reason or "")
    with pytest.raises(errors.WebhookUrlRejected):
        client.subscriptions.create(names.id, pattern="a", webhook_url="http://10.0.0.1/")
    with pytest.raises(errors.BadRequest):
        client.subscriptions.create(
            names.id, pattern="a", webhook_url="http://127.0.0.1/", lease=0.1
        )
    with pytest.raises(ValueError, match="at least one"):
        client.subscriptions.link(names.id)


# ---- wakes ---------------------------------------------------------------------------------------


def test_a_wake_is_claimed_acked_and_ended(client: Any, names: Names) -> None:
    created(client, names)
    with pytest.raises(errors.NoPendingWork):
        client.subscriptions.claim(names.id)
    client.stream(names.input()).append_many([1, 2, 3])
    wake = client.subscriptions.claim(names.id, worker="me")
    (stream,) = wake.streams
    assert (stream.acked_offset, stream.tail_offset) == (offset_of(0), offset_of(3))
    with pytest.raises(errors.AlreadyClaimed) as caught:
        client.subscriptions.claim(names.id, worker="you")
    assert (caught.value.current_holder, caught.value.generation) == ("me", wake.generation)
    assert client.subscriptions.show(names.id).worker == "me"

    assert wake.ack() is False
    wake.ack({names.input(): 1})
    with pytest.raises(errors.InvalidAck) as invalid:
        wake.ack({names.input(): 4})
    assert invalid.value.stream == names.input()
    assert wake.ack({names.input(): 2}, done=True) is True
    with pytest.raises(errors.WakeFenced) as fenced:
        wake.ack()
    assert fenced.value.generation == wake.generation + 1

    second = client.subscriptions.claim(names.id)
    second.release()
    third = client.subscriptions.claim(names.id)
    assert third.generation == second.generation + 1
    assert third.done() is False
    (stream,) = client.subscriptions.streams(names.id)
    assert (stream.acked_offset, stream.has_pending) == (offset_of(3), False)


@pytest.mark.parametrize("way", ["commit", "inline", "staged"])
def test_outputs_and_ack_are_stored_together_or_not_at_all(
    client: Any, names: Names, way: str
) -> None:
    created(client, names)
    client.stream(names.input()).append(1)
    wake = client.subscriptions.claim(names.id)

    def commit() -> None:
        if way == "commit":
            appends = {names.out: ["done"]}
            client.commit(producer_id=fresh("p"), seq=0, appends=appends, wakes=[wake.acked()])
            return
        with client.transaction(kind=way) as txn:
            txn.append(names.out, "done")
            txn.commit_wake(wake.acked())

    commit()
    assert values(client, names.out) == ["done"]
    assert client.subscriptions.show(names.id).pending_count == 0
    with pytest.raises(errors.WakeFenced) as caught:
        commit()
    assert caught.value.subscription == names.id
    assert values(client, names.out) == ["done"]


def test_a_commit_that_is_repeated_returns_the_first_result(client: Any, names: Names) -> None:
    created(client, names)
    client.stream(names.input()).append(1)
    wake = client.subscriptions.claim(names.id)
    given = {"producer_id": fresh("p"), "seq": 0, "appends": {names.out: [1]}}
    first = client.commit(**given, wakes=[wake.acked()])
    second = client.commit(**given, wakes=[wake.acked()])
    assert (first.duplicate, second.duplicate) == (False, True)
    assert values(client, names.out) == [1]


def test_a_stream_that_took_the_place_of_one_that_was_read_is_not_acked(
    client: Any, names: Names
) -> None:
    created(client, names)
    client.stream(names.input()).append_many([1, 2])
    wake = client.subscriptions.claim(names.id)
    client.stream(names.input()).delete()
    client.stream(names.input()).create(JSON).append_many([3, 4, 5])
    appends = {names.out: [1, 2]}
    with pytest.raises(errors.InvalidAck):
        client.commit(producer_id=fresh("p"), seq=0, appends=appends, wakes=[wake.acked()])
    wake.release()
    assert worker(client, names, copies(names)).run(live=False) == 3
    assert values(client, names.out) == [3, 4, 5]


def test_a_stream_that_is_deleted_while_it_is_processed_is_no_failure(
    client: Any, names: Names
) -> None:
    created(client, names)
    client.stream(names.input()).append(1)
    client.stream(names.input(1)).create(JSON, body=2)
    deleted: list[bool] = []

    def deletes(batch: WakeBatch) -> dict[str, list[Any]]:
        if not deleted:
            deleted.append(True)
            with Client(client.url) as other:
                other.stream(names.input()).delete()
        return copies(names)(batch)

    assert worker(client, names, deletes, retries=0).run(live=False) == 1
    assert values(client, names.out) == [2]


# ---- workers -------------------------------------------------------------------------------------


def worker(client: Any, names: Names, function: Any, **options: Any) -> Any:
    return client.subscriptions.worker(names.id, **options)(function)


def test_a_worker_processes_what_is_pending_in_small_batches(client: Any, names: Names) -> None:
    created(client, names)
    client.stream(names.input()).append_many(range(5))
    client.stream(names.input(1)).create(JSON, body=5)
    sizes = []

    def double(batch: WakeBatch) -> dict[str, list[Any]]:
        sizes.append((len(batch), sorted(batch.streams)))
        return {names.out: [2 * message.value for message in batch]}

    assert worker(client, names, double, max_messages=4).run(live=False) == 6
    assert values(client, names.out) == [0, 2, 4, 6, 8, 10]
    assert sizes == [(4, [names.input()]), (2, [names.input(), names.input(1)])]
    assert worker(client, names, double).run(live=False) == 0


def test_what_a_transaction_has_aborted_is_passed_without_the_function(
    client: Any, names: Names
) -> None:
    created(client, names)
    with pytest.raises(ZeroDivisionError), client.transaction() as txn:
        txn.append(names.input(), 1)
        raise ZeroDivisionError
    called: list[object] = []
    assert worker(client, names, called.append).run(live=False) == 0
    assert called == []
    assert client.subscriptions.show(names.id).pending_count == 0


def test_a_function_that_fails_is_called_again_and_its_error_raised_in_the_end(
    client: Any, names: Names
) -> None:
    created(client, names)
    client.stream(names.input()).append(1)
    calls = Counter[str]()

    def fails(batch: WakeBatch) -> dict[str, list[Any]]:
        calls["fails"] += 1
        if calls["fails"] % 3:
            raise LookupError(f"attempt {calls['fails']}")
        return {names.out: [message.value for message in batch]}

    assert worker(client, names, fails, retries=2, backoff=0.001).run(live=False) == 1
    assert values(client, names.out) == [1]
    client.stream(names.input()).append(2)
    with pytest.raises(LookupError, match="attempt 5"):
        worker(client, names, fails, retries=1, backoff=0.001).run(live=False)
    assert client.subscriptions.show(names.id).worker is None


@pytest.mark.parametrize(
    ("outputs", "kind"),
    [([1], TypeError), ({"out": 1}, TypeError), ({"missing/stream": [1]}, errors.StreamNotFound)],
)
def test_outputs_that_cannot_be_stored_are_an_error(
    client: Any, names: Names, outputs: object, kind: type[Exception]
) -> None:
    created(client, names)
    client.stream(names.input()).append(1)
    with pytest.raises(kind):
        worker(client, names, lambda batch: outputs, retries=0).run(live=False)
    assert client.subscriptions.show(names.id).pending_count == 1


def test_outputs_that_are_too_large_together_are_committed_in_parts(
    client: Any, names: Names
) -> None:
    created(client, names)
    client.stream(names.input()).append_many(range(6))

    def large(batch: WakeBatch) -> dict[str, list[Any]]:
        return {names.out: [f"{message.value}".ljust(1_500_000) for message in batch]}

    assert worker(client, names, large).run(live=False) == 6
    assert [int(value) for value in values(client, names.out)] == list(range(6))


def test_only_a_subscription_with_a_wake_stream_has_workers(client: Any, names: Names) -> None:
    client.subscriptions.create(names.id, pattern=names.pattern, webhook_url="http://127.0.0.1/")
    with pytest.raises(ValueError, match="webhook"):
        worker(client, names, copies(names)).run(live=False)
    client.subscriptions.delete(names.id)
    with pytest.raises(errors.SubscriptionNotFound):
        worker(client, names, copies(names)).run(live=False)


def test_coroutine_functions_are_workers_of_an_async_client(server: Server, names: Names) -> None:
    async def copied(batch: WakeBatch) -> dict[str, list[Any]]:
        return copies(names)(batch)

    with client_of("async", server.url) as client:
        created(client, names)
        client.stream(names.input()).append(1)
        assert worker(client, names, copied).run(live=False) == 1
        assert values(client, names.out) == [1]


# ---- workers that wait ---------------------------------------------------------------------------


@contextmanager
def running(url: str, names: Names, function: Any, **options: Any) -> Iterator[Any]:
    """Run a worker of a new client in a thread. Its errors are raised at the end."""
    failures: list[BaseException] = []
    with Client(url) as client:
        found = client.subscriptions.worker(names.id, **options)(function)

        def run() -> None:
            try:
                found.run()
            except BaseException as error:  # noqa: BLE001 - raised below
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield found
        finally:
            found.stop()
            thread.join()
    if failures:
        raise failures[0]


def test_a_worker_that_waits_is_woken_and_stopped(server: Server, names: Names) -> None:
    with Client(server.url) as client:
        created(client, names)
        with running(server.url, names, copies(names)):
            for number in range(3):
                client.stream(names.input()).append(number)
                wait_for(lambda: len(values(client, names.out)) > number, "an output")  # noqa: B023
        assert values(client, names.out) == [0, 1, 2]
        before = time.monotonic()
        with running(server.url, names, copies(names)):
            pass
        assert time.monotonic() - before < 10


def test_a_wake_that_takes_longer_than_its_lease_is_kept(server: Server, names: Names) -> None:
    """The heartbeats renew the lease while the function runs."""
    begun = threading.Event()
    may_end = threading.Event()

    def slow(batch: WakeBatch) -> dict[str, list[Any]]:
        begun.set()
        may_end.wait(60)
        return {names.out: [batch.generation]}

    with Client(server.url) as client:
        created(client, names, lease=1)
        with running(server.url, names, slow):
            client.stream(names.input()).append(1)
            assert begun.wait(60)
            until = time.monotonic() + 2.5
            while time.monotonic() < until:
                with pytest.raises(errors.AlreadyClaimed):
                    client.subscriptions.claim(names.id)
                begun.wait(0.01)
            may_end.set()
            wait_for(lambda: values(client, names.out), "an output")
        assert values(client, names.out) == [1]


def test_a_plain_function_of_an_async_client_keeps_its_wake(server: Server, names: Names) -> None:
    """It runs in a thread. In the event loop it would stop the heartbeats."""

    def slow(batch: WakeBatch) -> dict[str, list[Any]]:
        threading.Event().wait(2.5)  # longer than two leases
        return {names.out: [batch.generation]}

    with client_of("async", server.url) as client:
        created(client, names, lease=1)
        client.stream(names.input()).append(1)
        assert worker(client, names, slow).run(live=False) == 1
        assert values(client, names.out) == [1]


def test_a_worker_says_that_it_has_lost_its_wake(
    client: Any, names: Names, caplog: pytest.LogCaptureFixture
) -> None:
    created(client, names)
    client.stream(names.input()).append(1)
    calls = Counter[str]()

    def loses(batch: WakeBatch) -> dict[str, list[Any]]:
        calls["loses"] += 1
        if calls["loses"] == 1:  # as if the lease had expired
            with Client(client.url) as other:
                other.subscriptions.delete(names.id)
                created(other, names)
                other.stream(names.input()).append(2)
        return {names.out: [message.value for message in batch]}

    assert worker(client, names, loses, name="me").run(live=False) == 1
    assert values(client, names.out) == [2]
    (record,) = caplog.records
    assert f"me has lost the wake 1 of the subscription {names.id}" in record.message
    assert "its outputs were dropped" in record.message


def test_a_worker_that_has_lost_its_wake_stores_nothing(server: Server, names: Names) -> None:
    with Client(server.url) as client:
        created(client, names, lease=1)
        client.stream(names.input()).append(1)
        late = client.subscriptions.claim(names.id, worker="late")  # it sends no heartbeats
        with running(server.url, names, copies(names)):
            wait_for(lambda: values(client, names.out), "the output of the next worker")
        with pytest.raises(errors.WakeFenced):
            client.commit(
                producer_id=fresh("p"), seq=0, appends={names.out: [1]}, wakes=[late.acked()]
            )
        assert values(client, names.out) == [1]


def test_a_worker_works_without_the_wake_stream(server: Server, names: Names) -> None:
    with Client(server.url) as client:
        created(client, names)
        client.stream(names.wakes).delete()
        with running(server.url, names, copies(names)):
            client.stream(names.input()).append(1)
            wait_for(lambda: values(client, names.out), "an output")


# ---- exactly once --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "only", ["POST /v1/commits", "POST /v1/stream/__ds/", "POST /v1/producers", "GET "]
)
@pytest.mark.parametrize("fault", ["drop_answer", "duplicate_before", "reset"])
def test_lost_and_repeated_requests_do_not_repeat_outputs(
    server: Server, names: Names, only: str, fault: str
) -> None:
    plan = FaultPlan({fault: 0.4}, only=only, seed=7)
    with Client(server.url) as client, FaultProxy(server.url, plan) as proxy:
        created(client, names, lease=1)
        client.stream(names.input()).append_many(range(20))
        with running(proxy.url, names, copies(names), max_messages=5):
            wait_for(lambda: len(values(client, names.out)) >= 20, "all outputs")
        assert values(client, names.out) == list(range(20))
        assert proxy.counts[fault] > 0


PROGRAM = """
import sys

import semel

url, name, out = sys.argv[1:]
with semel.Client(url) as client:

    @client.subscriptions.worker(name, max_messages=3)
    def copy(batch):
        return {out: [message.value for message in batch]}

    print("ready", flush=True)
    copy.run()
"""


def test_workers_that_are_killed_store_every_output_once(server: Server, names: Names) -> None:
    count, kills = 240, 6

    def started() -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-c", PROGRAM, server.url, names.id, names.out]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    with Client(server.url) as client:
        created(client, names, lease=1)
        workers = [started(), started()]
        try:
            for kill in range(kills + 1):
                numbers = range(kill * count // kills, (kill + 1) * count // kills)
                client.stream(names.input(kill % 2)).create(JSON, exist_ok=True)
                client.stream(names.input(kill % 2)).append_many(numbers)
                target = numbers[len(numbers) // 3]
                wait_for(lambda: len(values(client, names.out)) > target, "outputs")  # noqa: B023
                if kill == kills:
                    break
                workers[kill % 2].send_signal(signal.SIGKILL)
                workers[kill % 2].communicate()
                workers[kill % 2] = started()
            total = (kills + 1) * count // kills
            wait_for(lambda: len(values(client, names.out)) >= total, "all outputs")
        finally:
            for process in workers:
                process.kill()
                process.communicate()
        assert sorted(values(client, names.out)) == list(range(total))


def test_an_async_worker_stops_without_an_error(server: Server, names: Names) -> None:
    import asyncio

    async def run() -> int:
        async with AsyncClient(server.url) as client:
            found = client.subscriptions.worker(names.id)(copies(names))
            task = asyncio.create_task(found.run())
            await client.stream(names.input()).append(1)
            async with client.stream(names.out).tail() as tail:
                await anext(tail)
            found.stop()
            return await task

    with Client(server.url) as client:
        created(client, names)
    assert asyncio.run(asyncio.wait_for(run(), 60)) == 1
