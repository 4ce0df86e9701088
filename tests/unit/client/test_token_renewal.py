"""A refused token: what is sent again, and what the error says."""

from typing import Any

import pytest

from semel.client import errors
from semel.client.flows import Exchanged, Lost, RetrySafety, Send, ask
from semel.client.producer.core import ProducerCore
from semel.client.producer.settings import ProducerSettings
from semel.client.requests import Request
from semel.client.response_parser import Response
from tests.unit.client.producer_model import Answer, json_body, refusal

OK = Answer(200, {"producer-epoch": "1", "stream-next-offset": "1"})
NO_TOKEN = refusal(401, "unauthenticated")


class Sender:
    """A producer whose requests a test answers by hand."""

    def __init__(self, *, renews_token: bool, is_semel: bool = False) -> None:
        self.core = ProducerCore(
            ProducerSettings(id="p", epoch=1, max_batch_messages=1),
            json_body,
            is_semel=is_semel,
            renews_token=renews_token,
        )
        self.now = 0.0

    def append(self, *messages: bytes) -> None:
        for message in messages:
            self.core.append(message, self.now)

    def send(self) -> list[Any]:
        batches = []
        while (batch := self.core.next_to_send(self.now)) is not None:
            batches.append(batch)
        return batches

    def answer(self, batch: Any, answer: Answer) -> None:
        self.core.on_response(batch, answer.status, answer.headers, answer.body, self.now)


def established(*, renews_token: bool, is_semel: bool = False) -> Sender:
    sender = Sender(renews_token=renews_token, is_semel=is_semel)
    sender.append(b"0")
    (batch,) = sender.send()
    sender.answer(batch, OK)
    return sender


def test_batches_whose_token_is_refused_are_sent_once_more_and_in_order() -> None:
    sender = established(renews_token=True)
    sender.append(b"1", b"2", b"3")
    batches = sender.send()
    assert len(batches) == 3
    sender.answer(batches[0], NO_TOKEN)
    assert sender.send() == []  # until all have a response
    sender.answer(batches[1], NO_TOKEN)
    sender.answer(batches[2], NO_TOKEN)
    again = sender.send()  # at once, without a pause
    assert again == batches
    for batch in again:
        sender.answer(batch, OK)
    assert sender.core.failure is None
    assert sender.core.acks.stats.messages_acked == 4
    assert sender.core.acks.stats.retries == 3


def test_a_second_refusal_of_the_token_ends_the_producer() -> None:
    sender = established(renews_token=True)
    sender.append(b"1", b"2")
    for _ in range(2):
        for batch in sender.send():
            sender.answer(batch, NO_TOKEN)
    assert isinstance(sender.core.failure, errors.Unauthenticated)
    assert sender.core.acks.stats.messages_failed == 2
    assert sender.send() == []


@pytest.mark.parametrize("answer", [NO_TOKEN, refusal(403, "forbidden", right="write")])
def test_without_a_function_for_the_token_a_refusal_is_final(answer: Answer) -> None:
    sender = established(renews_token=answer is not NO_TOKEN)
    sender.append(b"1")
    (batch,) = sender.send()
    sender.answer(batch, answer)
    assert isinstance(sender.core.failure, errors.Unauthenticated | errors.Forbidden)


def test_a_check_whose_token_is_refused_is_made_again_before_a_batch_is_sent() -> None:
    sender = established(renews_token=True, is_semel=True)
    sender.append(b"1")
    sender.send()
    sender.core.connection_lost(sender.now, errors.Indeterminate("lost"))
    sender.now = 10.0
    assert sender.core.starts_check(sender.now)
    sender.core.on_check(401, {}, b"", sender.now)
    assert sender.send() == []  # the stream could have no dedup: the check comes first
    assert sender.core.starts_check(sender.now)
    sender.core.on_check(200, {"stream-next-offset": "1"}, b"", sender.now)
    assert len(sender.send()) == 1


def test_a_check_whose_token_is_refused_twice_ends_the_producer() -> None:
    sender = established(renews_token=True, is_semel=True)
    sender.append(b"1")
    sender.send()
    sender.core.connection_lost(sender.now, errors.Indeterminate("lost"))
    sender.now = 10.0
    for _ in range(2):
        assert sender.core.starts_check(sender.now)
        sender.core.on_check(401, {}, b"", sender.now)
    assert isinstance(sender.core.failure, errors.Unauthenticated)


# ---- flows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize(
    ("kind", "applied"), [(RetrySafety.REPEATABLE, "unknown"), (RetrySafety.READ, "no")]
)
def test_a_refused_repeat_does_not_hide_that_the_first_request_may_be_applied(
    status: int, kind: RetrySafety, applied: str
) -> None:
    flow = ask(Request("POST", "/x", body=b""), kind)
    assert isinstance(next(flow), Send)
    assert isinstance(flow.send(Lost("lost", is_stale=True)), Send)
    with pytest.raises(StopIteration) as end:
        flow.send(Response(status, {}))
    exchanged = end.value.value
    assert isinstance(exchanged, Exchanged)
    assert exchanged.error().applied == applied


def test_a_refusal_of_the_first_request_shows_that_nothing_was_applied() -> None:
    error = Exchanged(Response(401, {})).error()
    assert (type(error), error.applied) == (errors.Unauthenticated, "no")
