"""Responses about subscriptions, and the bodies that webhooks receive."""

import json
from typing import Any, Final

import msgspec
import pytest

from semel.machine.subscription_events import MATCHED, NAMED, NEVER_ACKED, SubscriptionRow, WakeRow
from semel.machine.subscription_views import (
    ClaimView,
    DeliveryView,
    LinkView,
    SubscriptionPage,
    SubscriptionView,
)
from semel.model.offsets import print_offset
from semel.model.outcomes import Overloaded
from semel.model.outcomes_subscriptions import (
    AlreadyClaimed,
    Fenced,
    LinksChanged,
    SubscriptionCreated,
    SubscriptionDeleted,
    WakeAcked,
    WakeChanged,
    WrongType,
)
from semel.wire.control_errors import control_problem, control_refusal
from semel.wire.paths import subscription_url
from semel.wire.problems import Problem
from semel.wire.rendering import Response
from semel.wire.subscriptions import (
    Signing,
    ack_response,
    control_response,
    created_response,
    delivery_body,
    is_done,
    keys_response,
    page_response,
    subscription_info,
    url_rejected,
    wake_claim_response,
)

URL: Final = "https://example.com/hook"
SIGNING: Final = Signing("ds_k", "http://127.0.0.1:1/v1/stream/__ds/jwks.json")
HOOK: Final = SubscriptionRow(
    "webhook", "events/*", ("a",), URL, None, 30_000, None, created_ms=0, names=("a",)
)
PULL: Final = SubscriptionRow("pull-wake", None, ("a",), None, "w", 1_000, "mine", 1_500, ("a",))
LINKS: Final = (
    LinkView("named/later", NAMED, NEVER_ACKED, None, has_pending=False),
    LinkView("a", NAMED | MATCHED, 3, 5, has_pending=True),
    LinkView("events/b", MATCHED, NEVER_ACKED, 0, has_pending=False),
)
SHOWN: Final = [
    {
        "path": "named/later",
        "link_type": "explicit",
        "acked_offset": "-1",
        "tail_offset": "-1",
        "has_pending": False,
    },
    {
        "path": "a",
        "link_type": "explicit",
        "acked_offset": print_offset(3),
        "tail_offset": print_offset(5),
        "has_pending": True,
    },
    {
        "path": "events/b",
        "link_type": "glob",
        "acked_offset": "-1",
        "tail_offset": print_offset(0),
        "has_pending": False,
    },
]


def view(row: SubscriptionRow = HOOK, wake: WakeRow | None = None, **more: Any) -> SubscriptionView:
    return SubscriptionView(
        "s", row, wake or WakeRow(), "active", stream_count=2, pending_count=1, **more
    )


def document(response: Response) -> Any:
    return json.loads(response.body)


# ---- subscriptions -------------------------------------------------------------------------------


def test_a_new_subscription_is_201_and_one_that_existed_is_200() -> None:
    for is_new, status in ((True, 201), (False, 200)):
        response = created_response(SubscriptionCreated("s", is_new), view(), SIGNING)
        assert response.status == status
        assert ("Content-Type", "application/json") in response.headers
        assert document(response)["id"] == "s"


def test_a_webhook_is_shown_with_its_key_and_no_secret() -> None:
    response = created_response(SubscriptionCreated("s", True), view(streams=LINKS), SIGNING)
    assert document(response) == {
        "id": "s",
        "subscription_id": "s",
        "type": "webhook",
        "pattern": "events/*",
        "webhook": {
            "url": URL,
            "signing": {"alg": "ed25519", "kid": "ds_k", "jwks_url": SIGNING.jwks_url},
        },
        "lease_ttl_ms": 30_000,
        "created_at": "1970-01-01T00:00:00.000Z",
        "status": "active",
        "stream_count": 2,
        "pending_count": 1,
        "generation": 0,
        "worker": None,
        "attempts": 0,
        "last_error": None,
        "streams": SHOWN,
    }


def test_a_pull_wake_is_shown_with_its_wake() -> None:
    wake = WakeRow(4, "w_x", worker="w-1", attempts=2, error="status 500")
    info = subscription_info(view(PULL, wake, streams_next=7), None)
    shown = json.loads(msgspec.json.encode(info))
    assert (
        shown.items()
        >= {
            "type": "pull-wake",
            "wake_stream": "w",
            "lease_ttl_ms": 1_000,
            "description": "mine",
            "created_at": "1970-01-01T00:00:01.500Z",
            "generation": 4,
            "worker": "w-1",
            "attempts": 2,
            "last_error": "status 500",
            "streams_next": 7,
        }.items()
    )
    assert not {"webhook", "pattern"} & shown.keys()


def test_a_list_has_no_streams() -> None:
    page = SubscriptionPage((view(), view(PULL)), "s")
    hook, pull = document(page_response(page, SIGNING))["subscriptions"]
    assert "streams" not in hook | pull
    assert "wake_id" not in hook | pull
    assert (hook["webhook"]["url"], pull["wake_stream"]) == (URL, "w")
    assert document(page_response(SubscriptionPage((), None), None)) == {
        "subscriptions": [],
        "next": None,
    }


