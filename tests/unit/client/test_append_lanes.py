"""The numbers of plain appends: what is sent again, under which number, and what is not."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.client import errors
from semel.client.append_lanes import (
    DEDUP_PAUSE_SECONDS,
    EXPIRES_SECONDS,
    IDLE_SECONDS_MAX,
    LANES_MAX,
    LIMIT_PAUSE_SECONDS,
    RESEND_SECONDS_MAX,
    AppendLane,
    AppendLanes,
    EncodeAgain,
    SendAlone,
)
from semel.client.append_queue import HeldBytes
from semel.client.flows import Flow, Lost, NotSent, Pause, Send, Step
from semel.client.pending_append import PLAIN, AppendBatch, PendingAppend
from semel.client.requests import AppendHeaders
from semel.client.response_parser import Response
from semel.client.stream_calls import NO_EXTRAS, StreamCalls
from semel.client.values import Receipt
from semel.model.offsets import print_offset
from semel.wire.schema.producers import RetireEntry
from tests.unit.client.hand import SITE, Played, answer, calls, problem

JSON = "application/json"
LOST = Lost("lost")
HEAD = answer(200, content_type=JSON, stream_next_offset="0", stream_incarnation="i")
OFF = answer(
    200, content_type=JSON, stream_next_offset="0", stream_incarnation="i", stream_dedup="off"
)
ON_FROM_5 = answer(
    200, content_type=JSON, stream_next_offset="9", stream_incarnation="i", stream_dedup_from="5"
)
FOREIGN = answer(200, content_type=JSON, stream_next_offset="0")


class Delivered(Played):
    """A delivery of a lane. A HEAD request before a repeat needs no reply: nothing has changed."""

    def _reply(self, step: Step, left: list[Any]) -> Any:
        is_head = isinstance(step, Send) and step.request.method == "HEAD"
        is_repeating = any(send.request.method == "POST" for send in self.sends)
        if is_head and is_repeating and not (left and left[0] in (HEAD, OFF, ON_FROM_5, FOREIGN)):
            return HEAD
        return super()._reply(step, left)


class Hand:
    """A lane whose clock the test sets."""

    def __init__(self, found: StreamCalls | None = None) -> None:
        if found is None:
            found = calls()
            found.is_semel = True
        self.now = 1000.0
        self.lane = AppendLane(found, HeldBytes(), "append-me", lambda: self.now)

    def batch(self, *values: Any, conditions: AppendHeaders = PLAIN, extra: int = 0) -> AppendBatch:
        """Return the next batch: an append of these values, and `extra` more of one value."""
        wanted = [PendingAppend(values or [1], conditions, NO_EXTRAS, 1e9)]
        wanted += [PendingAppend([1], PLAIN, NO_EXTRAS, 1e9) for _ in range(extra)]
        for append in wanted:
            self.lane.prepare(append)
            self.lane.queue.add(append)
        batch, _ = self.lane.take(self.now)
        assert batch is not None
        return batch

    def play(self, batch: AppendBatch, *replies: Any) -> Played:
        played = Delivered(self.lane.deliver(batch), replies)
        if played.error is not None:
            self.lane.fail(batch, played.error)
        else:
            self.lane.queue.finish(batch, played.result)
        return played

    def send(self, *replies: Any, conditions: AppendHeaders = PLAIN) -> Played:
        return self.play(self.batch(conditions=conditions), *replies)


def stored(seq: int = 0, *, epoch: int = 0, offset: int = 1, status: int = 200) -> Response:
    return answer(
        status,
        stream_next_offset=print_offset(offset),
        producer_epoch=str(epoch),
        producer_seq=str(seq),
    )


def numbers(played: Played) -> list[tuple[str | None, str | None]]:
    """Return the epoch and the sequence of each POST."""
    fields = [dict(send.request.headers) for send in played.sends if send.request.method == "POST"]
    return [(each.get("Producer-Epoch"), each.get("Producer-Seq")) for each in fields]


def methods(played: Played) -> list[str]:
    return [send.request.method for send in played.sends]


# ---- numbers -------------------------------------------------------------------------------------


def test_the_sequence_advances_with_every_stored_request() -> None:
    hand = Hand()
    assert numbers(hand.send(stored())) == [("0", "0")]
    played = hand.send(stored(1))
    assert numbers(played) == [("0", "1")]
    headers = dict(played.sends[0].request.headers)
    assert headers["Producer-Id"] == "append-me"
    assert headers["Producer-Expires"] == str(EXPIRES_SECONDS)


@pytest.mark.parametrize("failure", [LOST, answer(502, b"bad gateway"), NotSent("down")])
def test_a_failed_request_is_sent_again_with_the_same_number_and_bytes(failure: Any) -> None:
    played = Hand().send(failure, failure, stored(status=204))
    assert numbers(played) == [("0", "0")] * 3
    posts = {send.request for send in played.sends if send.request.method == "POST"}
    assert len(posts) == 1
    assert played.result == Receipt(print_offset(1))  # the duplicate is an attempt of this call


def test_after_giving_up_the_next_request_has_a_higher_epoch() -> None:
    hand = Hand()
    hand.send(stored())
    given_up = hand.send(LOST, False)
    assert isinstance(given_up.error, errors.Indeterminate)
    assert numbers(hand.send(stored(0, epoch=1))) == [("1", "0")]
    assert numbers(hand.send(stored(1, epoch=1))) == [("1", "1")]


def test_after_a_refusal_the_number_is_not_used_for_other_messages() -> None:
    hand = Hand()
    refused = hand.send(problem(404, "stream_not_found"))
    assert isinstance(refused.error, errors.StreamNotFound)
    assert numbers(hand.send(stored(0, epoch=1))) == [("1", "0")]


def test_after_a_long_pause_the_next_request_has_a_higher_epoch() -> None:
    hand = Hand()
    hand.send(stored())
    hand.now += IDLE_SECONDS_MAX + 1
    assert numbers(hand.send(stored(0, epoch=1))) == [("1", "0")]


# ---- refusals of the producer --------------------------------------------------------------------

PRODUCER_REFUSALS = [
    problem(409, "producer_state_expired"),
    problem(403, "PRODUCER_FENCED"),
    problem(409, "producer_seq_conflict", expected_seq=0, received_seq=4),
    problem(400, "epoch_must_start_at_zero"),
]


@pytest.mark.parametrize("refusal", PRODUCER_REFUSALS)
def test_a_refused_producer_is_renewed_if_nothing_can_have_been_stored(refusal: Response) -> None:
    played = Hand().send(refusal, stored(0, epoch=1))
    assert numbers(played) == [("0", "0"), ("1", "0")]
    assert played.result == Receipt(print_offset(1))


@pytest.mark.parametrize("refusal", PRODUCER_REFUSALS)
def test_a_refused_producer_is_indeterminate_after_a_lost_response(refusal: Response) -> None:
    played = Hand().send(LOST, refusal)
    assert isinstance(played.error, errors.Indeterminate)
    assert numbers(played) == [("0", "0"), ("0", "0")]


@pytest.mark.parametrize(
    ("status", "code"), [(401, "unauthenticated"), (403, "forbidden"), (404, "stream_not_found")]
)
def test_a_refusal_after_a_lost_response_does_not_hide_that_it_may_be_stored(
    status: int, code: str
) -> None:
    assert isinstance(Hand().send(LOST, problem(status, code)).error, errors.Indeterminate)


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (problem(412, "precondition_failed"), errors.PreconditionFailed),
        (problem(409, "stream_seq_conflict"), errors.StreamSeqConflict),
        (problem(409, "stream_closed"), errors.StreamClosed),
    ],
)
def test_what_is_checked_after_repeats_shows_that_nothing_was_stored(
    refusal: Response, kind: type[errors.Refused]
) -> None:
    conditions = AppendHeaders(seq="1", if_match="5")
    assert type(Hand().send(LOST, refusal, conditions=conditions).error) is kind


def test_a_producer_that_is_always_refused_is_given_up_for_this_append() -> None:
    played = Hand().send(*[PRODUCER_REFUSALS[0]] * 3, answer(204, stream_next_offset="1"))
    assert numbers(played) == [("0", "0"), ("1", "0"), ("2", "0"), (None, None)]


@pytest.mark.parametrize("limit", ["expiring_producers_per_stream", "producers_per_stream"])
def test_without_room_for_a_producer_the_append_is_sent_without_one(limit: str) -> None:
    hand = Hand()
    refusal = problem(429, "limit_reached", limit=limit, maximum=10_000)
    plain = answer(204, stream_next_offset=print_offset(1))
    assert numbers(hand.send(refusal, plain)) == [("0", "0"), (None, None)]
    assert isinstance(hand.send(LOST).error, errors.Indeterminate)  # not sent again
    hand.now += LIMIT_PAUSE_SECONDS
    assert numbers(hand.send(stored(0, epoch=1))) == [("1", "0")]


def test_another_limit_is_an_error() -> None:
    refusal = problem(429, "limit_reached", limit="streams", maximum=1)
    assert isinstance(Hand().send(refusal).error, errors.LimitReached)


def test_a_lost_response_before_the_limit_is_not_followed_by_a_plain_append() -> None:
    refusal = problem(429, "limit_reached", limit="expiring_producers_per_stream", maximum=1)
    assert isinstance(Hand().send(LOST, refusal).error, errors.Indeterminate)


def test_a_different_payload_under_the_same_number_is_an_error() -> None:
    mismatch = answer(204, producer_epoch="0", producer_payload_mismatch="true")
    assert isinstance(Hand().send(mismatch).error, errors.PayloadMismatch)


def test_resending_ends_before_the_server_forgets_the_producer() -> None:
    hand = Hand()
    flow = hand.lane.deliver(hand.batch())
    with pytest.raises(errors.Indeterminate):
        _until_over(flow, hand)
    assert hand.now - 1000.0 < EXPIRES_SECONDS / 2


def test_resending_ends_if_it_took_too_long_to_ask_for_the_state_of_the_stream() -> None:
    hand = Hand()
    flow = hand.lane.deliver(hand.batch())
    flow.send(None)
    assert isinstance(flow.send(LOST), Pause)
    asked = flow.send(True)
    assert isinstance(asked, Send)
    assert asked.request.method == "HEAD"
    hand.now += RESEND_SECONDS_MAX + 1
    with pytest.raises(errors.Indeterminate):
        flow.send(HEAD)


def test_a_repeat_that_would_not_be_recognised_any_more_is_not_sent() -> None:
    played = Hand().send(LOST, OFF)
    assert numbers(played) == [("0", "0")]
    assert isinstance(played.error, errors.Indeterminate)


def _until_over(flow: Flow[Any], hand: Hand) -> None:
    reply: Any = None
    while True:
        step = flow.send(reply)
        hand.now += 1.0
        assert isinstance(step, Send | Pause)
        reply = True
        if isinstance(step, Send):
            reply = HEAD if step.request.method == "HEAD" else LOST
        assert hand.now < 1000.0 + 2 * RESEND_SECONDS_MAX


# ---- without a producer --------------------------------------------------------------------------


def test_an_idempotency_key_is_sent_without_a_producer() -> None:
    keyed = AppendHeaders(idempotency_key="k")
    replayed = answer(204, stream_next_offset=print_offset(1), idempotent_replayed="true")
    played = Hand().send(LOST, replayed, conditions=keyed)
    assert numbers(played) == [(None, None)] * 2
    assert played.result.duplicate


def test_the_switch_turns_the_numbers_off() -> None:
    hand = Hand()
    hand.lane.is_retrying = False
    played = hand.send(LOST)
    assert numbers(played) == [(None, None)]
    assert isinstance(played.error, errors.Indeterminate)


def test_a_stream_without_dedup_is_known_from_head() -> None:
    played = Hand(StreamCalls(SITE, "orders")).send(OFF, LOST)
    assert numbers(played) == [(None, None)]
    assert isinstance(played.error, errors.Indeterminate)


def test_a_stream_whose_dedup_is_switched_off_is_known_from_its_response() -> None:
    unguarded = answer(
        200, stream_next_offset=print_offset(1), producer_epoch="0", producer_dedup="off"
    )
    hand = Hand()
    assert hand.send(unguarded).result == Receipt(print_offset(1))
    assert numbers(hand.send(answer(204, stream_next_offset="2"))) == [(None, None)]
    assert isinstance(Hand().send(LOST, unguarded).error, errors.Indeterminate)


def test_a_stream_without_dedup_is_asked_once_a_minute_whether_this_has_changed() -> None:
    hand = Hand(StreamCalls(SITE, "orders"))
    plain = answer(204, stream_next_offset=print_offset(1))
    assert numbers(hand.send(OFF, plain)) == [(None, None)]
    hand.now += DEDUP_PAUSE_SECONDS / 2
    assert methods(hand.send(plain)) == ["POST"]
    hand.now += DEDUP_PAUSE_SECONDS / 2
    assert methods(hand.send(OFF, plain)) == ["HEAD", "POST"]
    assert methods(hand.send(plain)) == ["POST"]
    hand.now += DEDUP_PAUSE_SECONDS
    on = hand.send(ON_FROM_5, stored())
    assert (methods(on), numbers(on)) == (["HEAD", "POST"], [("0", "0")])
    again = hand.send(LOST, ON_FROM_5, stored(1, status=204))
    assert numbers(again) == [("0", "1")] * 2, "it is known from where duplicates are recognised"


def test_with_the_switch_off_nothing_is_asked() -> None:
    hand = Hand(StreamCalls(SITE, "orders"))
    hand.lane.is_retrying = False
    plain = answer(204, stream_next_offset=print_offset(1))
    hand.send(OFF, plain)
    for _ in range(3):
        hand.now += DEDUP_PAUSE_SECONDS
        assert methods(hand.send(plain)) == ["POST"]


def test_after_a_switch_off_and_on_the_state_of_the_stream_is_read_again() -> None:
    hand = Hand()
    hand.send(stored())
    played = hand.send(PRODUCER_REFUSALS[2], ON_FROM_5, stored(0, epoch=1))
    assert methods(played) == ["POST", "HEAD", "POST"]
    assert numbers(hand.send(LOST, ON_FROM_5, stored(1, epoch=1, status=204))) == [("1", "1")] * 2


def test_appends_of_which_only_some_are_encoded_share_no_request() -> None:
    hand = Hand()
    text = PendingAppend(["a"], PLAIN, NO_EXTRAS, 1e9)
    hand.lane.prepare(text)
    with pytest.raises(TypeError):
        hand.lane.prepare(PendingAppend([object()], PLAIN, NO_EXTRAS, 1e9))
    late = PendingAppend([object()], PLAIN, NO_EXTRAS, 1e9)
    hand.lane.prepare(late)  # perhaps the stream has another media type now
    for append in (text, late):
        hand.lane.queue.add(append)
    batch, _ = hand.lane.take(hand.now)
    assert batch is not None
    assert batch.appends == [text]
    assert methods(hand.play(batch, HEAD, stored())) == ["HEAD", "POST"]
    assert hand.lane.take(hand.now) == (None, [late])
    assert isinstance(late.error, TypeError)


def test_another_server_gets_the_append_as_it_is() -> None:
    hand = Hand(StreamCalls(SITE, "orders"))
    played = hand.send(FOREIGN, answer(204, stream_next_offset="1"))
    assert numbers(played) == [(None, None)]
    assert isinstance(hand.send(LOST).error, errors.Indeterminate)
    assert len(hand.batch(extra=3).appends) == 1  # one offset cannot be divided


def test_a_close_without_a_message_has_no_number() -> None:
    hand = Hand()
    append = PendingAppend([], AppendHeaders(is_closing=True), NO_EXTRAS, 1e9)
    hand.lane.prepare(append)
    hand.lane.queue.add(append)
    batch, _ = hand.lane.take(0.0)
    assert batch is not None
    closed = answer(204, stream_next_offset="1", stream_closed="true")
    played = hand.play(batch, LOST, closed)
    assert numbers(played) == [(None, None)] * 2
    assert played.result.closed


def test_a_close_needs_no_question_before_it() -> None:
    hand = Hand(StreamCalls(SITE, "orders"))
    append = PendingAppend([], AppendHeaders(is_closing=True), NO_EXTRAS, 1e9)
    batch = hand.lane.queue.start(append)
    assert batch is not None
    played = hand.play(batch, answer(204, stream_next_offset="1", stream_closed="true"))
    assert [send.request.method for send in played.sends] == ["POST"]


def test_an_interrupted_request_keeps_its_number_even_if_others_would_have_none() -> None:
    hand = Hand()
    batch = hand.batch(1, extra=1)
    flow = hand.lane.deliver(batch)
    flow.send(None)  # the request is sent, and its thread is interrupted
    sender = hand.lane.queue.turn
    assert sender is not None
    hand.lane.queue.leave(sender, is_sender=True)
    hand.lane.calls.is_unguarded = True
    again, _ = hand.lane.take(hand.now)
    assert again is batch
    played = hand.play(again, HEAD, problem(409, "producer_state_expired"))
    assert numbers(played) == [("0", "0")]
    assert isinstance(played.error, errors.Indeterminate)


@pytest.mark.parametrize("shown", [OFF, ON_FROM_5], ids=["off", "switched on"])
def test_an_interrupted_request_is_not_sent_again_if_it_would_not_be_recognised(
    shown: Response,
) -> None:
    hand = Hand()
    batch = hand.batch(1, extra=1)
    hand.lane.deliver(batch).send(None)  # the request is sent, and its thread is interrupted
    sender = hand.lane.queue.turn
    assert sender is not None
    hand.lane.queue.leave(sender, is_sender=True)
    again, _ = hand.lane.take(hand.now)
    assert again is batch
    played = Played(hand.lane.deliver(again), [shown])
    assert methods(played) == ["HEAD"]
    assert isinstance(played.error, errors.Indeterminate)


def test_what_is_learned_after_a_request_was_sent_does_not_make_its_repeat_safe() -> None:
    hand = Hand()
    flow = hand.lane.deliver(hand.batch())
    flow.send(None)
    assert flow.send(LOST) is not None  # a pause
    Played(hand.lane.calls.head(), [ON_FROM_5])  # by another thread
    with pytest.raises(errors.Indeterminate):
        _answer_heads(flow, ON_FROM_5)


def _answer_heads(flow: Flow[Any], shown: Response) -> None:
    step = flow.send(True)
    while isinstance(step, Send) and step.request.method == "HEAD":
        step = flow.send(shown)
    raise AssertionError(step)


def test_a_switch_before_the_last_stored_append_makes_no_repeat_unsafe() -> None:
    shown = answer(
        200,
        content_type=JSON,
        stream_next_offset=print_offset(7),
        stream_incarnation="i",
        stream_dedup_from=print_offset(5),
    )
    hand = Hand()
    hand.send(stored(offset=6))
    played = Played(hand.lane.deliver(hand.batch()), [LOST, True, shown, stored(1, offset=7)])
    assert methods(played) == ["POST", "HEAD", "POST"]
    assert played.error is None


# ---- several appends in a request ----------------------------------------------------------------


@pytest.mark.parametrize("refusal", [problem(400, "bad_body"), problem(413, "body_too_large")])
def test_a_refused_body_of_several_appends_is_sent_one_by_one(refusal: Response) -> None:
    hand = Hand()
    batch = hand.batch(extra=2)
    flow = hand.lane.deliver(batch)
    flow.send(None)
    with pytest.raises(SendAlone) as caught:
        flow.send(refusal)
    assert hand.lane.fail(batch, caught.value) == []
    for epoch in ("1", "1", "1"):
        following, _ = hand.lane.take(hand.now)
        assert following is not None
        assert len(following.appends) == 1
        ((found, _),) = numbers(hand.play(following, stored(epoch=1)))
        assert found == epoch


def test_a_refused_body_of_one_append_is_its_error() -> None:
    assert isinstance(Hand().send(problem(400, "bad_body")).error, errors.BadRequest)


def test_several_appends_to_an_unknown_stream_are_encoded_when_its_type_is_known() -> None:
    hand = Hand(StreamCalls(SITE, "orders"))
    batch = hand.batch(extra=2)
    assert len(batch.appends) == 3
    flow = hand.lane.deliver(batch)
    flow.send(None)
    with pytest.raises(EncodeAgain) as caught:
        flow.send(HEAD)
    hand.lane.fail(batch, caught.value)
    following, _ = hand.lane.take(hand.now)
    assert following is not None
    assert following.body() == (JSON, b"[1,1,1]")
    assert numbers(hand.play(following, stored(offset=3))) == [("0", "0")]


def test_appends_to_a_stream_that_does_not_exist_fail_together() -> None:
    hand = Hand(StreamCalls(SITE, "orders"))
    batch = hand.batch(extra=2)
    hand.play(batch, answer(404))
    found = [append.error for append in batch.appends]
    assert all(isinstance(error, errors.StreamNotFound) for error in found)
    assert len(set(map(id, found))) == 3


@pytest.mark.parametrize("extra", [0, 2])
def test_a_stream_with_a_new_media_type_gets_its_appends_in_that_type(extra: int) -> None:
    hand = Hand()
    batch = hand.batch("a", extra=extra)
    text = answer(200, content_type="text/plain", stream_next_offset="0", stream_incarnation="i")
    flow = hand.lane.deliver(batch)
    flow.send(None)
    flow.send(problem(409, "content_type_conflict"))
    with pytest.raises(EncodeAgain) as caught:
        flow.send(text)
    hand.lane.fail(batch, caught.value)
    following, failed = hand.lane.take(hand.now)
    assert following is not None
    assert following.body() == ("text/plain", b"a")
    assert len(failed) == extra  # a number is no text
    again = hand.play(following, problem(409, "content_type_conflict"))
    assert isinstance(again.error, errors.ContentTypeConflict)  # it is tried once


# ---- all lanes of a client -----------------------------------------------------------------------


def lanes(now: float = 0.0) -> AppendLanes:
    names = iter(f"{number:032x}"[::-1] for number in range(1000))
    return AppendLanes(lambda: next(names), lambda: now, is_retrying=True)


def test_streams_at_one_path_share_a_lane_until_the_client_is_closed() -> None:
    found = lanes()
    one = found.open_lane(calls("a"))
    assert found.open_lane(calls("a")) is one
    assert found.open_lane(calls("b")) is not one
    found.is_closed = True
    with pytest.raises(errors.ClientClosed):
        found.open_lane(calls("a"))


def test_only_producers_that_have_stored_something_are_retired() -> None:
    found = lanes()
    found.open_lane(calls("a"))
    used = found.open_lane(calls("b"))
    used.producer.begin(0.0)
    used.producer.confirm(0.0)
    assert found.retirements() == [RetireEntry(used.producer.id, "b", 0)]


def test_a_forked_process_has_other_producers_and_an_empty_queue() -> None:
    found = lanes()
    one = found.open_lane(calls("a"))
    one.queue.add(PendingAppend([1], PLAIN, NO_EXTRAS, 1.0))
    found.reset()
    two = found.open_lane(calls("a"))
    assert two.producer.id != one.producer.id
    assert found.is_idle


def test_the_number_of_lanes_is_bounded_and_a_lane_made_again_has_another_producer() -> None:
    found = lanes()
    first = found.open_lane(calls("0"))
    for number in range(1, LANES_MAX + 1):
        found.open_lane(calls(str(number)))
    again = found.open_lane(calls("0"))
    assert again is not first
    assert again.producer.id != first.producer.id


# ---- any order of faults -------------------------------------------------------------------------

FAULTS = ("pass", "lose_before", "lose_after", "gateway", "give_up", "forget", "limit", "late")


class ModelServer:
    """One stream that recognises repeats of one producer, by epoch and sequence."""

    def __init__(self) -> None:
        self.log: list[int] = []
        self.known: tuple[int, int] | None = None
        self.sent: list[Any] = []

    def take(self, request: Any) -> Response:
        if request.method == "HEAD":
            return HEAD
        self.sent.append(request)
        fields = dict(request.headers)
        values = msgspec.json.decode(request.body)
        if "Producer-Id" not in fields:
            self.log += values
            return answer(204, stream_next_offset=print_offset(len(self.log)))
        epoch, seq = int(fields["Producer-Epoch"]), int(fields["Producer-Seq"])
        if self.known is None or epoch > self.known[0]:
            if seq:
                return problem(409, "producer_seq_conflict", expected_seq=0, received_seq=seq)
        elif epoch < self.known[0]:
            return problem(403, "PRODUCER_FENCED")
        elif seq <= self.known[1]:
            return stored(seq, epoch=epoch, offset=len(self.log), status=204)
        elif seq > self.known[1] + 1:
            return problem(409, "producer_seq_conflict", expected_seq=0, received_seq=seq)
        self.known = epoch, seq
        self.log += values
        return stored(seq, epoch=epoch, offset=len(self.log))


def play_faults(hand: Hand, server: ModelServer, value: int, faults: list[str]) -> str:
    """Append a value, with these faults. Return whether it was applied, as the client says it."""
    batch = hand.batch(value)
    flow = hand.lane.deliver(batch)
    reply: Any = None
    try:
        while True:
            step = flow.send(reply)
            if isinstance(step, Pause):
                reply = not (faults and faults[0] == "give_up")
                continue
            assert isinstance(step, Send)
            reply = react(server, step, faults.pop(0) if faults else "pass")
    except StopIteration as end:
        hand.lane.queue.finish(batch, end.value)
        return "yes"
    except errors.ClientError as error:
        hand.lane.fail(batch, error)
        return error.applied


def react(server: ModelServer, step: Send, fault: str) -> Any:
    match fault:
        case "lose_before":
            return LOST
        case "lose_after" | "give_up":
            server.take(step.request)
            return LOST
        case "gateway":
            server.take(step.request)
            return answer(502, b"bad gateway")
        case "limit" if "Producer-Id" in dict(step.request.headers) and server.known is None:
            return problem(429, "limit_reached", limit="producers_per_stream", maximum=1)
        case "forget":  # the server was restored, or the stream was made anew
            server.known = None
        case "late":  # a copy of an earlier request arrives now
            numbered = [each for each in server.sent if "Producer-Id" in dict(each.headers)]
            if numbered and server.known is not None:
                server.take(numbered[0])
    return server.take(step.request)


@settings(max_examples=300)
@given(st.lists(st.lists(st.sampled_from(FAULTS), max_size=4), max_size=8))
def test_with_any_faults_each_append_is_stored_as_often_as_the_client_says(
    runs: list[list[str]],
) -> None:
    hand, server = Hand(), ModelServer()
    for value, faults in enumerate(runs):
        verdict = play_faults(hand, server, value, list(faults))
        allowed = {"yes": {1}, "no": {0}, "unknown": {0, 1}}[verdict]
        is_forgotten = any("forget" in each for each in runs[: value + 1])
        if not is_forgotten:  # a server that forgets producers may store a late copy
            assert server.log.count(value) in allowed, (faults, verdict)
    assert set(server.log) <= set(range(len(runs)))
    if not any("forget" in each for each in runs):
        assert all(server.log.count(value) <= 1 for value in range(len(runs)))
        assert server.log == sorted(server.log)
