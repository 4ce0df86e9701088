"""`semel dead` against a real server. The dead letters are written as a member writes them."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from semel.cli import dead
from semel.client.dead_letters import letter_of
from semel.client.values import Message
from semel.model.offsets import print_offset
from semel.model.rights import dead_letters_of, retries_of
from tests.integration.test_cli_streams import Served, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("dead") / "data") as served:
        yield served


@pytest.fixture
def group(served: Served, request: pytest.FixtureRequest) -> str:
    """A group that has rejected three messages, in a stream of the same name."""
    name = str(request.node.name)
    assert served.semel("create", name, "--content-type", "application/json").exit_code == 0
    messages = [{"id": number} for number in range(3)]
    assert served.semel("append", name, json.dumps(messages)).exit_code == 0
    assert served.semel("groups", "set", name, name, "3").exit_code == 0
    path = dead_letters_of(name)
    assert served.semel("create", path, "--content-type", "application/json").exit_code == 0
    for number in range(3):
        assert served.semel("append", path, letter(name, number).decode()).exit_code == 0
    return name


def letter(group: str, number: int, path: str | None = None) -> bytes:
    """Return the envelope of the message with this number."""
    envelope = {
        "stream": path or group,
        "offset": print_offset(number),
        "incarnation": "incarnation",
        "key": "alice",
        "headers": {"trace": "t-1"},
        "timestamp_ms": 1_700_000_000_000,
        "content_type": "application/json",
        "cause": f"ValueError: {number}\x1b[2J",
        "attempts": 5,
        "group": group,
        "value": {"id": number},
    }
    return json.dumps(envelope).encode()


def test_dead_letters_are_listed_and_shown(served: Served, group: str) -> None:
    lines = served.semel("dead", "ls", group).stdout.splitlines()
    assert len(lines) == 3
    *place, rejected_at, cause = lines[1].split("\t")
    assert place == [print_offset(1), group, print_offset(1), "5"]
    assert datetime.fromisoformat(rejected_at).tzinfo is UTC
    assert cause == "ValueError: 1\\x1b[2J"
    assert len(served.semel("dead", "ls", group, "--limit", "2").stdout.splitlines()) == 2
    (shown,) = served.json("dead", "show", group, "2")
    assert (shown["offset"], shown["letter"]) == (print_offset(2), json.loads(letter(group, 2)))
    words = served.semel("dead", "show", group, "2").stdout
    assert {"alice", "trace=t-1"} <= set(words.split())
    assert words.endswith('{"id": 2}\n')
    assert served.semel("dead", "show", group, "2", "--raw").stdout == '{"id": 2}'
    said = served.refused(1, "dead", "show", group, "9")
    assert f"the group {group} has no dead letter at {print_offset(9)}" in said


def test_a_replay_copies_each_dead_letter_once_and_never_into_the_source(
    served: Served, group: str
) -> None:
    retries = retries_of(group)
    told = served.semel("dead", "replay", group, "--limit", "1").stdout
    assert told == f"copied 1 dead letter to {retries}\n"
    told = served.semel("dead", "replay", group, "--until", "2").stdout
    assert told == f"copied 1 dead letter to {retries}\n"
    assert [
        line.split("\t")[0] for line in served.semel("dead", "ls", group).stdout.splitlines()
    ] == [print_offset(2)]
    assert served.json("dead", "replay", group) == [
        {"group": group, "replayed": 1, "stream": retries}
    ]
    assert served.json("dead", "replay", group)[0]["replayed"] == 0
    copied = [message["value"] for message in served.json("read", retries)]
    assert copied == [json.loads(letter(group, number)) for number in range(3)]
    assert len(served.json("read", group)) == 3
    assert served.semel("dead", "ls", group).stdout == ""
    assert len(served.semel("dead", "ls", group, "--all").stdout.splitlines()) == 3
    assert served.semel("producers", "ls", retries).stdout == "", "its producer was removed"


def test_dropped_dead_letters_are_not_replayed(served: Served, group: str) -> None:
    asked = served.semel("dead", "drop", group, given=b"n\n")
    assert asked.exit_code == 1
    told = served.semel("dead", "drop", group, "--limit", "2", "--yes").stdout
    assert told == "dropped 2 dead letters\n"
    assert served.json("dead", "replay", group)[0]["replayed"] == 1
    (copied,) = served.json("read", retries_of(group))
    assert copied["value"] == json.loads(letter(group, 2))


def test_a_stream_can_have_the_dead_letters_of_several_groups(served: Served, group: str) -> None:
    errors = f"{group}/errors"
    assert served.semel("create", errors, "--content-type", "application/json").exit_code == 0
    for number, name in enumerate((group, "others", group)):
        body = letter(name, number, path=group).decode()
        assert served.semel("append", errors, body).exit_code == 0
    lines = served.semel("dead", "ls", group, "--stream", errors).stdout.splitlines()
    assert [line.split("\t")[0] for line in lines] == [print_offset(0), print_offset(2)]
    given = ("dead", "replay", group, "--stream", errors)
    assert served.json(*given)[0]["replayed"] == 2


def test_the_name_of_a_group_can_be_any_text(served: Served) -> None:
    group = "shop/bill é\n%2F"
    path = dead_letters_of(group)
    assert served.semel("create", path, "--content-type", "application/json").exit_code == 0
    assert served.semel("append", path, letter(group, 0, path="orders").decode()).exit_code == 0
    assert served.semel("dead", "ls", group).stdout.count("\n") == 1
    told = served.semel("dead", "replay", group).stdout
    assert told == f"copied 1 dead letter to {retries_of(group)}\n"
    assert len(served.json("read", retries_of(group))) == 1
    listed = served.semel("groups", "ls", "--prefix", "__semel/replay/shop").stdout
    assert listed.count("\n") == 1


def test_a_group_without_dead_letters_and_an_unknown_group(served: Served) -> None:
    assert served.semel("create", "quiet").exit_code == 0
    assert served.semel("groups", "set", "quiet", "quiet", "0").exit_code == 0
    for command in (("ls",), ("replay",), ("drop", "--yes")):
        assert served.semel("dead", command[0], "quiet", *command[1:]).exit_code == 0
        said = served.refused(1, "dead", command[0], "nobody", *command[1:])
        assert "group_not_found" in said
    streams = served.semel("ls", "--prefix", "__semel/").stdout
    assert retries_of("quiet") not in streams
    assert retries_of("nobody") not in streams


def test_only_dead_letters_of_the_group_are_replayed(served: Served, group: str) -> None:
    said = served.refused(1, "dead", "replay", group, "--stream", group)
    assert f"the message at {print_offset(0)} in {group} is not a dead letter" in said
    assert "nothing was copied" in said
    drop = f"`semel dead drop {group} --stream {group} --until {print_offset(1)}`"
    assert drop in said
    assert served.semel("dead", "ls", group, "--stream", group, "--all").stdout == ""
    path = dead_letters_of(group)
    assert served.semel("append", path, '{"no": "envelope"}').exit_code == 0
    said = served.refused(1, "dead", "replay", group)
    assert "3 dead letters before it were copied" in said
    told = served.semel("dead", "drop", group, "--until", print_offset(4), "--yes").stdout
    assert told == "dropped 0 dead letters\n"
    assert served.json("dead", "replay", group)[0]["replayed"] == 0


def test_a_dead_letter_without_its_message_is_not_replayed(served: Served, group: str) -> None:
    large = json.loads(letter(group, 7))
    del large["value"]
    path = dead_letters_of(group)
    body = json.dumps({**large, "left_out_bytes": 5_000_000})
    assert served.semel("append", path, body).exit_code == 0
    said = served.refused(1, "dead", "replay", group)
    assert f"it is at {print_offset(7)} in {group}" in said
    assert f"`semel dead drop {group} --until {print_offset(4)}` passes over it" in said
    assert "smaller batches" not in said


def test_an_unknown_stream_or_group_is_an_error_with_stream_too(served: Served, group: str) -> None:
    for command in (("ls",), ("replay",), ("drop", "--yes")):
        name, *options = command
        said = served.refused(1, "dead", name, group, "--stream", "nowhere", *options)
        assert "stream_not_found" in said
        said = served.refused(1, "dead", name, "nobody", "--stream", group, *options)
        assert "group_not_found" in said


def test_hints_say_where_else_dead_letters_are_and_who_reads_their_copies(
    served: Served, group: str
) -> None:
    replayed = served.semel("dead", "replay", group)
    assert f"the group {group} has no members now; only members read these" in replayed.stderr
    processor = f"{group}/a"
    assert served.semel("groups", "set", processor, group, "0").exit_code == 0
    listed = served.semel("dead", "ls", processor)
    assert (listed.stdout, listed.exit_code) == ("", 0)
    assert "those of a processor of a pipeline are in its error stream: use --stream" in (
        listed.stderr
    )


def test_a_group_is_deleted_with_its_retries_and_reset_without_them(
    served: Served, group: str
) -> None:
    retries = retries_of(group)
    assert served.semel("dead", "replay", group).exit_code == 0
    assert served.semel("groups", "set", group, retries, "3").exit_code == 0
    (reset,) = served.json("groups", "reset", group, "--to", "earliest")
    assert reset["offsets"] == {group: print_offset(0)}
    (shown,) = served.json("groups", "show", group)
    assert shown["offsets"] == {group: print_offset(0), retries: print_offset(3)}
    (reset,) = served.json("groups", "reset", group, "--to", "earliest", "--stream", retries)
    assert reset["offsets"] == {retries: print_offset(0)}
    told = served.semel("groups", "delete", group, "--yes").stdout
    also = f"its retry stream {retries}; its dead letters are kept"
    assert told == f"deleted the group {group} and {also}\n"
    assert "stream_not_found" in served.refused(1, "read", retries)
    assert len(served.semel("dead", "ls", group, "--all").stdout.splitlines()) == 3
    assert served.semel("dead", "ls", group).stdout == "", "they were replayed"
    assert "group_not_found" in served.refused(1, "groups", "delete", group, "--yes")


def test_a_terminal_gets_numbers_that_can_be_used_as_offsets() -> None:
    stored_ms = 1_700_000_000_000
    message = Message(letter("g", 7), "application/json", 3, 4, stored_ms)
    row = dead._cells(letter_of(message))
    assert row == (3, "g at 7", 5, "2023-11-14 22:13:20", "ValueError: 7\x1b[2J")
    strange = Message(b'"no envelope"', "application/json", 4, 5, stored_ms)
    assert dead._cells(letter_of(strange))[:2] == (4, "")
