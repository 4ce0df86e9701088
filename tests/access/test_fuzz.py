"""100,000 random requests without a valid token read nothing and change nothing."""

import base64
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from semel.journal.frame import SegmentEnded, SegmentStarted, WatermarkMoved
from semel.machine.access_events import TokensUsed
from semel.machine.events import StreamAppended
from tests.access.cases import CASES, Call
from tests.access.rig import (
    AccessServer,
    frames_in,
    id_of,
    make_token_text,
    request_bytes,
    status_of,
)
from tests.access.test_route_walk import spelled
from tests.access.world import SECRET, World, whole_state

NAME: Final = "fuzz"
SEEDS: Final = range(4)
REQUESTS: Final = 25_000  # of each seed
BATCH: Final = 100
LONG_TOKEN_BYTES: Final = 1 << 20
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
# What a server may answer to a stranger, besides 2xx for /health and OPTIONS.
REFUSALS: Final = {400, 401, 404, 405, 411, 413, 414, 431, 501}

Headers = list[tuple[str, str]]


class Tokens(NamedTuple):
    """Tokens that a stranger can have, and one that only the administrator has."""

    admin: str
    revoked: str
    expired: str


# ---- requests ------------------------------------------------------------------------------------


def _bearer(value: str) -> Headers:
    return [("Authorization", f"Bearer {value}")]


def _flipped(token: str, rng: random.Random) -> str:
    """Return a token with one different character in its secret."""
    at = rng.randrange(19, len(token))
    return (
        token[:at] + rng.choice([each for each in "aB3-_" if each != token[at]]) + token[at + 1 :]
    )


def _jwt(rng: random.Random) -> str:
    parts = ({"alg": rng.choice(["none", "HS256", "RS256"]), "typ": "JWT"}, {"sub": "admin"})
    encoded = [base64.urlsafe_b64encode(msgspec.json.encode(part)).decode() for part in parts]
    return f"{'.'.join(encoded)}.".replace("=", "")


# None of these is a valid token, although most of them contain the administrator's.
STRANGERS: Final[tuple[Callable[[Tokens, random.Random], Headers], ...]] = (
    lambda _t, _r: [],
    lambda _t, _r: [("Authorization", "")],
    lambda _t, _r: [("Authorization", "Bearer")],
    lambda _t, _r: [("Authorization", "Bearer ")],
    lambda _t, _r: _bearer("x"),
    lambda _t, _r: _bearer(make_token_text()),
    lambda t, r: _bearer(_flipped(t.admin, r)),
    lambda t, _r: _bearer(t.revoked),
    lambda t, _r: _bearer(t.expired),
    lambda t, r: _bearer(t.admin[: r.randrange(len(t.admin))]),
    lambda t, r: _bearer(t.admin[r.randrange(1, len(t.admin)) :]),
    lambda t, _r: _bearer(f"{t.admin}A"),
    lambda t, _r: _bearer(f"{t.admin}="),
    lambda t, _r: _bearer(t.admin.lower()),
    lambda t, _r: _bearer(t.admin.upper()),
    lambda t, _r: _bearer(t.admin[6:]),
    lambda t, _r: _bearer(id_of(t.admin)),
    lambda t, _r: _bearer(f"semel_{id_of(t.admin)}_"),
    lambda t, _r: _bearer(f"Bearer {t.admin}"),
    lambda t, _r: _bearer(f"{t.admin} {t.admin}"),
    lambda t, _r: _bearer(f"{t.admin}, {t.admin}"),
    lambda t, _r: _bearer(f'"{t.admin}"'),
    lambda t, _r: _bearer(f"{t.admin}\xe9"),
    lambda t, _r: _bearer(f"\xff{t.admin}"),
    lambda t, _r: [("Authorization", f"Bearer\t{t.admin}")],
    lambda t, _r: [("Authorization", f"Bearer{t.admin}")],
    lambda t, _r: [("Authorization", f"Token {t.admin}")],
    lambda t, _r: [("Authorization", t.admin)],
    lambda t, _r: [("Authorization", f"Basic {base64.b64encode(t.admin.encode()).decode()}")],
    lambda t, _r: [("Authorization", f"Basic {t.admin}")],
    lambda t, _r: [*_bearer(t.admin), *_bearer(t.admin)],
    lambda t, _r: [*_bearer("x"), *_bearer(t.admin)],
    lambda t, _r: [*_bearer(t.admin), ("authorization", "")],
    lambda t, _r: [("Proxy-Authorization", f"Bearer {t.admin}")],
    lambda t, _r: [("X-Authorization", f"Bearer {t.admin}")],
    lambda t, _r: [("X-Forwarded-For", "127.0.0.1"), ("X-Forwarded-User", "admin")],
    lambda t, _r: [("Cookie", f"token={t.admin}; Authorization=Bearer {t.admin}")],
    lambda _t, r: _bearer(_jwt(r)),
    lambda _t, r: _bearer(r.randbytes(20).decode("latin-1").translate({10: 65, 13: 65})),
)


