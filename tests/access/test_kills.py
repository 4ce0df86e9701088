"""kill -9 between the creation, the use and the revocation of tokens."""

import http.client
import random
import threading
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.access.rig import AccessServer, id_of, make_token_text, request_bytes, status_of
from tests.access.world import pages
from tests.spec.process import PATIENCE_SECONDS

KILLS: Final = 14  # of each test
WORKERS: Final = 3
STREAM: Final = "kills"
CHECKPOINTS: Final = ("--checkpoint-seconds", "0.005", "--checkpoint-bytes", "4096")


class Known:
    """What the server has answered, in all rounds."""

    def __init__(self) -> None:
        self.live: dict[str, str] = {}  # tokens that were created, and their principals
        self.doubtful: set[str] = set()  # the revocation was sent and not answered
        self.resolved = 0
        self.revoked: set[str] = set()
        self.owners: dict[str, str] = {}  # of producers whose append was acknowledged
        self.lock = threading.Lock()


class Client(threading.Thread):
    """Creates, uses and revokes tokens until the server is killed."""

    def __init__(self, server: AccessServer, known: Known, name: str, seed: int) -> None:
        super().__init__()
        self._server = server
        self._known = known
        self._name = name
        self._rng = random.Random(seed)
        self._count = 0
        self.start()

    def run(self) -> None:
        try:
            while True:
                self._count += 1
                self._one(f"{self._name}-{self._count}")
        except (OSError, http.client.HTTPException):
            pass  # the server was killed

    def _one(self, principal: str) -> None:
        known, server = self._known, self._server
        token = server.make(f"stream:{STREAM}:write", principal=principal)
        with known.lock:
            known.live[token] = principal
        if self._rng.random() < 0.7:
            used = server.call(
                token,
                "POST",
                f"/v1/stream/{STREAM}",
                b"x",
                content_type="text/plain",
                producer_id=principal,
                producer_epoch=0,
                producer_seq=0,
            )
            assert used.status in (200, 204), used
            with known.lock:
                known.owners[principal] = principal
        if self._rng.random() < 0.6:
            with known.lock:
                known.doubtful.add(token)
            revoked = server.revoke(token)
            assert revoked.status == 200, revoked
            with known.lock:
                known.revoked.add(token)
                known.doubtful.discard(token)


def check(server: AccessServer, known: Known) -> None:
    """Check that everything that was answered before the kills still holds."""
    tokens = list(known.live)
    requests = [
        ("GET", request_bytes("GET", "/v1/whoami", [("Authorization", f"Bearer {token}")]))
        for token in tokens
    ]
    with server.line() as line:
        responses = line.ask_all(requests)
    for token, response in zip(tokens, responses, strict=True):
        assert response is not None
        status = status_of(response)
        if token in known.revoked:
            assert status == 401, "a revoked token works again"
        elif token in known.doubtful:
            assert status in (200, 401)
            known.doubtful.discard(token)  # what it is now it must stay
            known.resolved += 1
            if status == 401:
                known.revoked.add(token)
        else:
            assert status == 200, "a token that was created does not work"
            body = msgspec.json.decode(response.partition(b"\r\n\r\n")[2])
            assert body["principal"] == known.live[token]
    check_tokens(server, known)
    check_owners(server, known)


def check_tokens(server: AccessServer, known: Known) -> None:
    rows = {row["id"]: row for row in pages(server, "/v1/tokens", "tokens")}
    for token in known.live:
        state = rows[id_of(token)]["state"]
        assert state == ("revoked" if token in known.revoked else "live")


def check_owners(server: AccessServer, known: Known) -> None:
    """Check the owners that are shown, and that a stranger cannot use one of the producers."""
    target = f"/v1/producers?stream={STREAM}"
    rows = pages_of_producers(server, target)
    for producer, owner in known.owners.items():
        assert rows[producer] == owner
    if known.owners:
        stranger = server.make(f"stream:{STREAM}:write", principal="stranger")
        refused = server.call(
            stranger,
            "POST",
            f"/v1/stream/{STREAM}",
            b"y",
            content_type="text/plain",
            producer_id=next(iter(known.owners)),
            producer_epoch=1,
            producer_seq=0,
        )
        assert (refused.status, refused.json["right"]) == (403, "admin")
        assert server.revoke(stranger).status == 200


def pages_of_producers(server: AccessServer, target: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    after = ""
    while True:
        page = server.call(server.admin, "GET", f"{target}&limit=1000{after}").json
        found |= {row["producer_id"]: row.get("owner") for row in page["producers"]}
        if page["next"] is None:
            return found
        after = f"&after={page['next']}"


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(3))
def test_what_was_answered_about_tokens_survives_kills(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    known, admin = Known(), make_token_text()
    for number in range(KILLS + 1):
        options = CHECKPOINTS if rng.random() < 0.5 else ()
        server = AccessServer(tmp_path / "data", *options, admin=admin)
        try:
            assert server.access_line.startswith("access is on"), server.stderr
            if number == 0:
                server.create(STREAM)
            else:
                check(server, known)
            if number == KILLS:
                break
            clients = [
                Client(server, known, f"{number}-{each}", rng.randrange(1 << 30))
                for each in range(WORKERS)
            ]
            clients[0].join(rng.uniform(0.02, 0.25))
            server.kill()
            for client in clients:
                client.join(PATIENCE_SECONDS)
                assert not client.is_alive()
        finally:
            server.kill()
    print(
        f"{KILLS} kills: {len(known.live)} tokens were created, {len(known.revoked)} revoked,"
        f" {known.resolved} revocations were not answered, {len(known.owners)} owners"
    )
    assert len(known.live) >= 5 * KILLS
    assert len(known.revoked) >= 2 * KILLS


def test_there_are_40_kills() -> None:
    assert 3 * KILLS >= 40
