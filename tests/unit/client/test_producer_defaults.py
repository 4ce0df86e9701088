"""The default settings of a producer."""

import os
import socket

import pytest

from semel.client.producer.batches import ProducerSettings
from semel.client.producer.opening import default_id


# rows: D27
def test_a_producer_is_named_by_the_environment_or_else_by_host_and_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PRODUCER_ID", "orders-1")
    assert default_id() == "orders-1"
    for unset in ("", None):
        if unset is None:
            monkeypatch.delenv("PRODUCER_ID")
        else:
            monkeypatch.setenv("PRODUCER_ID", unset)
        assert default_id() == f"{socket.gethostname()}-{os.getpid()}"


# rows: D21
def test_five_batches_of_a_megabyte_may_be_out_and_nothing_lingers() -> None:
    usual = ProducerSettings(id="p", session="s")
    assert (usual.max_in_flight, usual.max_batch_bytes, usual.linger) == (5, 1_000_000, 0.0)
