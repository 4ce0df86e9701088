"""The reference model of subscriptions against `subscriptions.md`, about one test per rule."""

import json

import pytest
from msgspec.structs import replace

from semel.model import commands as ask
from semel.model import outcomes as out
from semel.model import outcomes_access as access_out
from semel.model import outcomes_subscriptions as sub_out
from semel.model import outcomes_topics as topic_out
from semel.model import outcomes_txn as txn_out
from semel.model import subscription_commands as sub_ask
from semel.model.commands import Batch, Commit, CommitAppend, EngineCommand
from semel.model.outcomes import Outcome
from semel.model.subscription_commands import PULL_WAKE, WEBHOOK, WakeAck
from semel.model.topic_commands import CreateTopic
from tests.sim.reference import Model
from tests.sim.reference_txn import Bounds
from tests.unit.machine.builders import JSON, append, create, fork

URL = "https://example.com/hook"
MINUTE_MS = 60_000


def webhook(
    *streams: str, name: str = "a", pattern: str | None = None, now: int = 0
) -> sub_ask.CreateSubscription:
    return sub_ask.CreateSubscription(now, name, WEBHOOK, pattern, streams, URL)


def pull(*streams: str, name: str = "a", pattern: str | None = None) -> sub_ask.CreateSubscription:
    return sub_ask.CreateSubscription(0, name, PULL_WAKE, pattern, streams, None, "w")


WAKES = create("w", kind=JSON)
IN = create("s", batch=Batch(b"m"))


def issue(name: str = "a", wake_id: str = "w_1", now: int = 0) -> sub_ask.IssueWake:
    return sub_ask.IssueWake(now, name, wake_id)


def claim(worker: str = "one", name: str = "a") -> sub_ask.ClaimWake:
    return sub_ask.ClaimWake(0, name, worker)


def wake_ack(
    *acks: tuple[str, int], wake_id: str = "w_1", generation: int = 1, done: bool = False
) -> WakeAck:
    return WakeAck("a", wake_id, generation, acks, done)


def ack(
    *acks: tuple[str, int], wake_id: str = "w_1", generation: int = 1, done: bool = False
) -> sub_ask.AckWake:
    return sub_ask.AckWake(0, wake_ack(*acks, wake_id=wake_id, generation=generation, done=done))


def failed(attempts_max: int = 100, generation: int = 1) -> sub_ask.NoteDelivery:
    return sub_ask.NoteDelivery(0, "a", generation, "status 500", attempts_max)


def model_of(*commands: EngineCommand, bounds: Bounds | None = None) -> Model:
    model = Model(bounds=bounds)
    for command in commands:
        assert not isinstance(model.execute(command), out.Refusal), command
    return model


def unchanged(model: Model, command: EngineCommand) -> Outcome:
    """Execute a command that must not change the state, and return its outcome."""
    before = model.view()
    outcome = model.execute(command)
    assert model.view() == before
    return outcome


def acked(model: Model, name: str = "a") -> dict[str, int | None]:
    """Return how far the streams of a subscription are acked."""
    paths = {stream.number: path for path, stream in model.streams.items()}
    links = model.subscriptions.by_id[name].links
    return {paths[number]: link.acked for number, link in links.items()}


def kinds(model: Model, path: str) -> tuple[bool, bool]:
    linked = model.subscriptions.link_of(model.subscriptions.by_id["a"], path)
    assert linked is not None
    return linked[1].is_named, linked[1].is_matched


def is_due(model: Model, name: str = "a") -> bool:
    return model.subscriptions.is_due(model.subscriptions.by_id[name])


@pytest.fixture
def at_work() -> Model:
    """Return a model with a wake of `a`, which a worker has claimed: 3 messages of `s`."""
    return model_of(
        WAKES,
        create("s"),
        create("t"),
        pull("s", "t"),
        *[append(path="s")] * 3,
        issue(),
        claim(),
    )


# ---- U: streams ----------------------------------------------------------------------------------


