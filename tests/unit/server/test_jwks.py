"""The keys of issuers: JWKS documents, and how they are fetched from a real HTTP server."""

import asyncio
import http.client
import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from semel.server import jwks as keys_module
from semel.server.identities import Identity, OutsideIdentities
from semel.server.jwks import KEYS_BYTES_MAX, RefreshTimes, fetch_keys, parse_keys, read_keys
from semel.server.jwt_door import JwtDoor
from tests.certificates import SERVER, Authority
from tests.unit.server.issuer import KIDS, NOW_MS, KeyServer, jwk, jwks, key_server, rule, token

PATIENCE_SECONDS = 30.0


@pytest.fixture
def server() -> Iterator[KeyServer]:
    with key_server() as it:
        yield it


# ---- documents -----------------------------------------------------------------------------------


def test_the_keys_of_a_document_are_found_by_their_kid() -> None:
    found = parse_keys(jwks())
    assert {kid: key.algorithm_name for kid, key in found.keys.items()} == {
        kid: name for name, kid in KIDS.items()
    }


def short_key() -> dict[str, Any]:
    public = rsa.generate_private_key(65537, 1024).public_key()
    document: dict[str, Any] = json.loads(RSAAlgorithm.to_jwk(public))
    return document | {"kid": "short"}


@pytest.mark.parametrize(
    "unused",
    [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "x"},
        {"kty": "EC", "crv": "P-384", "x": "AA", "y": "AA", "kid": "x"},
        {"kty": "OKP", "crv": "X25519", "x": "AA", "kid": "x"},
        {"kty": "unknown", "kid": "x"},
        {"kty": ["RSA"], "kid": "x"},
        {"kid": "x"},
        {},
        jwk("RS256", kid="x", alg="RS512"),
        jwk("RS256", kid="x", alg="PS256"),
        jwk("RS256", kid="x", use="enc"),
        jwk("RS256", kid="x", key_ops=["encrypt"]),
        jwk("RS256", kid="x", key_ops="verify"),
        jwk("RS256", kid=None),
        jwk("RS256", kid=""),
        jwk("RS256", kid=7),
    ],
)
def test_keys_for_something_else_are_left_out(unused: dict[str, Any]) -> None:
    assert set(parse_keys(jwks(unused, jwk("ES256"))).keys) == {"ec-1"}
    with pytest.raises(ValueError, match="it has no key of the type RSA, EC P-256 or OKP Ed25519"):
        parse_keys(jwks(unused))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "not a JWKS document"),
        (b"<html>", "not a JWKS document"),
        (b"[]", "not a JWKS document"),
        (b"{}", "not a JWKS document"),
        (b'{"keys": {}}', "not a JWKS document"),
        (b'{"keys": [1]}', "not a JWKS document"),
        (b'{"keys": []}', "it has no key"),
        (b"[" * 100_000, "not a JWKS document"),
        (b"\xff", "not a JWKS document"),
        (jwks(jwk("RS256", d="AA")), "'rsa-1' is private"),
        (jwks(jwk("RS256"), jwk("ES256", kid="rsa-1")), "two keys have the kid 'rsa-1'"),
        (jwks(jwk("RS256", n="!")), "'rsa-1' is not valid"),
        (jwks(jwk("RS256", n=7)), "'rsa-1' is not valid"),
        (jwks(jwk("EdDSA", x="AA")), "'ed-1' is not valid"),
        (jwks(jwk("ES256", x="AA", y="AA")), "'ec-1' is not valid"),
        (jwks(short_key()), "'short' has fewer than 2048 bits"),
    ],
    ids=range(16),
)
def test_a_wrong_document_is_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_keys(data)


def test_an_error_of_a_file_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    with pytest.raises(ValueError, match=r"jwks.json cannot be read: No such file"):
        read_keys(str(file))
    file.write_bytes(b"{}")
    with pytest.raises(ValueError, match=r"jwks.json: it is not a JWKS document"):
        read_keys(str(file))
    file.write_bytes(jwks() + b" " * KEYS_BYTES_MAX)
    with pytest.raises(ValueError, match=r"jwks.json has more than 1048576 bytes"):
        read_keys(str(file))
    file.write_bytes(jwks())
    assert set(read_keys(str(file)).keys) == set(KIDS.values())


# ---- one request ---------------------------------------------------------------------------------


def test_keys_are_fetched_with_one_plain_request(server: KeyServer) -> None:
    assert fetch_keys(server.url).documents == parse_keys(server.body).documents
    (request,) = server.requests
    assert request["path"] == "/keys?tenant=1"
    assert request["Host"] == f"127.0.0.1:{server.http.server_port}"
    assert "Authorization" not in request