def test_the_address_of_a_subscription_has_its_id_as_one_segment() -> None:
    url = subscription_url("http://h:1", "a/b é?")
    assert url == "http://h:1/v1/stream/__ds/subscriptions/a%2Fb%20%C3%A9%3F"


# ---- wakes ---------------------------------------------------------------------------------------


def test_a_claim_has_the_token_and_the_snapshot() -> None:
    claim = ClaimView("s", "w_x", 4, worker="w-1", lease_ms=1_000, streams=LINKS[1:])
    assert document(wake_claim_response(claim, "t")) == {
        "wake_id": "w_x",
        "generation": 4,
        "token": "t",
        "streams": SHOWN[1:],
        "lease_ttl_ms": 1_000,
    }


@pytest.mark.parametrize(("next_wake", "text"), [(True, b"true"), (False, b"false")])
def test_the_response_to_an_ack_has_exactly_two_members(next_wake: bool, text: bytes) -> None:
    response = ack_response(WakeAcked(next_wake))
    assert (response.status, response.body) == (200, b'{"ok":true,"next_wake":' + text + b"}")


def test_a_refused_ack_has_the_form_of_the_protocol() -> None:
    response = ack_response(Fenced("s", 4))
    assert response.status == 409
    error = document(response)["error"]
    assert (error["code"], error["generation"], error["subscription"]) == ("FENCED", 4, "s")


@pytest.mark.parametrize("outcome", [SubscriptionDeleted(), LinksChanged(), WakeChanged()])
def test_what_changes_nothing_that_is_shown_is_204(outcome: Any) -> None:
    assert control_response(outcome) == Response(204, [])


def test_the_keys_may_be_cached() -> None:
    response = keys_response(b'{"keys":[]}')
    assert response.headers == [
        ("Content-Type", "application/jwk-set+json"),
        ("Cache-Control", "public, max-age=300"),
    ]
    assert response.body == b'{"keys":[]}'


# ---- errors --------------------------------------------------------------------------------------


def test_an_error_has_the_form_of_the_protocol() -> None:
    response = control_refusal(AlreadyClaimed("w-1", 4))
    assert response.status == 409
    assert response.headers == [("Content-Type", "application/json"), ("Cache-Control", "no-store")]
    assert document(response) == {
        "error": {
            "code": "ALREADY_CLAIMED",
            "message": "the worker 'w-1' has claimed the wake",
            "current_holder": "w-1",
            "generation": 4,
        }
    }


def test_every_malformed_request_has_one_code_and_its_cause() -> None:
    error = document(control_problem(Problem(400, "bad_body", "x", {"field": "f"})))["error"]
    assert error == {"code": "INVALID_REQUEST", "cause": "bad_body", "message": "x", "field": "f"}
    error = document(control_response(WrongType("webhook")))["error"]
    assert (error["code"], error["cause"], error["type"]) == (
        "INVALID_REQUEST",
        "wrong_type",
        "webhook",
    )


def test_the_code_of_a_rejected_url_stays() -> None:
    error = document(control_problem(url_rejected("x")))["error"]
    assert error["code"] == "WEBHOOK_URL_REJECTED"
    assert "cause" not in error


def test_headers_of_a_problem_stay_and_an_unknown_effect_is_said() -> None:
    response = control_refusal(Overloaded())
    assert ("Retry-After", "1") in response.headers
    assert document(response)["error"]["applied"] == "no", "a status from 500 does not say so"
    error = document(control_problem(Problem(500, "internal_error", "x", applied="unknown")))
    assert error["error"]["applied"] == "unknown"


# ---- deliveries ----------------------------------------------------------------------------------


def test_a_delivery_has_the_members_of_the_protocol() -> None:
    delivery = DeliveryView("s", "w_x", 4, URL, LINKS[1:])
    body = delivery_body(delivery, callback_url="http://c", callback_token="t")
    assert json.loads(body) == {
        "subscription_id": "s",
        "wake_id": "w_x",
        "generation": 4,
        "streams": SHOWN[1:],
        "callback_url": "http://c",
        "callback_token": "t",
    }


@pytest.mark.parametrize(
    ("body", "done"),
    [
        (b'{"done":true}', True),
        (b' {"done": true, "more": [1]} ', True),
        (b'{"done":false}', False),
        (b"{}", False),
        (b"", False),
        (b"ok", False),
        (b'"done"', False),
        (b"[true]", False),
        (b'{"done":"true"}', False),
        (b'{"done":1}', False),
        (b'{"done":null}', False),
        (b'{"done":true', False),
        (b'{"done":true}{', False),
        (b"[" * 100_000, False),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_only_a_response_that_says_so_acks_the_delivery(body: bytes, done: bool) -> None:
    assert is_done(body) is done
