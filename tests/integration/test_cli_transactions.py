"""`semel txn`, `semel sinks` and `semel groups` against a real server."""

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest

from semel.cli import transactions
from semel.cli.output import text_table
from semel.model.offsets import print_offset
from tests.integration.test_cli_streams import Served, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("transactions") / "data") as served:
        yield served


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


def ask(served: Served, target: str, body: bytes, **headers: str) -> int:
    connection = HTTPConnection(urlsplit(served.url).netloc, timeout=60)
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("POST", target, body, fields)
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status


def post(served: Served, target: str, **document: Any) -> int:
    return ask(served, target, json.dumps(document).encode(), content_type="application/json")


def begin(served: Served, name: str) -> None:
    """Begin a transaction with one message in a stream of the same name."""
    assert served.semel("create", name, "--content-type", "text/plain").exit_code == 0
    who = {"producer_id": name, "producer_epoch": 0}
    assert post(served, "/v1/transactions", transaction_id=name, streams=[name], **who) == 201
    headers = {"producer_id": name, "producer_epoch": "0", "producer_seq": "0"}
    headers |= {"transaction_id": name, "transaction_epoch": "1", "content_type": "text/plain"}
    assert ask(served, f"/v1/stream/{name}", b"x", **headers) == 200


def test_transactions_are_listed_with_what_they_hold(served: Served, name: str) -> None:
    begin(served, name)
    assert name in served.semel("txn", "ls").stdout.splitlines()
    assert served.semel("txn", "ls", "--stream", name).stdout == f"{name}\n"
    assert served.semel("txn", "ls", "--state", "prepared").stdout == ""
    assert served.semel("txn", "ls", "--state", "stuck").stdout == ""
    (shown,) = served.json("txn", "ls", "--stream", name)
    assert (shown["transaction_id"], shown["state"]) == (name, "open")
    words = served.semel("txn", "show", name).stdout
    assert f"stream {name}: first offset {print_offset(0)}, messages 1, chunks 0\n" in words
    assert served.json("txn", "show", name)[0]["producer_id"] == name
    assert "INVALID_TXN_ID" in served.refused(1, "txn", "show", "nobody")


def test_a_transaction_is_committed_by_hand(served: Served, name: str) -> None:
    begin(served, name)
    assert (
        served.semel("txn", "commit", name).stdout == f"transaction {name} (epoch 1) is committed\n"
    )
    assert served.semel("txn", "commit", name).exit_code == 0
    assert "txn_committed" in served.refused(1, "txn", "abort", name)
    ended = served.semel("txn", "show", name, "--epoch", "1").stdout
    assert "CompleteCommit" in ended


def test_a_transaction_is_aborted_or_fenced_by_hand(served: Served, name: str) -> None:
    begin(served, name)
    assert served.json("txn", "abort", name, "--epoch", "1")[0]["reason"] == "operator"
    begin(served, f"{name}-2")
    assert served.json("txn", "fence", f"{name}-2")[0]["state"] == "aborted"
    (epoch,) = served.json("producers", "register", f"{name}-2")
    assert epoch["producer_epoch"] == 2, "the epoch was raised once before"
    assert "INVALID_TXN_ID" in served.refused(1, "txn", "fence", name, "--epoch", "9")


def test_a_sink_is_listed_rebound_and_forgotten(served: Served, name: str) -> None:
    app = f"{name}/app"
    assert post(served, "/v1/commits", sink={"app": app, "query_id": "Q", "version": 7}) == 200
    assert app in served.semel("sinks", "ls").stdout.splitlines()
    assert app in [sink["app"] for sink in served.json("sinks", "ls")]
    assert "retained versions" in served.semel("sinks", "show", app).stdout
    (shown,) = served.json("sinks", "show", app)
    assert (shown["query_id"], shown["last_version"]) == ("Q", 7)
    wanted = ("--query-id", "R", "--last-version", "3")
    told = served.semel("sinks", "rebind", app, *wanted).stdout
    assert told == f"sink {app} belongs to query R; the next version is 4\n"
    anew = ("--query-id", "S", "--last-version", "-1")
    told = served.semel("sinks", "rebind", app, *anew).stdout
    assert told == f"sink {app} belongs to query S; the next version is 0\n"
    tag = {"app": app, "query_id": "S", "version": 0, "input": "i", "previous": "other"}
    assert post(served, "/v1/commits", sink=tag) == 200
    assert served.semel("sinks", "forget", app).stdout == f"removed sink {app}\n"
    for words in (("show",), ("forget",), ("rebind", *wanted)):
        assert "unknown_sink" in served.refused(1, "sinks", words[0], app, *words[1:])


