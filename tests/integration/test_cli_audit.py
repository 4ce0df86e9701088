"""`semel audit`, and `chown` with the owners that are shown, against a real server."""

import json
import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from semel import errors
from semel.client.sync.client import Client
from tests.integration.recorder import eventually
from tests.integration.test_cli_streams import PROGRAM
from tests.integration.test_cli_terminal import on_a_terminal
from tests.integration.token_server import TokenServer, id_of, token_server
from tests.spec.process import PATIENCE_SECONDS


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenServer]:
    with token_server(tmp_path_factory.mktemp("audit") / "data") as it:
        yield it


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[TokenServer]:
    with token_server(tmp_path / "data") as it:
        yield it


def lines(served: TokenServer, *arguments: str) -> list[list[str]]:
    """Return the cells of the printed records."""
    return [line.split("\t") for line in served.ok("audit", *arguments).splitlines()]


# ---- records -------------------------------------------------------------------------------------


def test_a_record_is_a_line_of_eight_cells(served: TokenServer) -> None:
    before = datetime.now(UTC)
    made = served.create("--principal", "cells", "--read", "x", "--write", "y")
    (line,) = [line for line in lines(served) if id_of(made) in line[3]]
    moment, who, *others = line
    assert before.timestamp() - 1 <= datetime.fromisoformat(moment).timestamp()
    assert who == "admin"
    target, scopes = f"token {id_of(made)} of cells", "stream:x:read stream:y:create,write"
    assert others == ["token_create", target, "-", "ok", "1", scopes]
    (record,) = [each for each in served.json("audit") if each.get("target") == target]
    assert record["token"] == id_of(served.admin)
    assert record["route"] == "token_create"
    assert record["address"] == "127.0.0.1"


def test_refusals_are_counted_and_name_the_missing_right(alone: TokenServer) -> None:
    served = alone  # refusals of other tests would be counted, too
    made = served.create("--principal", "denied", "--read", "counted")
    served.ok("create", "counted")
    for _ in range(3):
        served.refused(1, "append", "counted", "x", token=made)
        served.refused(1, "ls", token="semel_aaaaaaaaaaaa_" + "a" * 43)
    who = ("--action", "refused", "--principal", "denied")
    assert eventually(lambda: sum(int(cells[6]) for cells in lines(served, *who)) == 3)
    for cells in lines(served, *who):
        assert cells[1:6] == ["denied", "refused", "stream 'counted'", "write", "forbidden"]

    def unknown() -> list[list[str]]:
        return [cells for cells in lines(served) if cells[5] == "unauthenticated"]

    assert eventually(lambda: sum(int(cells[6]) for cells in unknown()) == 3)
    assert {(cells[1], cells[3]) for cells in unknown()} == {("127.0.0.1", "stream_list")}


def test_records_are_selected(served: TokenServer) -> None:
    made = [served.create("--principal", "selected", "--read", "x") for _ in range(3)]
    for token in made:
        served.ok("tokens", "revoke", id_of(token))
    revoked = [f"token {id_of(token)}" for token in made]
    newest = lines(served, "--action", "token_revoke", "--limit", "2")
    assert [cells[3] for cells in newest] == revoked[1:]
    assert [cells[3] for cells in lines(served, "--action", "token_revoke")][-3:] == revoked
    assert lines(served, "--principal", "nobody") == []
    assert lines(served, "--action", "token_revoke", "--since", "2999-01-01T00:00:00Z") == []
    assert len(lines(served, "--action", "token_revoke", "--since", "1h")) >= 3
    assert lines(served, "--since", "9999999w") == lines(served)
    assert "--since" in served.refused(64, "audit", "--since", "yesterday")


