"""The calls of an operator, run without a network."""

import msgspec

from semel.client import errors
from semel.client import server_calls as calls
from semel.client.flows import Lost
from tests.unit.client.hand import SITE, Played, answer, problem

LOST = Lost("gone")


def page(*names: str, after: int | None) -> object:
    listed = [{"transaction_id": name} for name in names]
    return answer(200, msgspec.json.encode({"transactions": listed, "next": after}))


def test_transactions_are_listed_by_pages() -> None:
    flow = calls.list_transactions(SITE, "open", "a b")
    played = Played(flow, [page("t", "u", after=7), page("v", after=None)])
    assert [txn["transaction_id"] for txn in played.result] == ["t", "u", "v"]
    assert [send.request.target for send in played.sends] == [
        "/v1/transactions?state=open&stream=a%20b&after=0&limit=1000",
        "/v1/transactions?state=open&stream=a%20b&after=7&limit=1000",
    ]
    stuck = Played(calls.list_transactions(SITE, None, None), [page(after=3), page(after=3)])
    assert isinstance(stuck.error, errors.ProtocolError)


def test_a_decision_by_hand_says_so_and_is_sent_again_if_its_answer_is_lost() -> None:
    done = answer(200, b'{"state":"aborted"}')
    played = Played(calls.end_transaction(SITE, "a/b", 3, "abort"), [LOST, done])
    assert played.result == {"state": "aborted"}
    assert [send.request.target for send in played.sends] == ["/v1/transactions/a%2Fb/abort"] * 2
    assert played.sends[1].request.body == b'{"transaction_epoch":3,"operator":true}'


def test_what_is_not_there_is_not_taken_for_a_server_without_the_page() -> None:
    flow = calls.show_transaction(SITE, "t", 2)
    played = Played(flow, [problem(404, "INVALID_TXN_ID")])
    assert played.sends[0].request.target == "/v1/transactions/t?epoch=2"
    assert isinstance(played.error, errors.Refused)
    assert played.error.code == "INVALID_TXN_ID"
    elsewhere = Played(calls.list_sinks(SITE), [answer(404)])
    assert isinstance(elsewhere.error, errors.NotSupported)


def test_a_group_without_a_step_is_shown_without_one() -> None:
    offsets = answer(200, b'{"group":"g","offsets":{}}')
    none = problem(404, "snapshot_not_found")
    shown = Played(calls.show_group(SITE, "g"), [offsets, none])
    assert shown.result == {"group": "g", "offsets": {}, "snapshot": None}
    step = Played(calls.show_group(SITE, "g"), [offsets, answer(200, b'{"number":4}')])
    assert step.result["snapshot"] == {"number": 4}
    other = problem(400, "invalid_request")
    assert isinstance(Played(calls.show_group(SITE, "g"), [offsets, other]).error, errors.Refused)
