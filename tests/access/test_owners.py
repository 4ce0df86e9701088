"""Owners over HTTP: rules O1 to O7 of `docs/reference/access.md`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

import pytest

from tests.access.rig import AccessServer, access_server, make_token_text
from tests.access.test_modes import running
from tests.spec.process import Answer

SCOPES: Final = ("stream:*:read,write,create,delete", "group:*:read,write")


class People(NamedTuple):
    """Tokens: two of the owner, one of somebody else with the same rights, and administrators."""

    server: AccessServer
    owner: str
    rotated: str
    other: str
    admin: str
    name: str  # of a stream, a producer, a transaction and a sink


@pytest.fixture
def people(server: AccessServer) -> People:
    name = f"o-{uuid4().hex}"
    server.create(name)
    owner, rotated = (server.make(*SCOPES, principal=f"owner-{name}") for _ in range(2))
    other = server.make(*SCOPES, principal=f"other-{name}")
    return People(server, owner, rotated, other, server.admin, name)


def append(people: People, token: str, seq: int, epoch: int = 0, **more: Any) -> Answer:
    return people.server.call(
        token,
        "POST",
        f"/v1/stream/{people.name}",
        b"m",
        content_type="text/plain",
        producer_id=people.name,
        producer_epoch=epoch,
        producer_seq=seq,
        **more,
    )


def post(people: People, token: str, target: str, **document: Any) -> Answer:
    return people.server.call(token, "POST", target, document)


def begin(people: People, token: str, epoch: int = 0) -> Answer:
    return post(
        people,
        token,
        "/v1/transactions",
        transaction_id=people.name,
        producer_id=people.name,
        producer_epoch=epoch,
        streams=[people.name],
    )


def txn_call(people: People, token: str, action: str, **more: Any) -> Answer:
    document = {"producer_id": people.name, "producer_epoch": 0, "transaction_epoch": 1, **more}
    return post(people, token, f"/v1/transactions/{people.name}/{action}", **document)


def claim(people: People, token: str, session: str) -> Answer:
    target = "/v1/producers/claim"
    return post(people, token, target, stream=people.name, producer_id=people.name, session=session)


def retire(people: People, token: str, stream: str | None, epoch: int = 0) -> Answer:
    entry = {"producer_id": people.name, "producer_epoch": epoch, "stream": stream}
    return post(people, token, "/v1/producers/retire", producers=[entry])


def forget(people: People, token: str) -> Answer:
    target = f"/v1/producers?stream={people.name}&id={people.name}"
    return people.server.call(token, "DELETE", target)


def sink_commit(people: People, token: str, version: int) -> Answer:
    tag = {"app": people.name, "query_id": "Q", "version": version}
    return post(people, token, "/v1/commits", sink=tag)


def chown(people: People, token: str, kind: str, owner: str | None, **more: Any) -> Answer:
    return post(people, token, "/v1/owners", kind=kind, name=people.name, owner=owner, **more)


def not_owner(answer: Answer, people: People, kind: str) -> bool:
    """Return whether a response says that the caller needs `admin` on a thing."""
    found = answer.json
    assert answer.code == "forbidden", answer
    return (found["right"], found["kind"], found["name"]) == ("admin", kind, people.name)


# ---- O1 ------------------------------------------------------------------------------------------


def test_nobody_else_can_use_a_producer_of_a_stream(people: People) -> None:
    assert append(people, people.owner, 0).status == 200
    for answer in (
        append(people, people.other, 1),
        append(people, people.other, 0),  # a repeat
        append(people, people.other, 0, epoch=1),  # this would fence the owner
        claim(people, people.other, "s"),
        retire(people, people.other, people.name),
        forget(people, people.other),
        chown(people, people.other, "producer", "me", stream=people.name),
    ):
        assert not_owner(answer, people, "producer")
    assert append(people, people.owner, 1).status == 200, "the owner is not fenced"
    assert append(people, people.rotated, 2).status == 200, "a second token of the same principal"
    assert claim(people, people.rotated, "s").status == 200


def test_nobody_else_can_use_a_registered_producer(people: People) -> None:
    register = "/v1/producers"
    assert post(people, people.owner, register, producer_id=people.name).status == 201
    commit = {
        "producer_id": people.name,
        "producer_epoch": 0,
        "producer_seq": 0,
        "offsets": {"g": {people.name: 0}},
    }
    for answer in (
        post(people, people.other, register, producer_id=people.name),  # it raises the epoch
        begin(people, people.other),
        post(people, people.other, "/v1/commits", **commit),
        retire(people, people.other, None),
    ):
        assert not_owner(answer, people, "producer")
    hidden = chown(people, people.other, "producer", "me")
    assert (hidden.status, hidden.code) == (404, "thing_not_found")
    assert post(people, people.rotated, "/v1/commits", **commit).status == 200
    raised = post(people, people.rotated, register, producer_id=people.name)
    assert raised.json["producer_epoch"] == 1


def test_nobody_else_can_use_a_transaction(people: People) -> None:
    assert begin(people, people.owner).status == 201
    in_txn: dict[str, Any] = {"transaction_id": people.name, "transaction_epoch": 1}
    refused = [
        append(people, people.other, 0, **in_txn),
        txn_call(people, people.other, "streams", streams=[people.name]),
        txn_call(people, people.other, "offsets", group="g", offsets={people.name: 0}),
        txn_call(people, people.other, "prepare"),
        txn_call(people, people.other, "commit"),
        txn_call(people, people.other, "abort"),
        post(
            people,
            people.other,
            f"/v1/transactions/{people.name}/fence",
            transaction_epoch=1,
            operator=True,
        ),
        people.server.call(people.other, "GET", f"/v1/transactions/{people.name}"),
    ]
    assert {(each.status, each.code) for each in refused} == {(404, "INVALID_TXN_ID")}
    again = begin(people, people.other)  # this would take the id from its owner
    assert not_owner(again, people, "transaction")
    describer = people.server.make(
        *SCOPES, f"transaction:{people.name}:describe", principal=f"other-{people.name}"
    )
    for action in ("prepare", "commit", "abort"):
        assert not_owner(txn_call(people, describer, action), people, "transaction")
    shown = people.server.call(describer, "GET", f"/v1/transactions/{people.name}")
    assert shown.json["state"] == "open"
    assert append(people, people.rotated, 0, **in_txn).status == 200
    assert txn_call(people, people.rotated, "commit").status == 200
    late = txn_call(people, people.other, "commit")
    assert late.status == 404, "the outcome belongs to the owner, too"


def test_nobody_else_can_use_a_sink(people: People) -> None:
    assert sink_commit(people, people.owner, 0).status == 200
    task = {"app": people.name, "version": 1, "partition": 0}
    staged = {"transaction_id": str(uuid4()), "kind": "staged", "sink": task}
    assert not_owner(sink_commit(people, people.other, 1), people, "sink")
    assert not_owner(post(people, people.other, "/v1/transactions", **staged), people, "sink")
    target = f"/v1/sinks/{people.name}"
    rebound = {"query_id": "R", "last_version": 0}
    for answer in (
        people.server.call(people.other, "DELETE", target),
        people.server.call(people.other, "GET", target),
        post(people, people.other, f"{target}/rebind", **rebound),
    ):
        assert (answer.status, answer.code) == (404, "unknown_sink")
    assert sink_commit(people, people.rotated, 1).status == 200
    assert post(people, people.rotated, f"{target}/rebind", **rebound).status in (200, 409)


@pytest.mark.parametrize("scope", ["producer:{}:admin", "stream:{}:admin", "cluster:admin"])
def test_an_administrator_of_the_thing_can_use_it(people: People, scope: str) -> None:
    assert append(people, people.owner, 0).status == 200
    token = people.server.make(scope.format(people.name), *SCOPES, principal="operator")
    assert append(people, token, 1).status == 200
    assert append(people, people.owner, 2).status == 200, "the owner stays the owner"
    assert not_owner(append(people, people.other, 3), people, "producer")


def test_a_group_has_no_owner(people: People) -> None:
    target = f"/v1/groups/{people.name}/offsets"
    moved = {"offsets": {people.name: 0}}
    for token in (people.owner, people.other, people.owner):
        assert post(people, token, target, **moved).status == 200


def test_an_operator_decides_with_admin_on_the_transaction_alone(people: People) -> None:
    assert begin(people, people.owner).status == 201
    operator = people.server.make(f"transaction:{people.name}:admin", principal="operator")
    target = f"/v1/transactions/{people.name}/abort"
    answer = post(people, operator, target, transaction_epoch=1, operator=True)
    assert (answer.status, answer.json["reason"]) == (200, "operator")
    owner = post(people, people.owner, target, transaction_epoch=1, operator=True)
    assert owner.status in (403, 404), "the owner is no operator"


# ---- O2, O4, O5 ----------------------------------------------------------------------------------


def test_what_is_refused_gives_no_owner(people: People) -> None:
    assert append(people, people.other, 5).status == 409, "a gap"
    assert append(people, people.owner, 0).status == 200
    assert not_owner(append(people, people.other, 1), people, "producer")


def test_a_registration_keeps_others_from_the_id_in_a_stream(people: People) -> None:
    registered = post(people, people.owner, "/v1/producers", producer_id=people.name)
    assert registered.status == 201
    assert not_owner(append(people, people.other, 0), people, "producer")
    assert not_owner(claim(people, people.other, "s"), people, "producer")
    assert append(people, people.owner, 0).status == 200


def test_nobody_fences_a_producer_of_others_by_a_registration_of_its_id(people: People) -> None:
    """A registration, a transaction or a commit with a higher epoch would fence it everywhere."""
    server, name = people.server, people.name
    elsewhere = f"{name}-elsewhere"
    server.create(elsewhere)
    stranger = server.make(f"stream:{elsewhere}:admin", principal="stranger")
    assert append(people, people.owner, 0).status == 200
    higher = {"producer_id": name, "producer_epoch": 7}
    message = {"stream": elsewhere, "messages": [{"base64": "eA=="}]}
    for answer in (
        post(people, stranger, "/v1/producers", producer_id=name),
        post(people, stranger, "/v1/transactions", transaction_id=elsewhere, **higher),
        post(people, stranger, "/v1/commits", producer_seq=0, appends=[message], **higher),
    ):
        assert not_owner(answer, people, "producer")
    assert append(people, people.owner, 1).status == 200
    registered = post(people, people.owner, "/v1/producers", producer_id=name)
    assert registered.json["producer_epoch"] == 1, "the owner can register it"


def test_an_owner_goes_with_its_thing(people: People) -> None:
    assert append(people, people.owner, 0).status == 200
    assert forget(people, people.owner).status == 204
    assert append(people, people.other, 0).status == 200
    assert not_owner(append(people, people.owner, 1), people, "producer")
    assert sink_commit(people, people.owner, 0).status == 200
    assert people.server.call(people.owner, "DELETE", f"/v1/sinks/{people.name}").status == 204
    assert sink_commit(people, people.other, 0).status == 200
    target = f"/v1/stream/{people.name}"
    assert people.server.call(people.admin, "DELETE", target).status == 204
    people.server.create(people.name)
    assert append(people, people.owner, 0).status == 200, "a new stream has new producers"


# ---- O6 ------------------------------------------------------------------------------------------


def test_an_owner_can_give_a_thing_away(people: People) -> None:
    server = people.server
    assert append(people, people.owner, 0).status == 200
    other = f"other-{people.name}"
    given = chown(people, people.owner, "producer", other, stream=people.name)
    assert (given.status, given.json["previous"]) == (200, f"owner-{people.name}")
    assert not_owner(append(people, people.owner, 1), people, "producer")
    assert append(people, people.other, 1).status == 200
    assert chown(people, people.other, "producer", None, stream=people.name).status == 200
    assert append(people, people.owner, 2).status == 200, "it had no owner, so it is taken"
    back = chown(people, people.admin, "producer", other, stream=people.name)
    assert (back.status, back.json["previous"]) == (200, f"owner-{people.name}")
    changes = [each for each in server.audit() if each["action"] == "owner_change"]
    mine = [each for each in changes if people.name in each["target"]]
    assert [each["detail"] for each in mine] == [f"to {other}", "to nobody", f"to {other}"]
    assert mine[0]["principal"] == f"owner-{people.name}"


@pytest.mark.parametrize("kind", ["producer", "transaction", "sink"])
def test_the_owner_of_each_kind_can_be_changed(people: People, kind: str) -> None:
    missing = chown(people, people.admin, kind, "x")
    assert (missing.status, missing.code) == (404, "thing_not_found")
    assert begin(people, people.owner).status == 201
    assert sink_commit(people, people.owner, 0).status == 200
    registered = post(people, people.owner, "/v1/producers", producer_id=people.name)
    assert registered.status in (200, 201)
    if kind == "transaction":
        assert begin(people, people.owner, registered.json["producer_epoch"]).status == 201
    changed = chown(people, people.owner, kind, f"other-{people.name}")
    assert changed.status == 200, changed
    taken = chown(people, people.owner, kind, "x")
    assert taken.status == 404, "what belongs to somebody else is not shown"
    assert chown(people, people.other, kind, None).status == 200


# ---- O3 ------------------------------------------------------------------------------------------


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """A directory whose producer, transaction and sink were made while access was off."""
    data = tmp_path / "data"
    with running(data) as server:
        assert server.call(None, "PUT", "/v1/stream/o", content_type="text/plain").status == 201
        people = People(server, "", "", "", "", "o")
        for answer in (
            append(people, None, 0),  # type: ignore[arg-type]
            begin(people, None),  # type: ignore[arg-type]
            sink_commit(people, None, 0),  # type: ignore[arg-type]
        ):
            assert answer.status in (200, 201), answer
    return data


@pytest.fixture(params=["allow", "deny"])
def after(before: Path, request: pytest.FixtureRequest) -> Iterator[tuple[str, People]]:
    with running(before, "--unowned", request.param, admin=make_token_text()) as server:
        owner = server.make(*SCOPES, principal="owner")
        other = server.make(*SCOPES, principal="other")
        yield request.param, People(server, owner, owner, other, server.admin, "o")


def test_what_was_there_before_has_no_owner(after: tuple[str, People]) -> None:
    unowned, people = after
    if unowned == "deny":
        assert not_owner(append(people, people.owner, 1), people, "producer")
        assert not_owner(sink_commit(people, people.owner, 1), people, "sink")
        assert txn_call(people, people.owner, "commit").status == 404
        for kind, more in (("producer", {"stream": "o"}), ("transaction", {}), ("sink", {})):
            assert chown(people, people.admin, kind, "owner", **more).status == 200
    assert append(people, people.owner, 1).status == 200
    assert sink_commit(people, people.owner, 1).status == 200
    assert txn_call(people, people.owner, "streams", streams=["o"]).status == 200
    assert not_owner(append(people, people.other, 2), people, "producer")
    assert not_owner(sink_commit(people, people.other, 2), people, "sink")
    assert txn_call(people, people.other, "commit").status == 404
    assert txn_call(people, people.owner, "commit").status == 200


def test_what_has_no_owner_cannot_be_ended_or_taken_without_admin(
    after: tuple[str, People],
) -> None:
    """O9: to end a thing, or to give it away, is no use of it."""
    _, people = after
    for answer in (
        retire(people, people.owner, "o"),
        forget(people, people.owner),
        chown(people, people.owner, "producer", "owner", stream="o"),
    ):
        assert not_owner(answer, people, "producer")
    rebound = post(people, people.owner, "/v1/sinks/o/rebind", query_id="R", last_version=0)
    dropped = people.server.call(people.owner, "DELETE", "/v1/sinks/o")
    taken = [chown(people, people.owner, kind, "owner") for kind in ("sink", "transaction")]
    assert {each.status for each in (rebound, dropped, *taken)} == {404}
    assert retire(people, people.admin, "o").json["producers"][0]["retired"] in (True, False)
    assert (
        post(people, people.admin, "/v1/sinks/o/rebind", query_id="R", last_version=0).status == 200
    )


def test_a_sink_without_a_commit_belongs_to_its_pending_transactions(people: People) -> None:
    """O10: otherwise somebody else could commit the first version of a sink."""
    task = {"app": people.name, "version": 0, "partition": 0}
    staged = {"kind": "staged", "sink": task}
    first = post(people, people.owner, "/v1/transactions", transaction_id=str(uuid4()), **staged)
    assert first.status == 201
    other = post(people, people.other, "/v1/transactions", transaction_id=str(uuid4()), **staged)
    assert not_owner(other, people, "sink")
    assert not_owner(sink_commit(people, people.other, 0), people, "sink")
    again = post(people, people.rotated, "/v1/transactions", transaction_id=str(uuid4()), **staged)
    assert again.status == 201
    assert sink_commit(people, people.rotated, 0).status in (200, 409)


def test_new_things_have_an_owner_although_unowned_ones_are_denied(tmp_path: Path) -> None:
    with access_server(tmp_path / "data", "--unowned", "deny") as server:
        server.create("o")
        owner = server.make(*SCOPES, principal="owner")
        people = People(server, owner, owner, owner, server.admin, "o")
        assert append(people, owner, 0).status == 200
        assert append(people, owner, 1).status == 200
        assert begin(people, owner).status == 201
        assert txn_call(people, owner, "commit").status == 200
        assert begin(people, owner).status in (200, 201)
        assert sink_commit(people, owner, 0).status == 200


# ---- O7 ------------------------------------------------------------------------------------------


def test_owners_survive_a_kill_and_a_checkpoint(tmp_path: Path) -> None:
    admin, data = make_token_text(), tmp_path / "data"
    with running(data, "--checkpoint-seconds", "0.01", admin=admin) as server:
        server.create("o")
        owner = server.make(*SCOPES, principal="owner")
        other = server.make(*SCOPES, principal="other")
        people = People(server, owner, owner, other, admin, "o")
        assert append(people, owner, 0).status == 200
        assert begin(people, owner).status == 201
        assert sink_commit(people, owner, 0).status == 200
        assert txn_call(people, owner, "commit").status == 200
    for options in ((), ("--checkpoint-seconds", "0.01"), ()):
        with running(data, *options, known=admin) as server:
            people = people._replace(server=server)
            assert not_owner(append(people, other, 1), people, "producer")
            assert not_owner(sink_commit(people, other, 1), people, "sink")
            assert txn_call(people, other, "commit").status == 404
            assert not_owner(begin(people, other), people, "transaction")
            repeated = txn_call(people, owner, "commit")
            assert (repeated.status, repeated.json["duplicate"]) == (200, True)
