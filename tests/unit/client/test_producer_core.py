import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

import pytest

from semel.client.errors import (
    BadRequest,
    ClientError,
    Indeterminate,
    LimitReached,
    PayloadMismatch,
    ProducerExpired,
    ProducerFenced,
    ProducerRefused,
    ProtocolError,
    SequenceExpired,
    SequenceGap,
    StreamClosed,
    StreamNotFound,
    Unavailable,
)
from semel.client.extras import Extra
from semel.client.producer.core import ProducerCore
from semel.client.producer.outcomes import BatchAck, FailedBatch
from semel.client.producer.settings import ProducerSettings
from semel.model.limits import SEQUENCE_SPAN_MAX
from semel.model.offsets import print_offset
from tests.unit.client.producer_model import (
    Answer,
    Network,
    json_body,
    make,
    make_resumed,
    refusal,
)


def append(network: Network, *messages: bytes) -> None:
    for raw in messages:
        network.core.append(raw, network.now)


def send_all(network: Network) -> list[dict[str, str]]:
    """Send all batches that may be sent. Return the headers of all unread requests."""
    while network.send():
        pass
    return [headers for headers, _ in network.line]


def pump(network: Network) -> None:
    """Send, serve and deliver everything once, without faults."""
    send_all(network)
    while network.line:
        network.serve()
    while network.answers:
        network.deliver()


def established(**settings: Any) -> Network:
    """Return a producer whose first message, `0`, is stored."""
    network = make(max_batch_messages=1, **settings)
    append(network, b"0")
    pump(network)
    return network


def busy() -> Answer:
    return refusal(503, "overloaded", {"retry-after": "1"})


# ---- sequences and batches -------------------------------------------------------------------


def test_messages_gather_while_the_first_batch_is_out() -> None:
    network = make()
    append(network, b"0")
    assert send_all(network) == [
        {"producer-id": "p", "producer-seq": "0", "producer-session": "s-1"}
    ]
    append(network, b"1", b"2")
    assert not network.send()
    network.serve()
    network.deliver()
    (headers,) = send_all(network)
    assert headers["producer-seq"] == "1"
    assert headers["producer-epoch"] == "1"
    assert headers["producer-session"] == "s-1"
    assert network.line[0][1] == b"[1,2]"


# rows: D20, D21
def test_at_most_max_in_flight_batches_are_out() -> None:
    network = established(max_in_flight=3)
    append(network, *[b"%d" % n for n in range(1, 9)])
    assert len(send_all(network)) == 3
    assert network.core.in_flight_count == 3
    assert network.core.pending_count == 8


def test_small_messages_count_with_what_keeping_them_takes() -> None:
    network = make()
    append(network, *[b"1"] * 1000)
    assert network.core.acks.pending_bytes > 50_000
    network.drain()
    assert network.core.acks.pending_bytes == 0


# rows: D21
def test_a_batch_ends_at_its_bytes_and_a_large_message_goes_alone() -> None:
    network = make(max_batch_bytes=20)
    append(network, b"1111", b"2222", b"3333", b"4" * 50, b"5555")
    network.drain()
    assert [ack.count for ack in network.acked] == [2, 1, 1, 1]
    assert network.server.log == [b"1111", b"2222", b"3333", b"4" * 50, b"5555"]


def test_a_batch_ends_at_its_count() -> None:
    network = make(max_batch_messages=2)
    append(network, b"1", b"2", b"3")
    network.drain()
    assert [ack.count for ack in network.acked] == [2, 1]


# rows: D21
def test_lingering_waits_for_more_but_not_when_hurried_or_full() -> None:
    network = make(linger=1.0, max_batch_messages=3)
    append(network, b"1")
    assert not network.send()
    assert network.core.wake_at() == 1.0
    network.wait(1.0)
    assert network.send()
    network.serve()
    network.deliver()
    append(network, b"2", b"3", b"4", b"5")
    assert network.send()
    assert not network.send()
    network.core.hurry()
    assert network.send()


