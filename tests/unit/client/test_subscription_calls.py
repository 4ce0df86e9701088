"""The calls about subscriptions and wakes, run without a network."""

from typing import Any

import pytest

from semel.client import errors
from semel.client import subscription_calls as calls
from semel.client.commit_calls import Parts
from semel.client.commit_sequence import CommitSequence
from semel.client.flows import Lost
from semel.client.known_streams import KnownStreams
from semel.client.requests import Request, fixed_lines, render
from semel.client.response_parser import Response
from semel.client.subscription_calls import SubscriptionConfig
from semel.client.subscription_values import (
    PULL_WAKE,
    WEBHOOK,
    AckedWake,
    WakeBatch,
    WakeInfo,
    WakeStream,
)
from semel.client.subscription_work import (
    Committed,
    UnreadStreams,
    WakeSource,
    WorkerSettings,
    commit_wake,
    read_wake,
)
from semel.client.txn_calls import TransactionCalls
from semel.client.values import Message, Registration
from semel.model.messages import JSON_MEDIA_TYPE
from semel.model.offsets import print_offset
from semel.model.slices import Slice
from semel.wire.bodies import encode_frames
from semel.wire.headers import FRAMES
from tests.unit.client.hand import SITE, Played, answer, body_of, document, play, problem

LOST = Lost("gone")
WEBHOOK_CONFIG = SubscriptionConfig(pattern="orders/*", webhook_url="https://example.com/")
INFO = {"id": "billing", "type": WEBHOOK, "generation": 3}
WAKE = WakeInfo("billing", "w_1", 7, "secret", [WakeStream("a", "-1", print_offset(2))])


def control_error(status: int, code: str, **facts: Any) -> Any:
    """Return an error response as it is below `/v1/stream/__ds/`."""
    return document({"error": {"code": code, "message": "no", **facts}}, status)


# ---- subscriptions -------------------------------------------------------------------------------


def test_a_creation_sends_what_was_given_and_nothing_else() -> None:
    flow = calls.create_subscription(SITE, "a/b", WEBHOOK_CONFIG, exist_ok=False)
    played = Played(flow, [document(INFO, 201)])
    (sent,) = played.sends
    assert sent.request.method == "PUT"
    assert sent.request.target == "/v1/stream/__ds/subscriptions/a%2Fb"
    webhook = {"url": "https://example.com/"}
    assert body_of(sent) == {"type": WEBHOOK, "pattern": "orders/*", "webhook": webhook}
    assert (played.result.id, played.result.generation) == ("billing", 3)


def test_a_pull_wake_subscription_has_a_wake_stream_and_a_lease() -> None:
    config = SubscriptionConfig(streams=("a",), wake_stream="wakes", lease_ttl_ms=5000)
    played = Played(
        calls.create_subscription(SITE, "x", config, exist_ok=True), [document(INFO, 200)]
    )
    assert body_of(played.sends[0]) == {
        "type": PULL_WAKE,
        "streams": ["a"],
        "wake_stream": "wakes",
        "lease_ttl_ms": 5000,
    }


@pytest.mark.parametrize(
    "config",
    [
        SubscriptionConfig(pattern="a"),
        SubscriptionConfig(pattern="a", webhook_url="https://b/", wake_stream="w"),
        SubscriptionConfig(wake_stream="w"),
        SubscriptionConfig(streams=("a", "w"), wake_stream="w"),
        SubscriptionConfig(pattern="a", wake_stream="w", lease_ttl_ms=999),
        SubscriptionConfig(pattern="a", wake_stream="w", lease_ttl_ms=600_001),
    ],
)
def test_a_configuration_that_cannot_be_right_is_not_sent(config: SubscriptionConfig) -> None:
    reason = r"pass|w is the wake stream|from 1 to 600 seconds"
    with pytest.raises((ValueError, errors.BadRequest), match=reason):
        play(calls.create_subscription(SITE, "x", config, exist_ok=False))


def test_an_equal_subscription_is_an_error_unless_it_may_exist_or_was_created_by_this_call() -> (
    None
):
    def create(*replies: Any, exist_ok: bool = False) -> Played:
        flow = calls.create_subscription(SITE, "x", WEBHOOK_CONFIG, exist_ok=exist_ok)
        return Played(flow, replies)

    refused = create(document(INFO, 200)).error
    assert isinstance(refused, errors.SubscriptionExists)
    assert create(document(INFO, 200), exist_ok=True).result.id == "billing"
    assert create(LOST, document(INFO, 200)).result.id == "billing"
    other = create(control_error(409, "SUBSCRIPTION_ALREADY_EXISTS"), exist_ok=True).error
    assert isinstance(other, errors.SubscriptionExists)


