"""Sequences that a producer assigns, producers without a name, closing a stream, and no dedup."""

from typing import Any

import pytest

from semel.client.errors import (
    Indeterminate,
    ProducerExpired,
    ProtocolError,
    StreamClosed,
    Unavailable,
)
from semel.client.producer.batches import ProducerBatch
from semel.client.producer.outcomes import BatchAck
from semel.client.producer.settings import RENEWAL_SECONDS
from semel.client.stream_calls import DedupKnowledge
from semel.model.offsets import print_offset
from tests.unit.client.producer_model import Answer, Network, make
from tests.unit.client.test_producer_core import append, busy, established, send_all, sparse

# ---- sequences that a sparse producer assigns itself ---------------------------------------------


# rows: P08
@pytest.mark.parametrize(("initial", "first"), [(None, 0), (0, 0), (1000, 1000)])
def test_the_first_sequence_is_the_initial_one_and_each_later_one_is_the_next(
    initial: int | None, first: int
) -> None:
    network = make(mode="sparse", initial_seq=initial, max_batch_messages=2)
    append(network, b"1", b"2", b"3")
    network.drain()
    assert [ack.seq for ack in network.acked] == [first + 1, first + 2]
    assert network.server.log == [b"1", b"2", b"3"]


# rows: P08, P11
def test_sequences_from_a_chosen_start_that_an_earlier_instance_has_stored_are_skipped() -> None:
    network = make(mode="sparse", initial_seq=0)
    network.core.resume(1, 1, None)
    append(network, b"1", b"2", b"3")
    network.drain()
    assert network.server.log == [b"3"]
    assert network.core.acks.stats.messages_skipped == 2


# rows: P08
@pytest.mark.parametrize("is_claimed", [False, True])
def test_without_a_start_the_sequences_continue_after_the_last_stored_one(
    *, is_claimed: bool
) -> None:
    network = make(mode="sparse")
    open_with = network.core.take_over if is_claimed else network.core.resume
    open_with(1, 1, None)
    append(network, b"1", b"2", b"3")
    network.drain()
    assert network.server.log == [b"1", b"2", b"3"]
    assert network.core.acks.last_seq == 4
    assert network.core.acks.stats.messages_skipped == 0


# rows: P08
@pytest.mark.parametrize("values", [(b"8", b"9"), (b"0", b"1"), (b"7", b"8", b"9"), (b"9",)])
def test_a_new_message_is_never_taken_for_one_of_an_earlier_instance(
    values: tuple[bytes, ...],
) -> None:
    early = make(mode="sparse", epoch=1)
    late = make(early.server, mode="sparse", epoch=2)
    late.core.resume(None, None, None)  # nothing was stored when the state was read
    append(early, b"0", b"1")
    early.drain()
    append(late, *values)
    late.drain()
    assert late.core.failure is not None
    assert late.acked == []
    assert [batch.values for batch in late.failed] == [list(values)]


# rows: P08
@pytest.mark.parametrize("is_semel", [False, True])
def test_a_repeat_of_its_own_batch_with_assigned_sequences_is_acknowledged(
    *, is_semel: bool
) -> None:
    network = make(mode="sparse", epoch=1, is_semel=is_semel)
    append(network, b"0", b"1")
    send_all(network)
    network.serve()
    network.lose()
    network.drain()
    assert network.core.failure is None
    assert [(ack.count, ack.duplicate) for ack in network.acked] == [(2, True)]
    assert network.server.log == [b"0", b"1"]


# rows: P10
@pytest.mark.parametrize("settings", [{}, {"initial_seq": 5}])
def test_own_and_assigned_sequences_do_not_mix(settings: dict[str, Any]) -> None:
    network = make(mode="sparse", **settings)
    append(network, b"1")
    with pytest.raises(ValueError, match="with every message or with none"):
        sparse(network, 10)
    append(network, b"2")
    network.drain()
    assert network.server.log == [b"1", b"2"]


# ---- a producer without a name -------------------------------------------------------------------

UNNAMED: dict[str, Any] = {"session": "s", "expires": 86_400, "delivery_timeout": 120.0}


# rows: P06
def test_a_producer_without_a_name_says_when_it_may_be_forgotten() -> None:
    network = make(**UNNAMED)
    append(network, b"0")
    (headers,) = send_all(network)
    assert headers["producer-expires"] == "86400"
    assert "producer-expires" not in dict(make().core.headers(new_batch()))


def new_batch() -> ProducerBatch:
    return ProducerBatch([b"1"], [0], 0, 0.0, None, {})