def test_a_group_is_shown_and_moved(served: Served, name: str) -> None:
    assert served.semel("create", name, "--content-type", "text/plain").exit_code == 0
    assert served.semel("append", name, "x").exit_code == 0
    assert "group_not_found" in served.refused(1, "groups", "show", name)
    told = served.semel("groups", "set", name, name, "1").stdout
    assert told == f"group {name} is at {print_offset(1)} in {name}\n"
    moved = served.semel("groups", "set", name, name, "0", "--expect", print_offset(1))
    assert moved.exit_code == 0
    said = served.refused(1, "groups", "set", name, name, "1", "--expect", "1")
    assert "position_conflict" in said
    step = {"number": 4, "ranges": {}, "hash": "h"}
    assert post(served, f"/v1/groups/{name}/snapshot", **step) == 201
    words = served.semel("groups", "show", name).stdout
    assert "pinned step" in words
    assert f"{print_offset(0)}  {name}  lag 1, " in words


# rows: P17
def test_metadata_is_set_and_shown_with_a_position(served: Served, name: str) -> None:
    assert served.semel("create", name, "--content-type", "text/plain").exit_code == 0
    given = ("--metadata", '{"worker": "a b", "batch": 7}')
    assert served.semel("groups", "set", name, name, "0", *given).exit_code == 0
    (found,) = served.json("groups", "show", name)
    assert found["metadata"] == {name: {"worker": "a b", "batch": 7}}
    words = served.semel("groups", "show", name).stdout
    assert f'{print_offset(0)}  {name}  lag 0  {{"batch":7,"worker":"a b"}}\n' in words
    assert "JSON object" in served.refused(
        64, "groups", "set", name, name, "0", "--metadata", "[1]"
    )
    assert served.semel("groups", "set", name, name, "0").exit_code == 0
    (found,) = served.json("groups", "show", name)
    assert "metadata" not in found


def test_a_group_shows_who_is_about_to_move_it(served: Served, name: str) -> None:
    begin(served, name)
    who = {"transaction_epoch": 1, "producer_id": name, "producer_epoch": 0}
    target = f"/v1/transactions/{name}"
    assert post(served, f"{target}/offsets", **who, group=name, offsets={name: 0}) == 200
    words = served.semel("groups", "show", name).stdout
    assert f"{print_offset(0)}  {name}  if transaction {name}:1 commits (open until 2" in words
    assert post(served, f"{target}/prepare", **who) == 200
    words = served.semel("groups", "show", name).stdout
    assert f"{print_offset(0)}  {name}  if transaction {name}:1 commits (prepared)\n" in words
    said = served.refused(1, "groups", "set", name, name, "0")
    assert "unstable_offsets" in said
    assert name in said
    assert post(served, f"{target}/commit", **who) == 200
    (found,) = served.json("groups", "show", name)
    assert (found["offsets"], found["versions"]) == ({name: print_offset(0)}, {name: 1})
    assert found["pending"] == {}


def test_a_terminal_gets_tables() -> None:
    open_one = {
        "transaction_id": "t\x1b[2J",
        "transaction_epoch": 1,
        "kind": "inline",
        "state": "prepared",
        "stuck": True,
        "age_ms": 61_000,
        "producer_id": "p",
        "producer_epoch": 2,
        "streams": {"s": {"first_offset": "5"}, "r": {"first_offset": None}},
    }
    sunk = {**open_one, "sink": {"app": "A", "version": 1, "partition": 0}, "stuck": False}
    rows = [transactions._txn_cells(txn) for txn in (open_one, sunk)]
    table = text_table([f"title {number}" for number in range(7)], rows)
    cells = [[str(cell) for cell in column.cells] for column in table.columns]
    assert cells[0] == ["t\\x1b[2J"] * 2, "control characters are escaped"
    assert cells[3] == ["prepared, stuck", "prepared"]
    assert cells[4:] == [
        ["61 s"] * 2,
        ["p (epoch 2)", "sink A, version 1, partition 0"],
        ["s from 5"] * 2,
    ]
    assert table.row_count == 2