def test_the_same_creation_changes_nothing() -> None:
    model = model_of(webhook("s", "t"))
    again = webhook("t", "s", "s", now=9)
    assert unchanged(model, again) == sub_out.SubscriptionCreated("a", is_new=False)
    other = replace(again, lease_ms=5_000)
    assert unchanged(model, other) == sub_out.SubscriptionExists()


def test_the_same_creation_ends_a_suspension() -> None:
    model = model_of(create("s"), webhook("s"), append(path="s"), issue(), failed(1))
    assert model.subscriptions.by_id["a"].is_suspended
    model.execute(webhook("s"))
    subscription = model.subscriptions.by_id["a"]
    assert not subscription.is_suspended
    assert subscription.wake is not None
    assert subscription.wake.attempts == 0


def test_subscriptions_links_and_names_have_limits() -> None:
    bounds = Bounds(subscriptions=1, subscription_links=1, subscription_names=2)
    model = model_of(create("s"), create("t"), bounds=bounds)
    both = webhook(pattern="*")
    assert unchanged(model, both) == out.LimitReached("subscription_streams", 1)
    model.execute(webhook("s"))
    assert unchanged(model, webhook("s", name="b")) == out.LimitReached("subscriptions", 1)
    link = sub_ask.LinkStreams(0, "a", ("x", "y"))
    assert unchanged(model, link) == out.LimitReached("subscription_names", 2)


@pytest.mark.parametrize(
    "command", [create("w"), create("w", kind=JSON, closed=True), create("other")]
)
def test_a_wake_stream_is_an_open_stream_of_json(command: ask.Create) -> None:
    model = model_of(command)
    assert isinstance(unchanged(model, pull("s")), sub_out.WakeStreamRefused)


def test_a_wake_stream_is_no_partition_and_not_the_servers() -> None:
    model = model_of(CreateTopic("w", 0, "i", 1, JSON), create("__semel/w", kind=JSON))
    for path in ("w", "w/0", "__semel/w"):
        refusal = unchanged(model, replace(pull("s"), wake_stream=path))
        assert isinstance(refusal, sub_out.WakeStreamRefused)


def test_a_wake_stream_is_none_of_the_streams() -> None:
    model = model_of(WAKES, create("s"))
    assert unchanged(model, pull("w")) == out.InvalidRequest("streams")
    model.execute(pull(pattern="*"))
    assert acked(model) == {"s": 0}
    link = sub_ask.LinkStreams(0, "a", ("w",))
    assert unchanged(model, link) == out.InvalidRequest("streams")


def test_names_of_topics_and_of_the_server_are_refused() -> None:
    model = model_of(CreateTopic("o", 0, "i", 2, JSON))
    refusal = unchanged(model, webhook("o"))
    assert refusal == txn_out.StreamRefused("o", topic_out.IsTopic())
    refusal = unchanged(model, webhook("__semel/audit"))
    assert refusal == txn_out.StreamRefused("__semel/audit", access_out.ReservedPath())
    model.execute(webhook(pattern="o/*"))
    assert acked(model) == {"o/0": 0, "o/1": 0}


def test_streams_that_exist_are_linked_at_their_stable_offset() -> None:
    begin = ask.Begin(0, "t", ask.ProducerOwner("p", 0), ask.TXN_INLINE, None, (), True)
    tag = ask.TxnTag("t", 1)
    inside = replace(append(by=ask.ProducerTag("p", 0, 0, 0)), transaction=tag)
    model = model_of(create("s"), append(path="s"), begin, inside, webhook("s", "later"))
    assert model.streams["s"].tail == 2
    assert acked(model) == {"s": 1}
    assert not is_due(model)


def test_a_new_stream_is_linked_without_an_ack() -> None:
    model = model_of(webhook("x", pattern="s/*"), create("s/1", batch=Batch(b"m")), create("x"))
    assert acked(model) == {"s/1": None, "x": None}
    assert (kinds(model, "s/1"), kinds(model, "x")) == ((False, True), (True, False))
    assert is_due(model)


