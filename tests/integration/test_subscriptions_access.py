"""Workers and receivers with the rights that the page says they need, and no more."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from semel import Client, errors
from semel.client.subscription_values import WakeBatch
from semel.webhooks import receiver
from tests.integration.asgi import served, wait_for
from tests.integration.test_subscriptions_client import JSON, Names, copies, values
from tests.integration.test_webhook_receiver import Application
from tests.integration.token_server import TokenServer, token_server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenServer]:
    data = tmp_path_factory.mktemp("access") / "data"
    with token_server(data, "--webhook-allow", "127.0.0.0/8") as it:
        yield it


@pytest.fixture
def names() -> Names:
    return Names()


@pytest.fixture
def admin(guarded: TokenServer) -> Iterator[Client]:
    with Client(guarded.url, token=guarded.admin) as it:
        yield it


def prepared(admin: Client, names: Names) -> None:
    for path in (names.wakes, names.out, names.input()):
        admin.stream(path).create(JSON)


def token(guarded: TokenServer, *scopes: str, principal: str = "worker") -> str:
    given = [part for scope in scopes for part in ("--scope", scope)]
    return guarded.create(*given, "--principal", principal)


def test_a_worker_needs_only_the_rights_on_its_things(
    guarded: TokenServer, admin: Client, names: Names
) -> None:
    prepared(admin, names)
    rights = [
        f"subscription:{names.id}:create,write,describe",
        f"stream:{names.base}/*:read",
        f"stream:{names.wakes}:read,write",
        f"stream:{names.out}:write,describe",
    ]
    with Client(guarded.url, token=token(guarded, *rights)) as client:
        client.subscriptions.create(names.id, pattern=names.pattern, wake_stream=names.wakes)
        admin.stream(names.input()).append(1)
        worker = client.subscriptions.worker(names.id)(copies(names))
        assert worker.run(live=False) == 1
        assert values(admin, names.out) == [1]
        admin.stream(names.input()).append(2)
        wake = client.subscriptions.claim(names.id)
    other = token(guarded, f"stream:{names.base}/*:read", principal="other")
    with Client(guarded.url, token=other) as stranger:
        for call in (
            lambda: stranger.subscriptions.show(names.id),
            lambda: stranger.subscriptions.claim(names.id),
        ):
            with pytest.raises((errors.SubscriptionNotFound, errors.Forbidden)):
                call()
        wake = type(wake)(stranger, wake.wake)  # the token of the wake is enough to ack it
        assert wake.done() is False


def test_a_worker_that_may_not_read_a_stream_says_so_and_ends(
    guarded: TokenServer, admin: Client, names: Names
) -> None:
    """What it may not see looks deleted. Without an error, wakes would follow for ever."""
    prepared(admin, names)
    admin.stream(names.input(1)).create(JSON)
    rights = [
        f"subscription:{names.id}:write,describe",
        f"stream:{names.input()}:read",
        f"stream:{names.wakes}:read",
        f"stream:{names.out}:write",
    ]
    admin.subscriptions.create(names.id, pattern=names.pattern, wake_stream=names.wakes)
    admin.access.change_owner("subscription", names.id, "reader")
    admin.stream(names.input(1)).append("secret")
    admin.stream(names.input()).append(1)
    with Client(guarded.url, token=token(guarded, *rights, principal="reader")) as client:
        worker = client.subscriptions.worker(names.id, retries=2, backoff=0.001)(copies(names))
        with pytest.raises(errors.StreamNotFound, match=f"{names.input(1)}.*right 'read'"):
            worker.run(live=False)
    assert values(admin, names.out) == [1], "what it may read is processed"
    assert admin.subscriptions.show(names.id).generation < 9


def test_a_receiver_that_may_not_read_a_stream_fails_its_deliveries(
    guarded: TokenServer, admin: Client, names: Names
) -> None:
    prepared(admin, names)
    app = Application(guarded.url, copies(names), token=token(guarded, f"stream:{names.out}:write"))
    with served(app) as url:
        admin.subscriptions.create(names.id, pattern=names.pattern, webhook_url=url)
        admin.stream(names.input()).append(1)
        wait_for(lambda: admin.subscriptions.show(names.id).attempts, "a failed delivery")
        info = admin.subscriptions.show(names.id)
        assert (info.last_error, info.generation) == ("status 500", 2)


def test_a_receiver_acks_with_the_token_of_the_delivery(
    guarded: TokenServer, admin: Client, names: Names
) -> None:
    prepared(admin, names)
    rights = [f"stream:{names.base}/*:read", f"stream:{names.out}:write,describe"]
    app = Application(
        guarded.url, copies(names), token=token(guarded, *rights), subscriptions=[names.id]
    )
    with served(app) as url:
        admin.subscriptions.create(names.id, pattern=names.pattern, webhook_url=url)
        admin.stream(names.input()).append(1)
        wait_for(lambda: values(admin, names.out), "an output")
        wait_for(lambda: not admin.subscriptions.show(names.id).pending_count, "an ack")
    assert values(admin, names.out) == [1]


def test_a_receiver_that_may_not_ask_for_the_lease_keeps_its_wake(
    guarded: TokenServer, admin: Client, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "ANSWER_SECONDS", 0.1)
    prepared(admin, names)
    rights = [f"stream:{names.base}/*:read", f"stream:{names.out}:write"]

    def slow(batch: WakeBatch) -> dict[str, list[Any]]:
        threading.Event().wait(2.5)  # longer than two leases
        return {names.out: [batch.generation]}

    app = Application(guarded.url, slow, token=token(guarded, *rights), subscriptions=[names.id])
    with served(app) as url:
        admin.subscriptions.create(names.id, pattern=names.pattern, webhook_url=url, lease=1)
        admin.stream(names.input()).append(1)
        wait_for(lambda: values(admin, names.out), "an output")
    assert values(admin, names.out) == [1]
