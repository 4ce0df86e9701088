"""Parts of a transaction, packed into pages."""

from semel.machine.txn.draft import (
    BLOCK_BYTES,
    CHUNK_BYTES,
    chunks_in,
    lsns_of,
    push_chunk,
    push_extent,
)


def test_extents_that_follow_one_another_become_one() -> None:
    pages: list[bytes] = []
    for first, stream, count in ((0, 1, 2), (2, 1, 1), (0, 2, 1), (1, 2, 1), (3, 1, 1)):
        assert push_extent(pages, first, stream, count) == 0
    assert list(chunks_in(pages)) == [(0, 1, 3), (0, 2, 2), (3, 1, 1)]


def test_a_full_page_is_followed_by_another() -> None:
    pages: list[bytes] = []
    numbers = {push_chunk(pages, 10 * n, 1, 1) for n in range(BLOCK_BYTES // CHUNK_BYTES + 1)}
    assert (numbers, len(pages)) == ({0, 1}, 2)
    assert lsns_of(pages[1]) == {2560}
    assert push_extent(pages, 2561, 1, 4) == 1
    assert list(chunks_in(pages))[-1] == (2560, 1, 5)
