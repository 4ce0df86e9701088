"""A token ends while it is used: by appends on a pipelining connection, and by live reads."""

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from semel.machine.access_events import TokensRevoked
from semel.machine.events import StreamAppended
from tests.access.pipeline import NO_RESPONSE, Pipeline
from tests.access.rig import AccessServer, access_server, frames_in, id_of, make_token_text
from tests.spec.process import PATIENCE_SECONDS, Answer, Events
from tests.unit.server.issuer import jwks
from tests.unit.server.issuer import token as signed_jwt

ROUNDS: Final = 5
REFUSED: Final = {401, NO_RESPONSE}
LATE: Final = 200  # appends that are sent after the revocation was answered
LIVE_SECONDS: Final = 3.0  # the promise is one second; a busy machine needs more


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AccessServer]:
    """A server whose long-polls and held appends wait for a long time."""
    data = tmp_path_factory.mktemp("revocation") / "data"
    with access_server(data, "--long-poll-timeout", "60", "--gap-hold-ms", "1000") as it:
        yield it


# ---- appends -------------------------------------------------------------------------------------


def is_refused(statuses: list[int]) -> bool:
    """Return whether nothing was accepted, and there was a response."""
    return 401 in statuses and set(statuses) <= REFUSED


def check_end(server: AccessServer, path: str, pipe: Pipeline) -> tuple[int, int]:
    """Check what was accepted; return the numbers of accepted and late appends."""
    pipe.stop()
    assert pipe.first_after is not None
    late = pipe.statuses[pipe.first_after :]
    assert len(late) >= LATE
    assert is_refused(late), "accepted although the revocation was answered before"
    assert len(set(pipe.statuses) - REFUSED) == 1
    assert server.read(path) == b"".join(pipe.accepted()), "each accepted append is stored once"
    return len(pipe.accepted()), len(late)


def ended_lsn(server: AccessServer, token: str) -> int:
    """Return the LSN of the frame that revokes a token."""
    (lsn,) = [
        frame.lsn
        for frame in frames_in(server.data)
        if isinstance(frame.record, TokensRevoked) and id_of(token) in frame.record.ids
    ]
    return lsn


@pytest.mark.parametrize("producer", ["", "p"])
def test_no_append_is_accepted_after_the_revocation_was_answered(
    patient: AccessServer, producer: str
) -> None:
    """The head is the same in every append, so that the server remembers its plan."""
    counts = []
    for number in range(ROUNDS):
        path = f"pipe{producer}/{number}"
        patient.create(path)
        token = patient.make("stream:pipe*:write", principal=f"writer-{number}")
        pipe = Pipeline(patient, path, token, producer=producer)
        pipe.wait_for_responses(300 + 50 * number)
        assert patient.revoke(token).json["count"] == 1
        pipe.mark()
        pipe.wait_for(
            lambda pipe=pipe: (
                pipe.first_after is not None  # type: ignore[misc]
                and pipe.sent > pipe.first_after + LATE
            )
        )
        counts.append(check_end(patient, path, pipe))
        end = ended_lsn(patient, token)
        stream = streams_written_by(patient, path)
        assert all(lsn < end for lsn in stream), "decided after the frame of the revocation (T7)"
    print(f"accepted, and sent too late: {counts}")


def streams_written_by(server: AccessServer, path: str) -> list[int]:
    """Return the LSNs of all appends to a stream, found by their number of messages."""
    frames = [each for each in frames_in(server.data) if isinstance(each.record, StreamAppended)]
    by_stream: dict[int, list[int]] = {}
    for frame in frames:
        for section in frame.sections:
            by_stream.setdefault(section.stream, []).append(frame.lsn)
    answer = server.call(server.admin, "HEAD", f"/v1/stream/{path}")
    count = int(answer.next_offset.rpartition("_")[2])
    newest = max(by_stream)  # streams are numbered as they are created
    assert len(by_stream[newest]) == count
    return by_stream[newest]


def test_no_append_is_accepted_on_any_of_many_connections(patient: AccessServer) -> None:
    """Long bodies fill the write groups, so that appends wait until there is room."""
    patient.create("wide")
    parent = patient.make("stream:wide:write", principal="parent")
    tokens = [patient.make("stream:wide:write", maker=parent) for _ in range(3)]
    pipes = [Pipeline(patient, "wide", token, width=400_000, batch=4) for token in tokens]
    for pipe in pipes:
        pipe.wait_for_responses(12)
    assert patient.revoke(parent, "?children=true").json["count"] == 4
    for pipe in pipes:
        pipe.mark()
    for pipe in pipes:
        pipe.wait_for_late(8)
        pipe.stop()
        assert is_refused(pipe.statuses[pipe.first_after :])
    stored = patient.read("wide")
    accepted = [body for pipe in pipes for body in pipe.accepted()]
    assert len(stored) == sum(map(len, accepted))
    found = [stored[at : at + 400_000] for at in range(0, len(stored), 400_000)]
    assert sorted(found) == sorted(accepted)


