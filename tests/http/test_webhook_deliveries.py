"""Deliveries with a real engine and real receivers: what is delivered, and what comes of it."""

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from semel.broker.engine import Engine
from semel.broker.settings import Settings
from semel.machine.subscribers import Subscription
from semel.machine.subscription_events import WakeRow
from semel.model.commands import Append, Batch, Create, EngineCommand
from semel.model.limits import DELIVERIES_MAX
from semel.model.outcomes import DiskFull, Outcome, Refusal
from semel.model.subscription_commands import (
    WEBHOOK,
    AckWake,
    CreateSubscription,
    DeleteSubscription,
    NoteDelivery,
    ResumeSubscription,
    WakeAck,
)
from semel.server.webhook_client import Times
from semel.server.webhook_deliveries import WebhookDeliveries
from semel.server.webhook_lookups import Lookup
from semel.server.webhook_targets import TargetPolicy, parse_network
from semel.server.webhooks import Webhooks, WebhookSettings
from semel.wire.webhook_signatures import verify
from tests.http.webhook_receivers import DONE, OK, Receiver, late, receiver, wait_for_end
from tests.unit.server.test_webhook_lookups import blocked_names, found

PATIENCE_SECONDS = 30.0
ORIGIN = "http://127.0.0.1:4437"
SETTINGS = Settings(segment_bytes=1 << 20, reserve_bytes=1 << 16)
LOCAL = TargetPolicy(True, (parse_network("127.0.0.0/8"),))
ERROR = b"HTTP/1.1 500 X\r\n\r\n"


