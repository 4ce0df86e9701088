"""The commands of semel on real directories."""

import asyncio
import contextlib
import errno
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import lmdb
import pytest
from click.testing import CliRunner, Result

from semel.broker.engine import Engine
from semel.broker.settings import Settings
from semel.cli.main import cli
from semel.model.commands import Append, Batch, Create

SETTINGS = Settings(segment_bytes=16 * 1024, reserve_bytes=4096)
PATH = "orders\x1b[31m"
PROGRAM = [sys.executable, "-m", "semel"]


@contextlib.asynccontextmanager
async def an_engine(path: Path) -> AsyncIterator[Engine]:
    engine = await Engine.open(str(path), SETTINGS)
    yield engine
    await engine.close()


async def fill(path: Path) -> None:
    async with an_engine(path) as engine:
        await engine.execute(Create(PATH, 1, "i", content_type="text/plain"))
        for number in range(300):
            await engine.execute(Append(PATH, number, "text/plain", Batch(b"x" * 100)))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("filled") / "data"
    asyncio.run(fill(path))
    return path


@pytest.fixture
def data(filled: Path, tmp_path: Path) -> Path:
    """A copy of the directory, which a test may damage."""
    shutil.copytree(filled, tmp_path / "data")
    return tmp_path / "data"


def doctor(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["doctor", *map(str, arguments)])


def contents(path: Path) -> dict[str, tuple[int, bytes]]:
    return {
        entry.name: (entry.stat().st_mtime_ns, Path(entry.path).read_bytes())
        for entry in os.scandir(path)
    }


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def segments(path: Path) -> list[Path]:
    return sorted(path.glob("*.seg"))


# ---------------------------------------------------------------- doctor


def test_without_a_directory_the_machine_is_checked() -> None:
    result = doctor()
    assert result.exit_code == 0
    assert "python" in result.stdout


def test_messages_of_a_stream_that_nothing_created_are_reported_without_an_offset(
    data: Path,
) -> None:
    (data / "checkpoint.mdb").unlink()
    first = min(data.glob("*.seg"))
    content = first.read_bytes()
    assert content.count(b"text/plain") == 1  # the frame that creates the stream
    first.write_bytes(content.replace(b"text/plain", b"text/plaim"))
    result = doctor("--verify", "--data", data)
    assert result.exit_code == 65
    assert "continues at offset 0 in this frame, but the checkpoint has no such stream" in (
        result.output
    )
    assert "None" not in result.output


def test_a_first_look_shows_what_a_directory_holds(data: Path) -> None:
    result = doctor("--data", data)
    assert result.exit_code == 0
    for part in (
        "no process uses the directory",
        "version 1",
        "segments",
        "at position",
        "--verify",
    ):
        assert part in result.stdout


def test_a_sound_directory_verifies_and_is_not_touched(data: Path) -> None:
    before = contents(data)
    result = doctor("--verify", "--data", data)
    assert result.exit_code == 0
    assert "sound" in result.stdout
    assert contents(data) == before


def test_a_directory_nobody_may_write_verifies(data: Path) -> None:
    (data / "LOCK").unlink()
    (data / "checkpoint.mdb-lock").unlink()
    for file in data.iterdir():
        file.chmod(0o444)
    data.chmod(0o555)
    try:
        assert doctor("--verify", "--data", data).exit_code == 0
        assert not (data / "checkpoint.mdb-lock").exists()
    finally:
        data.chmod(0o755)


def test_rights_of_other_users_are_told_with_the_command_that_removes_them(data: Path) -> None:
    data.chmod(0o750)
    (data / "identity").chmod(0o604)
    result = doctor("--data", data)
    assert result.exit_code == 0
    command = f"chmod -R go-rwx {data}"
    assert f"2 files give rights to other users than the owner; to remove them, run: {command}" in (
        result.stdout
    )
    found = json.loads(doctor("--json", "--data", data).stdout)
    assert found["directory"]["wide_rights"] == [".", "identity"]
    subprocess.run(shlex.split(command), check=True)
    result = doctor("--json", "--data", data)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["directory"]["wide_rights"] == []


def test_json_is_for_programs(data: Path) -> None:
    result = doctor("--verify", "--json", "--data", data)
    answer = json.loads(result.stdout)
    assert answer["exit_code"] == result.exit_code == 0
    assert answer["verify"]["is_sound"] is True
    assert answer["verify"]["message_count"] == 300
    assert answer["directory"]["is_in_use"] is False
    assert answer["directory"]["segment_count"] == len(segments(data))
    assert {check["name"] for check in answer["checks"]} >= {"python", "lmdb", "free space"}


def test_a_flipped_bit_ends_with_65_and_names_file_and_byte(data: Path) -> None:
    victim = segments(data)[1]
    flip(victim, 5_000)
    result = doctor("--verify", "--json", "--data", data)
    assert result.exit_code == 65
    findings = json.loads(result.stdout)["verify"]["findings"]
    assert {finding["file"] for finding in findings} == {victim.name}
    assert all(4_700 < finding["position"] <= 5_000 for finding in findings)


