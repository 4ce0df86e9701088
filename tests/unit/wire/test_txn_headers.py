"""The headers that name the transaction of an append."""

import pytest

from semel.model.commands import TxnTag
from semel.wire.headers import refuse_repeated
from semel.wire.problems import MalformedRequest
from semel.wire.rendering import EXPOSED_HEADER, PREFLIGHT_HEADERS
from tests.unit.wire.builders import post, posted, refused


# rows: R17
def test_an_append_names_its_transaction() -> None:
    assert posted().transaction is None
    inline = posted(transaction_id="t", transaction_epoch="3")
    assert inline.transaction == TxnTag("t", 3)
    staged = posted(transaction_id="t", transaction_epoch="3", transaction_seq="007")
    assert staged.transaction == TxnTag("t", 3, 7)
    strict = {"transaction_id": "t", "transaction_epoch": "3", "producer_strict": "true"}
    assert posted(**strict, transaction_seq="7").transaction == TxnTag("t", 3, 7, is_strict=True)


@pytest.mark.parametrize(
    "headers",
    [
        {"transaction_id": "t"},
        {"transaction_epoch": "1"},
        {"transaction_seq": "0"},
        {"transaction_id": "t", "transaction_seq": "0"},
    ],
)
def test_a_part_of_the_headers_is_refused(headers: dict[str, str]) -> None:
    assert refused(post(**headers)) == (400, "transaction_headers_incomplete")


@pytest.mark.parametrize(
    "odd",
    [
        {"transaction_id": ""},
        {"transaction_id": "t" * 257},
        {"transaction_id": "\xe9"},
        {"transaction_epoch": "-1"},
        {"transaction_epoch": str(2**53)},
        {"transaction_seq": "1.5"},
        {"transaction_seq": ""},
    ],
)
def test_a_value_that_means_nothing_is_refused(odd: dict[str, str]) -> None:
    headers = {"transaction_id": "t", "transaction_epoch": "1", **odd}
    assert refused(post(**headers)) == (400, "invalid_header")


@pytest.mark.parametrize("name", ["transaction-id", "transaction-epoch", "transaction-seq"])
def test_none_of_them_is_given_twice(name: str) -> None:
    with pytest.raises(MalformedRequest):
        refuse_repeated({name})


def test_a_page_of_another_origin_may_send_and_read_them() -> None:
    allowed = dict(PREFLIGHT_HEADERS)["Access-Control-Allow-Headers"].split(", ")
    assert {"Transaction-Id", "Transaction-Epoch", "Transaction-Seq"} <= set(allowed)
    exposed = EXPOSED_HEADER[1].split(", ")
    assert {"Stream-Stable-Offset", "Stream-Blocked-By", "Stream-Blocked-Since"} <= set(exposed)
