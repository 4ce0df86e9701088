"""Bugs of the server that the tests of kills must find. Each is put into the server's process."""

import importlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from semel.broker.wakes import Wakes
from semel.machine import subscriptions
from semel.machine.events import Decision
from semel.machine.state import State
from semel.machine.txn import apply_end
from semel.model.subscription_commands import IssueWake

Mutant = Callable[[], None]


def forget_wakes_in_flight() -> None:
    """Do not continue with the wakes that were in flight at the end of the process (W11)."""
    Wakes._resume = lambda *_: None  # type: ignore[method-assign]


def announce_nothing() -> None:
    """Issue wakes without their message in the wake stream (W2)."""

    def decide_issue(state: State, command: IssueWake) -> Decision:
        return msgspec.structs.replace(subscriptions.decide_issue(state, command), sections=())

    # Not by an import statement: the package has a function with the name of the module.
    deciders = vars(importlib.import_module("semel.machine.decide"))["_DECIDERS"]
    assert deciders[IssueWake] is subscriptions.decide_issue
    deciders[IssueWake] = decide_issue


def fence_nobody() -> None:
    """Accept every wake id and generation (W5)."""

    def find_wake(state: State, name: str, *_: object, **__: object) -> object:
        return state.subscriptions.by_id[name]

    _replace(subscriptions, "_find_wake", find_wake)


def commit_without_acks() -> None:
    """Store the messages of a commit, and not its acks (W12)."""
    _replace(apply_end, "apply_all_acked", lambda *_: None)


def _replace(module: Any, name: str, function: Callable[..., object]) -> None:
    assert callable(vars(module)[name]), "it is elsewhere now"
    vars(module)[name] = function


# Each bug, and what the check that finds it says.
MUTANTS: Final[dict[Mutant, str]] = {
    forget_wakes_in_flight: "something is forgotten",
    announce_nothing: "the wake is forgotten",
    fence_nobody: "a late worker is not fenced",
    commit_without_acks: "is acked up to",
}