def test_partitions_are_linked_and_a_topic_is_not() -> None:
    model = model_of(webhook(pattern="**"), CreateTopic("o", 0, "i", 2, JSON))
    assert acked(model) == {"o/0": None, "o/1": None}


def test_what_a_fork_inherits_is_pending() -> None:
    model = model_of(create("s"), append(path="s"), webhook("f"), fork(path="f"))
    assert acked(model) == {"f": None}
    assert is_due(model)


def test_a_link_that_is_there_becomes_named_and_keeps_its_ack() -> None:
    model = model_of(create("s"), webhook(pattern="s"), append(path="s"))
    model.execute(sub_ask.LinkStreams(0, "a", ("s",)))
    assert (acked(model), kinds(model, "s")) == ({"s": 0}, (True, True))
    model.execute(sub_ask.UnlinkStream(0, "a", "s"))
    assert (acked(model), kinds(model, "s")) == ({"s": 0}, (False, True))
    again = sub_ask.UnlinkStream(0, "a", "s")
    assert unchanged(model, again) == sub_out.LinksChanged()


def test_a_stream_that_is_only_named_is_unlinked() -> None:
    model = model_of(create("s"), webhook("s", "t"), append(path="s"))
    model.execute(sub_ask.UnlinkStream(0, "a", "s"))
    assert acked(model) == {}
    assert not is_due(model)


@pytest.mark.parametrize("is_soft", [False, True])
def test_a_stream_that_is_deleted_loses_its_links_and_keeps_its_name(is_soft: bool) -> None:
    model = model_of(create("s"), webhook("s"), *([fork()] if is_soft else []), append(path="s"))
    model.execute(ask.Delete("s", 0))
    assert acked(model) == {}
    assert not is_due(model)
    assert model.subscriptions.by_id["a"].names == {"s"}


def test_a_stream_that_is_created_again_is_linked_again() -> None:
    model = model_of(create("s"), webhook("s"), ask.Delete("s", 0), IN)
    assert acked(model) == {"s": None}


def test_a_subscription_that_is_deleted_is_unknown() -> None:
    model = model_of(create("s"), webhook("s"))
    assert model.execute(sub_ask.DeleteSubscription(0, "a")) == sub_out.SubscriptionDeleted()
    for command in (sub_ask.DeleteSubscription(0, "a"), claim(), ack(), issue(), failed()):
        assert unchanged(model, command) == sub_out.UnknownSubscription()


def test_a_subscription_that_is_created_again_begins_again(at_work: Model) -> None:
    at_work.execute(sub_ask.DeleteSubscription(0, "a"))
    at_work.execute(pull("s", "t"))
    assert at_work.subscriptions.by_id["a"].generation == 0
    assert unchanged(at_work, ack(("s", 3))) == sub_out.Fenced("a", 0)


# ---- W: wakes ------------------------------------------------------------------------------------


def test_a_wake_has_the_stable_offsets_of_what_is_pending() -> None:
    model = model_of(create("s"), create("t"), webhook("s", "t"), append(path="t"))
    model.execute(issue(now=7))
    subscription = model.subscriptions.by_id["a"]
    assert subscription.generation == 1
    assert subscription.wake is not None
    assert subscription.wake.snapshot == ((2, 1),)
    assert unchanged(model, issue(wake_id="w_2")) == sub_out.WakeChanged()


def test_a_snapshot_has_a_limit() -> None:
    streams = [create(path) for path in "stuv"]
    appends = [append(path=path) for path in "stuv"]
    model = model_of(*streams, webhook(pattern="*"), *appends, bounds=Bounds(wake_streams=2))
    model.execute(issue())
    wake = model.subscriptions.by_id["a"].wake
    assert wake is not None
    assert wake.snapshot == ((1, 1), (2, 1))
    model.execute(ack(done=True))
    model.execute(issue(wake_id="w_2"))
    assert model.subscriptions.by_id["a"].wake is not None
    assert [number for number, _ in model.subscriptions.by_id["a"].wake.snapshot] == [3, 4]
    model.execute(ack(wake_id="w_2", generation=2, done=True))
    model.execute(issue(wake_id="w_3"))
    assert [number for number, _ in model.subscriptions.by_id["a"].wake.snapshot] == [1, 2]


