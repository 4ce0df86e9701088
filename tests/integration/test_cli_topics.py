"""`semel topics` and `semel append --topic` against a real server."""

from collections.abc import Iterator
from zlib import crc32

import pytest

from semel.model.offsets import print_offset
from semel.model.partitioners import partition_of
from semel.testing.fault_plan import FaultPlan
from semel.testing.fault_proxy import FaultProxy
from tests.integration.test_cli_streams import Served, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("topics") / "data") as served:
        yield served


@pytest.fixture
def topic(served: Served, request: pytest.FixtureRequest) -> str:
    """A topic with three partitions for JSON messages."""
    name = str(request.node.name)
    create(served, name)
    return name


def create(served: Served, name: str, *options: str) -> str:
    given = ("--partitions", "3", "--content-type", "application/json", *options)
    result = served.semel("topics", "create", name, *given)
    assert result.exit_code == 0, result.output
    return result.stdout


def keys_in(served: Served, topic: str, partitions: int = 3) -> list[list[str]]:
    """Return the keys of the messages in each partition."""
    return [
        [str(message["key"]) for message in served.json("read", f"{topic}/{partition}")]
        for partition in range(partitions)
    ]


# ---- topics --------------------------------------------------------------------------------------


def test_a_topic_is_created_once_and_shown(served: Served) -> None:
    told = create(served, "made", "--partitioner", "murmur2")
    assert told == "created made (application/json), 3 partitions\n"
    told = create(served, "made", "--partitioner", "murmur2")
    assert told.startswith("the topic already exists with this configuration: made ")
    other = ("topics", "create", "made", "--partitions", "4", "--partitioner", "murmur2")
    said = served.refused(1, *other, "--content-type", "application/json")
    assert "topic_conflict" in said
    assert "partitions" in said
    words = served.semel("topics", "show", "made").stdout
    assert {"murmur2", "application/json", "3"} <= set(words.split())
    assert f"made/2: {print_offset(0)} to {print_offset(0)}\n" in words
    (facts,) = served.json("topics", "show", "made")
    assert (facts["partition_count"], facts["keyed"]) == (3, False)
    assert isinstance(facts["partitions"], list)
    assert [one["stream"] for one in facts["partitions"]] == ["made/0", "made/1", "made/2"]
    assert "topic_not_found" in served.refused(1, "topics", "show", "nothing")


def test_a_path_that_is_in_use_is_named_and_nothing_is_created(served: Served) -> None:
    assert served.semel("create", "taken/1").exit_code == 0
    said = served.refused(1, "topics", "create", "taken", "--partitions", "3")
    assert "stream_exists" in said
    assert "taken/1" in said
    assert "stream_not_found" in served.refused(1, "head", "taken/0")


def test_topics_are_listed_by_prefix(served: Served) -> None:
    for name in ("list/b", "list/a", "lisu"):
        create(served, name)
    assert served.semel("topics", "ls", "--prefix", "list/").stdout == "list/a\nlist/b\n"
    assert served.semel("topics", "ls", "--prefix", "list/", "--limit", "1").stdout == "list/a\n"
    (entry,) = served.json("topics", "ls", "--prefix", "lisu")
    assert (entry["topic"], entry["partition_count"]) == ("lisu", 3)


def test_a_topic_with_keys_grows_only_if_keys_may_move(served: Served, topic: str) -> None:
    assert served.semel("append", topic, "1", "--topic", "--key", "alice").exit_code == 0
    said = served.refused(1, "topics", "grow", topic, "5")
    assert "keys_would_move" in said
    assert "use --keys-may-move" in said
    told = served.semel("topics", "grow", topic, "5", "--keys-may-move").stdout
    assert told.startswith(f"{topic} has 5 partitions; keys can be in another partition from ")
    at = crc32(b"alice") % 3
    assert f"{print_offset(1)} in {topic}/{at}" in told
    assert f"grown from 3 partitions at {print_offset(0)}" in told.replace(
        "; keys can be in another partition from", "\ngrown from 3 partitions at"
    )
    words = served.semel("topics", "show", topic).stdout
    assert "grown from 3 partitions at " in words
    assert "too_few_partitions" in served.refused(1, "topics", "grow", topic, "2")


def test_a_topic_is_closed_and_deleted_as_a_whole(served: Served, topic: str) -> None:
    assert "stream_in_topic" in served.refused(1, "close", f"{topic}/0")
    assert served.semel("topics", "close", topic).stdout == f"closed {topic}\n"
    assert "stream_closed" in served.refused(1, "append", topic, "1", "--topic")
    asked = served.semel("topics", "delete", topic, given=b"n\n")
    assert (asked.exit_code, served.semel("topics", "show", topic).exit_code) == (1, 0)
    told = served.semel("topics", "delete", topic, "--yes").stdout
    assert told == f"deleted the topic {topic}\n"
    assert "stream_not_found" in served.refused(1, "head", f"{topic}/0")


def test_the_name_of_a_topic_is_no_stream(served: Served, topic: str) -> None:
    said = served.refused(1, "append", topic, "1")
    assert f"is_topic: {topic} is a topic; to append to it, add --topic" in said
    assert "`semel topics show`" in served.refused(1, "head", topic)


# ---- appending -----------------------------------------------------------------------------------


