"""Compares docs/reference/access.md with the gate, the rules of commands, and the audit.

Every checker takes text and returns a list of errors, so each is also tested with wrong text.
"""

import re
from typing import Final

from semel.broker.guard import _DESCRIBERS, AUDIT_BYTES_MAX, AUDIT_RECORDS_MAX, AuditRecord
from semel.machine.needs import RULES
from semel.model import commands
from semel.model.access_commands import CreateToken, RevokeToken
from semel.model.limits import (
    DESCRIPTION_BYTES_MAX,
    KIB,
    MIB,
    SCOPE_NAMES_BYTES_MAX,
    SCOPES_PER_TOKEN_MAX,
    TOKENS_MAX,
    TOKENS_PER_PRINCIPAL_MAX,
)
from semel.model.rights import CLUSTER, KINDS, RIGHTS
from semel.wire.gate import ADDRESS, COMMAND, GATE, OPEN, OWNED, QUERY, VALID, Rule
from semel.wire.refusal_table_access import ACCESS_REFUSALS
from semel.wire.routes import ROUTES
from tests.docs.test_architecture import section
from tests.docs.test_docs import ROOT, code_of, table_rows

PAGE: Final = ROOT / "docs/reference/access.md"
TEXT: Final = PAGE.read_text(encoding="utf-8")
ADDRESSES: Final = "What each address needs"
COMMANDS: Final = "What each command needs"

# How the page names the commands that need rights.
NAMES: Final = {
    "Append": "append",
    "Create": "create",
    "Delete": "delete",
    "Trim": "trim",
    "SwitchDedup": "set recognition",
    "Register": "register",
    "ClaimProducer": "claim",
    "RetireProducers": "retire producers",
    "ForgetProducer": "forget a producer",
    "Begin": "begin",
    "AddStreams": "add streams",
    "AddPositions": "add positions",
    "Prepare": "prepare",
    "CommitTxn": "commit",
    "AbortTxn": "abort",
    "FenceTxn": "fence",
    "Commit": "one-shot commit",
    "SetPositions": "move positions",
    "PinSnapshot": "pin a snapshot",
    "RebindSink": "rebind a sink",
    "ForgetSink": "forget a sink",
    "SetPolicy": "set a policy",
    "DeletePolicy": "delete a policy",
    "CreateToken": "make a token",
    "RevokeToken": "revoke a token",
    "ChangeOwner": "change an owner",
    "AppendTopic": "append to a topic",
    "CreateTopic": "create a topic",
    "GrowTopic": "grow a topic",
    "CloseTopic": "close a topic",
    "DeleteTopic": "delete a topic",
    "JoinGroup": "join a group",
    "ReleaseStreams": "release streams",
    "LeaveGroup": "leave a group",
    "DeleteGroup": "delete a group",
    "CreateSubscription": "create a subscription",
    "LinkStreams": "link streams",
    "UnlinkStream": "unlink a stream",
    "ClaimWake": "claim a wake",
    "ResumeSubscription": "resume a subscription",
    "DeleteSubscription": "delete a subscription",
    "AckWake": "ack a wake",
    "ReleaseWake": "release a wake",
}


def need_as_text(rule: Rule) -> str:
    """Return how the page begins the cell of a route with this rule."""
    right = f"`{rule.right}` on the {rule.kind}"
    return {
        OPEN: "nothing",
        VALID: "a valid token",
        COMMAND: "command *",
        ADDRESS: right,
        QUERY: f"{right} in the query",
        OWNED: f"{right}, or own it",
    }[rule.source]


def wrong_routes(text: str) -> list[str]:
    """Return the routes that are missing, are there twice, or have another request or need."""
    rows = [row for row in table_rows(text) if len(row) == 3 and code_of(row[0])]
    named = [code_of(row[0]) for row in rows]
    errors = [f"{name} has {named.count(name)} rows" for name in GATE if named.count(name) != 1]
    errors += [f"{name} is not a route" for name in named if name not in GATE]
    requests = {each.name: f"{', '.join(each.methods)} {each.address}" for each in ROUTES}
    for route, request, need in ((code_of(row[0]), code_of(row[1]), row[2]) for row in rows):
        if route not in GATE:
            continue
        if request != requests[route]:
            errors.append(f"{route} is {requests[route]}")
        first, *others = need.split("; ")
        expected = need_as_text(GATE[route])
        is_right = first.startswith(expected) if expected.endswith("*") else first == expected
        if not is_right:
            errors.append(f"{route} needs {expected}")
        cited = [name for part in (first, *others) for name in re.findall(r"\*(.+?)\*", part)]
        errors += [f"{route}: no command {name}" for name in cited if name not in NAMES.values()]
    return errors