def test_only_news_wakes_the_sender() -> None:
    network = make()
    core = network.core
    assert core.append(b"1", 0.0)
    assert not core.append(b"2", 0.0)
    send_all(network)
    assert not core.append(b"3", 0.0)  # a response will come first
    network.drain()
    assert not network.send()
    assert core.append(b"4", 0.0)
    assert not core.append(b"5", 0.0)


def test_while_lingering_only_a_first_message_or_a_full_batch_wakes_the_sender() -> None:
    network = make(linger=1.0, max_batch_messages=2)
    core = network.core
    assert not network.send()
    assert core.append(b"1", 0.0)
    assert not network.send()
    assert network.core.wake_at() == 1.0
    assert not core.append(b"2", 0.0)
    assert core.append(b"3", 0.0)


# ---- identity --------------------------------------------------------------------------------


# rows: X01
def test_a_restarted_session_takes_the_next_epoch() -> None:
    first = established()
    second = make(first.server, session="s-2")
    append(second, b"1")
    pump(second)
    assert (first.core.epoch, second.core.epoch) == (1, 2)
    append(first, b"2")
    pump(first)
    assert isinstance(first.core.failure, ProducerFenced)
    # Another copy of this batch may have been stored before the fence.
    assert first.failed[0].applied == "unknown"


# rows: D40
def test_a_claim_raises_the_epoch_it_meets() -> None:
    server = established(epoch=7).server
    network = make(server, is_claiming=True)
    append(network, b"1")
    assert send_all(network)[0]["producer-epoch"] == "0"
    network.serve()
    network.deliver()
    assert send_all(network)[0]["producer-epoch"] == "8"
    network.drain()
    assert server.log == [b"0", b"1"]


def test_a_claim_begins_above_a_tombstone() -> None:
    network = make(is_claiming=True)
    append(network, b"1")
    network.send()
    network.serve(refusal(409, "producer_state_expired", current_epoch=4), is_taken=False)
    network.deliver()
    assert send_all(network)[0]["producer-epoch"] == "5"
    network.drain()
    assert network.server.log == [b"1"]


def test_a_declared_epoch_is_not_raised_above_a_tombstone() -> None:
    network = make(epoch=4)
    append(network, b"1")
    network.send()
    network.serve(refusal(409, "producer_state_expired", current_epoch=4), is_taken=False)
    network.deliver()
    assert isinstance(network.core.failure, ProducerExpired)
    assert network.failed[0].applied == "no"


# rows: D40
def test_a_claim_in_doubt_is_never_made_again_under_another_epoch() -> None:
    network = make(is_claiming=True)
    append(network, b"0")
    network.send()
    network.serve()
    network.lose()  # stored, but the response is lost
    rival = {"producer-id": "p", "producer-epoch": "1", "producer-seq": "0"}
    network.server.take(rival, b'["rival"]')
    network.drain()
    assert isinstance(network.core.failure, ProducerFenced)
    assert network.failed[0].applied == "unknown"
    assert network.server.log == [b"0", b'"rival"']


def test_a_claim_that_meets_the_epoch_it_begins_with_raises_it() -> None:
    server = established(epoch=0).server
    for message in (b"0", b"1"):  # the same payload and another one
        network = make(server, is_claiming=True)
        append(network, message)
        network.drain()
        assert [ack.duplicate for ack in network.acked] == [False]
    assert server.log == [b"0", b"0", b"1"]


def test_a_claim_knows_its_own_message_by_the_epoch_the_server_told() -> None:
    server = established(epoch=4).server
    network = make(server, is_claiming=True)
    network.core.resume(4, 0, None)
    append(network, b"1")
    assert send_all(network)[0]["producer-epoch"] == "5"
    network.serve()
    network.lose()
    network.drain()
    assert [ack.duplicate for ack in network.acked] == [True]
    assert server.log == [b"0", b"1"]


def test_a_claim_that_cannot_know_its_own_message_says_so() -> None:
    network = make(is_claiming=True)
    append(network, b"0")
    network.send()
    network.serve()
    network.lose()
    network.drain()
    assert isinstance(network.core.failure, Indeterminate)
    assert network.failed[0].applied == "unknown"
    assert network.server.log == [b"0"]


