"""The partitions of rows: the same as those that any other writer selects."""

import pickle
from zlib import crc32

import pyarrow as pa
import pytest

from semel.model.partitioners import HASHES, partition_of
from semel.spark.sink.columns import find_columns
from semel.spark.sink.rows import StreamRows
from semel.spark.sink.staging import RowSplitter
from semel.spark.sink.topics import TopicLayout
from semel.spark.topics import partition_number
from tests.unit.spark.test_sink_columns import schema

KEYS = ["", "a", "b", "żółw", "customer-7", "a", "k" * 300]


def layout(partitions: int = 5, partitioner: str = "crc32") -> TopicLayout:
    return TopicLayout("orders", partitions, partitioner, "application/json")


@pytest.mark.parametrize("partitioner", HASHES)
@pytest.mark.parametrize("partitions", [1, 2, 5, 1000])
def test_a_key_selects_the_partition_whatever_its_type(partitioner: str, partitions: int) -> None:
    wanted = [partition_of(partitioner, key.encode(), partitions) for key in KEYS]
    values = pa.array(["1"] * len(KEYS))
    texts, raw = pa.array(KEYS), pa.array([key.encode() for key in KEYS])
    for keys in (texts, raw, pa.concat_arrays([texts, texts]).slice(len(KEYS))):
        assert layout(partitions, partitioner).partitions_of(keys, values).tolist() == wanted


@pytest.mark.parametrize("partitioner", HASHES)
def test_without_a_key_the_value_selects_the_partition(partitioner: str) -> None:
    values = [f'"{number}"' for number in range(40)]
    wanted = [crc32(value.encode()) % 5 for value in values]
    assert len(set(wanted)) == 5
    target = layout(5, partitioner)
    assert target.partitions_of(None, pa.array(values)).tolist() == wanted
    keys = pa.array([None, "a"] * 20)
    of_a = partition_of(partitioner, b"a", 5)
    mixed = [number if at % 2 == 0 else of_a for at, number in enumerate(wanted)]
    assert target.partitions_of(keys, pa.array(values)).tolist() == mixed
    nothing = pa.array([None, None], pa.string())
    assert target.partitions_of(nothing, nothing).tolist() == [crc32(b"null") % 5] * 2


def test_rows_of_one_partition_keep_their_order_and_their_numbers() -> None:
    columns = find_columns(schema("key string, id long"), None, "orders")
    target = pickle.loads(pickle.dumps(layout(3)))
    splitter = RowSplitter(columns, target, lambda _: "application/json", 0)
    keys = ["a", "b", "c", "d", None, "a"] * 3
    batch = pa.record_batch({"key": keys, "id": list(range(18))})
    found: dict[int, tuple[str, str | None]] = {}
    for _ in range(2):
        for rows in splitter.split(batch):
            numbers = [int(number) for number in rows.numbers]
            assert numbers == sorted(numbers)
            places = [(rows.path, key) for key in texts(rows)]
            found |= dict(zip(numbers, places, strict=True))
    assert sorted(found) == list(range(36))
    for number, (path, key) in found.items():
        assert key == keys[number % 18]
        value = b'{"id":%d}' % (number % 18)
        place = crc32(value) if key is None else crc32(key.encode())
        assert path == f"orders/{place % 3}"


def texts(rows: StreamRows) -> list[str | None]:
    assert rows.keys is not None
    found: list[str | None] = rows.keys.to_pylist()
    return found


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("eu/orders/0", 0),
        ("eu/orders/999", 999),
        ("eu/orders/1000", None),
        ("eu/orders/01", None),
        ("eu/orders/\u0661", None),
        ("eu/orders/", None),
        ("eu/orders", None),
        ("orders/0", None),
        ("eu/orders/0/1", None),
    ],
)
def test_the_number_of_a_partition_is_known_from_its_path(path: str, number: int | None) -> None:
    assert partition_number("eu/orders", path) == number