def test_all_damage_is_listed_and_data_cannot_paint_the_terminal(data: Path) -> None:
    for victim in segments(data)[:2]:
        flip(victim, 5_000)
    result = doctor("--verify", "--data", data)
    assert result.exit_code == 65
    for victim in segments(data)[:2]:
        assert f"CORRUPT  {victim.name} at byte " in result.stdout
    assert "orders\\x1b[31m" in result.stdout
    assert "\x1b[31m" not in result.stdout


def test_a_flip_in_the_checkpoint_ends_with_65(data: Path) -> None:
    with lmdb.open(str(data / "checkpoint.mdb"), subdir=False, max_dbs=8) as env:
        tails = env.open_db(b"tails")
        with env.begin(write=True) as transaction:
            key, value = next(iter(transaction.cursor(tails)))
            transaction.put(key, value[:-5] + bytes([value[-5] ^ 1]) + value[-4:], db=tails)
    result = doctor("--verify", "--data", data)
    assert result.exit_code == 65
    assert (
        "checkpoint.mdb: table tails, row 0000000000000001: the row does not match its checksum"
        in result.stdout
    )


@pytest.mark.parametrize("size", [10, 5_000, 20_000])
def test_a_cut_checkpoint_ends_with_65_and_the_journal_is_still_read(data: Path, size: int) -> None:
    os.truncate(data / "checkpoint.mdb", size)
    result = doctor("--verify", "--json", "--data", data)
    assert result.exit_code == 65
    report = json.loads(result.stdout)["verify"]
    assert {finding["file"] for finding in report["findings"]} == {"checkpoint.mdb"}
    assert report["message_count"] == 300


def test_a_checkpoint_with_a_damaged_page_ends_with_65(data: Path) -> None:
    path = data / "checkpoint.mdb"
    pages = bytearray(path.read_bytes())
    for page in range(2 * 4096, len(pages), 4096):
        pages[page + 10] ^= 0x40  # the kind of the page
    path.write_bytes(pages)
    for options in ((), ("--verify",)):
        result = doctor(*options, "--data", data)
        assert result.exit_code == 65
        assert re.search(r"checkpoint\.mdb: page \d+ has a damaged header", result.stdout)


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_directory_without_a_checkpoint_is_sound_if_its_journal_is_whole(
    data: Path, is_empty: bool
) -> None:
    (data / "checkpoint.mdb").unlink()
    if is_empty:
        (data / "checkpoint.mdb").touch()  # a server starts with it, too
    result = doctor("--verify", "--data", data)
    assert result.exit_code == 0
    assert "note" in result.stdout
    assert "replays the whole journal" in result.stdout


def test_a_damaged_identity_ends_with_65_even_at_first_look(data: Path) -> None:
    flip(data / "identity", 15)
    assert doctor("--data", data).exit_code == 65
    assert doctor("--verify", "--data", data).exit_code == 65


def test_a_missing_directory_ends_with_66_and_says_what_to_do(tmp_path: Path) -> None:
    result = doctor("--data", tmp_path / "nowhere")
    assert result.exit_code == 66
    assert "does not exist; pass the same --data" in result.stderr
    assert not (tmp_path / "nowhere").exists()


def test_a_directory_nobody_may_read_ends_with_74_and_says_what_to_do(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: str) -> list[str]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("semel.cli.doctor.os.listdir", refuse)
    result = doctor("--data", data)
    assert result.exit_code == 74
    assert "cannot be read (Permission denied); run as" in result.stderr


def test_a_directory_with_other_things_in_it_ends_with_66(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    result = doctor("--verify", "--data", tmp_path)
    assert result.exit_code == 66
    assert "is not a semel data directory" in result.stderr


def test_verify_without_a_directory_ends_with_64() -> None:
    result = doctor("--verify")
    assert result.exit_code == 64
    assert "semel doctor --verify --data DIR" in result.stderr


def test_a_directory_in_use_verifies_beside_its_owner(data: Path) -> None:
    async def scenario() -> dict[str, object]:
        async with an_engine(data) as engine:
            await engine.execute(Append(PATH, 1_000, "text/plain", Batch(b"y")))
            run = await asyncio.create_subprocess_exec(
                *PROGRAM,
                *("doctor", "--verify", "--json", "--data", str(data)),
                stdout=asyncio.subprocess.PIPE,
            )
            output, _ = await run.communicate()
            assert run.returncode == 0
            answer: dict[str, object] = json.loads(output)
            return answer

    answer = asyncio.run(scenario())
    assert answer["directory"]["is_in_use"] is True  # type: ignore[index]
    report = answer["verify"]
    assert report["message_count"] == 301  # type: ignore[index]
    assert [finding["is_note"] for finding in report["findings"]] == [True]  # type: ignore[index]


def test_the_program_itself_ends_with_the_right_code(data: Path) -> None:
    command = [*PROGRAM, "doctor", "--verify", "--data", str(data)]
    sound = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (sound.returncode, sound.stderr) == (0, "")
    segments(data)[0].unlink()
    corrupt = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert corrupt.returncode == 65
    assert "the segment is missing" in corrupt.stdout
    assert "Traceback" not in corrupt.stderr