# rows: P06
def test_after_an_idle_time_it_begins_again_with_the_next_epoch() -> None:
    network = established(is_semel=True, **UNNAMED)
    network.server.forget()
    network.server.tombstone = None
    network.now = RENEWAL_SECONDS
    append(network, b"1", b"2")
    (headers,) = send_all(network)  # rule 3: the first one alone
    assert (headers["producer-epoch"], headers["producer-seq"]) == ("2", "0")
    assert headers["producer-session"] == "s"
    network.drain()
    assert network.server.log == [b"0", b"1", b"2"]
    assert network.core.failure is None


# rows: P06
def test_batches_that_a_forgetful_server_refuses_are_numbered_again() -> None:
    network = established(is_semel=True, **UNNAMED)
    network.server.forget()
    append(network, b"1", b"2", b"3")
    assert [headers["producer-seq"] for headers in send_all(network)] == ["1", "2", "3"]
    network.drain()
    assert network.server.log == [b"0", b"1", b"2", b"3"]
    assert network.core.epoch == 2
    assert network.core.failure is None


# rows: P06, X13
@pytest.mark.parametrize("settings", [{}, UNNAMED])
def test_what_may_be_stored_is_not_sent_to_a_forgetful_server_again(
    settings: dict[str, Any],
) -> None:
    network = established(is_semel=True, **settings)
    append(network, b"1")
    send_all(network)
    network.serve()
    network.lose()
    network.server.forget()
    network.drain()
    assert isinstance(network.core.failure, ProducerExpired)
    assert [(batch.values, batch.applied) for batch in network.failed] == [([b"1"], "unknown")]
    assert network.server.log == [b"0", b"1"]


def test_a_producer_with_a_name_that_was_forgotten_fails() -> None:
    network = established(is_semel=True)
    network.server.forget()
    network.now = 10 * RENEWAL_SECONDS
    append(network, b"1")
    network.drain()
    assert isinstance(network.core.failure, ProducerExpired)


# ---- ids that are not ASCII ----------------------------------------------------------------------


# rows: D02
def test_an_id_that_is_not_ascii_is_percent_encoded() -> None:
    headers = dict(make(id="Zähler 1").core.headers(new_batch()))
    assert headers["Producer-Id*"] == "UTF-8''Z%C3%A4hler%201"
    assert "Producer-Id" not in headers


# ---- closing the stream --------------------------------------------------------------------------


# rows: D41
def test_the_last_message_closes_the_stream_in_the_same_request() -> None:
    network = established()
    append(network, b"1")
    network.core.close_stream(network.now)
    (headers,) = send_all(network)
    assert (headers["producer-seq"], headers["stream-closed"]) == ("1", "true")
    network.drain()
    assert network.server.is_closed
    assert [(ack.count, ack.closed) for ack in network.acked] == [(1, False), (1, True)]


# rows: D41
def test_a_close_without_messages_has_a_sequence_and_no_body() -> None:
    network = established()
    network.core.close_stream(network.now, "end")
    (headers,) = send_all(network)
    assert (headers["producer-seq"], headers["producer-cursor"]) == ("1", "end")
    assert network.line[0][1] == b""
    assert network.core.pending_count == 0
    network.drain()
    assert network.server.is_closed
    assert network.acked[-1] == BatchAck(0, 1, print_offset(1), cursor="end", closed=True)


def test_a_stream_that_is_already_closed_needs_no_close() -> None:
    network = established()
    network.server.is_closed = True
    network.core.close_stream(network.now)
    network.drain()
    assert network.core.failure is None
    assert (network.acked[-1].duplicate, network.acked[-1].closed) == (True, True)


def test_a_closed_stream_is_fatal_for_the_last_message() -> None:
    network = established()
    append(network, b"1")
    network.server.is_closed = True
    network.core.close_stream(network.now)
    network.drain()
    assert isinstance(network.core.failure, StreamClosed)
    assert [(batch.count, batch.closing) for batch in network.failed] == [(1, True)]


@pytest.mark.parametrize("mode", ["dense", "sparse"])
def test_what_was_stored_without_a_close_is_closed_afterwards(mode: str) -> None:
    """An earlier instance with the same epoch has stored the messages, but not the close."""
    settings: dict[str, Any] = {"mode": mode, "epoch": 1, "is_semel": True}
    early = make(**settings)
    early.core.append(b"1", 0.0)
    early.drain()
    late = make(early.server, **settings)
    late.core.resume(1, None, None)
    late.core.append(b"1", 0.0)
    late.core.close_stream(0.0)
    late.drain()
    assert late.core.failure is None
    assert late.server.is_closed
    assert late.server.log == [b"1"]
    assert [(ack.count, ack.duplicate, ack.closed) for ack in late.acked] == [
        (1, True, False),
        (0, False, True),
    ]