def test_a_claim_of_which_a_copy_came_first_is_not_made_again() -> None:
    network = make_resumed(is_claiming=True)
    append(network, b"0")
    send_all(network)
    network.server.take(*network.line[0])  # a proxy sent the request twice
    pump(network)
    assert [ack.duplicate for ack in network.acked] == [True]
    assert network.server.log == [b"0"]


def test_two_claims_of_one_epoch_with_the_same_message_are_two() -> None:
    first = make_resumed(is_claiming=True, session="s-1")
    second = make_resumed(first.server, is_claiming=True, session="s-2")
    for network in (first, second):
        append(network, b"0")
        network.drain()
        assert [ack.duplicate for ack in network.acked] == [False]
    assert first.server.log == [b"0", b"0"]


# rows: D25, X13
def test_a_fenced_producer_does_not_claim_its_place_back() -> None:
    network = established(is_claiming=True)
    rival = {"producer-id": "p", "producer-epoch": "5", "producer-seq": "0"}
    network.server.take(rival, b'["rival"]')
    append(network, b"1", b"2")
    pump(network)
    assert isinstance(network.core.failure, ProducerFenced)
    assert network.core.failure.current_epoch == 5
    assert [batch.values for batch in network.failed] == [[b"1"], [b"2"]]


# rows: D37
def test_another_payload_under_our_number_is_fatal() -> None:
    server = established(epoch=1).server
    network = make(server, epoch=1)
    append(network, b"other")
    pump(network)
    assert isinstance(network.core.failure, PayloadMismatch)


# rows: D24
def test_the_same_payload_under_our_number_is_a_duplicate() -> None:
    server = established(epoch=1).server
    network = make_resumed(server, epoch=1)
    append(network, b"0")
    pump(network)
    assert network.core.failure is None
    assert network.acked[0].duplicate
    assert network.core.acks.stats.duplicates == 1


def test_a_server_that_does_not_compare_is_not_believed_that_a_fresh_batch_is_a_repeat() -> None:
    server = established(epoch=1).server
    network = make(server, epoch=1)
    append(network, b"0")
    pump(network)
    assert isinstance(network.core.failure, Indeterminate)
    assert network.failed[0].applied == "unknown"


def test_once_a_batch_was_new_a_repeat_behind_it_is_our_own() -> None:
    network = established(epoch=1)
    append(network, b"1")
    send_all(network)
    network.server.take(*network.line[0])
    pump(network)
    assert [ack.duplicate for ack in network.acked] == [False, True]


def test_a_repeat_the_server_can_no_longer_compare_is_not_ours() -> None:
    server = established(epoch=1).server
    network = make_resumed(server, epoch=1)
    append(network, b"0")
    pump(network)
    append(network, b"1")
    send_all(network)
    network.serve(Answer(204, {"producer-epoch": "1", "producer-receipt": "expired"}))
    network.deliver()
    assert isinstance(network.core.failure, Indeterminate)
    assert len(network.acked) == 1


def test_a_claim_that_is_refused_is_not_told_to_claim() -> None:
    network = make(is_claiming=True, session="s")
    append(network, b"0")
    network.send()
    network.serve(Answer(400, {}, b"no"), is_taken=False)
    network.deliver()
    assert isinstance(network.core.failure, BadRequest)


def test_a_server_without_sessions_is_named() -> None:
    network = make()
    append(network, b"0")
    network.send()
    network.serve(Answer(400, {}, b"Producer-Epoch is missing"), is_taken=False)
    network.deliver()
    assert isinstance(network.core.failure, ProtocolError)
    assert "auto_claim=True" in str(network.core.failure)


def test_a_server_that_ignores_producers_is_not_trusted() -> None:
    network = make(epoch=0)
    append(network, b"0")
    network.send()
    network.serve(Answer(204, {"stream-next-offset": "1"}))
    network.deliver()
    assert isinstance(network.core.failure, ProtocolError)
    assert network.failed[0].applied == "unknown"


