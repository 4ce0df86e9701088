import pytest

from semel.client import errors
from semel.client.flows import (
    PAUSE_SECONDS_MAX,
    PAUSE_SECONDS_MIN,
    RETRY_AFTER_SECONDS_MAX,
    Exchanged,
    Flow,
    Lost,
    NotSent,
    RetrySafety,
    ask,
    error_of,
)
from semel.client.requests import Request
from semel.client.response_parser import Response
from tests.unit.client.hand import Played, answer, play, problem

REQUEST = Request("POST", "/v1/stream/a", (), b"x")
OK = answer(204)
DOWN = NotSent("refused")
LOST = Lost("reset")
STALE = Lost("closed", is_stale=True)
BUSY = problem(503, "overloaded")
PROXY = answer(502)


def asking(kind: RetrySafety, retries: int | None = None) -> Flow[Exchanged]:
    return ask(REQUEST, kind, retries=retries)


@pytest.mark.parametrize("kind", list(RetrySafety))
def test_an_answer_is_returned_at_once(kind: RetrySafety) -> None:
    for status in (200, 204, 301, 400, 404, 409, 412):
        asked = play(asking(kind), answer(status))
        assert asked == Exchanged(answer(status), was_lost=False)


@pytest.mark.parametrize("kind", list(RetrySafety))
@pytest.mark.parametrize("trouble", [DOWN, BUSY, answer(408)])
def test_what_was_not_applied_is_sent_again_whatever_it_is(
    kind: RetrySafety, trouble: Response | NotSent
) -> None:
    played = Played(asking(kind), [trouble, trouble, OK])
    assert played.result == Exchanged(OK, was_lost=False)
    assert [send.request for send in played.sends] == [REQUEST] * 3
    assert len(played.pauses) == 2


@pytest.mark.parametrize("trouble", [LOST, PROXY])
def test_what_may_have_been_applied_is_sent_again_only_if_that_is_safe(
    trouble: Response | Lost,
) -> None:
    assert play(asking(RetrySafety.REPEATABLE), trouble, OK) == Exchanged(OK, was_lost=True)
    assert play(asking(RetrySafety.READ), trouble, OK).response == OK
    played = Played(asking(RetrySafety.ONCE), [trouble])
    assert isinstance(played.error, errors.Indeterminate)
    assert played.error.applied == "unknown"


def test_a_connection_gone_stale_costs_no_pause_but_only_once() -> None:
    assert not Played(asking(RetrySafety.REPEATABLE), [STALE, OK]).pauses
    assert len(Played(asking(RetrySafety.REPEATABLE), [STALE, STALE, OK]).pauses) == 1
    assert isinstance(Played(asking(RetrySafety.ONCE), [STALE]).error, errors.Indeterminate)


@pytest.mark.parametrize(
    ("kind", "replies", "error"),
    [
        (RetrySafety.ONCE, [DOWN, False], errors.Unavailable),
        (RetrySafety.ONCE, [BUSY, False], errors.Unavailable),
        (RetrySafety.REPEATABLE, [DOWN, DOWN, False], errors.Unavailable),
        (RetrySafety.REPEATABLE, [LOST, False], errors.Indeterminate),
        # The last attempt was not applied, but the first may have been.
        (RetrySafety.REPEATABLE, [LOST, DOWN, False], errors.Indeterminate),
        (RetrySafety.REPEATABLE, [PROXY, BUSY, False], errors.Indeterminate),
        (RetrySafety.READ, [LOST, False], errors.Unavailable),
        (RetrySafety.READ, [PROXY, False], errors.Unavailable),
        (RetrySafety.READ, [DOWN, False], errors.Unavailable),
    ],
)
def test_when_the_time_is_over_the_error_says_whether_anything_was_applied(
    kind: RetrySafety, replies: list[object], error: type[errors.ClientError]
) -> None:
    played = Played(asking(kind), replies)
    assert type(played.error) is error
    assert played.error is not None
    assert played.error.applied == ("unknown" if error is errors.Indeterminate else "no")


