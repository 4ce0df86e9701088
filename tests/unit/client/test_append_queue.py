"""The queue of plain appends: any schedule of calls, responses and leaving callers."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.client.append_queue import REQUEST_BYTES_MAX, AppendQueue, HeldBytes
from semel.client.errors import BadRequest, Indeterminate, StreamClosed, TooLarge
from semel.client.extras import Extras
from semel.client.pending_append import PLAIN, AppendBatch, AppendState, PendingAppend
from semel.client.requests import AppendHeaders
from semel.client.stream_calls import NO_EXTRAS
from semel.client.values import (
    Receipt,
)
from semel.model.limits import BATCH_MESSAGES_MAX, BODY_BYTES_MAX, MIB
from semel.model.offsets import parse_offset, print_offset
from semel.wire.bodies import decode_batch
from semel.wire.headers import BATCH

JSON = "application/json"
TEXT = "text/plain"
BYTES = "application/octet-stream"
GUILTY = "guilty"
HELD_MAX = 3 * MIB
ACTIONS = (
    *("add", "add", "add", "add_alone", "add_large", "add_guilty", "add_bytes", "add_wrong"),
    *("send", "answer", "answer", "refuse", "lose", "leave", "sender_leaves", "retype"),
)
actions = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 7)), max_size=60)


def pending(*values: Any, deadline: float = 30.0, extras: Extras = NO_EXTRAS) -> PendingAppend:
    return PendingAppend(values, PLAIN, extras, deadline)


class Schedule:
    """A queue, and a server that stores whole batches and refuses those with a guilty message."""

    def __init__(self) -> None:
        self.held = HeldBytes(HELD_MAX)
        self.queue = AppendQueue(self.held)
        self.calls: list[PendingAppend] = []
        self.content_type: str = JSON
        self.has_retyped = False
        self.flight: AppendBatch | None = None
        self.log: list[Any] = []
        self.maybe_stored: set[int] = set()
        self.left_unsent: set[int] = set()

    def play(self, steps: list[tuple[str, int]]) -> None:
        for name, number in steps:
            getattr(self, name)(number)
            self.check()
        while not self.queue.is_idle:
            self.send(0)
            self.answer(0)
            self.check()
        assert self.held.count == 0
        assert all(not append.is_pending for append in self.calls)

    # ---- calls -----------------------------------------------------------------------------------

    def _add(
        self, values: list[Any], number: int, *, conditions: AppendHeaders = PLAIN
    ) -> PendingAppend:
        # The deadlines of most callers are alike, and some are much shorter.
        deadline = 30.0 + len(self.calls) / 1000 if number else 1.0
        append = PendingAppend(values, conditions, NO_EXTRAS, deadline)
        append.encode(self.content_type)
        self.calls.append(append)
        assert self.queue.add(append) == (self.queue.turn is append)
        return append

    def _name(self, index: int = 0) -> str:
        return f"{len(self.calls)}.{index}"

    def add(self, number: int) -> None:
        self._add([self._name(index) for index in range(number + 1)], number)

    def add_alone(self, number: int) -> None:
        self._add([self._name()], number, conditions=AppendHeaders(if_match=str(number)))

    def add_large(self, number: int) -> None:
        self._add([self._name() + "x" * (MIB // 3)], number)

    def add_guilty(self, number: int) -> None:
        self._add([self._name() + GUILTY], number)

    def add_bytes(self, number: int) -> None:
        """Bytes that are one JSON value, or a part of one, or two."""
        if self.content_type == JSON:
            quoted = msgspec.json.encode(self._name())
            raw = (quoted, quoted[:-1], quoted + b"," + quoted, b'{"a":' + quoted)[number % 4]
            self._add([raw], number)

    def add_wrong(self, number: int) -> None:
        """A value that a text stream does not accept. It is found when the type has changed."""
        if self.content_type == JSON:
            self._add([number], 1)

    # ---- sending ---------------------------------------------------------------------------------

    def send(self, _: int) -> None:
        if not self.queue.is_ready:
            return
        turn = self.queue.turn
        batch, failed = self.queue.take(0.0, self.content_type)
        assert all(isinstance(append.error, TypeError) for append in failed)
        self.flight = batch
        if batch is None:
            assert turn in failed
            return
        batch.is_posted = True
        batch.is_repeatable = len(self.calls) % 2 == 0
        assert turn is not None
        if turn in batch.appends:
            assert batch.deadline <= 1.05 * turn.deadline
        else:  # in another media type, fewer appends fit into the request
            assert self.has_retyped
        self._check_bounds(batch)

    def _check_bounds(self, batch: AppendBatch) -> None:
        if len(batch.appends) > 1:
            body_type, body = batch.body()
            assert len(body) <= REQUEST_BYTES_MAX
            assert sum(append.count for append in batch.appends) <= BATCH_MESSAGES_MAX
            assert not any(append.is_alone for append in batch.appends)
            if body_type == JSON:
                values = [
                    msgspec.json.decode(raw) for each in batch.appends for raw in each.messages
                ]
                assert msgspec.json.decode(body) == values

    def answer(self, _: int) -> None:
        if self.flight is None:
            return
        batch, self.flight = self.flight, None
        if any(GUILTY in str(each.values) or self._is_broken(each) for each in batch.appends):
            if len(batch.appends) > 1:
                self.queue.send_alone(batch, is_too_large=len(self.calls) % 2 == 0)
            else:
                self.queue.fail(batch, BadRequest("bad_body", status=400))
            return
        for append in batch.appends:
            self.log.append(append)
            for _value in append.values[1:]:
                self.log.append(append)
        self.queue.finish(batch, Receipt(print_offset(len(self.log))))

    @staticmethod
    def _is_broken(append: PendingAppend) -> bool:
        """Return True for bytes that are not exactly one JSON value."""
        value = append.values[0]
        if not isinstance(value, bytes):
            return False
        try:
            msgspec.json.decode(value)
        except msgspec.DecodeError:
            return True
        return False

    def refuse(self, _: int) -> None:
        if self.flight is not None:
            batch, self.flight = self.flight, None
            waiting = batch.waiting
            assert self.queue.fail(batch, StreamClosed("closed")) == waiting
            assert len({id(append.error) for append in waiting}) == len(waiting)

    def lose(self, _: int) -> None:
        if self.flight is not None:
            batch, self.flight = self.flight, None
            self._may_be_stored(batch)
            self.queue.fail(batch, Indeterminate("lost"))

    def _may_be_stored(self, batch: AppendBatch) -> None:
        self.maybe_stored |= {id(append) for append in batch.appends}

    def retype(self, _: int) -> None:
        """The stream was deleted and created again with another media type."""
        if self.flight is not None:
            batch, self.flight = self.flight, None
            self.has_retyped = True
            self.content_type = TEXT if self.content_type == JSON else JSON
            self.queue.encode_again(batch)

    # ---- leaving ---------------------------------------------------------------------------------

    def leave(self, number: int) -> None:
        found = [append for append in self.calls if append.is_pending]
        found = [each for each in found if each is not self.queue.turn or self.flight is None]
        if found:
            append = found[number % len(found)]
            if append.state is AppendState.QUEUED:
                self.left_unsent.add(id(append))
            else:
                self.maybe_stored.add(id(append))
            is_sender = append is self.queue.turn
            assert self.queue.leave(append, is_sender=is_sender) == []

    def sender_leaves(self, _: int) -> None:
        turn = self.queue.turn
        if self.flight is None or turn is None or not turn.is_pending:
            return
        batch, self.flight = self.flight, None
        others = [append for append in batch.waiting if append is not turn]
        if turn in batch.appends:
            self.maybe_stored.add(id(turn))
        if not batch.is_repeatable:
            self._may_be_stored(batch)
        done = self.queue.leave(turn, is_sender=True)
        if batch.is_repeatable:
            assert done == []
            assert self.queue.turn in others or not others  # another one sends the same batch
        else:
            assert done == others
            assert all(isinstance(append.error, Indeterminate) for append in others)

    # ---- what always holds -----------------------------------------------------------------------

    def check(self) -> None:
        order = [self.calls.index(append) for append in self.log]
        assert order == sorted(order)
        for append in self.calls:
            stored = self.log.count(append)
            if id(append) in self.left_unsent:
                assert stored == 0
            elif append.is_done and append.receipt is not None:
                assert stored == append.count
                last = len(self.log) - self.log[::-1].index(append)
                assert parse_offset(append.receipt.next_offset or "") == last
            elif append.is_done:
                assert stored == 0 or id(append) in self.maybe_stored
                if isinstance(append.error, BadRequest):
                    assert GUILTY in str(append.values) or self._is_broken(append)
        assert self.held.count <= HELD_MAX + BODY_BYTES_MAX
        assert self.held.count == sum(append.held_bytes for append in self.calls)


@settings(max_examples=200)
@given(actions)
def test_every_schedule_keeps_order_bounds_and_each_callers_own_result(
    steps: list[tuple[str, int]],
) -> None:
    Schedule().play(steps)


def started() -> tuple[AppendQueue, AppendBatch]:
    """Return a queue with one append in flight."""
    queue = AppendQueue(HeldBytes())
    first = pending("first")
    first.encode(JSON)
    assert queue.add(first)
    batch, _ = queue.take(0.0, JSON)
    assert batch is not None
    return queue, batch


def test_what_is_appended_while_a_request_is_in_flight_shares_the_next_one() -> None:
    queue, batch = started()
    others = [pending(number) for number in range(100)]
    for append in others:
        append.encode(JSON)
        assert not queue.add(append)
    queue.finish(batch, Receipt(print_offset(1)))
    following, _ = queue.take(0.0, JSON)
    assert following is not None
    assert following.appends == others
    queue.finish(following, Receipt(print_offset(101)))
    assert [append.result().next_offset for append in others] == [
        print_offset(number + 2) for number in range(100)
    ]
    assert queue.is_idle


def test_keys_headers_and_timestamps_share_a_request_with_messages_that_have_none() -> None:
    queue, batch = started()
    keyed = pending(b"1", b"2", extras=Extras(keys=[b"a", None]))
    headed = pending(b"3", extras=Extras(headers=[[("h", b"v")]], timestamps=[7]))
    for append in (pending(b"0"), keyed, headed):
        append.encode(BYTES)
        queue.add(append)
    queue.finish(batch, Receipt(print_offset(1)))
    following, _ = queue.take(0.0, BYTES)
    assert following is not None
    body_type, body = following.body()
    assert body_type == BATCH
    assert decode_batch(body).content_type == BYTES
    assert len(following.appends) == 3


@pytest.mark.parametrize(
    "conditions",
    [
        AppendHeaders(if_match="1"),
        AppendHeaders(seq="1"),
        AppendHeaders(idempotency_key="k"),
        AppendHeaders(is_closing=True),
    ],
)
def test_an_append_with_a_condition_goes_alone_between_the_others(
    conditions: AppendHeaders,
) -> None:
    queue, batch = started()
    alone = PendingAppend(["alone"], conditions, NO_EXTRAS, 30.0)
    for append in (pending(1), pending(2), alone, pending(3)):
        append.encode(JSON)
        queue.add(append)
    sizes = []
    while True:
        queue.finish(batch, Receipt(print_offset(10)))
        if queue.is_idle:
            break
        following, _ = queue.take(0.0, JSON)
        assert following is not None
        batch = following
        sizes.append(len(batch.appends))
    assert sizes == [2, 1, 1]


def test_an_empty_message_goes_alone_because_the_server_refuses_it() -> None:
    queue, batch = started()
    for value in (b"a", b"", b"b"):
        append = pending(value)
        append.encode(BYTES)
        queue.add(append)
    queue.finish(batch, Receipt(print_offset(1)))
    following, _ = queue.take(0.0, BYTES)
    assert following is not None
    assert [append.values for append in following.appends] == [(b"a",)]


def test_what_is_too_large_alone_is_refused_before_it_waits() -> None:
    with pytest.raises(TooLarge):
        pending(b"x" * (BODY_BYTES_MAX + 1)).encode(BYTES)


def test_a_caller_with_a_short_timeout_does_not_send_for_the_others() -> None:
    queue, batch = started()
    short, long = pending(1, deadline=0.2), pending(2, deadline=60.0)
    for append in (short, long):
        append.encode(JSON)
        queue.add(append)
    queue.finish(batch, Receipt(print_offset(1)))
    assert queue.turn is long


def test_beyond_the_bound_of_held_bytes_appends_wait_without_their_encoded_messages() -> None:
    held = HeldBytes(1000)
    queue = AppendQueue(held)
    appends = [pending(b"x" * 400) for _ in range(5)]
    for append in appends:
        append.encode(BYTES)
        queue.add(append)
    assert held.count <= 1000
    assert [append.content_type for append in appends] == [BYTES, BYTES, None, None, None]
    batch, _ = queue.take(0.0, BYTES)
    assert batch is not None
    assert [len(append.messages[0]) for append in batch.appends] == [400] * 5
    queue.finish(batch, Receipt(print_offset(5)))
    assert held.count == 0


def test_an_interrupted_request_that_was_not_sent_is_queued_again() -> None:
    queue, batch = started()
    other = pending(2)
    other.encode(JSON)
    queue.add(other)
    queue.leave(batch.appends[0], is_sender=True)
    assert queue.turn is other
    following, _ = queue.take(0.0, JSON)
    assert following is not None
    assert following.appends == [other]


def shared_flight(*appends: PendingAppend) -> tuple[AppendQueue, AppendBatch]:
    """Return a queue with a posted request in flight that has these appends."""
    queue, batch = started()
    for append in appends:
        append.encode(JSON)
        queue.add(append)
    queue.finish(batch, Receipt(print_offset(1)))
    following, _ = queue.take(0.0, JSON)
    assert following is not None
    following.is_posted = True
    return queue, following


def test_a_refusal_gives_each_caller_an_exception_object_of_its_own() -> None:
    appends = [pending(number) for number in range(3)]
    queue, batch = shared_flight(*appends)
    queue.fail(batch, StreamClosed("closed", status=409, facts={"next_offset": "1"}))
    found = [append.error for append in appends]
    assert len({id(error) for error in found}) == 3
    for error in found:
        assert isinstance(error, StreamClosed)
        assert (error.status, error.facts) == (409, {"next_offset": "1"})


def test_an_append_with_a_much_later_deadline_does_not_join_a_request_that_ends_before() -> None:
    queue = AppendQueue(HeldBytes())
    short = pending(1, deadline=1.0)
    short.encode(JSON)
    queue.add(short)
    long = pending(2, deadline=30.0)
    long.encode(JSON)
    queue.add(long)
    batch, _ = queue.take(0.0, JSON)
    assert batch is not None
    assert batch.appends == [short]


@pytest.mark.parametrize("is_repeatable", [True, False])
def test_when_the_sender_is_interrupted_another_sends_the_same_request_if_that_is_safe(
    *, is_repeatable: bool
) -> None:
    appends = [pending(number, deadline=number) for number in (1.0, 1.02, 1.01)]
    queue, batch = shared_flight(*appends)
    batch.is_repeatable = is_repeatable
    body = batch.body()
    first, sender, second = appends
    assert queue.turn is sender
    done = queue.leave(sender, is_sender=True)
    if not is_repeatable:
        assert done == [first, second]
        assert all(isinstance(append.error, Indeterminate) for append in done)
        assert queue.is_idle
        return
    assert done == []
    assert queue.turn is second
    again, _ = queue.take(0.0, JSON)
    assert again is batch
    assert again.body() is body
    assert again.was_lost
    queue.finish(again, Receipt(print_offset(4)))
    assert first.result().next_offset == print_offset(2)
    assert second.result().next_offset == print_offset(4)


def test_an_interrupted_request_whose_callers_have_all_left_is_not_sent_again() -> None:
    appends = [pending(number) for number in range(2)]
    queue, batch = shared_flight(*appends)
    batch.is_repeatable = True
    sender = queue.turn
    assert sender is not None
    queue.leave(sender, is_sender=True)
    (other,) = (append for append in appends if append is not sender)
    queue.leave(other, is_sender=True)
    assert queue.is_idle