def test_what_was_trimmed_wakes_nobody() -> None:
    model = model_of(create("s"), webhook("s"), append(path="s"), ask.Trim("s", 0, 1))
    assert not is_due(model)


def test_the_message_about_a_wake_is_in_its_frame() -> None:
    model = model_of(WAKES, create("s/ü"), pull("s/ü"), append(path="s/ü"), issue(now=7))
    ((_, body),) = model.messages("w")
    named = {"subscription_id": "a", "stream": "s/ü", "generation": 1}
    assert json.loads(body) == {"type": "wake", **named, "ts": 7}


@pytest.mark.parametrize("end", [ask.Delete("w", 0), ask.Append("w", 0, JSON, close=True)])
def test_a_wake_without_its_wake_stream_can_be_claimed(end: EngineCommand) -> None:
    model = model_of(WAKES, create("s"), pull("s"), append(path="s"), end, issue())
    assert model.messages("w") == []
    assert model.execute(claim()) == sub_out.WakeClaimed("w_1", 1)


def test_a_wake_is_claimed_by_one_worker() -> None:
    model = model_of(WAKES, create("s"), pull("s"))
    assert unchanged(model, claim()) == sub_out.NoPendingWork()
    model.execute(append(path="s"))
    assert unchanged(model, claim()) == out.DiskFull()
    model.execute(issue())
    assert model.execute(claim()) == sub_out.WakeClaimed("w_1", 1)
    assert unchanged(model, claim("two")) == sub_out.AlreadyClaimed("one", 1)


def test_a_wake_of_a_webhook_cannot_be_claimed_or_released() -> None:
    model = model_of(create("s"), webhook("s"), append(path="s"), issue())
    assert unchanged(model, claim()) == sub_out.WrongType(WEBHOOK)
    release = sub_ask.ReleaseWake(0, "a", "w_1", 1)
    assert unchanged(model, release) == sub_out.WrongType(WEBHOOK)


def test_the_checks_of_an_ack_have_an_order(at_work: Model) -> None:
    late = replace(ack(wake_id="w_0"), type=WEBHOOK, has_token=False)
    assert unchanged(at_work, late) == sub_out.WrongType(PULL_WAKE)
    assert unchanged(at_work, replace(late, type=PULL_WAKE)) == sub_out.TokenInvalid()
    assert unchanged(at_work, replace(late, type=None, has_token=True)) == sub_out.Fenced("a", 1)
    assert unchanged(at_work, ack(generation=2)) == sub_out.Fenced("a", 1)


def test_a_wake_that_nobody_has_claimed_cannot_be_acked() -> None:
    model = model_of(WAKES, create("s"), pull("s"), append(path="s"), issue())
    assert unchanged(model, ack(("s", 1))) == sub_out.Fenced("a", 1)


@pytest.mark.parametrize(
    ("acks", "path"),
    [
        ([("s", 2), ("u", 0)], "u"),
        ([("s", 2), ("s", 2)], "s"),
        ([("t", 0), ("s", 4)], "s"),
        ([("s", -1)], "s"),
    ],
)
def test_one_invalid_pair_refuses_all(
    at_work: Model, acks: list[tuple[str, int]], path: str
) -> None:
    assert unchanged(at_work, ack(*acks)) == sub_out.InvalidOffset("a", path)


def test_an_ack_does_not_move_back(at_work: Model) -> None:
    at_work.execute(ack(("s", 2)))
    assert unchanged(at_work, ack(("s", 1))) == sub_out.InvalidOffset("a", "s")
    assert acked(at_work) == {"s": 2, "t": 0}