def test_a_key_selects_the_partition_and_is_stored(served: Served, topic: str) -> None:
    at = crc32("zoë".encode()) % 3
    told = served.semel("append", topic, '{"id": 1}', "--topic", "--key", "zoë").stdout
    assert told == f"stored in {topic}/{at}, next offset {print_offset(1)}\n"
    (message,) = served.json("read", f"{topic}/{at}")
    assert (message["key"], message["value"]) == ("zoë", {"id": 1})


def test_a_partition_is_chosen_by_hand(served: Served, topic: str) -> None:
    (facts,) = served.json("append", topic, "[1, 2]", "--topic", "--partition", "2")
    ends = {"offset": print_offset(0), "next_offset": print_offset(2)}
    assert facts["parts"] == [{"partition": 2, "stream": f"{topic}/2", **ends}]
    assert "partition_not_found" in served.refused(
        1, "append", topic, "1", "--topic", "--partition", "3"
    )


def test_each_message_of_an_array_has_its_own_key(served: Served, topic: str) -> None:
    names = ["ann", "bob", "cid", "dan", "eve"]
    messages = "[" + ",".join(f'{{"of": {{"id": "{name}"}}}}' for name in names) + "]"
    given = ("append", topic, messages, "--topic", "--key-pointer", "/of/id")
    told = served.semel(*given).stdout
    wanted: list[list[str]] = [[], [], []]
    for name in names:
        wanted[partition_of("crc32", name.encode(), 3)].append(name)
    assert keys_in(served, topic) == wanted
    assert told.count("next offset") == sum(map(bool, wanted))
    said = served.refused(64, "append", topic, '{"of": {}}', "--topic", "--key-pointer", "/of/id")
    assert "--key-pointer points to nothing: 'id' is missing" in said
    two = '[{"of": {"id": 1}}, {"of": {}}]'
    said = served.refused(64, "append", topic, two, "--topic", "--key-pointer", "/of/id")
    assert "message 1 (counted from 0): --key-pointer points to nothing: 'id'" in said


def test_the_same_append_is_stored_once(served: Served, topic: str) -> None:
    who = ("--producer", "till", "--epoch", "0", "--seq", "0")
    given = ("append", topic, '[{"k": "a"}, {"k": "d"}]', "--topic", "--key-pointer", "/k", *who)
    first, second = served.semel(*given).stdout, served.semel(*given).stdout
    assert second == f"already {first}"
    other = ("append", topic, '{"k": "x"}', "--topic", "--key-pointer", "/k", *who)
    assert "payload_mismatch" in served.refused(1, *other)
    assert sum(map(len, keys_in(served, topic))) == 2


def test_lines_have_their_keys_and_are_stored_once(served: Served, topic: str) -> None:
    names = [f"name-{number}" for number in range(50)]
    lines = "".join(f"{name}\t{number}\n" for number, name in enumerate(names)).encode()
    given = ("append", topic, "--topic", "--lines", "--key-separator", "\t", "--producer", "file")
    told = served.semel(*given, given=lines).stdout
    assert told == f"stored 50 lines in {topic}\n"
    told = served.semel(*given, given=lines).stdout
    assert told == f"stored 0 lines in {topic}; 50 lines were already stored\n"
    wanted: list[list[str]] = [[], [], []]
    for name in names:
        wanted[partition_of("crc32", name.encode(), 3)].append(name)
    assert keys_in(served, topic) == wanted
    assert all(wanted)


def test_a_line_without_its_key_ends_the_command(served: Served, topic: str) -> None:
    given = ("append", topic, "--topic", "--lines", "--key-pointer", "/id")
    said = served.refused(64, *given, given=b'{"id": 7}\n{"id": true}\n')
    assert "input line 2: the key must be a string or an integer; 1 line is stored" in said
    said = served.refused(64, *given, given=b'{"id": }\n')
    assert "input line 1: the message is not valid JSON" in said


def test_lines_of_a_stream_have_keys_too(served: Served) -> None:
    assert served.semel("create", "lines").exit_code == 0
    given = ("append", "lines", "--lines", "--key-separator", "=")
    assert served.semel(*given, given=b"a=b=c\n").exit_code == 0
    (message,) = served.json("read", "lines")
    assert (message["key"], message["text"]) == ("a", "b=c")


def test_an_append_whose_responses_are_lost_is_stored_once(served: Served, topic: str) -> None:
    plan = FaultPlan(script=["drop_answer"] * 3, only=f"POST /v1/topics/{topic}")
    with FaultProxy(served.url, plan) as proxy:
        given = ("append", topic, '[{"k": "a"}, {"k": "b"}]', "--topic", "--key-pointer", "/k")
        result = served.semel(*given, "--url", proxy.url)
        assert proxy.dropped_after_commit == 3
    assert (result.exit_code, result.stdout[:14]) == (0, "already stored"), result.output
    assert sorted(key for keys in keys_in(served, topic) for key in keys) == ["a", "b"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--partition", "0"), "--partition requires --topic"),
        (("--topic", "--close"), "--close and --if-match cannot be used with --topic"),
        (("--topic", "--if-match", "1"), "--close and --if-match cannot be used with --topic"),
        (("--key-separator", "="), "--key-separator requires --lines"),
        (("--key", "a", "--key-pointer", "/b"), "use only one of --key, --key-pointer"),
        (("--key-pointer", "b"), "is not a JSON pointer; expected e.g. /customer/id"),
        (("--topic", "--partition", "1000"), "1000 is out of range"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    served: Served, topic: str, options: tuple[str, ...], expected: str
) -> None:
    assert expected in served.refused(64, "append", topic, "x", *options)
