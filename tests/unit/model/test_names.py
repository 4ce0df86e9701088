"""Validation: nothing out of bounds reaches the journal."""

import struct

import pytest
from msgspec.structs import replace

from semel.machine import State, apply, decide, validate_and_decide
from semel.machine.checks import is_batch_consistent
from semel.model.commands import (
    SPARSE,
    Append,
    Batch,
    ClaimProducer,
    Command,
    Create,
    Delete,
    ExpireProducer,
    ForgetProducer,
    ForkRequest,
    ProducerTag,
    Register,
    Trim,
)
from semel.model.limits import NUMBER_MAX
from semel.model.names import is_name
from semel.model.outcomes import InvalidRequest
from semel.model.validation import find_invalid_field

TAG = ProducerTag("p", 0, 0)
APPEND = Append("s", 0, "text/plain", Batch(b"x"))
CREATE = Create("s", 0, "i")


def tagged(**fields: object) -> Append:
    return replace(APPEND, producer=replace(TAG, **fields))


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (Delete("s", NUMBER_MAX + 1), "now"),
        (Delete("", 0), "path"),
        (Delete("\ud800", 0), "path"),
        (Delete("é" * 257, 0), "path"),
        (Register(0, ""), "producer_id"),
        (Register(0, "p" * 257), "producer_id"),
        (ForgetProducer("s", 0, ""), "producer_id"),
        (ClaimProducer("", 0, "p", "x"), "path"),
        (ClaimProducer("s", 0, "", "x"), "producer_id"),
        (ClaimProducer("s", 0, "p", ""), "producer_session"),
        (ClaimProducer("s", 0, "p", "x" * 129), "producer_session"),
        (ClaimProducer("s", 0, "p", "x", "thick"), "producer_mode"),
        (ExpireProducer("s", 0, "p" * 257, 1), "producer_id"),
        (Trim("s", 0, -1), "before"),
        (replace(CREATE, path=""), "path"),
        (replace(CREATE, content_type=""), "content_type"),
        (replace(CREATE, ttl_ms=-1), "ttl"),
        (replace(CREATE, expires_at_ms=NUMBER_MAX + 1), "expires_at"),
        (replace(CREATE, batch=Batch(b"xy", 2)), "batch"),
        (replace(CREATE, fork=ForkRequest("t", -1)), "fork"),
        (replace(CREATE, fork=ForkRequest("t", None, -1)), "fork"),
        (replace(APPEND, batch=Batch(b"", 0)), "batch"),
        (replace(APPEND, batch=Batch(b"x", 1, b"\1\0\0\0")), "batch"),
        (replace(APPEND, batch=Batch(b"x", 10_001, bytes(4 * 10_001))), "batch"),
        (replace(APPEND, stream_seq=""), "stream_seq"),
        (replace(APPEND, key="k" * 256), "idempotency_key"),
        (replace(tagged(), key="k"), "idempotency_key"),
        (tagged(id=""), "producer_id"),
        (tagged(first_seq=-1), "producer_seq"),
        (tagged(first_seq=2, last_seq=1), "producer_seq"),
        (tagged(last_seq=NUMBER_MAX + 1), "producer_seq"),
        (tagged(last_seq=5), "producer_mode"),
        (tagged(mode="bogus"), "producer_mode"),
        (tagged(epoch=-1), "producer_epoch"),
        (replace(CREATE, incarnation="\ud800"), "incarnation"),
        (tagged(session=""), "producer_session"),
        (tagged(cursor=bytes(1025)), "producer_cursor"),
    ],
)
def test_a_field_out_of_bounds_is_named_and_refused(command: Command, field: str) -> None:
    assert find_invalid_field(command) == field
    assert validate_and_decide(State(), command).outcome == InvalidRequest(field)


@pytest.mark.parametrize(
    "command",
    [
        Delete("é" * 256, -5),
        Register(0),
        Register(0, "p" * 256),
        ForgetProducer("s", 0, "p"),
        ClaimProducer("s", 0, "p", "x"),
        ClaimProducer("s", 0, "p", "x", SPARSE),
        Trim("s", 0, NUMBER_MAX),
        CREATE,
        replace(CREATE, fork=ForkRequest("t", 3, 1), expires_at_ms=-1, ttl_ms=0, batch=Batch(b"")),
        APPEND,
        replace(APPEND, key="k", stream_seq="1", batch=Batch(b"x,y", 2, bytes(8))),
        tagged(epoch=NUMBER_MAX, session="s", cursor=bytes(1024)),
        tagged(mode="sparse", last_seq=NUMBER_MAX),
    ],
)
def test_a_field_at_its_bound_passes(command: Command) -> None:
    assert find_invalid_field(command) is None


@pytest.mark.parametrize(
    ("content_type", "payload"), [("text/plain", b"ab,cd"), ("application/json", b"abcd")]
)
def test_lengths_that_do_not_divide_the_payload_are_refused(
    content_type: str, payload: bytes
) -> None:
    """Otherwise acknowledged messages would be read back with other boundaries."""
    batch = Batch(payload, 2, struct.pack("<II", 2, 2))
    state = State()
    made = decide(state, replace(CREATE, content_type=content_type))
    assert made.event is not None
    refused = decide(state, replace(CREATE, content_type=content_type, batch=batch))
    assert refused.outcome == InvalidRequest("batch")
    apply(state, made.event, made.sections, 0)
    appended = decide(state, replace(APPEND, content_type=content_type, batch=batch))
    assert appended.outcome == InvalidRequest("batch")


def test_messages_end_to_end_divide_a_payload_outside_json() -> None:
    batch = Batch(b"abcd", 2, struct.pack("<II", 2, 2))
    assert is_batch_consistent(batch, is_joined=False)
    assert not is_batch_consistent(batch, is_joined=True)


def test_a_name_is_measured_in_bytes() -> None:
    assert is_name("é" * 5, 10)
    assert not is_name("é" * 6, 10)
    assert not is_name("\udfff", 10)