def test_an_answer_under_another_epoch_is_not_trusted() -> None:
    network = make(epoch=3)
    append(network, b"0")
    network.send()
    network.serve(Answer(200, {"producer-epoch": "4"}))
    network.deliver()
    assert isinstance(network.core.failure, ProtocolError)


# ---- faults ----------------------------------------------------------------------------------


# rows: D28
def test_all_that_is_unanswered_is_sent_again_in_order_after_a_loss() -> None:
    network = established()
    append(network, b"1", b"2", b"3")
    send_all(network)
    network.serve()
    network.lose()
    network.drain()
    assert network.server.log == [b"0", b"1", b"2", b"3"]
    assert [ack.duplicate for ack in network.acked] == [False, True, False, False]
    assert network.core.acks.stats.retries == 3


def test_after_a_refusal_nothing_is_sent_until_all_is_answered() -> None:
    network = established(max_in_flight=3)
    append(network, b"1", b"2", b"3", b"4")
    send_all(network)
    network.serve(busy(), is_taken=False)
    network.serve()
    network.serve()
    network.deliver()
    network.wait(60.0)
    assert not network.send()
    network.deliver()
    network.deliver()
    assert [headers["producer-seq"] for headers in send_all(network)] == ["1", "2", "3"]
    network.drain()
    assert network.server.log == [b"0", b"1", b"2", b"3", b"4"]


def test_retry_after_is_waited_for() -> None:
    network = established()
    append(network, b"1")
    send_all(network)
    network.serve(busy(), is_taken=False)
    network.deliver()
    assert network.core.wake_at() == 1.0
    assert not network.send()
    network.wait(1.0)
    assert network.send()


def test_pauses_grow_up_to_a_limit_and_end_with_success() -> None:
    network = make()
    append(network, b"0")
    pauses = []
    for _ in range(10):
        network.core.connect_failed(network.now, Unavailable("refused"))
        wake_at = network.core.wake_at()
        assert wake_at is not None
        pauses.append(round(wake_at - network.now, 3))
        network.now = wake_at
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    network.drain()
    append(network, b"1")
    network.core.connect_failed(network.now, Unavailable("refused"))
    wake_at = network.core.wake_at()
    assert wake_at is not None
    assert round(wake_at - network.now, 3) == 0.05


def test_what_was_stored_behind_an_answer_that_told_nothing_is_confirmed_in_order() -> None:
    network = established()
    append(network, b"1", b"2")
    send_all(network)
    network.serve(Answer(502, {}, b""))
    network.serve()
    network.deliver()
    network.deliver()
    assert len(network.acked) == 1
    network.drain()
    assert [ack.seq for ack in network.acked] == [0, 1, 2]
    assert network.server.log == [b"0", b"1", b"2"]


# rows: D25
def test_a_gap_nobody_can_explain_is_fatal() -> None:
    network = established()
    network.server.known = None  # the server has lost its state
    append(network, b"1", b"2")
    pump(network)
    assert isinstance(network.core.failure, SequenceGap)
    assert network.core.failure.expected == 0


def test_a_gap_below_what_was_confirmed_is_fatal_even_behind_a_refusal() -> None:
    network = established()
    append(network, b"1", b"2")
    send_all(network)
    network.serve(busy(), is_taken=False)
    network.server.known = None
    network.serve()
    network.deliver()
    network.deliver()
    assert isinstance(network.core.failure, SequenceGap)


def test_a_batch_that_overtook_another_is_sent_again() -> None:
    network = established()
    append(network, b"1", b"2", b"3")
    send_all(network)
    network.line.rotate(-1)  # they arrive in the order 2, 3, 1
    while network.line:
        network.serve()
    network.answers.rotate(1)  # but the responses arrive in order
    while network.answers:
        network.deliver()
    assert network.core.failure is None
    network.drain()
    assert network.server.log == [b"0", b"1", b"2", b"3"]