def test_an_append_that_waits_for_its_predecessor_is_refused(patient: AccessServer) -> None:
    patient.create("gaps")
    token, second = (patient.make("stream:gaps:write", principal="holder") for _ in range(2))
    headers = {"producer_id": "p", "producer_epoch": 0, "content_type": "text/plain"}
    found: list[Answer] = []

    def send_early() -> None:
        found.append(
            patient.call(token, "POST", "/v1/stream/gaps", b"late", producer_seq=1, **headers)
        )

    thread = threading.Thread(target=send_early)
    thread.start()
    wait_for_metric(patient, "semel_gaps_held 1")
    assert patient.revoke(token).status == 200
    first = patient.call(second, "POST", "/v1/stream/gaps", b"first", producer_seq=0, **headers)
    assert first.status in (200, 204)
    thread.join(PATIENCE_SECONDS)
    assert found[0].status == 401
    assert patient.read("gaps") == b"first"
    third = patient.call(second, "POST", "/v1/stream/gaps", b"third", producer_seq=1, **headers)
    assert third.status in (200, 204), "the sequence of the refused append was not used"


def test_an_append_after_the_expiry_is_refused(patient: AccessServer) -> None:
    patient.create("expiry")
    token = patient.make("stream:expiry:write", expires_in_seconds=2)
    pipe = Pipeline(patient, "expiry", token)
    pipe.wait_for(lambda: 401 in pipe.statuses)
    pipe.mark()
    pipe.wait_for_late(LATE)
    check_end(patient, "expiry", pipe)
    statuses = pipe.statuses
    assert is_refused(statuses[statuses.index(401) :]), "a token that has expired stays so"


def test_a_transaction_outlives_the_token_that_began_it(patient: AccessServer) -> None:
    patient.create("ledger")
    token, second = (patient.make("stream:ledger:write", principal="teller") for _ in range(2))
    tag = {"producer_id": "teller", "producer_epoch": 0}
    begun = patient.call(
        token,
        "POST",
        "/v1/transactions",
        {"transaction_id": "transfer", "streams": ["ledger"], **tag},
    )
    assert begun.status == 201
    headers = {
        "producer_id": "teller",
        "producer_epoch": 0,
        "transaction_id": "transfer",
        "transaction_epoch": 1,
        "content_type": "text/plain",
    }
    target = "/v1/stream/ledger"
    assert patient.call(token, "POST", target, b"a", producer_seq=0, **headers).status == 200
    assert patient.revoke(token).status == 200
    decision = {**tag, "transaction_epoch": 1}
    assert patient.call(token, "POST", target, b"b", producer_seq=1, **headers).status == 401
    for action in ("streams", "prepare", "commit", "abort"):
        more = {"streams": ["ledger"]} if action == "streams" else {}
        refused = patient.call(
            token, "POST", f"/v1/transactions/transfer/{action}", {**decision, **more}
        )
        assert refused.status == 401
    shown = patient.call(second, "GET", "/v1/transactions/transfer")
    assert shown.json["state"] == "open"
    assert patient.call(second, "POST", target, b"b", producer_seq=1, **headers).status == 200
    committed = patient.call(second, "POST", "/v1/transactions/transfer/commit", decision)
    assert committed.status == 200
    assert patient.read("ledger") == b"ab"


# ---- live reads ----------------------------------------------------------------------------------