def test_a_server_without_subscriptions_is_recognised() -> None:
    for reply in (problem(404, "reserved_path"), answer(404), answer(405)):
        refused = Played(calls.show_subscription(SITE, "x"), [reply]).error
        assert isinstance(refused, errors.NotSupported)
    missing = control_error(404, "SUBSCRIPTION_NOT_FOUND")
    refused = Played(calls.show_subscription(SITE, "x"), [missing]).error
    assert isinstance(refused, errors.SubscriptionNotFound)


def test_what_does_not_exist_is_named() -> None:
    missing = control_error(404, "SUBSCRIPTION_NOT_FOUND")
    wake = WakeInfo("billing", "w", 1, "t")
    for flow in (
        calls.show_subscription(SITE, "billing"),
        calls.link_streams(SITE, "billing", ["a"]),
        calls.unlink_streams(SITE, "billing", ["a"]),
        calls.resume_subscription(SITE, "billing"),
        calls.claim_wake(SITE, "billing", "me"),
        calls.ack_wake(SITE, wake, wake.acked()),
        calls.release_wake(SITE, wake),
    ):
        refused = Played(flow, [missing]).error
        assert isinstance(refused, errors.SubscriptionNotFound)
        assert refused.message == "there is no subscription billing"
        assert (refused.status, refused.code) == (404, "SUBSCRIPTION_NOT_FOUND")


def test_an_id_is_a_text() -> None:
    with pytest.raises(TypeError, match="not a int"):
        play(calls.show_subscription(SITE, 5))  # type: ignore[arg-type]


def test_the_list_must_make_progress() -> None:
    page = document({"subscriptions": [INFO], "next": "billing"})
    played = Played(calls.list_subscriptions(SITE, "b", None), [page])
    assert played.sends[0].request.target == ("/v1/stream/__ds/subscriptions?prefix=b&limit=1000")
    assert [each.id for each in played.result.subscriptions] == ["billing"]
    stuck = Played(calls.list_subscriptions(SITE, "", "billing"), [page])
    assert isinstance(stuck.error, errors.ProtocolError)


def test_a_path_with_slashes_is_one_segment_of_the_address() -> None:
    played = Played(calls.unlink_streams(SITE, "x", ["a/b", "c"]), [answer(204), answer(204)])
    assert [sent.request.target for sent in played.sends] == [
        "/v1/stream/__ds/subscriptions/x/streams/a%2Fb",
        "/v1/stream/__ds/subscriptions/x/streams/c",
    ]
    with pytest.raises(ValueError, match="empty"):
        play(calls.unlink_streams(SITE, "", ["a"]))


# ---- wakes ---------------------------------------------------------------------------------------


def test_a_claim_returns_the_wake_with_its_token() -> None:
    claimed = {"wake_id": "w_1", "generation": 7, "token": "secret", "lease_ttl_ms": 5000}
    wake = play(calls.claim_wake(SITE, "billing", "me"), document({**claimed, "streams": []}))
    assert (wake.wake_id, wake.generation, wake.token, wake.lease_ttl_ms) == (
        "w_1",
        7,
        "secret",
        5000,
    )
    assert "secret" not in repr(wake) + repr(wake.acked())


@pytest.mark.parametrize(
    ("holder", "replies", "applied"),
    [("me", 1, errors.NO), ("me", 2, errors.UNKNOWN), ("other", 2, errors.NO)],
)
def test_a_claim_whose_response_is_lost_has_perhaps_claimed_the_wake(
    holder: str, replies: int, applied: str
) -> None:
    taken = control_error(409, "ALREADY_CLAIMED", current_holder=holder, generation=7)
    played = Played(calls.claim_wake(SITE, "billing", "me"), [LOST, taken][-replies:])
    assert isinstance(played.error, errors.AlreadyClaimed)
    assert (played.error.current_holder, played.error.generation) == (holder, 7)
    assert played.error.applied == applied


def test_an_ack_has_the_token_of_the_wake_and_not_that_of_the_client() -> None:
    ack = WAKE.acked({"a": 2})
    played = Played(calls.ack_wake(SITE, WAKE, ack), [document({"ok": True, "next_wake": True})])
    (sent,) = played.sends
    assert played.result is True
    assert sent.request.target == "/v1/stream/__ds/subscriptions/billing/ack"
    assert body_of(sent) == {
        "wake_id": "w_1",
        "generation": 7,
        "acks": [{"stream": "a", "offset": print_offset(2)}],
        "done": True,
    }
    fixed = fixed_lines(SITE.address, [("Authorization", "Bearer own"), ("X-Other", "1")])
    lines = render(sent.request, fixed).split(b"\r\n")
    assert b"Authorization: Bearer secret" in lines
    assert b"Authorization: Bearer own" not in lines
    assert b"X-Other: 1" in lines
    plain = render(Request("GET", "/"), fixed)
    assert b"Authorization: Bearer own" in plain


