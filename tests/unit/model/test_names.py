"""The last door: nothing out of bounds reaches the journal."""

import pytest
from msgspec.structs import replace

from semel.machine import State, decide
from semel.model.commands import (
    Append,
    Batch,
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
from semel.model.names import fault_in, is_name
from semel.model.outcomes import InvalidRequest

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
        (ExpireProducer("s", 0, "p" * 257, 1), "producer_id"),
        (Trim("s", 0, -1), "before"),
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
        (tagged(epoch=-1), "producer_epoch"),
        (tagged(session=""), "producer_session"),
        (tagged(cursor=bytes(1025)), "producer_cursor"),
    ],
)
def test_a_field_out_of_bounds_is_named_and_refused(command: Command, field: str) -> None:
    assert fault_in(command) == field
    assert decide(State(), command).outcome == InvalidRequest(field)


@pytest.mark.parametrize(
    "command",
    [
        Delete("é" * 256, -5),
        Register(0),
        Register(0, "p" * 256),
        ForgetProducer("s", 0, "p"),
        Trim("s", 0, NUMBER_MAX),
        CREATE,
        replace(CREATE, fork=ForkRequest("t", 3, 1), expires_at_ms=-1, ttl_ms=0, batch=Batch(b"")),
        APPEND,
        replace(APPEND, key="k", stream_seq="1", batch=Batch(b"x,y", 2, bytes(8))),
        tagged(epoch=NUMBER_MAX, session="s", cursor=bytes(1024), last_seq=NUMBER_MAX),
    ],
)
def test_a_field_at_its_bound_passes(command: Command) -> None:
    assert fault_in(command) is None


def test_a_name_is_measured_in_bytes() -> None:
    assert is_name("é" * 5, 10)
    assert not is_name("é" * 6, 10)
    assert not is_name("\udfff", 10)