def test_a_stream_that_is_newer_than_the_wake_is_not_acked(at_work: Model) -> None:
    at_work.execute(ask.Delete("s", 0))
    at_work.execute(IN)
    assert unchanged(at_work, ack(("s", 1))) == sub_out.InvalidOffset("a", "s")


def test_nor_is_it_if_it_was_named_again(at_work: Model) -> None:
    again = (ask.Delete("s", 0), sub_ask.UnlinkStream(0, "a", "s"), create("s"))
    for command in (*again, sub_ask.LinkStreams(0, "a", ("s",)), append(path="s")):
        at_work.execute(command)
    assert acked(at_work) == {"s": 0, "t": 0}
    assert unchanged(at_work, ack(("s", 1))) == sub_out.InvalidOffset("a", "s")


def test_an_ack_that_changes_nothing_writes_nothing(at_work: Model) -> None:
    assert unchanged(at_work, ack()) == sub_out.WakeAcked(next_wake=False)
    assert unchanged(at_work, ack(("t", 0))) == sub_out.WakeAcked(next_wake=False)


def test_a_wake_that_is_done_is_followed_by_the_next(at_work: Model) -> None:
    assert at_work.execute(ack(("s", 2), done=True)) == sub_out.WakeAcked(next_wake=True)
    assert is_due(at_work)
    assert unchanged(at_work, ack(("s", 3))) == sub_out.Fenced("a", 1)
    at_work.execute(issue(wake_id="w_2"))
    at_work.execute(claim())
    last = ack(("s", 3), wake_id="w_2", generation=2, done=True)
    assert at_work.execute(last) == sub_out.WakeAcked(next_wake=False)


def test_a_response_with_done_acks_the_snapshot() -> None:
    streams = [create(path) for path in "stu"]
    appends = [append(path=path) for path in "stu"]
    model = model_of(*streams, webhook("s", "t", "u"), *appends, issue(), append(path="s"))
    model.execute(ack(("t", 1)))
    model.execute(ask.Delete("u", 0))
    response = replace(ack(done=True), by_snapshot=True)
    assert model.execute(response) == sub_out.WakeAcked(next_wake=True)
    assert acked(model) == {"s": 1, "t": 1}


def test_a_release_ends_the_wake(at_work: Model) -> None:
    release = sub_ask.ReleaseWake(0, "a", "w_1", 1)
    assert unchanged(at_work, replace(release, has_token=False)) == sub_out.TokenInvalid()
    assert at_work.execute(release) == sub_out.WakeChanged()
    assert is_due(at_work)
    assert unchanged(at_work, release) == sub_out.Fenced("a", 1)


def test_a_lease_ends_the_wake(at_work: Model) -> None:
    early = sub_ask.ExpireWake(0, "a", 1, 29_999)
    assert unchanged(at_work, early) == out.StillAlive()
    assert unchanged(at_work, replace(early, generation=0)) == sub_out.Fenced("a", 1)
    assert at_work.execute(replace(early, elapsed_ms=30_000)) == sub_out.WakeChanged()
    assert is_due(at_work)


def test_failed_deliveries_suspend_and_keep_the_wake() -> None:
    model = model_of(create("s"), webhook("s"), append(path="s"), issue(), failed(2))
    subscription = model.subscriptions.by_id["a"]
    assert (subscription.attempts, subscription.is_suspended) == (1, False)
    model.execute(failed(2))
    assert (subscription.attempts, subscription.is_suspended) == (2, True)
    assert subscription.wake is not None
    assert not is_due(model)
    model.execute(sub_ask.ResumeSubscription(0, "a"))
    assert (subscription.attempts, subscription.is_suspended) == (0, False)
    resume = sub_ask.ResumeSubscription(0, "a")
    assert unchanged(model, resume) == sub_out.WakeChanged()