class Fuzz:
    """Makes random requests."""

    def __init__(self, world: World, tokens: Tokens, seed: int) -> None:
        self._rng = random.Random(seed)
        self._tokens = tokens
        self._usual = [case.call(world) for case in CASES]
        self._spelled = [list(spelled(call)) for call in self._usual]

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        rng = self._rng
        while True:
            call = rng.choice(self._usual)
            if rng.random() < 0.4:
                call = rng.choice(rng.choice(self._spelled))
            if rng.random() < 0.2:
                call = call._replace(method=rng.choice(METHODS))
            if rng.random() < 0.1:
                call = self._with_query(call)
            yield call.method, self._bytes(call)

    def _with_query(self, call: Call) -> Call:
        """Send the administrator's token in the query."""
        name = self._rng.choice(["token", "access_token", "authorization", "bearer"])
        mark = "&" if "?" in call.target else "?"
        return call._replace(target=f"{call.target}{mark}{name}={self._tokens.admin}")

    def _bytes(self, call: Call) -> bytes:
        headers = [*call.headers, *self._rng.choice(STRANGERS)(self._tokens, self._rng)]
        if call.document is not None:
            headers.append(("Content-Type", "application/json"))
        body = b"" if call.document is None else msgspec.json.encode(call.document)
        return request_bytes(call.method, call.target, headers, body)


# ---- the test ------------------------------------------------------------------------------------


def started(data: Path) -> tuple[AccessServer, World, Tokens]:
    """Start a server with content, a revoked token, and a token that has expired."""
    server = AccessServer(data, admin=make_token_text())
    world = World(server, NAME, f"owner-{SECRET}")
    server.create(f"hidden-{SECRET}", SECRET.encode())
    expired = server.make("cluster:admin", expires_in_seconds=1)
    revoked = server.make("cluster:admin")
    assert server.revoke(revoked).status == 200
    deadline = time.monotonic() + 60
    while server.call(expired, "GET", "/v1/whoami").status != 401:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return server, world, Tokens(server.admin, revoked, expired)


def check_response(method: str, data: bytes, response: bytes) -> int:
    """Check that a response to a stranger contains nothing; return its status."""
    status = status_of(response)
    if status < 300:
        target = data.split(b" ", 2)[1]
        is_open = method == "OPTIONS" or b"/health" in target or b"/__ds/jwks.json" in target
        assert is_open, (data[:300], response)
    else:
        assert status in REFUSALS, (data[:300], response)
    assert SECRET.encode() not in response, (data[:300], response)
    return status


def check_journal(server: AccessServer, own: set[str], start: int) -> list[dict[str, Any]]:
    """Check that only the audit has new frames; return its new records.

    `own` are the tokens that the test has used while they were valid.
    """
    audit = None
    records: list[dict[str, Any]] = []
    for frame in frames_in(server.data, start):
        record = frame.record
        if isinstance(record, StreamAppended):
            (section,) = frame.sections
            audit = section.stream if audit is None else audit
            assert section.stream == audit
            records += msgspec.json.decode(b"[" + bytes(section.payload) + b"]")
        elif isinstance(record, TokensUsed):
            assert {token_id for token_id, _ in record.uses} <= own
        else:
            assert isinstance(record, WatermarkMoved | SegmentStarted | SegmentEnded), record
    return records


@pytest.mark.parametrize("seed", SEEDS)
def test_requests_without_a_valid_token_read_and_change_nothing(tmp_path: Path, seed: int) -> None:
    server, world, tokens = started(tmp_path / "data")
    try:
        before = whole_state(server, [NAME])
        start = max(frame.end for frame in frames_in(server.data))
        began = time.monotonic()
        counts = fuzz(server, Fuzz(world, tokens, seed))
        seconds = time.monotonic() - began
        assert whole_state(server, [NAME]) == before
        assert server.is_sound(), server.stderr
        server.signal(signal.SIGTERM)  # then the counted refusals are written
        assert server.wait() == 0
        own = {id_of(each) for each in (tokens.admin, tokens.expired, world.token)}
        records = check_journal(server, own, start)
    finally:
        server.kill()
    assert {(each["action"], each["outcome"]) for each in records} == {
        ("refused", "unauthenticated")
    }
    counted = sum(each.get("count", 1) for each in records)
    assert counted - counts[401] in (0, 1), "`started` has sent one more, shortly before"
    assert len(records) <= seconds + 3, "at most one record a second for each address and code"
    print(f"seed {seed}: {sum(counts.values())} requests, {dict(sorted(counts.items()))},")
    print(f"{len(records)} records of the audit in {seconds:.1f} s")
    assert sum(counts.values()) >= REQUESTS
    assert counts[401] >= REQUESTS // 2


def fuzz(server: AccessServer, requests: Fuzz) -> Counter[int]:
    """Send random requests; return how many responses have each status."""
    counts: Counter[int] = Counter()
    endless = iter(requests)
    with server.line() as line:
        while sum(counts.values()) < REQUESTS:
            batch = [next(endless) for _ in range(BATCH)]
            for (method, data), response in zip(batch, line.ask_all(batch), strict=True):
                assert response is not None, data[:300]
                counts[check_response(method, data, response)] += 1
    return counts


def test_a_token_of_a_megabyte_is_refused(server: AccessServer) -> None:
    """It is longer than any head, so that the server closes the connection."""
    before = server.ask("GET", "/health").json["durable"]
    token = server.admin + "A" * LONG_TOKEN_BYTES
    for method in ("GET", "POST"):
        data = request_bytes(method, "/v1/streams", [("Authorization", f"Bearer {token}")])
        with server.line() as line:
            (response,) = line.ask_all([(method, data)])
        assert response is None or status_of(response) == 431, response
    assert server.ask("GET", "/health").json["durable"] == before


def test_the_fuzz_has_100000_requests() -> None:
    assert REQUESTS * len(SEEDS) >= 100_000
    assert len(STRANGERS) >= 30
