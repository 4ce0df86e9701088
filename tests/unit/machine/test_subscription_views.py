"""Views of subscriptions: what requests, deliveries and claims show."""

import pytest
from msgspec.structs import replace

from semel.machine.subscription_events import MATCHED, NAMED, NEVER_ACKED
from semel.machine.subscription_views import (
    ACTIVE,
    FAILED,
    SUSPENDED,
    ClaimView,
    DeliveryView,
    LinkView,
    claim_view,
    delivery_view,
    status_of,
    subscription_page,
    subscription_view,
)
from semel.model.commands import Trim
from tests.unit.machine.builders import append, create
from tests.unit.machine.subscription_builders import (
    URL,
    ack,
    claim_wake,
    failed,
    hook,
    pull,
    unlink,
    wake_machine,
)
from tests.unit.machine.topic_builders import create_topic
from tests.unit.machine.txn_builders import begin, publish


def test_a_subscription_is_shown_with_its_streams() -> None:
    machine = wake_machine(hook("h", "s", "none", pattern="a/*"), create("a/1"), append())
    machine.execute(begin(streams=("s", "r")))
    machine.execute(publish(seq=0))
    view = subscription_view(machine.state, "h")
    assert view is not None
    assert (view.id, view.row, view.wake) == ("h", machine.subscription().row, machine.wake())
    assert (view.status, view.stream_count, view.pending_count) == (ACTIVE, 2, 1)
    assert view.streams == (
        LinkView("none", NAMED, NEVER_ACKED, None, has_pending=False),
        LinkView("s", NAMED, 0, 1, has_pending=True),  # the second message is not stable
        LinkView("a/1", MATCHED, NEVER_ACKED, 0, has_pending=False),
    )
    assert view.streams_next is None
    assert subscription_view(machine.state, "x") is None


def test_a_name_that_is_now_that_of_a_topic_is_shown_without_a_stream() -> None:
    machine = wake_machine(hook("h", "t"), create_topic("t", 1))
    view = subscription_view(machine.state, "h")
    assert view is not None
    assert view.streams == (LinkView("t", NAMED, NEVER_ACKED, None, has_pending=False),)


def test_streams_are_shown_in_pages_by_their_numbers() -> None:
    paths = [f"a/{number}" for number in (3, 1, 2, 0, 4)]
    machine = wake_machine(hook("h", "none", pattern="a/*"), *map(create, paths))
    shown: list[list[str]] = []
    after: int | None = 0
    while after is not None:
        view = subscription_view(machine.state, "h", after, 2)
        assert view is not None
        assert (view.stream_count, view.pending_count) == (5, 0)
        shown.append([each.path for each in view.streams])
        after = view.streams_next
    assert shown == [["none", "a/3", "a/1"], ["a/2", "a/0"], ["a/4"]]


def test_the_last_page_of_streams_has_no_next_one() -> None:
    machine = wake_machine(hook("h", pattern="a/*"), create("a/1"), create("a/2"))
    view = subscription_view(machine.state, "h", 0, 2)
    assert view is not None
    assert (len(view.streams), view.streams_next) == (2, None)


@pytest.mark.parametrize(("attempts_max", "status"), [(9, FAILED), (1, SUSPENDED)])
def test_the_status_says_what_became_of_the_last_delivery(attempts_max: int, status: str) -> None:
    machine = wake_machine(hook("h", "s"), append(), failed(attempts_max=attempts_max))
    assert status_of(machine.wake()) == status
    machine.execute(ack())
    assert status_of(machine.wake()) == ACTIVE


def test_subscriptions_are_listed_by_id_in_pages() -> None:
    names = ["b/2", "a", "b/1", "c", "b/3"]
    state = wake_machine(*(hook(name, "s") for name in names)).state
    page = subscription_page(state, limit=9)
    assert [view.id for view in page.subscriptions] == sorted(names)
    assert page.next is None
    assert all(view.stream_count == 1 and view.streams == () for view in page.subscriptions)
    first = subscription_page(state, prefix="b/", limit=2)
    assert [view.id for view in first.subscriptions] == ["b/1", "b/2"]
    assert first.next == "b/2"
    last = subscription_page(state, prefix="b/", after="b/2", limit=2)
    assert [view.id for view in last.subscriptions] == ["b/3"]
    assert last.next is None
    assert subscription_page(state, prefix="b/", limit=3).next is None


def test_a_list_leaves_out_what_the_caller_may_not_see() -> None:
    state = wake_machine(*(hook(name, "s") for name in "abcde")).state
    page = subscription_page(state, limit=2, may_see=lambda name: name in "bde")
    assert [view.id for view in page.subscriptions] == ["b", "d"]
    assert page.next == "d"
    page = subscription_page(state, limit=2, after="d", may_see=lambda name: name == "b")
    assert (page.subscriptions, page.next) == ((), None)


def test_a_delivery_has_the_snapshot_of_its_wake() -> None:
    machine = wake_machine(hook("h", "s"), pull("p", "s"), append(), append())
    stream = LinkView("s", NAMED, 0, 1, has_pending=True)
    expected = DeliveryView("h", "w_h_1", 1, URL, (stream,))
    assert delivery_view(machine.state, "h") == expected
    machine.execute(append())
    machine.execute(failed())
    assert delivery_view(machine.state, "h") == expected, "the same wake again"
    machine.execute(ack(("s", 1)))
    acked = replace(stream, acked=1, has_pending=False)
    assert delivery_view(machine.state, "h") == replace(expected, streams=(acked,))


def test_what_was_trimmed_or_unlinked_since_then_is_not_pending_in_a_delivery() -> None:
    machine = wake_machine(hook("h", "s", "r"))
    machine.issues = False
    machine.execute(append())
    machine.execute(append(path="r"))
    machine.issue("h")
    machine.execute(Trim("s", 0, 1))
    machine.execute(unlink("r"))
    view = delivery_view(machine.state, "h")
    assert view is not None
    assert view.streams == (LinkView("s", NAMED, 0, 1, has_pending=False),)


def test_nothing_is_delivered_without_a_wake_of_a_webhook() -> None:
    machine = wake_machine(hook("h", "s"), pull("p", "s"))
    for name in ("h", "p", "x"):
        assert delivery_view(machine.state, name) is None
    machine.execute(append())
    assert delivery_view(machine.state, "p") is None
    assert delivery_view(machine.state, "h") is not None


def test_a_claim_has_the_snapshot_of_its_wake_too() -> None:
    machine = wake_machine(pull("p", "s"), append())
    assert claim_view(machine.state, "p") is None
    assert claim_view(machine.state, "x") is None
    machine.execute(claim_wake("é"))
    stream = LinkView("s", NAMED, 0, 1, has_pending=True)
    assert claim_view(machine.state, "p") == ClaimView("p", "w_p_1", 1, "é", 30_000, (stream,))
