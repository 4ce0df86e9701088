"""Receipts packed into bytes."""

from hypothesis import given
from hypothesis import strategies as st

from semel.machine import producers
from semel.machine.producers import Receipt
from semel.model.limits import NUMBER_MAX, SEQUENCE_SPAN_MAX


def of(*spans: tuple[int, int]) -> bytes:
    return b"".join(producers.pack_receipt(a, b, a, a + 1, 7) for a, b in spans)


@given(
    st.integers(0, NUMBER_MAX - SEQUENCE_SPAN_MAX),
    st.integers(0, SEQUENCE_SPAN_MAX),
    st.integers(0, NUMBER_MAX - 10_000),
    st.integers(0, 10_000),
    st.integers(0, 2**64 - 1),
)
def test_a_receipt_unpacks_as_it_was_packed(
    seq: int, span: int, offset: int, count: int, digest: int
) -> None:
    receipt = Receipt(seq, seq + span, offset, offset + count, digest)
    packed = producers.pack_receipt(seq, seq + span, offset, offset + count, digest)
    assert len(packed) == producers.RECEIPT_BYTES
    assert producers.unpack_receipt(packed, 0) == receipt


def test_the_oldest_is_let_go_beyond_the_limit() -> None:
    ring = bytearray()
    for n in range(5):
        ring = producers.push_receipt(ring, of((n, n)), 3)
    assert [
        producers.unpack_receipt(ring, i).last_seq for i in range(producers.receipts_of(ring))
    ] == [
        2,
        3,
        4,
    ]


def test_a_smaller_limit_lets_several_go_at_once() -> None:
    ring = bytearray(of(*[(n, n) for n in range(5)]))
    assert producers.push_receipt(ring, of((5, 5)), 2) == of((4, 4), (5, 5))


def test_a_dense_receipt_is_found_at_its_place_and_zero_beyond_it() -> None:
    ring, zero = of((3, 3), (4, 4)), of((0, 0))
    found = [producers.find_dense(ring, zero, seq=n, last_seq=4) for n in range(5)]
    assert [receipt and receipt.first_seq for receipt in found] == [0, None, None, 3, 4]
    assert producers.find_dense(ring, b"", seq=0, last_seq=4) is None


def test_a_sparse_receipt_is_found_if_the_ranges_meet() -> None:
    ring = of((10, 14), (20, 20), (30, 39))

    def met(first: int, last: int) -> int | None:
        receipt = producers.find_sparse(ring, first_seq=first, last_seq=last)
        return None if receipt is None else receipt.first_seq

    assert [met(14, 14), met(5, 10), met(20, 20), met(0, 99)] == [10, 10, 20, 30]
    assert [met(0, 9), met(15, 19), met(21, 29), met(40, 50)] == [None] * 4
