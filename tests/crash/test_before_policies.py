"""A directory from before there were policies can be opened, and policies hold for its streams.

`tests/data/directory_before_policies.tgz` was written by the previous version, in two runs. The
first run was stopped cleanly, so that its rows are in the checkpoint (`stored/...`); the second was
killed, so that its frames are replayed (`replayed/...`). In each run, `on` was created as usual,
`off` without the recognition of duplicates, `late` was switched on, `ended` was switched off, and
an open transaction has a message in `busy`. Each stream has an append of the producer `p`, with
epoch 0 and sequence 0, and one with the idempotency key `key`.
"""

import pytest

from tests.crash.old_directories import RUNS, OldDirectory
from tests.spec.process import Server
from tests.spec.test_policies import OFF, ON, dedup, put
from tests.spec.test_producers import dense

BEFORE = "directory_before_policies"
pytestmark = pytest.mark.crash


@pytest.fixture
def server(old: OldDirectory) -> Server:
    return old.start()


# rows: P19
@RUNS
def test_off_is_the_stream_s_own_setting_and_on_is_inherited(server: Server, run: str) -> None:
    shown = {name: dedup(server.stream(f"{run}/{name}")) for name in ("on", "off", "late", "ended")}
    late_from = shown["late"].pop("from")
    assert late_from
    assert shown == {
        "on": {},
        "off": {"": "off", "source": "own"},
        "late": {"source": "built-in"},
        "ended": {"": "off", "source": "own"},
    }
    put(server, "", ON)
    assert dense(server.stream(f"{run}/off"), b"a", 0, 0).headers["producer-dedup"] == "off"


# rows: P19
@RUNS
def test_a_policy_holds_for_the_streams_that_inherit(server: Server, run: str) -> None:
    on, late, off = (server.stream(f"{run}/{name}") for name in ("on", "late", "off"))
    assert dense(on, b"a", 0, 0).status == 204
    assert on.post(b"k", idempotency_key="key").headers["idempotent-replayed"] == "true"
    put(server, run, OFF)
    for stream in (on, late):
        assert dedup(stream)["pending"] == "off"
        assert dense(stream, b"a", 0, 0).headers["producer-dedup"] == "off"
    assert dedup(off) == {"": "off", "source": "own"}
    assert server.ask("PATCH", off.target, stream_dedup="inherit").status == 204
    assert dedup(off) == {"": "off", "source": "policy", "policy": f'"{run}"'}


@RUNS
def test_a_transaction_that_was_open_keeps_the_switch_it_found(server: Server, run: str) -> None:
    busy = server.stream(f"{run}/busy")
    put(server, "", OFF)
    assert dense(busy, b"a", 0, 0).status == 204, "the transaction has a message there"
    body = b'{"transaction_epoch": 1, "operator": true}'
    assert server.ask("POST", f"/v1/transactions/t-{run}/commit", body).status == 200
    assert dense(busy, b"a", 0, 0).headers["producer-dedup"] == "off"


def test_the_directory_is_sound_before_and_after(old: OldDirectory, server: Server) -> None:
    put(server, "stored")
    dense(server.stream("stored/on"), b"a", 0, 0)
    for end in (server.kill, lambda: None):
        end()
        old.verify()
        again = old.start()
        assert dedup(again.stream("stored/on"))["policy"] == '"stored"'
        again.signal(15)
        again.wait()
