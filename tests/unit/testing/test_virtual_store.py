import errno
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.journal.store import Store, StoreFull
from semel.testing import Fail, Fault, Killed, LostSync, PowerLost, VirtualStore, refuse


class Always:
    """Injects the same fault at every commit."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault

    def before(self, operation: str, name: str, size: int) -> Fault | None:
        assert operation == "commit"
        return self.fault


def put(store: VirtualStore, key: bytes, value: bytes) -> None:
    writer = store.write()
    writer.put("keys", key, value)
    writer.commit()


def rows(store: VirtualStore) -> dict[bytes, bytes]:
    with store.read() as reader:
        return dict(reader.scan("keys"))


def test_a_virtual_store_is_a_store() -> None:
    store: Store = VirtualStore()
    with store.read() as reader:
        assert reader.get("meta", b"k") is None


def test_a_transaction_sees_its_changes_before_anyone_else() -> None:
    store = VirtualStore()
    put(store, b"a", b"1")
    writer = store.write()
    writer.put("keys", b"b", b"2")
    writer.delete("keys", b"a")
    writer.delete("keys", b"never there")
    assert writer.get("keys", b"a") is None
    assert writer.get("keys", b"b") == b"2"
    assert writer.last_before("keys", b"z") == (b"b", b"2")
    assert rows(store) == {b"a": b"1"}
    writer.commit()
    assert rows(store) == {b"b": b"2"}


def test_a_reader_keeps_the_tables_of_its_beginning() -> None:
    store = VirtualStore()
    put(store, b"a", b"1")
    with store.read() as reader:
        walk = reader.scan("keys")
        put(store, b"a", b"2")
        put(store, b"b", b"2")
        assert list(walk) == [(b"a", b"1")]
        assert reader.get("keys", b"b") is None
    assert rows(store) == {b"a": b"2", b"b": b"2"}


def test_a_closed_view_is_closed() -> None:
    store = VirtualStore()
    with store.read() as reader:
        pass
    with pytest.raises(AssertionError, match="closed"):
        reader.get("keys", b"a")


def test_an_aborted_transaction_never_was() -> None:
    store = VirtualStore()
    writer = store.write()
    writer.put("keys", b"a", b"1")
    writer.abort()
    writer.abort()
    assert rows(store) == {}
    put(store, b"b", b"2")


def test_there_is_one_writer_at_a_time() -> None:
    store = VirtualStore()
    store.write()
    with pytest.raises(AssertionError, match="write transaction is already open"):
        store.write()
    store.close()
    store.write()


def test_an_ended_transaction_cannot_be_used() -> None:
    store = VirtualStore()
    writer = store.write()
    writer.commit()
    with pytest.raises(OSError, match="Bad file descriptor"):
        writer.put("keys", b"a", b"1")
    with pytest.raises(OSError, match="Bad file descriptor"):
        writer.commit()


@pytest.mark.parametrize("key", [b"", b"x" * 512])
def test_a_key_that_lmdb_refuses_is_refused(key: bytes) -> None:
    with pytest.raises(AssertionError, match="1 to 511"):
        VirtualStore().write().put("keys", key, b"")


_KEYS = st.binary(min_size=1, max_size=2)


@given(st.dictionaries(_KEYS, _KEYS), st.sets(_KEYS), st.binary(max_size=2))
def test_scan_and_last_before_follow_the_order_of_keys(
    put_rows: dict[bytes, bytes], gone: set[bytes], start: bytes
) -> None:
    store = VirtualStore()
    writer = store.write()
    for key, value in put_rows.items():
        writer.put("keys", key, value)
    for key in sorted(gone):
        writer.delete("keys", key)
    left = {key: value for key, value in put_rows.items() if key not in gone}
    writer.commit()
    with store.read() as reader:
        assert list(reader.scan("keys", start)) == sorted(
            item for item in left.items() if item[0] >= start
        )
        below = [item for item in left.items() if item[0] <= start]
        assert reader.last_before("keys", start) == max(below, default=None)


def test_a_transaction_may_change_the_table_it_walks() -> None:
    store = VirtualStore()
    for key in (b"a", b"b", b"c"):
        put(store, key, key)
    writer = store.write()
    walked = []
    for key, _ in writer.scan("keys"):
        walked.append(key)
        writer.delete("keys", key)
        if key == b"a":
            writer.delete("keys", b"b")
            writer.put("keys", b"d", b"d")
    assert walked == [b"a", b"c", b"d"]
    writer.commit()
    assert rows(store) == {}


@pytest.mark.parametrize("error", [StoreFull(), OSError(errno.EIO, "x"), Killed(), PowerLost()])
@pytest.mark.parametrize("is_after", [False, True])
def test_a_failed_commit_happened_wholly_or_not_at_all(error: Exception, is_after: bool) -> None:
    store = VirtualStore()
    put(store, b"a", b"1")
    store.faults = Always(Fail(error, is_after=is_after))
    writer = store.write()
    writer.put("keys", b"a", b"2")
    writer.put("meta", b"b", b"2")
    with pytest.raises(type(error)):
        writer.commit()
    writer.abort()
    store.kill()
    assert rows(store) == {b"a": b"2" if is_after else b"1"}
    with store.read() as reader:
        assert reader.get("meta", b"b") == (b"2" if is_after else None)


def test_a_commit_neither_lies_nor_comes_up_short() -> None:
    store = VirtualStore(faults=Always(LostSync()))
    with pytest.raises(AssertionError, match="only syncs are lost"):
        store.write().commit()


def test_after_a_refused_commit_the_next_transaction_may_begin() -> None:
    store = VirtualStore(faults=Always(refuse(errno.EIO)))
    with pytest.raises(OSError, match="Input/output"):
        put(store, b"a", b"1")
    store.faults = None
    put(store, b"a", b"2")
    assert rows(store) == {b"a": b"2"}


def test_the_dead_do_nothing_more_until_the_test_buries_them() -> None:
    store = VirtualStore(faults=Always(Fail(Killed())))
    with pytest.raises(Killed):
        store.write().commit()
    with pytest.raises(Killed):
        store.write()
    with pytest.raises(Killed), store.read():
        pass
    store.crash(Random(1))
    assert rows(store) == {}


def test_a_crash_takes_the_open_transaction_and_nothing_else() -> None:
    store = VirtualStore()
    put(store, b"a", b"1")
    writer = store.write()
    writer.put("keys", b"b", b"2")
    store.crash(Random(1))
    with pytest.raises(OSError, match="Bad file descriptor"):
        writer.commit()
    assert rows(store) == {b"a": b"1"}


def test_a_full_store_refuses_the_transaction_and_goes_on_when_rows_go() -> None:
    store = VirtualStore(capacity_bytes=6)
    put(store, b"a", b"1234")
    put(store, b"a", b"12345")
    writer = store.write()
    with pytest.raises(StoreFull):
        writer.put("keys", b"b", b"")
    with pytest.raises(StoreFull):
        writer.delete("keys", b"a")
    with pytest.raises(StoreFull):
        writer.commit()
    assert rows(store) == {b"a": b"12345"}
    writer = store.write()
    writer.delete("keys", b"a")
    writer.put("keys", b"b", b"12345")
    writer.commit()
    store.capacity_bytes = 8
    put(store, b"c", b"1")
    assert rows(store) == {b"b": b"12345", b"c": b"1"}


def test_commits_are_counted_and_seen_after_they_happened() -> None:
    store = VirtualStore()
    seen: list[dict[bytes, bytes]] = []
    store.on_operation = lambda operation, name: seen.append(rows(store))
    put(store, b"a", b"1")
    put(store, b"a", b"2")
    assert seen == [{b"a": b"1"}, {b"a": b"2"}]
    assert store.operations == 2


def test_a_copy_goes_its_own_way() -> None:
    store = VirtualStore()
    put(store, b"a", b"1")
    twin = store.copy()
    assert twin.digest() == store.digest()
    put(store, b"a", b"2")
    put(twin, b"b", b"3")
    assert rows(store) == {b"a": b"2"}
    assert rows(twin) == {b"a": b"1", b"b": b"3"}
    assert twin.digest() != store.digest()


def test_the_digest_does_not_depend_on_the_order_of_writing() -> None:
    one, other = VirtualStore(), VirtualStore()
    for key in (b"a", b"b"):
        put(one, key, b"1")
    for key in (b"b", b"a"):
        put(other, key, b"1")
    assert one.digest() == other.digest()