def test_a_limit_that_waiting_does_not_change_fails_the_producer_at_once() -> None:
    network = make()
    append(network, b"0")
    send_all(network)
    network.serve(refusal(429, "limit_reached", limit="producers_per_stream"), is_taken=False)
    network.deliver()
    assert isinstance(network.core.failure, LimitReached)
    assert [batch.applied for batch in network.failed] == ["no"]


@pytest.mark.parametrize(
    "answer", [Answer(429, {}), refusal(429, "overloaded", {"retry-after": "1"})]
)
def test_a_batch_is_sent_again_after_a_limit_that_passes(answer: Answer) -> None:
    network = make()
    append(network, b"0")
    send_all(network)
    network.serve(answer, is_taken=False)
    network.drain()
    assert network.core.failure is None
    assert network.server.log == [b"0"]


def test_a_closed_stream_fails_the_batch_and_all_behind_it() -> None:
    network = established()
    network.server.is_closed = True
    append(network, b"1", b"2")
    send_all(network)
    append(network, b"3")
    pump(network)
    assert isinstance(network.core.failure, StreamClosed)
    assert [batch.seq for batch in network.failed] == [1, 2, 3]
    assert not network.core.pending_count
    assert network.core.pending_count == 0
    assert {batch.applied for batch in network.failed} == {"no"}  # a closed stream stores nothing
    assert not network.send()
    assert network.core.wake_at() is None


def test_after_a_refusal_a_batch_in_flight_may_be_stored_without_dedup() -> None:
    network = established()
    append(network, b"1", b"2")
    send_all(network)
    network.server.switch()
    network.server.switch()  # on again, and no producer is known
    network.serve()
    network.server.switch()
    network.serve()
    pump(network)
    assert network.core.failure is not None
    assert network.server.log == [b"0", b"2"]
    assert [batch.applied for batch in network.failed] == ["no", "unknown"]


def test_behind_another_payload_nothing_is_certain() -> None:
    server = established(epoch=1).server
    other = make_resumed(server, epoch=1, max_batch_messages=1)
    append(other, b"0")
    pump(other)
    append(other, b"1", b"2")
    send_all(other)
    server.take({"producer-seq": "1", "producer-epoch": "1"}, b"[7]")
    while other.line:
        other.serve()
    while other.answers:
        other.deliver()
    assert isinstance(other.core.failure, PayloadMismatch)
    assert [batch.applied for batch in other.failed] == ["no", "unknown"]
    assert server.log == [b"0", b"7", b"2"]


def test_behind_a_batch_in_doubt_nothing_is_certain() -> None:
    network = established()
    append(network, b"1")
    send_all(network)
    network.lose()
    append(network, b"2")
    network.wait(1.0)
    send_all(network)
    network.serve(refusal(404, "stream_not_found"), is_taken=False)
    network.deliver()
    assert isinstance(network.core.failure, StreamNotFound)
    assert [batch.applied for batch in network.failed] == ["unknown", "unknown"]


def test_what_was_confirmed_behind_a_batch_that_failed_stays_confirmed() -> None:
    network = established()
    append(network, b"1", b"2")
    send_all(network)
    network.serve(Answer(502, {}, b""))
    network.serve()
    network.deliver()
    network.deliver()
    network.core.fail(Unavailable("the end"))
    network.collect()
    assert [ack.seq for ack in network.acked] == [0, 2]
    assert [(batch.seq, batch.applied) for batch in network.failed] == [(1, "unknown")]


def test_a_missing_stream_is_fatal() -> None:
    network = make()
    append(network, b"0")
    network.send()
    network.serve(refusal(404, "stream_not_found"), is_taken=False)
    network.deliver()
    assert isinstance(network.core.failure, StreamNotFound)