def test_a_renewal_sends_neither_offsets_nor_an_end_and_a_webhook_calls_back() -> None:
    wake = WakeInfo("billing", "w_1", 7, "secret", type=WEBHOOK)
    renewal = wake.acked({}, done=False)
    played = Played(calls.ack_wake(SITE, wake, renewal), [document({"ok": True})])
    assert played.sends[0].request.target.endswith("/billing/callback")
    assert body_of(played.sends[0]) == {"wake_id": "w_1", "generation": 7}


@pytest.mark.parametrize("is_release", [True, False])
def test_a_fenced_repeat_does_not_say_that_nothing_was_applied(is_release: bool) -> None:
    def end(*replies: Any) -> Played:
        flow = (
            calls.release_wake(SITE, WAKE)
            if is_release
            else calls.ack_wake(SITE, WAKE, WAKE.acked())
        )
        return Played(flow, replies)

    fenced = control_error(409, "FENCED", generation=8)
    first, second = end(fenced).error, end(LOST, fenced).error
    assert isinstance(first, errors.WakeFenced)
    assert isinstance(second, errors.WakeFenced)
    assert (first.applied, second.applied) == (errors.NO, errors.UNKNOWN)
    assert first.generation == 8


# ---- acks in commits -----------------------------------------------------------------------------


def registered() -> Any:
    return document({"producer_id": "p", "producer_epoch": 0}, 201)


def committed(**members: Any) -> Any:
    return document({"duplicate": False, "streams": {}, "offsets": {}, **members})


def test_a_commit_says_how_far_the_streams_of_a_wake_are() -> None:
    sequence = CommitSequence(KnownStreams(SITE))
    played = Played(
        sequence.commit(Parts(wakes=[WAKE.acked({"a": 2})])), [registered(), committed()]
    )
    assert body_of(played.sends[1])["subscriptions"] == {
        "billing": {
            "wake_id": "w_1",
            "generation": 7,
            "acks": [{"stream": "a", "offset": print_offset(2)}],
            "done": True,
            "token": "secret",
        }
    }


def test_a_commit_without_wakes_is_as_it_was() -> None:
    sequence = CommitSequence(KnownStreams(SITE))
    played = Played(
        sequence.commit(Parts(offsets={"g": {"a": (0, 1)}})), [registered(), committed()]
    )
    assert "subscriptions" not in body_of(played.sends[1])


def test_two_wakes_of_one_subscription_cannot_be_in_one_commit() -> None:
    sequence = CommitSequence(KnownStreams(SITE))
    with pytest.raises(ValueError, match="two wakes"):
        play(sequence.commit(Parts(wakes=[WAKE.acked(), WAKE.acked()])), registered())


def test_the_commit_of_a_transaction_has_its_wakes() -> None:
    txn = TransactionCalls(SITE, "t", "inline", 60)
    began = document({"transaction_id": "t", "transaction_epoch": 1, "state": "open"}, 201)
    play(txn.begin(Registration("p", 0), []), began)
    txn.add_wake(WAKE.acked({}))
    with pytest.raises(ValueError, match="two wakes"):
        txn.add_wake(WAKE.acked({}))
    fenced = problem(409, "FENCED", generation=8, subscription="billing")
    refused = Played(txn.commit(), [fenced])
    assert isinstance(refused.error, errors.WakeFenced)
    assert refused.error.subscription == "billing"
    assert txn.state == "open"
    play(txn.commit(), committed())
    assert "subscriptions" in body_of(refused.sends[0])


BATCH = WakeBatch("billing", 7, [Message(b"1", "application/json")] * 4, {"a": print_offset(2)})


OUTPUTS: dict[str, list[Any]] = {"g": []}


def commit(
    *replies: Any, outputs: dict[str, list[Any]] = OUTPUTS, batch: WakeBatch | None = None
) -> Committed:
    streams = KnownStreams(SITE)
    streams.calls("g").content_type = JSON_MEDIA_TYPE
    return play(commit_wake(CommitSequence(streams), WAKE, batch or BATCH, outputs), *replies)