def command_names(text: str) -> list[str]:
    """Return the names of the commands in the first column of the table."""
    rows = [row for row in table_rows(text) if len(row) == 2 and not code_of(row[0])]
    cells = [row[0] for row in rows if row[0] not in ("command", "---", "")]
    return [name for cell in cells if "`" not in cell for name in cell.split(", ")]


def test_every_route_is_in_the_table_once_with_the_right_that_the_gate_checks() -> None:
    assert GATE.keys() == {route.name for route in ROUTES}
    assert wrong_routes(section(TEXT, ADDRESSES)) == []


def test_every_command_with_a_rule_has_a_row() -> None:
    ruled = {kind.__name__ for kind in (*RULES, CreateToken, RevokeToken)}
    assert NAMES.keys() == ruled
    assert sorted(command_names(section(TEXT, COMMANDS))) == sorted(NAMES.values())


def test_every_kind_has_a_row_and_every_right_a_column() -> None:
    text = section(TEXT, "Kinds and rights")
    cells = [row[0] for row in table_rows(text) if len(row) > 2]
    assert {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} >= set(KINDS)
    header = next(row for row in table_rows(text) if row[0] == "kind")
    assert [code_of(cell) for cell in header[2:]] == list(RIGHTS)


def test_the_fields_of_the_audit_are_those_of_its_records() -> None:
    rows = [row for row in table_rows(section(TEXT, "The audit")) if len(row) == 2]
    fields = [code_of(row[0]) for row in rows]
    start = fields.index("time_ms")
    names = list(AuditRecord.__struct_fields__)
    assert fields[start : start + len(names)] == names


def test_the_actions_of_the_audit_are_those_of_the_source() -> None:
    _, _, table = section(TEXT, "The audit").partition("| action | recorded when |")
    text = table.partition("\n\n")[0]
    listed = {name for row in table_rows(text) for name in re.findall(r"`([a-z_]+)`", row[0])}
    calls = {kind.__name__ for kind in commands.TxnCall.__subclasses__()}
    words = {"_".join(re.findall("[A-Z][a-z]+", name.removesuffix("Txn"))) for name in calls}
    acts = {f"transaction_{name.lower()}" for name in words}
    source = (ROOT / "src/semel/broker/guard.py").read_text(encoding="utf-8")
    actions = set(
        re.findall(
            r'\(?"((?:token|owner|policy|dedup|producer|sink|subscription)_[a-z]+)",', source
        )
    )
    assert len(actions) == len(_DESCRIBERS)
    servers = {"server_start", "identities_change"}
    for name, path in zip(
        sorted(servers), ("server/access.py", "cli/serve_access.py"), strict=True
    ):
        assert f'"{name}"' in (ROOT / "src/semel" / path).read_text(encoding="utf-8")
    assert listed == actions | acts | servers | {"refused"}


def test_the_figures_and_codes_of_the_page_are_those_of_the_source() -> None:
    for figure in (TOKENS_MAX, TOKENS_PER_PRINCIPAL_MAX, AUDIT_RECORDS_MAX):
        assert f"{figure:,}" in TEXT
    assert f"{AUDIT_BYTES_MAX // MIB} MiB" in TEXT
    assert f"{SCOPE_NAMES_BYTES_MAX // KIB} KiB together" in TEXT
    assert f"1 to {SCOPES_PER_TOKEN_MAX} scopes" in TEXT
    assert f"(up to {DESCRIPTION_BYTES_MAX} bytes)" in TEXT
    assert [entry.code for entry in ACCESS_REFUSALS if f"`{entry.code}`" not in TEXT] == []


def test_a_wrong_row_is_reported() -> None:
    text = section(TEXT, ADDRESSES)
    row = "| `metrics` | `GET, HEAD /metrics` | `describe` on the cluster |\n"
    assert GATE["metrics"].kind == CLUSTER
    assert row in text
    for wrong, errors in (
        ("", 1),
        (row * 2, 1),
        (row.replace("metrics` | `GET", "metric` | `GET"), 2),
        (row.replace("HEAD", "POST"), 1),
        (row.replace("describe", "read"), 1),
        (row.replace("the cluster", "the cluster; command *nothing*"), 1),
    ):
        assert len(wrong_routes(text.replace(row, wrong))) == errors, wrong
    assert command_names("| command | needs |\n|---|---|\n| a, b | c |\n") == ["a", "b"]