def test_what_was_never_sent_is_given_up_as_not_applied() -> None:
    network = make(delivery_timeout=10.0)
    append(network, b"0")
    network.core.connect_failed(0.0, Unavailable("nobody listens"))
    network.wait(9.9)
    assert not network.failed
    network.wait(0.1)
    assert isinstance(network.core.failure, Unavailable)
    assert "nobody listens" in str(network.core.failure)
    assert network.failed[0].applied == "no"


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("nobody listens"),
        LimitReached("the stream has as many producers as it may have", status=429),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_is_given_up_has_the_advice_of_its_cause_once(error: ClientError) -> None:
    network = make(delivery_timeout=10.0)
    append(network, b"0")
    network.core.connect_failed(0.0, error)
    network.wait(10.0)
    text = str(network.core.failure)
    assert text.endswith(f"{error.message} ({error.advice})")
    assert text.count(error.advice) == 1
    assert isinstance(network.core.failure, Unavailable)


def test_what_may_be_stored_is_given_up_as_unknown() -> None:
    network = make(delivery_timeout=10.0)
    append(network, b"0")
    network.send()
    append(network, b"1")
    assert network.core.wake_at() is None
    assert network.core.expires_at() == 10.0
    network.wait(10.0)
    assert isinstance(network.core.failure, Indeterminate)
    assert [batch.applied for batch in network.failed] == ["unknown", "no"]
    network.serve()
    network.deliver()  # too late: ignored
    assert not network.acked


def test_the_first_failure_stays() -> None:
    network = make()
    network.wait(1e10)
    network.core.fail(Unavailable("first"))
    network.core.fail(Unavailable("second"))
    network.wait(1e10)
    assert str(network.core.failure).startswith("first")


# ---- cursors ---------------------------------------------------------------------------------


# rows: P17, X02
def test_a_batch_carries_the_newest_cursor_of_its_messages() -> None:
    network = make()
    core = network.core
    core.resume(1, 0, "a:1")
    assert core.acks.cursor == "a:1"
    core.append(b"1", 0.0, cursor="a:2")
    core.append(b"2", 0.0, cursor="a:3")
    core.append(b"3", 0.0)
    assert send_all(network)[0]["producer-cursor"] == "a:3"
    network.drain()
    append(network, b"4")
    assert "producer-cursor" not in send_all(network)[0]
    network.drain()
    assert core.acks.cursor == "a:3"


@pytest.mark.parametrize("cursor", ["", "a\nb", " a", "ü", "x" * 1025])
def test_a_cursor_that_cannot_travel_is_refused_at_once(cursor: str) -> None:
    network = make()
    with pytest.raises(ValueError, match="cursor"):
        network.core.append(b"1", 0.0, cursor=cursor)
    assert not network.core.pending_count


# ---- sparse ----------------------------------------------------------------------------------


def sparse(network: Network, *seqs: int) -> None:
    for seq in seqs:
        network.core.append(b"%d" % seq, network.now, seq=seq)


def test_a_sparse_batch_names_its_range() -> None:
    network = make(mode="sparse")
    sparse(network, 5)
    (headers,) = send_all(network)
    assert (headers["producer-seq"], headers["producer-mode"]) == ("5", "sparse")
    network.drain()
    sparse(network, 17, 90)
    (headers,) = send_all(network)
    assert headers["producer-seq"] == "17-90"
    network.drain()
    assert network.core.acks.last_seq == 90


def test_a_sparse_producer_never_has_two_batches_out() -> None:
    network = make(mode="sparse", max_batch_messages=1)
    sparse(network, 0)
    pump(network)
    sparse(network, 1, 2, 3)
    assert len(send_all(network)) == 1


# rows: X02
def test_what_the_server_has_is_skipped_at_the_start() -> None:
    network = make(mode="sparse")
    network.core.resume(1, 90, None)
    assert network.core.acks.last_seq == 90
    sparse(network, 5, 90, 91)
    network.drain()
    assert network.server.log == [b"91"]
    assert network.core.acks.stats.messages_skipped == 2