@pytest.mark.parametrize(("seqs", "count"), [((0, 1, 2), 3), ((1,), 2)])
def test_stored_messages_are_taken_out_of_the_last_batch(seqs: tuple[int], count: int) -> None:
    early = make(mode="sparse", session="early")
    sparse(early, 0, 1)
    early.drain()
    late = make(early.server, mode="sparse", session="late")
    sparse(late, *seqs)
    late.core.close_stream(0.0)
    late.drain()
    assert late.core.failure is None
    assert late.server.is_closed
    assert len(late.server.log) == count


def test_a_server_that_ignores_the_close_is_found_out() -> None:
    network = established()
    network.core.close_stream(0.0)
    send_all(network)
    network.serve(Answer(204, {"producer-epoch": "1"}))
    network.deliver()
    assert isinstance(network.core.failure, ProtocolError)
    assert network.core.failure.applied == "unknown"


# ---- streams without dedup -----------------------------------------------------------------------


def lost(**settings: Any) -> Network:
    """Return a producer whose second message is stored, while its response is lost."""
    network = established(is_semel=True, **settings)
    append(network, b"1")
    send_all(network)
    network.serve()
    network.lose()
    network.now = 10.0
    return network


@pytest.mark.parametrize(
    "shown", [{"stream-dedup": "off"}, {"stream-dedup-pending": "off"}, {"stream-dedup": "OFF"}]
)
def test_without_dedup_a_batch_that_may_be_stored_is_not_sent_again(shown: dict[str, str]) -> None:
    network = lost()
    send_all(network)
    network.serve(Answer(200, shown))
    network.deliver()
    assert isinstance(network.core.failure, Indeterminate)
    assert "Stream-Dedup: off" in str(network.core.failure)
    assert [batch.applied for batch in network.failed] == ["unknown"]
    assert not network.send()


@pytest.mark.parametrize(
    ("dedup_from", "shown", "is_sent_again"),
    [(None, 1, True), (None, 2, False), (2, 2, True), (2, 3, False), (None, None, True)],
    ids=["acknowledged", "unknown", "unchanged", "switched", "beginning"],
)
def test_a_batch_that_may_be_stored_before_dedup_was_switched_on_is_not_sent_again(
    dedup_from: int | None, shown: int | None, is_sent_again: bool
) -> None:
    known = None if dedup_from is None else print_offset(dedup_from)
    network = lost(known=DedupKnowledge(dedup_from=known))
    send_all(network)
    network.serve(Answer(200, {} if shown is None else {"stream-dedup-from": print_offset(shown)}))
    network.deliver()
    assert bool(send_all(network)) is is_sent_again
    if not is_sent_again:
        assert isinstance(network.core.failure, Indeterminate)
        assert [batch.applied for batch in network.failed] == ["unknown"]


@pytest.mark.parametrize("status", [200, 401, 404])
def test_with_dedup_it_is_sent_again_after_one_head_request(status: int) -> None:
    network = lost()
    assert len(send_all(network)) == 1  # the HEAD request alone
    network.serve(Answer(status, {}))
    network.deliver()
    network.drain()
    assert network.core.failure is None
    assert network.server.log == [b"0", b"1"]
    assert network.core.acks.stats.duplicates == 1


def test_a_head_request_without_a_result_is_made_again() -> None:
    network = lost()
    send_all(network)
    network.serve(busy())
    network.deliver()
    assert not network.send()  # a pause first
    network.now += 10
    assert len(send_all(network)) == 1
    network.lose()
    assert not network.send()
    network.drain()
    assert network.server.log == [b"0", b"1"]


def test_a_bad_gateway_is_as_uncertain_as_a_lost_response() -> None:
    network = established(is_semel=True)
    append(network, b"1")
    send_all(network)
    network.serve(Answer(502, {}, b"bad gateway"))
    network.deliver()
    network.server.has_dedup = False
    network.drain()
    assert isinstance(network.core.failure, Indeterminate)
    assert network.server.log == [b"0", b"1"]


def test_a_failed_producer_does_not_care_for_the_head_request() -> None:
    network = lost()
    send_all(network)
    network.core.fail(Unavailable("over"))
    network.serve(Answer(200, {"stream-dedup": "off"}))
    network.deliver()
    assert isinstance(network.core.failure, Unavailable)
