"""Digests of Spark's offset log."""

import hashlib
from pathlib import Path

import pytest

from semel.spark.errors import CheckpointError
from semel.spark.sink.commit import UNKNOWN, Digests, find_checkpoint, read_digests


def log(checkpoint: Path, batch_id: int, *ranges: str, watermark: int = 0) -> None:
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    lines = ["v1", f'{{"batchWatermarkMs":{watermark}}}', *ranges]
    (checkpoint / "offsets" / str(batch_id)).write_text("\n".join(lines))


def digest(*ranges: str) -> str:
    return "sha256:" + hashlib.sha256("\n".join(ranges).encode()).hexdigest()


def test_a_batch_is_known_by_the_ranges_of_all_its_sources(tmp_path: Path) -> None:
    log(tmp_path, 4, '{"a":1}', "-")
    log(tmp_path, 5, '{"a":2}', '{"b":1}')
    found = read_digests(str(tmp_path), 5)
    assert found == Digests(digest('{"a":2}', '{"b":1}'), digest('{"a":1}', "-"))
    log(tmp_path, 5, '{"a":2}', '{"b":1}', watermark=99)
    assert read_digests(str(tmp_path), 5) == found


def test_the_first_batch_and_one_whose_elder_is_dropped_have_no_previous(tmp_path: Path) -> None:
    for batch_id in (0, 200):
        log(tmp_path, batch_id, "{}")
        assert read_digests(str(tmp_path), batch_id) == Digests(digest("{}"), None)


def test_a_place_may_be_a_path_or_a_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "a b"
    log(home, 0, "{}")
    monkeypatch.chdir(tmp_path)
    for location in (str(home), "a b", f"{home}/", f"file:{home}", f"file://{home}"):
        assert read_digests(location, 0).input == digest("{}"), location


def test_a_log_that_is_not_there_is_an_error_with_a_cure(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no file offsets/3") as caught:
        read_digests(str(tmp_path), 3)
    assert "complete URI" in str(caught.value)


def test_what_only_spark_can_read_is_not_known() -> None:
    assert read_digests("dbfs:/checkpoints/a", 3) == UNKNOWN


def test_a_directory_in_place_of_a_log_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "offsets" / "0").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="give pyarrow access"):
        read_digests(str(tmp_path), 0)


def test_below_a_common_root_the_name_or_the_id_finds_the_checkpoint(tmp_path: Path) -> None:
    for name, query_id in (("one", "q1"), ("two two", "q2")):
        log(tmp_path / name, 0, f'"{query_id}"')
        (tmp_path / name / "metadata").write_text(f'{{"id":"{query_id}"}}')
    (tmp_path / "no checkpoint").mkdir()
    (tmp_path / "file").write_text("")
    root = f"file://{tmp_path}/"
    assert find_checkpoint(root, "one", "q1") == f"file://{tmp_path}/one"
    found = find_checkpoint(str(tmp_path), None, "q2")
    assert read_digests(found, 0).input == digest('"q2"')
    assert read_digests(find_checkpoint(root, None, "q2"), 0).input == digest('"q2"')
    with pytest.raises(CheckpointError, match="set the location of the checkpoint"):
        find_checkpoint(root, None, "q3")
    assert find_checkpoint("dbfs:/all", None, "q") == "dbfs:/all"