@pytest.mark.parametrize("status", [301, 302, 307, 308, 404, 500, 204])
def test_only_the_status_200_is_accepted(server: KeyServer, status: int) -> None:
    with key_server() as other:
        server.status, server.headers = status, [("Location", other.url)]
        with pytest.raises(ValueError, match=f"the status is {status}"):
            fetch_keys(server.url)
        assert other.requests == [], "redirects are not followed"


def test_a_proxy_of_the_environment_is_not_used(
    server: KeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv(name.upper(), "http://127.0.0.1:9")
    assert fetch_keys(server.url).keys


def test_a_long_or_compressed_response_is_refused(server: KeyServer) -> None:
    server.body = jwks() + b" " * KEYS_BYTES_MAX
    with pytest.raises(ValueError, match="more than 1048576 bytes"):
        fetch_keys(server.url)
    server.body, server.headers = jwks(), [("Content-Encoding", "gzip")]
    with pytest.raises(ValueError, match="compressed"):
        fetch_keys(server.url)


@pytest.mark.parametrize("part", ["head", "body"])
def test_a_response_of_single_bytes_ends_at_the_timeout(
    monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Every read is short, so only a limit of the whole time ends it."""
    monkeypatch.setattr(keys_module, "FETCH_SECONDS", 0.3)
    ended = threading.Event()

    def drip(file: Any) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\nX: "
        file.write(head if part == "head" else head + b"1\r\n\r\n")
        while not ended.wait(0.02):
            try:
                file.write(b" ")
                file.flush()
            except OSError:
                return

    with key_server(drip) as server:
        start = time.monotonic()
        try:
            with pytest.raises((OSError, http.client.HTTPException)):
                fetch_keys(server.url)
        finally:
            ended.set()
        assert time.monotonic() - start < PATIENCE_SECONDS


def test_nobody_listens(server: KeyServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(OSError, match="refused"):
        fetch_keys(f"http://127.0.0.1:{port}/")
    del server


def test_the_certificate_of_the_key_server_is_verified(
    server: KeyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError, match="SSL"):  # this one does not speak TLS
        fetch_keys(server.url.replace("http:", "https:"))
    authority = Authority(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*authority.issue("server", SERVER))
    with key_server(tls=tls) as secure:
        with pytest.raises(ssl.SSLCertVerificationError):
            fetch_keys(secure.url)
        assert secure.requests == []
        monkeypatch.setenv("SSL_CERT_FILE", authority.ca)
        assert fetch_keys(secure.url).keys
        with pytest.raises(ssl.SSLCertVerificationError, match="ostname"):
            fetch_keys(secure.url.replace("127.0.0.1", "localhost"))


# ---- in the background ---------------------------------------------------------------------------


class Watch:
    """A JwtDoor with one issuer that has a URL, on a running loop."""

    def __init__(self, url: str, every: float = 600.0, again: float = 60.0) -> None:
        times = RefreshTimes(every_seconds=every, again_seconds=again)
        self.door = JwtDoor((rule(jwks_url=url),), {}, times)
        self.changes = 0
        self.loop_thread = threading.get_ident()
        self.door.start(self._changed)

    def _changed(self) -> None:
        assert threading.get_ident() == self.loop_thread
        self.changes += 1

    async def until(self, fact: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not fact():  # noqa: ASYNC110 - a fact of a thread has no event
                await asyncio.sleep(0.005)

    def verdict(self, text: str) -> Identity | str:
        return self.door.verify(text, NOW_MS)


def test_keys_are_fetched_at_the_start_and_a_token_then_works(server: KeyServer) -> None:
    async def main() -> None:
        watch = Watch(server.url)
        assert watch.verdict(token()) == "unknown_kid"
        await watch.until(lambda: watch.changes == 1)
        assert isinstance(watch.verdict(token()), Identity)
        watch.door.close()

    asyncio.run(main())
    assert len(server.requests) == 1, "an unknown kid shortly after an attempt does not repeat it"


def test_an_unknown_kid_fetches_the_keys_again_but_not_often(server: KeyServer) -> None:
    async def main() -> None:
        watch = Watch(server.url, again=0.0)
        await watch.until(lambda: watch.changes == 1)
        server.body = jwks(jwk("RS256", seed=2, kid="new"))
        later = token(header={"kid": "new"}, seed=2)
        assert watch.verdict(later) == "unknown_kid"
        await watch.until(lambda: watch.changes == 2)
        assert isinstance(watch.verdict(later), Identity)
        assert watch.verdict(token()) == "unknown_kid", "the old keys are gone"
        await watch.until(lambda: len(server.requests) == 3)  # it must not be counted below
        watch.door.close()

        seldom = Watch(server.url, again=3600.0)
        await seldom.until(lambda: seldom.changes == 1)
        before = len(server.requests)
        for number in range(1000):
            assert seldom.verdict(token(header={"kid": f"x{number}"})) == "unknown_kid"
        await asyncio.sleep(0.05)
        assert len(server.requests) == before
        seldom.door.close()

    asyncio.run(main())


def test_many_unknown_kids_at_once_cause_one_request(server: KeyServer) -> None:
    release = threading.Event()

    def answer(file: Any) -> None:
        release.wait(PATIENCE_SECONDS)
        file.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(server.body))
        file.write(server.body)

    async def main() -> None:
        watch = Watch(server.url, again=0.0)
        await watch.until(lambda: len(server.requests) == 1)
        for _ in range(100):
            assert watch.verdict(token()) == "unknown_kid"
        release.set()
        await watch.until(lambda: watch.changes == 1)
        assert len(server.requests) == 1
        watch.door.close()

    server.answer = answer
    asyncio.run(main())


def test_keys_are_fetched_regularly_and_a_change_clears_the_cache(server: KeyServer) -> None:
    async def main() -> None:
        watch = Watch(server.url, every=0.02)
        await watch.until(lambda: watch.changes == 1)
        first = watch.verdict(token())
        await watch.until(lambda: len(server.requests) > 3)
        assert watch.changes == 1, "the same keys are no change"
        assert watch.verdict(token()) is first
        server.body = jwks(jwk("RS256", seed=3))  # the same kid, another key
        await watch.until(lambda: watch.changes == 2)
        assert watch.verdict(token()) == "signature"
        watch.door.close()

    asyncio.run(main())


def test_the_last_good_keys_stay_in_use(
    server: KeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        watch = Watch(server.url, every=0.02, again=0.02)
        await watch.until(lambda: watch.changes == 1)
        for status, body in ((500, jwks()), (200, b"<html>"), (200, jwks(jwk("RS256", d="AA")))):
            server.status, server.body = status, body
            caplog.clear()
            await watch.until(lambda: bool(caplog.records))
            assert isinstance(watch.verdict(token(sub=f"{status}")), Identity)
            assert "the last keys stay in use" in caplog.text
            assert "'corp', http://127.0.0.1" in caplog.text
            assert "tenant" not in caplog.text, "a query can have a secret"
        server.status, server.body = 200, jwks(jwk("EdDSA"))
        await watch.until(lambda: watch.changes == 2)
        assert isinstance(watch.verdict(token("EdDSA")), Identity)
        watch.door.close()

    with caplog.at_level(logging.WARNING, "semel.server"):
        asyncio.run(main())


def test_attempts_that_fail_are_not_repeated_at_once(
    server: KeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        watch = Watch(server.url, every=0.01, again=3600.0)
        await watch.until(lambda: bool(caplog.records))
        for _ in range(50):
            assert watch.verdict(token()) == "unknown_kid"
            await asyncio.sleep(0.001)
        watch.door.close()

    server.status = 503
    asyncio.run(main())
    assert len(server.requests) == 1
    (record,) = caplog.records
    assert "its tokens are refused" in record.getMessage()


def test_new_rules_keep_the_keys_of_the_same_url_and_report_the_change(server: KeyServer) -> None:
    async def main() -> None:
        changes = []
        outside = OutsideIdentities((), JwtDoor((rule(jwks_url=server.url),), {}))
        outside.on_change = lambda: changes.append(len(changes))
        outside.start()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not changes:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        server.status = 500
        outside.replace((), JwtDoor((rule(jwks_url=server.url, name="renamed"),), {}))
        assert changes == [0, 1]
        found = outside.of_jwt(token(), NOW_MS)
        assert isinstance(found, Identity)
        assert found.principal == "renamed:alice"
        outside.replace((), JwtDoor((rule(jwks_url=f"{server.url}&other"),), {}))
        assert outside.of_jwt(token(), NOW_MS) == "unknown_kid"
        outside.replace(())
        assert outside.of_jwt(token(), NOW_MS) == "no_issuers"
        outside.close()

    asyncio.run(main())


def test_a_fetch_that_ends_after_the_loop_harms_nothing(server: KeyServer) -> None:
    release, done = threading.Event(), threading.Event()

    def answer(file: Any) -> None:
        del file
        release.wait(PATIENCE_SECONDS)
        done.set()

    async def main() -> None:
        watch = Watch(server.url)
        await watch.until(lambda: len(server.requests) == 1)

    server.answer = answer
    asyncio.run(main())
    release.set()
    assert done.wait(PATIENCE_SECONDS)