# rows: X23
def test_a_range_that_is_partly_stored_is_cut() -> None:
    server = make(mode="sparse", session="early").server
    early = make(server, mode="sparse", session="early")
    sparse(early, 10, 20)
    early.drain()
    late = make(server, mode="sparse", session="late")
    sparse(late, 10, 20, 30)
    late.drain()
    assert server.log == [b"10", b"20", b"30"]
    assert [(ack.count, ack.duplicate) for ack in late.acked] == [(2, True), (1, False)]
    whole = make(server, mode="sparse", session="last")
    sparse(whole, 10, 30)
    whole.drain()
    assert server.log == [b"10", b"20", b"30"]
    assert [(ack.count, ack.duplicate) for ack in whole.acked] == [(2, True)]


def test_a_sequence_that_may_be_stored_is_not_sent_again() -> None:
    network = make(mode="sparse")
    sparse(network, 5)
    batch = network.core.next_to_send(0.0)
    assert batch is not None
    said = refusal(409, "sequence_expired", last_seq=169, expired_seq=105, applied="unknown")
    network.core.on_response(batch, said.status, said.headers, said.body, 0.0)
    error = network.core.failure
    assert isinstance(error, SequenceExpired)
    assert (error.applied, error.last_seq, error.expired_seq) == ("unknown", 169, 105)
    assert network.core.next_to_send(1e9) is None
    (failed,) = network.core.acks.take_events()
    assert isinstance(failed, FailedBatch)
    assert failed.applied == "unknown"


def test_what_messages_carry_stays_with_them_when_a_range_is_cut() -> None:
    bodies: list[tuple[list[bytes], dict[int, Extra]]] = []

    def encode(messages: Sequence[bytes], extras: Mapping[int, Extra], seq: int) -> bytes:
        bodies.append((list(messages), dict(extras)))
        return json_body(messages)

    core = ProducerCore(ProducerSettings(id="p", session="s", mode="sparse"), encode)
    tags = {seq: Extra(b"%d" % seq, (), None, 100) for seq in (10, 20, 40)}
    for seq in (10, 20, 30, 40):
        core.append(b"%d" % seq, 0.0, None, seq, tags.get(seq))
    assert core.acks.pending_bytes == 8 + 300 + 4 * 64
    batch = core.next_to_send(0.0)
    assert batch is not None
    said = refusal(409, "batch_overlap", last_seq=20)
    core.on_response(batch, said.status, said.headers, said.body, 0.0)
    assert core.acks.pending_bytes == 4 + 100 + 2 * 64
    assert core.next_to_send(0.0) is batch
    core.on_response(batch, 200, {"producer-epoch": "1"}, b"", 0.0)
    assert core.acks.pending_bytes == 0
    assert bodies == [
        ([b"10", b"20", b"30", b"40"], {0: tags[10], 1: tags[20], 3: tags[40]}),
        ([b"30", b"40"], {1: tags[40]}),
    ]


def test_what_a_message_carries_counts_towards_its_batch() -> None:
    network = make(max_batch_bytes=300)
    for _ in range(4):
        network.core.append(b"0", 0.0, extra=Extra(b"k", (), None, 120))
    network.drain()
    assert [ack.count for ack in network.acked] == [2, 2]


@pytest.mark.parametrize(
    ("is_semel", "told", "offset"),
    [
        (True, print_offset(7), print_offset(5)),
        (True, None, None),
        (True, print_offset(1), None),
        (False, print_offset(7), None),
    ],
)
def test_the_first_offset_is_counted_back_where_offsets_count_messages(
    is_semel: bool, told: str | None, offset: str | None
) -> None:
    settings = ProducerSettings(id="p", session="s")
    core = ProducerCore(settings, json_body, is_semel=is_semel)
    for _ in range(2):
        core.append(b"0", 0.0)
    batch = core.next_to_send(0.0)
    assert batch is not None
    headers = {"producer-epoch": "1"} | ({} if told is None else {"stream-next-offset": told})
    core.on_response(batch, 200, headers, b"", 0.0)
    (ack,) = core.acks.take_events()
    assert isinstance(ack, BatchAck)
    assert (ack.offset, ack.next_offset) == (offset, told)


