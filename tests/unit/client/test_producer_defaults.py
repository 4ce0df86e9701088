"""The default settings of a producer."""

import os
import socket

import pytest

from semel.client.producer.opening import settings_of
from semel.client.producer.settings import ProducerSettings, default_id


# rows: D27
def test_a_producer_is_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRODUCER_ID", "orders-1")
    assert default_id() == "orders-1"
    settings = settings_of(None, {})
    assert (settings.id, settings.expires) == ("orders-1", None)
    assert settings_of("mine", {}).id == "mine"


# rows: P06
@pytest.mark.parametrize("unset", ["", None])
def test_a_producer_without_a_name_gets_one_that_no_other_has(
    monkeypatch: pytest.MonkeyPatch, unset: str | None
) -> None:
    if unset is None:
        monkeypatch.delenv("PRODUCER_ID", raising=False)
    else:
        monkeypatch.setenv("PRODUCER_ID", unset)
    many = {settings_of(None, {}).id for _ in range(100)}
    assert len(many) == 100
    start = f"{socket.gethostname()}-{os.getpid()}-"
    assert all(name.startswith(start) for name in many)
    settings = settings_of(None, {})
    assert (type(settings.id), settings.expires, settings.has_past) == (str, 86_400, False)


# rows: D21
def test_five_batches_of_a_megabyte_may_be_out_and_nothing_lingers() -> None:
    usual = ProducerSettings(id="p", session="s")
    assert (usual.max_in_flight, usual.max_batch_bytes, usual.linger) == (5, 1_000_000, 0.0)
