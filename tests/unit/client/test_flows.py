import pytest

from semel.client import errors
from semel.client.answers import Answer
from semel.client.flows import (
    PAUSE_SECONDS_MAX,
    PAUSE_SECONDS_MIN,
    RETRY_AFTER_SECONDS_MAX,
    Asked,
    Flow,
    Kind,
    Lost,
    NotSent,
    ask,
)
from semel.client.requests import Request
from tests.unit.client.hand import Played, answer, play, problem

REQUEST = Request("POST", "/v1/stream/a", (), b"x")
OK = answer(204)
DOWN = NotSent("refused")
LOST = Lost("reset")
STALE = Lost("closed", is_stale=True)
BUSY = problem(503, "overloaded")
PROXY = answer(502)


def asking(kind: Kind, retries: int | None = None) -> Flow[Asked]:
    return ask(REQUEST, kind, retries=retries)


@pytest.mark.parametrize("kind", list(Kind))
def test_an_answer_is_returned_at_once(kind: Kind) -> None:
    for status in (200, 204, 301, 400, 404, 409, 412):
        asked = play(asking(kind), answer(status))
        assert asked == Asked(answer(status), was_lost=False)


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("trouble", [DOWN, BUSY, answer(408)])
def test_what_was_not_applied_is_sent_again_whatever_it_is(
    kind: Kind, trouble: Answer | NotSent
) -> None:
    played = Played(asking(kind), [trouble, trouble, OK])
    assert played.result == Asked(OK, was_lost=False)
    assert [send.request for send in played.sends] == [REQUEST] * 3
    assert len(played.pauses) == 2


@pytest.mark.parametrize("trouble", [LOST, PROXY])
def test_what_may_have_been_applied_is_sent_again_only_if_that_is_safe(
    trouble: Answer | Lost,
) -> None:
    assert play(asking(Kind.REPEATABLE), trouble, OK) == Asked(OK, was_lost=True)
    assert play(asking(Kind.READ), trouble, OK).answer == OK
    played = Played(asking(Kind.ONCE), [trouble])
    assert isinstance(played.error, errors.Indeterminate)
    assert played.error.applied == "unknown"


def test_a_connection_gone_stale_costs_no_pause_but_only_once() -> None:
    assert not Played(asking(Kind.REPEATABLE), [STALE, OK]).pauses
    assert len(Played(asking(Kind.REPEATABLE), [STALE, STALE, OK]).pauses) == 1
    assert isinstance(Played(asking(Kind.ONCE), [STALE]).error, errors.Indeterminate)


@pytest.mark.parametrize(
    ("kind", "replies", "error"),
    [
        (Kind.ONCE, [DOWN, False], errors.Unavailable),
        (Kind.ONCE, [BUSY, False], errors.Unavailable),
        (Kind.REPEATABLE, [DOWN, DOWN, False], errors.Unavailable),
        (Kind.REPEATABLE, [LOST, False], errors.Indeterminate),
        # The last try was not applied, but the first may have been.
        (Kind.REPEATABLE, [LOST, DOWN, False], errors.Indeterminate),
        (Kind.REPEATABLE, [PROXY, BUSY, False], errors.Indeterminate),
        (Kind.READ, [LOST, False], errors.Unavailable),
        (Kind.READ, [PROXY, False], errors.Unavailable),
        (Kind.READ, [DOWN, False], errors.Unavailable),
    ],
)
def test_when_the_time_is_over_the_error_says_whether_anything_was_applied(
    kind: Kind, replies: list[object], error: type[errors.ClientError]
) -> None:
    played = Played(asking(kind), replies)
    assert type(played.error) is error
    assert played.error is not None
    assert played.error.applied == ("unknown" if error is errors.Indeterminate else "no")


def test_retries_are_counted() -> None:
    assert isinstance(Played(asking(Kind.READ, retries=0), [DOWN]).error, errors.Unavailable)
    played = Played(asking(Kind.READ, retries=2), [DOWN, DOWN, DOWN])
    assert isinstance(played.error, errors.Unavailable)


def test_a_certificate_that_is_wrong_is_not_tried_again() -> None:
    played = Played(asking(Kind.READ), [NotSent("certificate", is_hopeless=True)])
    assert isinstance(played.error, errors.Unavailable)


def test_pauses_grow_up_to_a_limit_and_heed_the_server() -> None:
    played = Played(asking(Kind.READ), [*[DOWN] * 12, OK])
    seconds = [pause.seconds for pause in played.pauses]
    assert seconds[:3] == [PAUSE_SECONDS_MIN, 2 * PAUSE_SECONDS_MIN, 4 * PAUSE_SECONDS_MIN]
    assert seconds[-1] == PAUSE_SECONDS_MAX
    told = Played(asking(Kind.READ), [answer(503, retry_after="7"), OK])
    assert told.pauses[0].at_least == 7
    told = Played(asking(Kind.READ), [answer(503, retry_after="86400"), OK])
    assert told.pauses[0].at_least == RETRY_AFTER_SECONDS_MAX


def test_a_limit_is_waited_for_only_if_the_server_says_how_long() -> None:
    assert play(asking(Kind.ONCE), answer(429)).answer.status == 429
    assert play(asking(Kind.ONCE), answer(429, retry_after="1"), OK).answer == OK
    full = Played(asking(Kind.ONCE), [answer(429, retry_after="1"), False])
    assert isinstance(full.error, errors.LimitReached)


def test_a_success_of_another_kind_is_no_success() -> None:
    with pytest.raises(errors.ProtocolError, match="301"):
        Asked(answer(301)).expect(200)


def test_whoever_wants_to_is_told_of_each_try_in_vain() -> None:
    told: list[tuple[str, int]] = []
    flow = ask(REQUEST, Kind.READ, on_retry=lambda error, tries: told.append((error.code, tries)))
    Played(flow, [DOWN, LOST, OK])
    assert told == [("unavailable", 0), ("indeterminate", 1)]