def test_without_outputs_the_wake_is_only_acked() -> None:
    fenced = control_error(409, "FENCED", generation=8)
    assert commit(document({"ok": True}), outputs={}) == Committed(4)
    assert commit(fenced, outputs={}) == Committed(is_fenced=True)
    assert commit(LOST, fenced, outputs={}) == Committed(4)  # the first one has ended it


def test_what_has_become_of_a_batch() -> None:
    assert commit(registered(), committed()) == Committed(4)
    assert commit(registered(), LOST, committed(duplicate=True)) == Committed(4)
    fenced = problem(409, "FENCED", generation=8)
    assert commit(registered(), fenced) == Committed(is_fenced=True)
    large = problem(413, "body_too_large")
    assert commit(registered(), large) == Committed(smaller=2)
    one = WakeBatch("billing", 7, BATCH.messages[:1], BATCH.ends)
    with pytest.raises(errors.TooLarge, match="the outputs for one message"):
        commit(registered(), large, batch=one)
    with pytest.raises(errors.InvalidAck):
        commit(registered(), problem(409, "INVALID_OFFSET", stream="a", subscription="billing"))


# ---- reading -------------------------------------------------------------------------------------


def page(first: int, *values: bytes, end: int | None = None, tail: int | None = None) -> Response:
    """Return a response to a read, with a slice for each message."""
    slices = [Slice(at, 1, value, b"", False, 0) for at, value in enumerate(values, first)]
    after = first + len(values) if end is None else end
    body = encode_frames(
        JSON_MEDIA_TYPE, slices, next_offset=after, tail=after if tail is None else tail
    )
    headers = {"content_type": FRAMES, "stream_next_offset": print_offset(after)}
    if tail is None:
        headers["stream_up_to_date"] = "true"
    return answer(200, body, **headers)


def pending(acked: int, tail: int, path: str = "a") -> WakeStream:
    return WakeStream(path, print_offset(acked), print_offset(tail), has_pending=True)


def waking(*streams: WakeStream) -> WakeInfo:
    return WakeInfo("billing", "w", 1, "t", list(streams))


def read(wake: WakeInfo, *replies: Any, count: int = 10) -> tuple[list[bytes], dict[str, str]]:
    batch = play(read_wake(SITE, wake, count), *replies)
    return [message.raw for message in batch], batch.ends


def test_a_wake_is_read_up_to_its_tail_and_not_further() -> None:
    found = read(waking(pending(1, 3)), page(1, b"1", b"2", b"3"))
    assert found == ([b"1", b"2"], {"a": print_offset(3)})


def test_messages_know_their_stream() -> None:
    batch = play(
        read_wake(SITE, waking(pending(0, 1), pending(0, 1, "b")), 10), page(0, b"1"), page(0, b"2")
    )
    assert {path: len(messages) for path, messages in batch.streams.items()} == {"a": 1, "b": 1}


def test_a_batch_ends_before_the_first_message_that_does_not_fit() -> None:
    wake = waking(pending(0, 3), pending(0, 3, "b"))
    pages = (page(0, b"0", b"1", b"2"), page(0, b"3", b"4", b"5"))
    assert read(wake, *pages, count=4) == (
        [b"0", b"1", b"2", b"3"],
        {"a": print_offset(3), "b": print_offset(1)},
    )
    assert read(wake, pages[0], count=3) == ([b"0", b"1", b"2"], {"a": print_offset(3)})


def test_offsets_without_messages_are_passed() -> None:
    """Those of aborted transactions, for example."""
    assert read(waking(pending(1, 5)), page(1, b"1", end=5)) == ([b"1"], {"a": print_offset(5)})
    assert read(waking(pending(1, 5)), page(1, end=5)) == ([], {"a": print_offset(5)})


def test_several_pages_are_read() -> None:
    pages = (page(0, b"0", tail=2), page(1, b"1"))
    assert read(waking(pending(0, 2)), *pages) == ([b"0", b"1"], {"a": print_offset(2)})


def test_trimmed_messages_are_skipped() -> None:
    trimmed = problem(410, "offset_trimmed", head=print_offset(2))
    assert read(waking(pending(0, 3)), trimmed, page(2, b"2")) == ([b"2"], {"a": print_offset(3)})
    gone = problem(410, "offset_trimmed", head=print_offset(9))
    assert read(waking(pending(0, 3)), gone) == ([], {"a": print_offset(3)})


def test_a_stream_that_was_deleted_has_nothing_to_read() -> None:
    wake = WakeInfo(
        "billing", "w", 1, "t", [WakeStream("a", "-1", print_offset(2), has_pending=True)]
    )
    for gone in (problem(404, "stream_not_found"), problem(410, "stream_gone")):
        batch = play(read_wake(SITE, wake, 10), gone)
        assert (batch.messages, batch.ends) == ([], {})
        assert batch.unread == {"a"}