def test_new_records_are_printed_as_they_arrive(served: TokenServer) -> None:
    old = served.create("--principal", "old", "--read", "x")
    follow = subprocess.Popen(
        [*PROGRAM, "audit", "--follow", "--json", "--action", "token_create", "--limit", "1"],
        env={**os.environ, "SEMEL_URL": served.url, "SEMEL_TOKEN": served.admin},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert follow.stdout is not None
        assert json.loads(follow.stdout.readline())["target"] == f"token {id_of(old)} of old"
        served.ok("tokens", "revoke", id_of(old))
        new = served.create("--principal", "new", "--read", "x")
        assert json.loads(follow.stdout.readline())["target"] == f"token {id_of(new)} of new"
    finally:
        follow.terminate()
        follow.communicate(timeout=PATIENCE_SECONDS)


def test_columns_are_aligned_on_a_terminal(
    served: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.create("--principal", "aligned", "--read", "x")
    monkeypatch.setenv("SEMEL_TOKEN", served.admin)
    code, output = on_a_terminal(served, "audit", "--action", "token_create")
    assert code == 0
    rows = output.splitlines()
    assert len(rows) >= 2
    assert len({row.index("token_create") for row in rows}) == 1
    assert "\t" not in output


# ---- who may read it -----------------------------------------------------------------------------


def test_the_audit_is_for_administrators(served: TokenServer) -> None:
    for scope in ("stream:*:admin", "stream:__semel/audit:read", "cluster:describe"):
        made = served.create("--principal", "curious", "--scope", scope)
        error = served.refused(1, "audit", token=made)
        assert error == (
            "semel: the token of curious may not read the audit; use a token with admin on the"
            " cluster\n"
        )
    assert "unauthenticated" in served.refused(1, "audit", token="wrong")


def test_without_access_there_is_no_audit(tmp_path: Path) -> None:
    with token_server(tmp_path / "data", "--access", "off") as served:
        assert served.refused(1, "audit") == (
            "semel: access is off on this server, so that nothing is audited\n"
        )


# ---- owners --------------------------------------------------------------------------------------


def test_a_producer_gets_another_owner(served: TokenServer) -> None:
    till = served.create("--principal", "till", "--write", "owned/*")
    clerk = served.create("--principal", "clerk", "--write", "owned/*")
    served.ok("create", "owned/a", token=till)
    first = ("append", "owned/a", "x", "--producer", "p", "--epoch", "0", "--seq")
    served.ok(*first, "0", token=till)
    assert "'admin' on producer 'p'" in served.refused(1, *first, "1", token=clerk)
    assert served.json("producers", "show", "owned/a", "p")[0]["owner"] == "till"
    (seen,) = served.json("producers", "ls", "owned/a", token=till)
    assert seen["owner"] == "till"
    (seen,) = served.json("producers", "ls", "owned/a", token=clerk)
    assert "owner" not in seen

    move = ("producers", "chown", "p", "--stream", "owned/a")
    assert "forbidden" in served.refused(1, *move, "--to", "clerk", token=clerk)
    assert served.ok(*move, "--to", "clerk", token=till) == (
        "producer p in owned/a belongs to clerk now, and belonged to till before\n"
    )
    served.ok(*first, "1", token=clerk)
    assert served.ok(*move, "--to", "clerk") == "producer p in owned/a belongs to clerk\n"
    (gone,) = served.json(*move, "--nobody")
    assert gone == {
        "kind": "producer",
        "name": "p",
        "owner": None,
        "previous": "clerk",
        "stream": "owned/a",
    }
    assert "owner" not in served.json("producers", "show", "owned/a", "p")[0]
    changes = [cells[7] for cells in lines(served, "--action", "owner_change")]
    assert changes[-2:] == ["to clerk", "to nobody"]


def test_a_registration_gets_another_owner(served: TokenServer) -> None:
    till = served.create("--principal", "till", "--write", "owned/*")
    served.ok("producers", "register", "registered", token=till)
    move = ("producers", "chown", "registered", "--to", "clerk")
    assert served.ok(*move) == (
        "producer registered belongs to clerk now, and belonged to till before\n"
    )
    refusal = served.refused(1, "producers", "register", "registered", token=till)
    assert "'admin' on producer 'registered'" in refusal
    assert "thing_not_found" in served.refused(1, "producers", "chown", "none", "--nobody")
    assert "stream_not_found" in served.refused(
        1, "producers", "chown", "registered", "--stream", "none/x", "--nobody", token=till
    )


def test_transactions_and_sinks_get_another_owner(served: TokenServer) -> None:
    till = served.create("--principal", "till", "--write", "owned/*", "--group", "*")
    served.ok("create", "owned/t", "--content-type", "text/plain", token=till)
    with Client(served.url, token=till) as client:
        txn = client.transaction("open-one", streams=["owned/t"])
        txn.begin()
        client.sink("app").commit(0, [], appends={"owned/t": ["x"]})
    assert served.json("txn", "show", "open-one")[0]["owner"] == "till"
    assert served.json("txn", "show", "open-one", token=till)[0]["owner"] == "till"
    assert served.json("txn", "ls")[0]["owner"] == "till"
    assert [sink["owner"] for sink in served.json("sinks", "ls")] == ["till"]
    assert served.json("sinks", "show", "app")[0]["owner"] == "till"

    viewer = ("--scope", "transaction:*:describe", "--scope", "sink:*:describe")
    guest = served.create("--principal", "guest", *viewer)
    assert "owner" not in served.json("txn", "show", "open-one", token=guest)[0]
    assert "owner" not in served.json("sinks", "ls", token=guest)[0]
    assert "owner" not in served.json("sinks", "show", "app", token=guest)[0]

    said = served.ok("txn", "chown", "open-one", "--to", "clerk")
    assert said == "transaction open-one belongs to clerk now, and belonged to till before\n"
    said = served.ok("sinks", "chown", "app", "--nobody")
    assert said == "sink app belongs to nobody now, and belonged to till before\n"
    assert served.json("sinks", "show", "app")[0]["owner"] is None
    served.ok("txn", "abort", "open-one")
    assert served.json("txn", "show", "open-one")[0]["owner"] == "clerk"


def test_a_subscription_that_another_principal_has_created_is_given_to_its_workers(
    served: TokenServer,
) -> None:
    for path in ("owned/wakes", "owned/orders"):
        served.ok("create", path, "--content-type", "application/json")
    command = ("subscriptions", "create", "billing", "--stream", "owned/orders")
    served.ok(*command, "--wake-stream", "owned/wakes")
    served.ok("append", "owned/orders", "1")
    rights = ("--scope", "subscription:billing:write", "--scope", "stream:owned/*:read")
    worker = served.create("--principal", "worker", *rights)
    with Client(served.url, token=worker) as client:
        with pytest.raises(errors.Forbidden):
            client.subscriptions.claim("billing")
        said = served.ok("subscriptions", "chown", "billing", "--to", "worker")
        assert said == "subscription billing belongs to worker now, and belonged to admin before\n"
        assert client.subscriptions.claim("billing").generation == 1
    missing = served.refused(1, "subscriptions", "chown", "none", "--nobody")
    assert "thing_not_found" in missing


def test_the_new_owner_must_be_named(served: TokenServer) -> None:
    for arguments in ((), ("--to", "x", "--nobody")):
        error = served.refused(64, "sinks", "chown", "app", *arguments)
        assert "--to" in error
        assert "--nobody" in error
    assert "invalid" in served.refused(1, "sinks", "chown", "app", "--to", " x")


def test_without_access_no_owner_is_shown(tmp_path: Path) -> None:
    with token_server(tmp_path / "data", "--access", "off") as served:
        served.ok("create", "s")
        served.ok("append", "s", "x", "--producer", "p", "--epoch", "0", "--seq", "0")
        assert "owner" not in served.json("producers", "show", "s", "p")[0]
        assert "owner" not in served.ok("producers", "show", "s", "p")