def test_retries_are_counted() -> None:
    assert isinstance(Played(asking(RetrySafety.READ, retries=0), [DOWN]).error, errors.Unavailable)
    played = Played(asking(RetrySafety.READ, retries=2), [DOWN, DOWN, DOWN])
    assert isinstance(played.error, errors.Unavailable)


def test_a_certificate_that_is_wrong_is_not_tried_again() -> None:
    played = Played(asking(RetrySafety.READ), [NotSent("certificate", is_permanent=True)])
    assert isinstance(played.error, errors.Unavailable)


def test_pauses_grow_up_to_a_limit_and_heed_the_server() -> None:
    played = Played(asking(RetrySafety.READ), [*[DOWN] * 12, OK])
    seconds = [pause.seconds for pause in played.pauses]
    assert seconds[:3] == [PAUSE_SECONDS_MIN, 2 * PAUSE_SECONDS_MIN, 4 * PAUSE_SECONDS_MIN]
    assert seconds[-1] == PAUSE_SECONDS_MAX
    told = Played(asking(RetrySafety.READ), [answer(503, retry_after="7"), OK])
    assert told.pauses[0].at_least == 7
    told = Played(asking(RetrySafety.READ), [answer(503, retry_after="86400"), OK])
    assert told.pauses[0].at_least == RETRY_AFTER_SECONDS_MAX


def test_a_limit_of_semel_is_waited_for_only_if_it_says_how_long() -> None:
    limit = problem(429, "limit_reached")
    assert play(asking(RetrySafety.ONCE), limit).response.status == 429
    assert play(asking(RetrySafety.ONCE), problem(507, "disk_full")).response.status == 507
    assert play(asking(RetrySafety.ONCE), answer(429, retry_after="1"), OK).response == OK
    full = Played(asking(RetrySafety.ONCE), [answer(429, retry_after="1"), False])
    assert isinstance(full.error, errors.LimitReached)


def test_a_rate_limit_of_another_server_is_waited_for() -> None:
    assert play(asking(RetrySafety.ONCE), answer(429), answer(429), OK).response == OK
    assert isinstance(
        Played(asking(RetrySafety.ONCE), [answer(429), False]).error, errors.LimitReached
    )
    once = ask(REQUEST, RetrySafety.ONCE, retries=1)
    assert isinstance(Played(once, [answer(429), answer(429)]).error, errors.LimitReached)


def test_a_read_whose_response_is_always_cut_says_so() -> None:
    cut = Lost("the connection was closed in the middle of a response", is_cut=True)
    error = Played(asking(RetrySafety.READ), [cut, False]).error
    assert isinstance(error, errors.DamagedResponse)
    assert error.applied == "no"
    assert "in the middle" in str(error)
    written = Played(asking(RetrySafety.ONCE), [cut]).error
    assert isinstance(written, errors.Indeterminate)


def test_an_error_names_the_stream_that_is_missing() -> None:
    def error(given: Response, stream: str | None) -> str:
        return error_of(given.status, given.headers, given.body, stream).message

    assert error(problem(404, "stream_not_found"), "shop/x") == "404 stream_not_found: no: shop/x"
    assert error(answer(404, b"no stream shop/x"), "shop/x") == "404: no stream shop/x"
    assert error(answer(410), "shop/x") == "410: shop/x"
    assert error(problem(409, "stream_closed"), "shop/x") == "409 stream_closed: no"
    assert error(answer(404), None) == "404"
    assert error(problem(404, "topic_not_found"), "shop") == "404 topic_not_found: no: shop"


def test_a_success_of_another_kind_is_no_success() -> None:
    with pytest.raises(errors.ProtocolError, match="301"):
        Exchanged(answer(301)).expect(200)


def test_whoever_wants_to_is_told_of_each_try_in_vain() -> None:
    told: list[tuple[str, int]] = []
    flow = ask(
        REQUEST, RetrySafety.READ, on_retry=lambda error, tries: told.append((error.code, tries))
    )
    Played(flow, [DOWN, LOST, OK])
    assert told == [("unavailable", 0), ("indeterminate", 1)]