def test_a_duplicate_of_an_earlier_instance_does_not_lend_its_epoch() -> None:
    early = make(mode="sparse", session="early")
    sparse(early, 10, 20)
    early.drain()
    late = make(early.server, mode="sparse", session="late")
    sparse(late, 10, 20)
    late.drain()
    sparse(late, 30)
    assert "producer-epoch" not in send_all(late)[0]
    late.drain()
    assert late.core.epoch == 2
    assert early.server.log == [b"10", b"20", b"30"]


def test_a_duplicate_under_a_declared_epoch_may_be_an_older_one() -> None:
    early = make(mode="sparse", epoch=3)
    sparse(early, 10)
    early.drain()
    late = make(early.server, mode="sparse", epoch=4)
    sparse(late, 10)
    late.drain()
    assert late.core.failure is None
    assert late.acked[0].duplicate


def test_an_overlap_that_cuts_nothing_is_fatal() -> None:
    network = make(mode="sparse")
    sparse(network, 10)
    network.send()
    network.serve(refusal(409, "batch_overlap", last_seq=3), is_taken=False)
    network.deliver()
    assert isinstance(network.core.failure, ProducerRefused)


def test_a_range_wider_than_the_server_takes_is_divided() -> None:
    network = make(mode="sparse")
    sparse(network, 0, SEQUENCE_SPAN_MAX, SEQUENCE_SPAN_MAX + 1)
    network.drain()
    assert [ack.count for ack in network.acked] == [2, 1]


# rows: P09, P10
def test_sparse_numbers_are_required_and_must_grow() -> None:
    network = make(mode="sparse")
    sparse(network, 5)
    with pytest.raises(ValueError, match="above 5"):
        sparse(network, 5)
    with pytest.raises(ValueError, match="above -1"):
        make(mode="sparse").core.append(b"1", 0.0, seq=-1)
    with pytest.raises(ValueError, match="with every message or with none"):
        append(network, b"1")
    with pytest.raises(ValueError, match="assigns the sequences itself"):
        make().core.append(b"1", 0.0, seq=1)
    assert network.core.pending_count == 1


# ---- Ctrl-C ----------------------------------------------------------------------------------


class Interrupt:
    """A trace function that raises KeyboardInterrupt before the n-th executed client line."""

    def __init__(self, line: int) -> None:
        self.left = line

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        if "/semel/client/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


@pytest.mark.parametrize("mode", ["dense", "sparse"])
def test_ctrl_c_anywhere_in_an_append_neither_loses_nor_repeats_another(mode: str) -> None:
    line, is_over, tracer = 0, False, sys.gettrace()
    while not is_over:
        line += 1
        network = make(mode=mode, max_batch_messages=2)
        seqs = iter(range(10)) if mode == "sparse" else iter([None] * 10)
        for raw in (b"0", b"1"):
            network.core.append(raw, 0.0, seq=next(seqs))
        sys.settrace(Interrupt(line))
        try:
            network.core.append(b"2", 0.0, seq=next(seqs))
            is_over = True
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(tracer)
        for raw in (b"3", b"4"):
            network.core.append(raw, 0.0, seq=next(seqs))
        goal = network.core.appended_count
        network.drain()
        assert [raw for raw in network.server.log if raw != b"2"] == [b"0", b"1", b"3", b"4"]
        assert goal == network.core.acks.settled_count == len(network.server.log) <= 5
    assert line > 10


# ---- settings --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": ""},
        {"id": "a\nb"},
        {"id": "ü" * 129},
        {"id": "x" * 257},
        {"initial_seq": 0},
        {"mode": "sparse", "initial_seq": -1},
        {"expires": 60, "delivery_timeout": 61.0},
        {"epoch": 1, "session": "s"},
        {"session": None},
        {"epoch": -1, "session": None},
        {"mode": "loose"},
        {"max_in_flight": 0},
        {"max_batch_bytes": 0},
        {"max_batch_messages": 10_001},
        {"linger": -1.0},
        {"delivery_timeout": 0.0},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        ProducerSettings(**{"id": "p", "session": "s", **wrong})  # type: ignore[arg-type]
