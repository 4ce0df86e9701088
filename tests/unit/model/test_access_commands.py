"""The validation of commands on tokens and owners, and that a token always fits into a frame."""

from typing import Any

import pytest
from msgspec.structs import replace

from semel.journal.frame import encode_meta
from semel.machine import State
from semel.machine.tokens import decide_create_token
from semel.model.access_commands import (
    EXPIRES_MS_MAX,
    AccessCommand,
    ChangeOwner,
    CreateToken,
    NoteTokenUses,
    RevokeToken,
    is_principal,
)
from semel.model.limits import (
    DESCRIPTION_BYTES_MAX,
    FRAME_OVERHEAD_BYTES_MAX,
    PATH_BYTES_MAX,
    PRINCIPAL_BYTES_MAX,
    PRODUCER_ID_BYTES_MAX,
    SCOPE_NAMES_BYTES_MAX,
    SCOPES_PER_TOKEN_MAX,
)
from semel.model.rights import ADMIN, ALL_RIGHTS, CLUSTER, READ, RIGHTS, STREAM, Scope
from semel.model.validation import find_invalid_field

ID = "0123456789ab"
TOKEN = CreateToken(0, ID, bytes(32), "till", ALL_RIGHTS)
OWNER = ChangeOwner(0, "producer", "p", "s", "till")
NAME_BYTES = SCOPE_NAMES_BYTES_MAX // SCOPES_PER_TOKEN_MAX
LONGEST = tuple(
    Scope(STREAM, f"{number:0{NAME_BYTES}}", False, RIGHTS)
    for number in range(SCOPES_PER_TOKEN_MAX)
)


def named(*names: str) -> tuple[Scope, ...]:
    return tuple(Scope(STREAM, name, False, (READ,)) for name in names)


PART = "x" * (SCOPE_NAMES_BYTES_MAX // 16)


@pytest.mark.parametrize(
    "command",
    [
        TOKEN,
        replace(TOKEN, expires_ms=0),
        replace(TOKEN, expires_ms=EXPIRES_MS_MAX),
        replace(TOKEN, description="of the till in Orléans"),
        replace(TOKEN, description="x" * DESCRIPTION_BYTES_MAX, issuer=ID),
        replace(TOKEN, principal="x" * PRINCIPAL_BYTES_MAX),
        replace(TOKEN, scopes=LONGEST),
        replace(TOKEN, scopes=named(*[PART] * 16)),
        replace(TOKEN, scopes=named("x" * PATH_BYTES_MAX)),
        replace(TOKEN, scopes=(Scope(STREAM, "", True, (READ,)),)),
        RevokeToken(0, ID),
        RevokeToken(0, ID, children=True),
        NoteTokenUses(0, ((ID, 5),)),
        OWNER,
        replace(OWNER, path=None, owner=None),
        ChangeOwner(0, "sink", "app", owner="till"),
        ChangeOwner(0, "transaction", "x" * PRODUCER_ID_BYTES_MAX, owner="till"),
    ],
)
def test_a_valid_command_has_no_invalid_field(command: AccessCommand) -> None:
    assert find_invalid_field(command) is None


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("id", {"id": ""}),
        ("id", {"id": ID[:-1]}),
        ("id", {"id": f"{ID}c"}),
        ("id", {"id": f"{ID[:-1]}é"}),
        ("hash", {"hash": b""}),
        ("hash", {"hash": bytes(31)}),
        ("hash", {"hash": bytes(33)}),
        ("principal", {"principal": ""}),
        ("principal", {"principal": "x" * (PRINCIPAL_BYTES_MAX + 1)}),
        ("principal", {"principal": "é" * (PRINCIPAL_BYTES_MAX // 2 + 1)}),
        ("principal", {"principal": "a\nb"}),
        ("scopes", {"scopes": ()}),
        ("scopes", {"scopes": (*LONGEST, *ALL_RIGHTS)}),
        ("scopes", {"scopes": named(*[PART] * 16, "y")}),
        ("scopes", {"scopes": named(*["é" * (len(PART) // 2)] * 16, "y")}),
        ("scopes", {"scopes": named("a*")}),
        ("scopes", {"scopes": named("\ud800")}),
        ("scopes", {"scopes": (Scope("door", "a", False, (READ,)),)}),
        ("scopes", {"scopes": (Scope(STREAM, "x" * (PATH_BYTES_MAX + 1), False, (READ,)),)}),
        ("scopes", {"scopes": (Scope(STREAM, "a", False, (READ, READ)),)}),
        ("scopes", {"scopes": (*ALL_RIGHTS, Scope(STREAM, "a", False, ()))}),
        ("scopes", {"scopes": (Scope(CLUSTER, "a", False, (ADMIN,)),)}),
        ("expires_at", {"expires_ms": -1}),
        ("expires_at", {"expires_ms": EXPIRES_MS_MAX + 1}),
        ("description", {"description": "x" * (DESCRIPTION_BYTES_MAX + 1)}),
        ("description", {"description": "a\x1b[2J"}),
        ("issuer", {"issuer": f"{ID}c"}),
    ],
)
def test_a_token_s_invalid_field_is_named(field: str, change: dict[str, Any]) -> None:
    assert find_invalid_field(replace(TOKEN, **change)) == field


@pytest.mark.parametrize("token_id", ["", f"{ID}c", "\ud800"])
def test_a_revocation_needs_an_id(token_id: str) -> None:
    assert find_invalid_field(RevokeToken(0, token_id)) == "id"


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("kind", {"kind": "stream"}),
        ("kind", {"kind": ""}),
        ("name", {"name": ""}),
        ("name", {"name": "x" * (PRODUCER_ID_BYTES_MAX + 1)}),
        ("stream", {"path": ""}),
        ("stream", {"path": "x" * (PATH_BYTES_MAX + 1)}),
        ("stream", {"kind": "sink"}),
        ("stream", {"kind": "transaction"}),
        ("owner", {"owner": ""}),
        ("owner", {"owner": " till"}),
    ],
)
def test_a_change_of_owner_has_its_invalid_field_named(field: str, change: dict[str, Any]) -> None:
    assert find_invalid_field(replace(OWNER, **change)) == field


@pytest.mark.parametrize("text", ["a", "team/till 7", "CN=ü", "https://issuer/#sub"])
def test_a_printable_text_can_name_a_principal(text: str) -> None:
    assert is_principal(text)


@pytest.mark.parametrize("text", ["", " a", "a ", "a\tb", "a\x00", "a\u2028b", "\ud800"])
def test_a_text_that_could_be_mistaken_names_no_principal(text: str) -> None:
    assert not is_principal(text)


def test_the_largest_token_fits_into_a_frame_without_payload() -> None:
    command = replace(
        TOKEN,
        principal="x" * PRINCIPAL_BYTES_MAX,
        scopes=LONGEST,
        expires_ms=EXPIRES_MS_MAX,
        description="x" * DESCRIPTION_BYTES_MAX,
        issuer=ID,
    )
    assert find_invalid_field(command) is None
    event = decide_create_token(State(), command).event
    assert event is not None
    assert len(encode_meta(event)) < FRAME_OVERHEAD_BYTES_MAX
