"""`semel producers` against a real server."""

from collections.abc import Iterator

import pytest

from semel.model.offsets import print_offset
from tests.integration.test_cli_streams import Served, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("producers") / "data") as served:
        yield served


@pytest.fixture
def path(served: Served, request: pytest.FixtureRequest) -> str:
    """A separate stream with messages of two producers."""
    name = str(request.node.name)
    assert served.semel("create", name, "--content-type", "text/plain").exit_code == 0
    for writer in ("till-1", "till-2"):
        who = ("--producer", writer, "--epoch", "3", "--seq", "0")
        assert served.semel("append", name, "x", *who).exit_code == 0
    return name


def test_the_producers_of_a_stream_are_listed(served: Served, path: str) -> None:
    assert served.semel("producers", "ls", path).stdout == "till-1\ntill-2\n"
    shown = served.json("producers", "ls", path)
    assert [(one["producer_id"], one["epoch"]) for one in shown] == [("till-1", 3), ("till-2", 3)]


def test_one_is_shown_with_its_receipts(served: Served, path: str) -> None:
    (shown,) = served.json("producers", "show", path, "till-2")
    assert shown["last_offset"] == print_offset(2)
    assert isinstance(shown["receipts"], list)
    assert len(shown["receipts"]) == 1
    words = served.semel("producers", "show", path, "till-2").stdout.split()
    assert {"till-2", "dense", print_offset(2)} <= set(words)
    assert "has no producer nobody" in served.refused(1, "producers", "show", path, "nobody")


def test_what_would_happen_is_told_in_a_sentence(served: Served, path: str) -> None:
    gap = ("producers", "explain", path, "till-1", "--epoch", "3", "--seq", "5")
    told = served.semel(*gap).stdout
    assert told == "409 producer_seq_conflict: sequence 1 was expected, but sequence 5 was sent\n"
    assert served.json(*gap)[0]["outcome"] == "producer_seq_conflict"
    repeat = served.semel("producers", "explain", path, "till-1", "--epoch", "3", "--seq", "0")
    assert repeat.stdout.startswith("204 duplicate: ")
    assert "\nfor a different payload: 204 duplicate: " in repeat.stdout
    sparse = ("--mode", "sparse", "--seq", "3-5", "--session", "one")
    assert served.semel("producers", "explain", path, "new", *sparse).stdout.startswith("200 ok: ")


def test_one_is_retired(served: Served, path: str) -> None:
    wrong = served.refused(1, "producers", "retire", path, "till-1", "--epoch", "2")
    assert "producer till-1 of" in wrong
    assert "PRODUCER_FENCED" in wrong
    done = served.semel("producers", "retire", path, "till-1")
    assert done.stdout == f"retired producer till-1 of {path}\n"
    (again,) = served.json("producers", "retire", path, "till-1", "--epoch", "3")
    assert again == {"stream": path, "producer_id": "till-1", "retired": True}
    states = [one["state"] for one in served.json("producers", "ls", path)]
    assert states == ["retired", "live"]
    assert "UNKNOWN_PRODUCER_ID" in served.refused(1, "producers", "retire", path, "nobody")


def test_one_is_forgotten(served: Served, path: str) -> None:
    done = served.semel("producers", "forget", path, "till-1")
    assert done.stdout == f"removed producer till-1 from {path}\n"
    assert served.semel("producers", "ls", path).stdout == "till-2\n"
    said = served.refused(1, "producers", "forget", path, "till-1")
    assert said.startswith("semel: UNKNOWN_PRODUCER_ID: ")


def test_ids_are_registered_and_their_epochs_raised(served: Served) -> None:
    (given,) = served.json("producers", "register")
    assert given["producer_epoch"] == 0
    served.semel("producers", "register", "till-9")
    again = served.semel("producers", "register", "till-9")
    assert again.stdout == "producer till-9 has epoch 1\n"


def test_a_stream_that_is_not_there_is_a_refusal(served: Served) -> None:
    for words in (("ls",), ("show",), ("explain", "--seq", "0"), ("forget",)):
        who = [] if words == ("ls",) else ["p"]
        said = served.refused(1, "producers", words[0], "absent", *who, *words[1:])
        assert "stream_not_found" in said


def test_a_stream_is_made_without_the_recognition_of_duplicates(served: Served) -> None:
    assert served.semel("create", "plain", "--dedup", "off").exit_code == 0
    assert served.json("head", "plain")[0]["dedup"] == "off"
