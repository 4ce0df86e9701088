"""A server that is killed at every step of a wake: nothing is forgotten, nothing wakes again.

Each test has one directory and one step, and kills the server there three times, with all that
comes before it. After each start it checks what the server has stored, lets everything be processed
that is left, and checks that nothing wakes then. `tests/wakes/lives.py` has the checks.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.wakes import lives
from tests.wakes.calls import Lost
from tests.wakes.dying import STEPS, DyingServer
from tests.wakes.lives import LEASE_MS, SHORT_LEASE_MS
from tests.wakes.mutants import MUTANTS, Mutant, forget_wakes_in_flight
from tests.wakes.pull_life import PullLife
from tests.wakes.receivers import Receiver
from tests.wakes.webhook_life import WebhookLife

pytestmark = pytest.mark.crash

KILLS: Final = 3
REQUEST_SENT: Final = "request sent"  # the receiver has the request, and kills the server

PULL_STEPS: Final = (
    "append decided",
    "append durable",
    "wake decided",
    "wake durable",
    "claim received",
    "claim decided",
    "claim durable",
    "ack received",
    "ack decided",
    "ack durable",
    "done decided",
    "done durable",
    "next wake decided",
    "next wake durable",
    "release received",
    "release decided",
    "release durable",
    "commit received",
    "commit decided",
    "commit durable",
    "expiry decided",
    "expiry durable",
)

# The steps, by the way in which the receiver answers.
WEBHOOK_STEPS: Final = {
    "done": (
        "append decided",
        "append durable",
        "wake decided",
        "wake durable",
        REQUEST_SENT,
        "response with done received",
        "done decided",
        "done durable",
        "next wake decided",
        "next wake durable",
    ),
    "failure": ("failure received", "failure decided", "failure durable"),
    "callback": (
        "response received",
        "callback received",
        "ack decided",
        "ack durable",
        "done decided",
        "done durable",
    ),
    "commit": ("commit received", "commit decided", "commit durable"),
    "expiry": ("expiry decided", "expiry durable"),
}


def live(server: DyingServer, life: PullLife | WebhookLife, act: Callable[[], None]) -> None:
    """Start the server if it is not there, check it, process what is left, and then act."""
    life.connect(server.url)
    life.check()
    life.settle()
    act()


def die_again_and_again(
    server: DyingServer, life: PullLife | WebhookLife, step: str, act: Callable[[], None]
) -> None:
    """Let the server be killed at a step some times, and check it after each start."""
    server.start()
    life.connect(server.url)
    life.prepare()
    server.kill()
    for _ in range(KILLS):
        if isinstance(life, WebhookLife):
            life.hold()
        with pytest.raises(Lost):
            server.start(step if step in STEPS else None)
            live(server, life, act)
        server.wait()
    if isinstance(life, WebhookLife):
        life.hold()
    server.start()
    live(server, life, lambda: None)
    server.kill()
    # Once more, without anything that is pending: there must be no wake.
    server.start()
    life.connect(server.url)
    life.check_idle()
    server.kill()
    assert server.reached == {step: KILLS}


@pytest.fixture
def server(tmp_path: Path) -> DyingServer:
    return DyingServer(tmp_path / "data")


@pytest.mark.parametrize("step", PULL_STEPS)
def test_a_kill_at_a_step_of_a_pull_wake_forgets_nothing_and_wakes_nothing_again(
    server: DyingServer, step: str
) -> None:
    is_short = step.startswith("expiry") or step == "claim durable"
    life = PullLife(SHORT_LEASE_MS if is_short else LEASE_MS)
    act = life.live_expiry if step.startswith("expiry") else life.live
    try:
        die_again_and_again(server, life, step, act)
    finally:
        server.kill()


@pytest.mark.parametrize(
    ("way", "step"), [(way, step) for way, steps in WEBHOOK_STEPS.items() for step in steps]
)
def test_a_kill_at_a_step_of_a_webhook_forgets_nothing_and_wakes_nothing_again(
    server: DyingServer, way: str, step: str
) -> None:
    with Receiver() as receiver:
        life = WebhookLife(receiver, SHORT_LEASE_MS if way == "expiry" else LEASE_MS)

        def act() -> None:
            if step == REQUEST_SENT:
                life.live_killed(lambda: server.kill(step))
            else:
                {
                    "done": life.live_done,
                    "failure": life.live_failure,
                    "callback": life.live_callback,
                    "commit": life.live_commit,
                    "expiry": life.live_expiry,
                }[way]()

        try:
            die_again_and_again(server, life, step, act)
        finally:
            server.kill()


# ---- the checks can fail -------------------------------------------------------------------------


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.__name__ for mutant in MUTANTS])
def test_a_bug_of_the_server_is_found(
    mutant: Mutant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives, "PATIENCE_SECONDS", 3.0)
    server = DyingServer(tmp_path / "data", mutant)
    with Receiver() as receiver:
        webhook, pull = WebhookLife(receiver, LEASE_MS), PullLife(LEASE_MS)
        try:
            with pytest.raises(AssertionError, match=MUTANTS[mutant]):
                if mutant is forget_wakes_in_flight:
                    die_again_and_again(server, webhook, "wake durable", webhook.live_done)
                else:
                    die_again_and_again(server, pull, "commit durable", pull.live)
        finally:
            server.kill()


def test_every_step_at_which_a_server_can_kill_itself_is_a_step_of_some_test() -> None:
    tested = {*PULL_STEPS, *(step for steps in WEBHOOK_STEPS.values() for step in steps)}
    assert tested - {REQUEST_SENT} == STEPS.keys()