def unread(generation: int, *paths: str, ends: bool = False, name: str = "billing") -> WakeBatch:
    found = {"other": print_offset(1)} if ends else {}
    return WakeBatch(name, generation, [], found, frozenset(paths))


def test_a_stream_that_is_pending_and_cannot_be_read_is_an_error_the_second_time() -> None:
    """The first time it can have been deleted. Otherwise wakes would follow for ever."""
    streams = UnreadStreams()
    streams.check(unread(1, "a"))
    streams.check(unread(1, "a"))  # the same wake, delivered again
    for generation in (2, 3):
        with pytest.raises(errors.StreamNotFound, match=r"of the stream a.*right 'read'"):
            streams.check(unread(generation, "a", "b"))


@pytest.mark.parametrize(
    "batch",
    [
        unread(2),
        unread(2, "b"),  # another one was deleted
        unread(2, "a", ends=True),  # there is progress in other streams
        unread(1, "a"),
        unread(2, "a", name="other"),
    ],
)
def test_a_stream_that_is_deleted_or_waits_for_others_is_no_error(batch: WakeBatch) -> None:
    streams = UnreadStreams()
    streams.check(unread(1, "a"))
    streams.check(batch)


def test_a_stream_without_pending_messages_is_not_read() -> None:
    batch = play(read_wake(SITE, WAKE, 10))
    assert (batch.messages, batch.ends) == ([], {})


# ---- workers -------------------------------------------------------------------------------------


def test_a_worker_needs_a_subscription_with_a_wake_stream() -> None:
    source = WakeSource(SITE, "billing", "me", is_live=False)
    with pytest.raises(ValueError, match="has the type webhook"):
        play(source.begin(), document(INFO))


def test_a_worker_asks_again_and_again_if_it_cannot_read_the_wake_stream() -> None:
    source = WakeSource(SITE, "billing", "me", is_live=True)
    info = {"id": "billing", "type": PULL_WAKE, "wake_stream": "wakes"}
    play(source.begin(), document(info), problem(403, "forbidden"))
    for _ in range(2):  # it is not asked for again; each refusal would be in the audit
        assert [pause.seconds for pause in Played(source.wait(), []).pauses] == [5.0]
    assert play(source.claim(), control_error(409, "NO_PENDING_WORK")) is None
    assert not source.is_claimed
    assert play(source.claim(), control_error(409, "ALREADY_CLAIMED", current_holder="x")) is None
    assert source.is_claimed


def test_a_wake_stream_that_is_created_again_is_read_again() -> None:
    source = WakeSource(SITE, "billing", "me", is_live=True)
    info = {"id": "billing", "type": PULL_WAKE, "wake_stream": "wakes"}
    play(source.begin(), document(info), page(0))
    gone = problem(404, "stream_not_found")
    assert Played(source.wait(), [gone]).pauses == []
    assert len(Played(source.wait(), [gone]).pauses) == 1
    assert len(Played(source.wait(), [page(0)]).pauses) == 1
    event = page(0, b'{"subscription_id":"billing"}')
    waited = Played(source.wait(), [event])
    assert (waited.pauses, len(waited.sends)) == ([], 1)


def test_failures_are_followed_by_longer_and_longer_pauses_and_then_by_the_error() -> None:
    settings = WorkerSettings("me", retries=9, backoff=0.1)
    assert [settings.retry_seconds(number) for number in (1, 2, 9, 10)] == [0.1, 0.2, 10.0, None]
    assert WorkerSettings("me", retries=None).retry_seconds(1000) == 10.0


@pytest.mark.parametrize(
    "settings",
    [
        WorkerSettings(""),
        WorkerSettings("a", max_messages=0),
        WorkerSettings("a", retries=-1),
        WorkerSettings("a", backoff=-1),
    ],
)
def test_options_of_a_worker_that_make_no_sense_are_refused(settings: WorkerSettings) -> None:
    with pytest.raises(ValueError, match=r"invalid|empty"):
        settings.check()


def test_an_ack_is_of_everything_that_is_pending_unless_it_says_otherwise() -> None:
    streams = [
        WakeStream("a", "-1", print_offset(2), has_pending=True),
        WakeStream("b", print_offset(1), print_offset(1)),
    ]
    wake = WakeInfo("billing", "w", 1, "t", streams)
    assert wake.acked() == AckedWake("billing", "w", 1, {"a": print_offset(2)}, True, "t")
    assert wake.acked({"b": 1}, done=False).offsets == {"b": print_offset(1)}
