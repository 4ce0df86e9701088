"""`semel groups` with members, against a real server."""

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest

from semel.model.offsets import print_offset
from tests.integration.test_cli_streams import Served, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("groups") / "data") as served:
        yield served


@pytest.fixture
def name(served: Served, request: pytest.FixtureRequest) -> str:
    """A topic with two partitions, which have three and no messages."""
    topic = str(request.node.name)
    assert served.semel("topics", "create", topic, "--partitions", "2").exit_code == 0
    for _ in range(3):
        given = ("append", topic, '"x"', "--topic", "--partition", "0")
        assert served.semel(*given).exit_code == 0
    return topic


def call(served: Served, method: str, target: str, document: object = None) -> Any:
    """Send a request, and return the JSON of its response."""
    body = None if document is None else json.dumps(document).encode()
    connection = HTTPConnection(urlsplit(served.url).netloc, timeout=60)
    connection.request(method, target, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    assert response.status < 300, content
    return json.loads(content) if content else None


def join(served: Served, name: str, **options: object) -> str:
    document = {"topics": [name], **options}
    return str(call(served, "POST", f"/v1/groups/{name}/members", document)["member"])


def test_members_owners_and_lag_are_shown(served: Served, name: str) -> None:
    member = join(served, name, instance="one")
    shown: dict[str, Any] = served.json("groups", "show", name)[0]
    assert shown["lag"] == shown["lag_bound"] == 3
    assert [(one["member"], one["instance"]) for one in shown["members"]] == [(member, "one")]
    first, second = shown["streams"]
    assert (first["owner"], first["lag"], first["end"]) == (member, 3, print_offset(3))
    assert (second["owner"], second["lag"]) == (member, 0)
    words = served.semel("groups", "show", name).stdout
    assert f"member {member} (one): 2 streams, heard " in words
    assert f"{print_offset(0)}  {name}/1  lag 0; owner {member}, epoch 1\n" in words
    assert name in served.semel("groups", "ls", "--prefix", name).stdout.splitlines()
    (entry,) = served.json("groups", "ls", "--prefix", name)
    assert (entry["members"], entry["streams"]) == (1, 2)


def test_partitions_are_shown_in_the_order_of_their_numbers(served: Served, name: str) -> None:
    assert served.semel("topics", "grow", name, "11").exit_code == 0
    offsets = {f"{name}/{number}": 0 for number in range(11)}
    call(served, "POST", f"/v1/groups/{name}/offsets", {"offsets": offsets})
    lines = served.semel("groups", "show", name).stdout.splitlines()
    shown = [line.split()[1] for line in lines if f"  {name}/" in line]
    assert shown == [f"{name}/{number}" for number in range(11)]


def test_a_group_with_members_is_moved_only_by_force(served: Served, name: str) -> None:
    member = join(served, name)
    for command in (("set", name, f"{name}/0", "2"), ("reset", name, "--to", "latest")):
        said = served.refused(1, "groups", *command)
        assert "group_is_shared" in said
        assert "or use --force" in said
    told = served.semel("groups", "set", name, f"{name}/0", "2", "--force").stdout
    assert told == f"group {name} is at {print_offset(2)} in {name}/0\n"
    (facts,) = served.json("groups", "reset", name, "--to", "latest", "--force")
    assert facts["offsets"] == {f"{name}/0": print_offset(3), f"{name}/1": print_offset(0)}
    said = served.refused(1, "groups", "delete", name, "--yes")
    assert "group_in_use" in said
    call(served, "DELETE", f"/v1/groups/{name}/members/{member}")
    told = served.semel("groups", "reset", name, "--to", "earliest").stdout
    assert told == f"group {name} is at earliest in 2 streams\n"
    given = ("groups", "reset", name, "--to", "1", "--stream", f"{name}/0", "--json")
    assert print_offset(1) in served.semel(*given).stdout
    (shown,) = served.json("groups", "show", name)
    assert shown["offsets"] == {f"{name}/0": print_offset(1), f"{name}/1": print_offset(0)}


def test_a_reset_that_does_not_fit_is_refused(served: Served, name: str) -> None:
    assert served.semel("groups", "set", name, f"{name}/0", "1").exit_code == 0
    said = served.refused(1, "groups", "reset", name, "--to", "latest", "--stream", "other")
    assert f"the group {name} is not in all of these streams: other" in said
    assert "OFFSET_BEYOND_TAIL" in served.refused(1, "groups", "reset", name, "--to", "4")
    said = served.refused(64, "groups", "reset", name, "--to", "yesterday")
    assert "'yesterday' is not a position; expected earliest, latest, an offset" in said
    assert "group_not_found" in served.refused(1, "groups", "reset", "nobody", "--to", "1")


def test_a_deleted_group_is_unknown(served: Served, name: str) -> None:
    assert served.semel("groups", "set", name, f"{name}/0", "1").exit_code == 0
    asked = served.semel("groups", "delete", name, given=b"n\n")
    assert asked.exit_code == 1
    told = served.semel("groups", "delete", name, "--yes").stdout
    assert told == f"deleted the group {name}\n"
    for command in ("show", "delete"):
        options = ("--yes",) if command == "delete" else ()
        assert "group_not_found" in served.refused(1, "groups", command, name, *options)
    assert name not in served.semel("groups", "ls").stdout.splitlines()