async def until(fact: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until a condition is true."""
    end = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < end, "the condition has not become true"
        await asyncio.sleep(0.002)


class Bed:
    """An engine with deliveries."""

    def __init__(self, engine: Engine, deliveries: WebhookDeliveries, webhooks: Webhooks) -> None:
        self.engine = engine
        self.deliveries = deliveries
        self.webhooks = webhooks
        self.commands: list[EngineCommand] = []
        submit = engine.submit

        def recorded(command: EngineCommand, *more: Any) -> None:
            self.commands.append(command)
            submit(command, *more)

        engine.submit = recorded  # type: ignore[assignment,method-assign]

    async def execute(self, command: EngineCommand) -> Outcome:
        outcome = await self.engine.execute(command)
        assert not isinstance(outcome, Refusal), outcome
        return outcome

    async def create(self, path: str) -> None:
        await self.execute(Create(path, self.now_ms, "i", "application/json"))

    async def append(self, path: str, body: bytes = b"1") -> None:
        await self.execute(Append(path, self.now_ms, "application/json", Batch(body)))

    async def subscribe(self, name: str, url: str, *streams: str, lease_ms: int = 30_000) -> None:
        command = CreateSubscription(
            self.now_ms, name, WEBHOOK, streams=streams, url=url, lease_ms=lease_ms
        )
        await self.execute(command)

    @property
    def now_ms(self) -> int:
        return self.engine.clock.now_ms()

    def subscription(self, name: str = "s") -> Subscription:
        return self.engine.broker.state.subscriptions.by_id[name]

    def wake(self, name: str = "s") -> WakeRow:
        return self.subscription(name).wake

    def notes(self) -> list[NoteDelivery]:
        return [each for each in self.commands if isinstance(each, NoteDelivery)]

    def is_done(self, name: str = "s") -> bool:
        return not self.wake(name).wake_id and not self.subscription(name).pending


@asynccontextmanager
async def bed(
    path: Path,
    *,
    attempts_max: int = 100,
    times: Times | None = None,
    lookup: Lookup = socket.getaddrinfo,
    drain_seconds: float = 0.0,
    count_max: int = DELIVERIES_MAX,
) -> AsyncIterator[Bed]:
    engine = await Engine.open(str(path / "data"), SETTINGS)
    settings = WebhookSettings(
        key_file=str(path / "webhook.key"), policy=LOCAL, attempts_max=attempts_max
    )
    webhooks = Webhooks(settings, ORIGIN)
    deliveries = WebhookDeliveries(
        engine, webhooks, count_max=count_max, times=times, lookup=lookup
    )
    it = Bed(engine, deliveries, webhooks)
    deliveries.start()
    try:
        yield it
    finally:
        await deliveries.drain(drain_seconds)
        await engine.close()


def play(story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(2 * PATIENCE_SECONDS):
            await story()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


# ---- a delivery ----------------------------------------------------------------------------------


def test_a_wake_is_delivered_signed_and_acked_by_done(tmp_path: Path) -> None:
    async def story() -> None:
        with receiver(DONE) as hook:
            async with bed(tmp_path) as it:
                await it.create("a/b")
                await it.subscribe("my hook", hook.url, "a/b")
                await it.append("a/b")
                await until(lambda: it.is_done("my hook"))
                assert hook.count == 1
                head, _, body = hook.requests[0].partition(b"\r\n\r\n")
                keys = it.webhooks.keys
                lines = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
                assert lines["Content-Type"] == "application/json"
                now_s = it.now_ms // 1000
                assert verify(body, lines["Webhook-Signature"], keys.jwks(now_s), now_s)
                wake = json.loads(body)
                token = wake.pop("callback_token")
                assert keys.is_token_of(token, "my hook") == (wake["wake_id"], 1)
                assert wake.pop("wake_id").startswith("w_")
                assert wake == {
                    "subscription_id": "my hook",
                    "generation": 1,
                    "streams": [
                        {
                            "path": "a/b",
                            "link_type": "explicit",
                            "acked_offset": "0000000000000000_0000000000000000",
                            "tail_offset": "0000000000000000_0000000000000001",
                            "has_pending": True,
                        }
                    ],
                    "callback_url": f"{ORIGIN}/v1/stream/__ds/subscriptions/my%20hook/callback",
                }

    play(story)


def test_another_success_begins_a_lease_and_is_not_repeated(tmp_path: Path) -> None:
    async def story() -> None:
        with receiver(OK) as hook:
            async with bed(tmp_path) as it:
                await it.create("a")
                await it.subscribe("s", hook.url, "a", lease_ms=1_000)
                await it.append("a")
                await until(it.notes)
                first = it.wake()
                assert first.wake_id
                assert (it.notes()[0].error, it.engine.broker.wakes.leased) == (None, 1)
                await until(lambda: hook.count == 2)  # after the lease
                assert it.wake().generation == 2
                assert it.wake().wake_id != first.wake_id

    play(story)


def test_a_callback_before_the_response_ends_the_wake(tmp_path: Path) -> None:
    async def story() -> None:
        event = threading.Event()
        with receiver(late(event)) as hook:
            async with bed(tmp_path) as it:
                await it.create("a")
                await it.subscribe("s", hook.url, "a")
                await it.append("a")
                await until(lambda: hook.requests)
                wake = it.wake()
                ack = WakeAck("s", wake.wake_id, wake.generation, (("a", 1),), done=True)
                await it.execute(AckWake(it.now_ms, ack, WEBHOOK))
                await it.append("a")
                await until(lambda: it.wake().generation == 2)
                assert hook.count == 1  # one at a time
                event.set()
                await until(lambda: len(hook.requests) == 2)
                second = json.loads(hook.bodies()[1])
                assert (second["generation"], second["wake_id"]) == (2, it.wake().wake_id)

    play(story)


def test_what_follows_a_snapshot_is_in_the_next_wake(tmp_path: Path) -> None:
    async def story() -> None:
        event = threading.Event()
        with receiver(late(event, DONE)) as hook:
            async with bed(tmp_path) as it:
                await it.create("a")
                await it.subscribe("s", hook.url, "a")
                for _ in range(5):
                    await it.append("a")
                await until(lambda: hook.requests)
                event.set()
                await until(it.is_done)
                tails = [json.loads(each)["streams"][0]["tail_offset"] for each in hook.bodies()]
                assert tails == sorted(set(tails))
                assert tails[-1].endswith("5")
                assert hook.count <= 2

    play(story)


# ---- failures ------------------------------------------------------------------------------------


def test_the_same_wake_is_delivered_again_after_a_failure(tmp_path: Path) -> None:
    async def story() -> None:
        with receiver(ERROR) as hook:
            async with bed(tmp_path) as it:
                await it.create("a")
                await it.subscribe("s", hook.url, "a")
                await it.append("a")
                await until(lambda: it.wake().attempts == 1)
                assert it.wake().error == "status 500"
                await until(lambda: it.wake().attempts == 2)
                one, other = (json.loads(each) for each in hook.bodies())
                assert one == other
                hook._answer = DONE
                await until(it.is_done)
                assert it.wake().attempts == 0

    play(story)


def test_retry_after_is_respected_and_bounded(tmp_path: Path) -> None:
    async def story() -> None:
        answer = b"HTTP/1.1 429 Later\r\nRetry-After: %d\r\n\r\n"
        with receiver(answer % 7) as hook, receiver(answer % 10**9) as other:
            async with bed(tmp_path) as it:
                await it.create("a")
                await it.subscribe("s", hook.url, "a")
                await it.subscribe("t", other.url, "a")
                await it.append("a")
                await until(lambda: len(it.notes()) == 2)
                assert {each.id: (each.error, each.retry_after_ms) for each in it.notes()} == {
                    "s": ("status 429", 7_000),
                    "t": ("status 429", 3_600_000),
                }

    play(story)


def test_a_redirect_is_a_failure(tmp_path: Path) -> None:
    async def story() -> None:
        with receiver(DONE) as secret:
            moved = b"HTTP/1.1 307 R\r\nLocation: %b\r\n\r\n" % secret.url.encode()
            with receiver(moved) as hook:
                async with bed(tmp_path) as it:
                    await it.create("a")
                    await it.subscribe("s", hook.url, "a")
                    await it.append("a")
                    await until(lambda: it.wake().attempts == 1)
                    assert it.wake().error == "status 307; redirects are not followed"
                    assert secret.count == 0

    play(story)


def test_a_url_that_is_no_longer_allowed_fails_without_a_connection(tmp_path: Path) -> None:
    async def story() -> None:
        with receiver(DONE) as hook:
            async with bed(tmp_path) as it:
                await it.create("a")
                # As a server that listened on loopback before has stored them.
                for name, url in {
                    "address": "http://10.0.0.1/",
                    "name": f"https://user:secret@127.0.0.1:{hook.port}/?token=secret",
                    "plain": "http://169.254.169.254/",
                }.items():
                    await it.subscribe(name, url, "a")
                await it.append("a")
                await until(lambda: len(it.notes()) == 3)
                errors = {each.id: each.error for each in it.notes()}
                assert errors["address"] == "the address is private"
                assert errors["name"] == "the URL has a user name or a password"
                assert errors["plain"] == "the address is for metadata of machines in a cloud"
                assert "secret" not in str(errors)
                assert hook.count == 0

    play(story)


def test_after_the_maximum_of_attempts_nothing_is_delivered_until_it_is_resumed(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        with receiver(ERROR) as hook:
            async with bed(tmp_path, attempts_max=2) as it:
                await it.create("a")
                await it.subscribe("s", hook.url, "a")
                await it.append("a")
                await until(lambda: it.wake().is_suspended)
                assert (hook.count, it.wake().attempts) == (2, 2)
                await it.append("a")
                hook._answer = DONE
                assert not it.engine.broker.wakes.is_deliverable("s")
                await it.execute(ResumeSubscription(it.now_ms, "s"))
                await until(it.is_done)
                assert hook.count >= 3

    play(story)


def test_a_response_after_the_time_is_a_failure(tmp_path: Path) -> None:
    async def story() -> None:
        event = threading.Event()
        with receiver(late(event, DONE)) as hook:
            async with bed(tmp_path, times=Times(1.0, 0.3)) as it:
                await it.create("a")
                await it.subscribe("s", hook.url, "a")
                await it.append("a")
                await until(lambda: it.wake().attempts == 1)
                assert it.wake().error == "no complete response within 0.3 seconds"
                event.set()
                assert it.wake().wake_id
                await until(it.is_done)  # the second delivery is answered in time

    play(story)


def test_a_subscription_that_is_deleted_during_its_delivery_leaves_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        event = threading.Event()
        with receiver(late(event, DONE)) as hook:
            async with bed(tmp_path) as it:
                await it.create("a")
                await it.subscribe("s", hook.url, "a")
                await it.append("a")
                await until(lambda: hook.requests)
                await it.execute(DeleteSubscription(it.now_ms, "s"))
                await it.subscribe("s", hook.url, "a")
                await it.append("a")
                event.set()
                await until(it.is_done)
                assert [json.loads(each)["generation"] for each in hook.bodies()] == [1, 1]
                await until(lambda: it.deliveries._slots.in_flight == 0)

    play(story)


def test_a_late_failure_is_not_one_of_a_new_subscription_with_the_same_id(tmp_path: Path) -> None:
    async def story() -> None:
        event = threading.Event()
        answers = iter((ERROR, DONE))

        def answer(line: socket.socket) -> None:
            late(event, next(answers))(line)

        with receiver(answer) as hook:
            async with bed(tmp_path, attempts_max=1) as it:
                await it.create("a")
                await it.subscribe("s", hook.url, "a")
                await it.append("a")
                await until(lambda: hook.requests)
                await it.execute(DeleteSubscription(it.now_ms, "s"))
                await it.subscribe("s", hook.url, "a")
                await it.append("a")
                wake = it.wake()
                event.set()
                await until(lambda: bool(it.notes()))
                assert it.notes()[0].wake_id != wake.wake_id
                await until(it.is_done)  # one failure would have suspended it

    play(story)


def test_a_result_that_a_full_disk_refuses_is_submitted_again(tmp_path: Path) -> None:
    async def story() -> None:
        with receiver(ERROR) as hook:
            async with bed(tmp_path) as it:
                await it.create("a")
                await it.subscribe("s", hook.url, "a")
                submit = it.engine.submit
                refused: list[EngineCommand] = []

                def full(command: EngineCommand, reply: Any, *more: Any) -> None:
                    if isinstance(command, NoteDelivery) and not refused:
                        refused.append(command)
                        reply(DiskFull())
                    else:
                        submit(command, reply, *more)

                it.engine.submit = full  # type: ignore[assignment,method-assign]
                await it.append("a")
                await until(lambda: it.wake().attempts == 1)
                assert hook.count == 1
                await until(lambda: it.wake().attempts == 2)

    play(story)


def test_without_keys_the_failure_is_stored(tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "webhook.key"
        path.write_bytes(b"")
        path.chmod(0o600)
        with receiver(DONE) as hook:
            path.unlink()
            async with bed(tmp_path) as it:
                await it.create("a")
                await it.subscribe("s", hook.url, "a")
                path.write_bytes(b"{}")
                path.chmod(0o600)
                await it.append("a")
                await until(lambda: it.wake().attempts == 1)
                assert it.wake().error == "the server has no keys for webhooks"
                path.unlink()
                await until(it.is_done)
                assert os.stat(path).st_mode & 0o777 == 0o600

    play(story)


def test_a_thread_that_cannot_be_started_is_a_failed_delivery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_file() -> None:
        raise OSError(24, "Too many open files")

    async def story() -> None:
        with receiver(DONE) as hook:
            async with bed(tmp_path) as it:
                await it.create("a")
                await it.subscribe("s", hook.url, "a")
                with monkeypatch.context() as patch:
                    patch.setattr("semel.server.webhook_sender.uvloop.new_event_loop", no_file)
                    await it.append("a")
                    await until(lambda: it.wake().attempts == 1)
                expected = "the server has too few files or threads for webhooks"
                assert it.wake().error == expected
                await until(it.is_done)

    play(story)


# ---- slow and dead targets -----------------------------------------------------------------------


def test_200_dead_targets_do_not_delay_a_healthy_one(tmp_path: Path) -> None:
    async def story() -> None:
        with receiver(wait_for_end, host="0.0.0.0") as dead, receiver(DONE) as hook:
            async with bed(tmp_path) as it:
                await it.create("a")
                await it.create("b")
                for number in range(200):
                    url = f"http://127.0.1.{number}:{dead.port}/"
                    await it.subscribe(f"dead{number}", url, "a")
                await it.subscribe("s", hook.url, "b")
                await it.append("a")
                await until(lambda: dead.count == 200)
                for count in range(1, 21):
                    started = time.monotonic()
                    await it.append("b")
                    await until(lambda: it.is_done() and hook.count == count)  # noqa: B023
                    assert time.monotonic() - started < 5  # a dead one takes 10
                await until(lambda: it.deliveries._slots.in_flight == 200)

    play(story)


def test_fast_targets_that_all_become_dead_do_not_delay_another_one(tmp_path: Path) -> None:
    """There is room for 3 fast ones and 4 slow ones."""
    gate = threading.Event()

    def answer(line: socket.socket) -> None:
        if gate.is_set():
            wait_for_end(line)
        else:
            line.sendall(DONE)

    async def story() -> None:
        with receiver(answer, host="0.0.0.0") as dead, receiver(DONE) as hook:
            async with bed(tmp_path, count_max=10) as it:
                await it.create("a")
                await it.create("b")
                await it.subscribe("s", hook.url, "b")
                names = [f"dead{number}" for number in range(6)]
                for number, name in enumerate(names):
                    await it.subscribe(name, f"http://127.0.1.{number}:{dead.port}/", "a")
                await it.append("a")
                await it.append("b")
                await until(lambda: all(map(it.is_done, [*names, "s"])))
                gate.set()
                await it.append("a")
                await until(lambda: it.deliveries._slots.in_flight == 3)
                started = time.monotonic()
                await it.append("b")
                await until(lambda: hook.count == 2)
                assert time.monotonic() - started < 8  # a dead one takes 10

    play(story)


def test_dead_targets_on_one_host_leave_the_others(tmp_path: Path) -> None:
    async def story() -> None:
        with receiver(wait_for_end) as dead, receiver(DONE) as hook:
            async with bed(tmp_path) as it:
                await it.create("a")
                await it.subscribe("s", hook.url, "a")
                for number in range(300):
                    await it.subscribe(f"dead{number}", dead.url, "a")
                await it.append("a")
                await until(it.is_done)
                await until(lambda: dead.count == 64)
                await until(lambda: it.deliveries._slots.in_flight == 64)

    play(story)


def test_names_that_cannot_be_looked_up_do_not_delay_others(tmp_path: Path) -> None:
    """Their lookups block, as those of unreachable name servers."""
    with blocked_names() as names, receiver(DONE) as hook:

        def lookup(name: str, port: None, *, type: int) -> Any:
            found_there = names(name, port, type=type)
            return found("127.0.0.1") if found_there else found_there

        async def story() -> None:
            async with bed(tmp_path, lookup=lookup) as it:
                await it.create("a")
                await it.create("b")
                await it.subscribe("s", hook.url.replace("127.0.0.1", "good.example"), "b")
                await it.append("b")
                await until(it.is_done)
                for number in range(200):
                    await it.subscribe(f"dead{number}", f"https://dead{number}.example/", "a")
                await it.append("a")
                await until(lambda: len(names.calls) == 1 + 8)
                for count in range(2, 12):
                    started = time.monotonic()
                    await it.append("b")
                    await until(lambda: it.is_done() and hook.count == count)  # noqa: B023
                    assert time.monotonic() - started < 5
            names.release()

        play(story)


# ---- start and stop ------------------------------------------------------------------------------


def test_a_stop_waits_a_short_time_for_responses(tmp_path: Path) -> None:
    async def story() -> None:
        event = threading.Event()
        with receiver(late(event, DONE)) as hook:
            async with bed(tmp_path) as it:
                await it.create("a")
                await it.subscribe("s", hook.url, "a")
                await it.append("a")
                await until(lambda: hook.requests)
                draining = asyncio.create_task(it.deliveries.drain(PATIENCE_SECONDS))
                await asyncio.sleep(0)
                await it.append("a")  # is not delivered any more
                event.set()
                await draining
                assert next(iter(it.subscription().links.values())).acked == 1
                assert hook.count == 1

    play(story)


def test_what_has_no_response_at_a_stop_is_delivered_again(tmp_path: Path) -> None:
    async def story() -> None:
        with receiver(wait_for_end) as hook:
            async with bed(tmp_path) as it:
                await it.create("a")
                await it.subscribe("s", hook.url, "a")
                await it.append("a")
                await until(lambda: hook.requests)
                wake = it.wake()
            hook._answer = DONE
            async with bed(tmp_path) as it:
                await until(it.is_done)
                one, other = (json.loads(each) for each in hook.bodies())
                assert one == other
                assert (one["wake_id"], one["generation"]) == (wake.wake_id, wake.generation)

    play(story)


def test_without_deliveries_there_is_no_thread_and_no_key(tmp_path: Path) -> None:
    async def story() -> None:
        before = {each.name for each in threading.enumerate()}
        async with bed(tmp_path) as it:
            await it.create("a")
            started = {each.name for each in threading.enumerate()} - before
            assert not any("webhook" in name or "lookup" in name for name in started)
        assert not (tmp_path / "webhook.key").exists()

    play(story)


def test_the_thread_ends_with_the_deliveries(tmp_path: Path) -> None:
    async def story() -> None:
        with receiver(wait_for_end) as hook:
            async with bed(tmp_path) as it:
                await it.create("a")
                await it.subscribe("s", hook.url, "a")
                await it.append("a")
                await until(lambda: hook.requests)
            assert "semel-webhooks" not in {each.name for each in threading.enumerate()}

    play(story)


def test_keys_that_are_replaced_sign_the_next_delivery(tmp_path: Path) -> None:
    async def story() -> None:
        with receiver(DONE) as hook:
            async with bed(tmp_path) as it:
                await it.create("a")
                await it.subscribe("s", hook.url, "a")
                await it.append("a")
                await until(it.is_done)
                old = it.webhooks.keys
                new = type(old).rotate(str(tmp_path / "webhook.key"), it.now_ms // 1000)
                files = it.webhooks._files
                it.deliveries.replace(type(files)(new, files.context))
                await it.append("a")
                await until(lambda: len(hook.requests) == 2)
                for each, keys in zip(hook.requests, (old, new), strict=True):
                    assert f"kid={keys.kid}".encode() in each

    play(story)


def test_many_wakes_are_all_delivered(tmp_path: Path) -> None:
    """2,000 wakes of 200 subscriptions, to a receiver that fails or is slow now and then."""

    async def story() -> None:
        count = 0

        def answer(line: socket.socket) -> None:
            nonlocal count
            count += 1
            if count % 50:
                line.sendall(DONE)
            elif count % 100:
                line.sendall(ERROR)

        with receiver(answer) as hook:
            async with bed(tmp_path) as it:
                for number in range(200):
                    await it.create(f"a{number}")
                    await it.subscribe(f"s{number}", hook.url, f"a{number}")
                for _ in range(10):
                    await asyncio.gather(*[it.append(f"a{number}") for number in range(200)])
                await until(lambda: all(it.is_done(f"s{number}") for number in range(200)), 50)
                await until(lambda: it.deliveries._slots.in_flight == 0)

    play(story)


def is_free(hook: Receiver) -> bool:
    with suppress(OSError), socket.create_connection((hook.host, hook.port), 1):
        return False
    return True


def test_the_helper_closes_its_port() -> None:
    with receiver() as hook:
        assert not is_free(hook)
    assert is_free(hook)