class LiveReader:
    """A live read on a thread of its own, and when it has ended."""

    def __init__(self, server: AccessServer, token: str, target: str) -> None:
        self.status = 0
        self.text = ""
        self.has_begun = threading.Event()
        self.ended_at = 0.0
        self._thread = threading.Thread(target=self._run, args=(server, token, target))
        self._thread.start()

    def _run(self, server: AccessServer, token: str, target: str) -> None:
        connection = server.connect()
        connection.request("GET", target, headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        self.status = response.status
        self.has_begun.set()
        if response.headers["Content-Type"] == "text/event-stream":
            self.text = "".join(event.data for event in Events(response).rest())
        else:
            self.text = response.read().decode()
        self.ended_at = time.monotonic()
        connection.close()

    def join(self) -> float:
        """Wait for the end of the response; return when that was."""
        self._thread.join(PATIENCE_SECONDS)
        assert self.ended_at, "the live read does not end"
        return self.ended_at


def wait_for_metric(server: AccessServer, line: str) -> None:
    """Wait until the metrics contain a line."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while line not in server.call(server.admin, "GET", "/metrics").body.decode():
        assert time.monotonic() < deadline, line
        time.sleep(0.01)


def test_a_heartbeat_that_waits_ends_with_its_token(patient: AccessServer) -> None:
    token = patient.make("cluster:admin", principal="worker")
    patient.call(token, "PUT", "/v1/stream/shared", b"x")
    members = "/v1/groups/workers/members"
    joined = patient.call(token, "POST", members, {"streams": ["shared"]}).json
    waits = {"version": joined["version"], "wait_ms": 60_000}
    found: list[Answer] = []

    def wait() -> None:
        found.append(patient.call(token, "POST", f"{members}/{joined['member']}", waits))

    thread = threading.Thread(target=wait)
    thread.start()
    wait_for_metric(patient, "semel_live_readers 1")
    assert patient.revoke(token).status == 200
    thread.join(LIVE_SECONDS)
    assert found, "the heartbeat still waits"
    assert found[0].status == 401


@pytest.mark.parametrize("ending", ["revoked", "expired"])
def test_live_reads_end_with_their_token(patient: AccessServer, ending: str) -> None:
    path = f"live-{ending}"
    patient.create(path, b"stored")
    life: dict[str, Any] = {"expires_in_seconds": 2} if ending == "expired" else {}
    made_at = time.monotonic()
    token = patient.make(f"stream:{path}:read", **life)
    other = patient.make(f"stream:{path}:read")
    target = f"/v1/stream/{path}?offset=now&live="
    readers = [LiveReader(patient, token, target + kind) for kind in ("long-poll", "sse")]
    stays = LiveReader(patient, other, f"{target}sse")
    assert readers[1].has_begun.wait(PATIENCE_SECONDS)
    assert stays.has_begun.wait(PATIENCE_SECONDS)
    if ending == "revoked":
        wait_for_metric(patient, "semel_live_readers 3")
        assert patient.revoke(token).status == 200
        ended_at = time.monotonic()
    else:
        ended_at = made_at + 2
    for reader in readers:
        assert reader.join() - ended_at < LIVE_SECONDS
    assert (readers[0].status, "unauthenticated" in readers[0].text) == (401, True)
    assert readers[1].status == 200
    assert patient.call(token, "GET", target + "sse").status == 401
    posted = patient.call(
        patient.admin, "POST", f"/v1/stream/{path}", b"later", content_type="text/plain"
    )
    assert posted.status == 204
    assert "later" not in readers[0].text + readers[1].text
    assert not stays.ended_at, "the reader with another token goes on"
    assert patient.revoke(other).status == 200
    stays.join()
    assert "later" in stays.text


RULES: Final = """
[[access.jwt]]
name = "corp"
issuer = "https://login.example"
audience = "semel"
jwks_file = "{}"
[[access.jwt.grants]]
scopes = ["stream:live:read,write"]
"""


def test_a_jwt_ends_when_its_rule_is_removed(tmp_path: Path) -> None:
    """Rules are loaded again after SIGHUP. What begins with them must not outlive them."""
    keys, config = tmp_path / "jwks.json", tmp_path / "semel.toml"
    keys.write_bytes(jwks())
    config.write_text(RULES.format(keys))
    jwt = signed_jwt(exp=int(time.time()) + 3600)
    options = ("--config", str(config), "--long-poll-timeout", "60")
    server = AccessServer(tmp_path / "data", *options, admin=make_token_text())
    try:
        server.create("live")
        target = "/v1/stream/live?offset=now&live="
        readers = [LiveReader(server, jwt, target + kind) for kind in ("long-poll", "sse")]
        wait_for_metric(server, "semel_live_readers 2")
        pipe = Pipeline(server, "live-not-allowed", jwt)
        pipe.stop()
        assert set(pipe.statuses) == {404}, "the rule is for another stream"
        config.write_text("")
        server.signal(signal.SIGHUP)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while server.call(jwt, "GET", "/v1/whoami").status == 200:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        ended_at = time.monotonic()
        for reader in readers:
            assert reader.join() - ended_at < LIVE_SECONDS
        assert [reader.status for reader in readers] == [401, 200]
        posted = server.call(jwt, "POST", "/v1/stream/live", b"x", content_type="text/plain")
        assert posted.status == 401
    finally:
        server.kill()


def test_a_restart_remembers_the_expiry(tmp_path: Path) -> None:
    with access_server(tmp_path / "data") as first:
        token = first.make("cluster:describe", expires_in_seconds=3600)
        short = first.make("cluster:describe", expires_in_seconds=1)
        admin = first.admin
    again = AccessServer(tmp_path / "data")
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while again.call(short, "GET", "/v1/whoami").status == 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert again.call(short, "GET", "/v1/whoami").status == 401
        assert again.call(token, "GET", "/v1/whoami").status == 200
        shown = again.call(admin, "GET", f"/v1/tokens/{id_of(short)}")
        assert shown.json["state"] == "expired"
    finally:
        again.kill()