@pytest.mark.parametrize("sign", [sub_ask.NoteDelivery(0, "a", 1, None), ack(), ack(("s", 1))])
def test_a_sign_of_the_receiver_ends_a_suspension(sign: EngineCommand) -> None:
    model = model_of(create("s"), webhook("s"), append(path="s"), issue(), failed(1), sign)
    subscription = model.subscriptions.by_id["a"]
    assert (subscription.attempts, subscription.is_suspended) == (0, False)
    assert subscription.wake is not None


def test_only_deliveries_of_the_wake_in_flight_are_recorded(at_work: Model) -> None:
    assert unchanged(at_work, failed()) == sub_out.WrongType(PULL_WAKE)
    model = model_of(create("s"), webhook("s"), append(path="s"), issue())
    assert unchanged(model, failed(generation=0)) == sub_out.Fenced("a", 1)
    other = sub_ask.NoteDelivery(0, "a", 1, None, wake_id="w_other")
    assert unchanged(model, other) == sub_out.Fenced("a", 1)
    fine = sub_ask.NoteDelivery(0, "a", 1, None, wake_id="w_1")
    assert unchanged(model, fine) == sub_out.WakeChanged()


# ---- W12: commits --------------------------------------------------------------------------------


def commit(*wakes: WakeAck, seq: int = 0) -> Commit:
    appends = (CommitAppend("t", "text/plain", Batch(b"out")),)
    return Commit(0, "p", 0, seq, appends=appends, wakes=wakes)


def test_a_commit_stores_its_output_with_the_ack(at_work: Model) -> None:
    assert isinstance(at_work.execute(commit(wake_ack(("s", 3), done=True))), txn_out.CommitDone)
    assert acked(at_work) == {"s": 3, "t": 0}
    assert [body for _, body in at_work.messages("t")] == [b"out"]


def test_a_commit_whose_ack_is_refused_stores_nothing(at_work: Model) -> None:
    late = commit(wake_ack(("s", 3), wake_id="w_0"))
    assert unchanged(at_work, late) == sub_out.Fenced("a", 1)
    wrong = commit(wake_ack(("s", 4)))
    assert unchanged(at_work, wrong) == sub_out.InvalidOffset("a", "s")
    twice = commit(wake_ack(("s", 1)), wake_ack(("s", 2)))
    assert unchanged(at_work, twice) == out.InvalidRequest("subscriptions")
    other = commit(replace(wake_ack(), id="nobody"))
    assert unchanged(at_work, other) == sub_out.UnknownSubscription("nobody")


def test_a_commit_does_not_ack_what_it_appends_itself(at_work: Model) -> None:
    at_work.execute(append(path="t"))
    beyond = commit(wake_ack(("t", 2)))
    assert unchanged(at_work, beyond) == sub_out.InvalidOffset("a", "t")


def test_a_repeated_commit_is_not_fenced(at_work: Model) -> None:
    first = commit(wake_ack(("s", 3), done=True))
    at_work.execute(first)
    again = unchanged(at_work, first)
    assert isinstance(again, txn_out.CommitDone)
    assert again.is_duplicate


def test_the_commit_of_a_transaction_acks_too(at_work: Model) -> None:
    begin = ask.Begin(0, "x", ask.ProducerOwner("p", 0), ask.TXN_INLINE, None, (), True)
    at_work.execute(begin)
    late = ask.CommitTxn(0, "x", 1, wakes=(wake_ack(("s", 3), generation=0),))
    assert unchanged(at_work, late) == sub_out.Fenced("a", 1)
    at_work.execute(replace(late, wakes=(wake_ack(("s", 3)),)))
    assert acked(at_work) == {"s": 3, "t": 0}


def test_a_commit_can_consist_of_acks_only(at_work: Model) -> None:
    only = replace(commit(wake_ack(("s", 3))), appends=())
    assert isinstance(at_work.execute(only), txn_out.CommitDone)
    assert acked(at_work) == {"s": 3, "t": 0}
