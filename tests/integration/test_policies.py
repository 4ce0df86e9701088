"""Policies through the clients and the command line, and appends that no server recognises."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from semel import Client, errors
from semel.testing import FaultPlan, FaultProxy
from tests.integration.both import client_of
from tests.integration.test_cli_streams import Served, serving
from tests.spec.process import Server


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("policies") / "data") as served:
        yield served


def values(stream: Any) -> list[Any]:
    return [message.value for message in stream.read()]


# ---- clients -------------------------------------------------------------------------------------


# rows: P19
def test_a_policy_is_set_shown_listed_and_deleted(client: Any, kind: str) -> None:
    prefix = f"é {kind}/x"
    new = client.set_policy(prefix, dedup=False)
    assert (new.prefix, new.dedup) == (prefix, False)
    assert client.set_policy(prefix, dedup=False) == new
    assert client.policy(prefix) == new
    assert new in client.policies()
    stream = client.stream(f"{prefix}/s").create("application/json")
    info = stream.head()
    assert (info.dedup, info.dedup_source, info.dedup_policy) == (False, "policy", prefix)
    (entry,) = client.streams(prefix)
    assert (entry.dedup, entry.dedup_policy) == ("off", prefix)
    assert client.set_policy(prefix, dedup=True).dedup
    assert stream.head().dedup_pending is True
    client.delete_policy(prefix)
    for call in (client.policy, client.delete_policy):
        with pytest.raises(errors.PolicyNotFound):
            call(prefix)
    with pytest.raises(errors.BadRequest, match="whole segments"):
        client.set_policy("a/", dedup=True)


# rows: P19
def test_a_stream_has_a_setting_of_its_own_until_it_inherits(client: Any, server: Server) -> None:
    stream = client.stream(server.stream().path).create("application/json")
    assert stream.head().dedup_source == "built-in"
    assert stream.set_dedup(False).dedup_source == "own"
    stream.append(1)
    inherited = stream.set_dedup(None)
    assert (inherited.dedup, inherited.dedup_pending) == (False, True)
    stream.append(2)
    info = stream.head()
    assert (info.dedup, info.dedup_source, info.dedup_from is None) == (True, "built-in", False)


# ---- the command line ----------------------------------------------------------------------------


# rows: P19
def test_the_command_line_sets_shows_lists_and_deletes(served: Served) -> None:
    assert served.json("policies", "ls") == []
    done = served.semel("policies", "set", "orders", "--dedup", "off")
    assert done.stdout == "the policy of orders is now: dedup off\n"
    (root,) = served.json("policies", "set", "", "--dedup", "on")
    assert (root["prefix"], root["dedup"]) == ("", "on")
    assert served.semel("policies", "ls").stdout == "/\norders\n"
    assert [policy["dedup"] for policy in served.json("policies", "ls")] == ["on", "off"]
    assert served.json("policies", "show", "orders")[0]["dedup"] == "off"
    assert served.semel("create", "orders/eu").exit_code == 0
    (head,) = served.json("head", "orders/eu")
    assert (head["dedup"], head["dedup_source"], head["dedup_policy"]) == (
        "off",
        "policy",
        "orders",
    )
    assert "dedup_source" in served.semel("head", "orders/eu").stdout.replace(" ", "_")
    assert served.json("ls")[0]["dedup_source"] == "policy"
    assert served.semel("policies", "delete", "orders").stdout == ("deleted the policy of orders\n")
    assert served.json("head", "orders/eu")[0]["dedup_pending"] == "on"
    assert "semel policies ls" in served.refused(1, "policies", "delete", "orders")
    assert "whole segments" in served.refused(64, "policies", "set", "a/", "--dedup", "on")
    assert served.semel("policies", "set", "a").exit_code == 64


# ---- appends that the server cannot recognise ----------------------------------------------------


Append = Callable[[Any, int], Any]


def with_key(stream: Any, number: int) -> Any:
    return stream.append(number, idempotency_key=f"k{number}")


# rows: P19
@pytest.mark.parametrize("fault", ["drop_answer", "bad_gateway_after"])
@pytest.mark.parametrize("is_known", [True, False])
def test_an_append_to_a_stream_without_recognition_is_never_sent_again(
    kind: str, server: Server, fault: str, is_known: bool
) -> None:
    path = server.stream().path
    with Client(server.url) as direct:
        stream = direct.stream(path).create("application/json", dedup=not is_known)
        plan = FaultPlan(only="POST", script=[fault])
        with FaultProxy(server.url, plan) as proxy, client_of(kind, proxy.url) as client:
            there = client.stream(path)
            assert there.head().dedup is not is_known
            if not is_known:
                stream.set_dedup(
                    False
                )  # the client has no response that says so when it sends the append
            with pytest.raises(errors.Indeterminate):
                with_key(there, 1)
        assert values(stream) == [1], "stored once, by the attempt that got no response"


# rows: P19
def test_a_client_whose_response_said_so_does_not_send_again(kind: str, server: Server) -> None:
    path = server.stream().path
    with Client(server.url) as direct:
        stream = direct.stream(path).create("application/json", dedup=False)
        plan = FaultPlan(only="POST", script=["pass", "drop_answer"])
        with FaultProxy(server.url, plan) as proxy, client_of(kind, proxy.url) as client:
            there = client.stream(path)
            with_key(there, 1)
            with pytest.raises(errors.Indeterminate):
                with_key(there, 2)
        assert values(stream) == [1, 2]


@pytest.mark.parametrize("fault", ["drop_answer", "bad_gateway_after", "drop_request"])
def test_an_append_that_is_recognised_is_sent_again(kind: str, server: Server, fault: str) -> None:
    path = server.stream().path
    with Client(server.url) as direct:
        stream = direct.stream(path).create("application/json")
        plan = FaultPlan(only="POST", script=[fault])
        with FaultProxy(server.url, plan) as proxy, client_of(kind, proxy.url) as client:
            with_key(client.stream(path), 1)
        assert values(stream) == [1]


# rows: P19
@pytest.mark.parametrize(
    "identity", [("--idempotency-key", "k"), ("--producer", "p", "--epoch", "0", "--seq", "0")]
)
def test_the_command_line_does_not_send_such_an_append_again(
    served: Served, identity: tuple[str, ...]
) -> None:
    path = f"raw-{len(identity)}"
    assert served.semel("create", path, "--dedup", "off").exit_code == 0
    with FaultProxy(served.url, FaultPlan(only="POST", script=["drop_answer"])) as proxy:
        result = served.semel("append", path, "x", *identity, "--url", proxy.url)
    assert result.exit_code != 0
    assert served.semel("read", path, "--raw").stdout == "x"


def test_a_producer_is_not_opened_on_such_a_stream(kind: str, server: Server) -> None:
    with client_of(kind, server.url) as client:
        stream = client.stream(server.stream().path).create("application/json", dedup=False)
        with pytest.raises(errors.ProtocolError, match="Stream-Dedup"), stream.producer("p"):
            pass
        assert values(stream) == []


# ---- a directory of before -----------------------------------------------------------------------


def test_the_setting_of_the_server_survives_without_the_flag(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", "--dedup", "off")
    server.kill()
    server = Server(tmp_path / "data")
    try:
        with Client(server.url) as client:
            assert [(policy.prefix, policy.dedup) for policy in client.policies()] == [("", False)]
    finally:
        server.kill()


@pytest.mark.parametrize("is_client", [True, False], ids=["client", "command"])
def test_a_fork_can_inherit_although_its_source_has_a_setting_of_its_own(
    served: Served, is_client: bool
) -> None:
    with Client(served.url) as client:
        source = client.stream(f"source-{is_client}").create(dedup=False)
        copied = source.fork(f"{source.path}-copy")
        path = f"{source.path}-fork"
        if is_client:
            source.fork(path, dedup="inherit")
        else:
            served.semel("create", path, "--fork-from", source.path, "--dedup", "inherit")
        info = client.stream(path).head()
        assert (info.dedup, info.dedup_source in ("policy", "built-in")) == (True, True)
        assert (copied.head().dedup, copied.head().dedup_source) == (False, "own")
        wrong: Any = "maybe"
        with pytest.raises(ValueError, match="expected True, False, 'inherit' or None"):
            client.stream("other").create(dedup=wrong)
