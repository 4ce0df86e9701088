"""Webhooks of a real server process: its options, its keys, SIGHUP, and its end."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from semel.wire.webhook_signatures import verify
from tests.certificates import Authority
from tests.http.harness import eventually
from tests.http.test_webhook_client import served
from tests.http.webhook_receivers import DONE, OK, receiver, wait_for_end
from tests.spec.process import Answer, Server, program

JSON = "application/json"
CONTROL = "/v1/stream/__ds"


@contextmanager
def serving(data: Path, *options: str) -> Iterator[Server]:
    server = Server(data, *options)
    try:
        yield server
    finally:
        server.kill()


def subscribe(server: Server, url: str, name: str = "s") -> Answer:
    body = {"type": "webhook", "streams": ["a"], "webhook": {"url": url}}
    return server.ask(
        "PUT", f"{CONTROL}/subscriptions/{name}", json.dumps(body).encode(), content_type=JSON
    )


def show(server: Server, name: str = "s") -> Any:
    return server.ask("GET", f"{CONTROL}/subscriptions/{name}").json


def jwks(server: Server) -> bytes:
    answer = server.ask("GET", f"{CONTROL}/jwks.json")
    assert answer.headers["content-type"] == "application/jwk-set+json"
    return answer.body


def is_signed(request: bytes, keys: bytes) -> bool:
    head, _, body = request.partition(b"\r\n\r\n")
    (value,) = (
        line.partition(": ")[2]
        for line in head.decode().split("\r\n")
        if line.startswith("Webhook-Signature")
    )
    return verify(body, value, keys, int(time.time()))


def append(server: Server, body: bytes = b"[1]") -> None:
    stream = server.stream("a")
    if stream.head().status == 404:
        stream.create(body, JSON)
    else:
        assert stream.post(body, content_type=JSON).status in (200, 204)


def test_a_delivery_is_signed_with_the_published_key(tmp_path: Path) -> None:
    with receiver(DONE) as hook, serving(tmp_path / "data") as server:
        key = tmp_path / "data" / "webhook.key"
        assert not key.exists()
        assert subscribe(server, hook.url).status == 201
        assert key.stat().st_mode & 0o777 == 0o600
        append(server)
        assert eventually(lambda: bool(hook.requests) and not show(server)["pending_count"])
        assert is_signed(hook.requests[0], jwks(server))
        assert json.loads(hook.bodies()[0])["callback_url"] == (
            f"{server.url}{CONTROL}/subscriptions/s/callback"
        )
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert server.stderr == ""


def test_a_key_that_is_rotated_is_used_after_sighup(tmp_path: Path) -> None:
    data, key = tmp_path / "data", str(tmp_path / "elsewhere.key")
    options = ("--webhook-key", key)
    with receiver(DONE) as hook, serving(data, *options) as server:
        subscribe(server, hook.url)
        append(server)
        assert eventually(lambda: len(hook.requests) == 1)
        old = json.loads(jwks(server))["keys"][0]["kid"]
        report = json.loads(command("rotate", key))
        assert [each["kid"] for each in report["retired"]] == [old]
        assert json.loads(jwks(server))["keys"][0]["kid"] == old
        server.signal(signal.SIGHUP)
        assert eventually(lambda: "the keys of webhooks are loaded again" in server.stderr)
        kids = [each["kid"] for each in json.loads(jwks(server))["keys"]]
        assert kids == [report["kid"], old]
        append(server)
        assert eventually(lambda: len(hook.requests) == 2)
        keys = jwks(server)
        assert all(is_signed(each, keys) for each in hook.requests)
        assert f"kid={report['kid']}".encode() in hook.requests[1]
        assert json.loads(command("show", key))["kid"] == report["kid"]
        assert not (data / "webhook.key").exists()


def command(action: str, key: str) -> str:
    run = subprocess.run(
        [*program(), "webhook-key", action, "--webhook-key", key, "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout


def test_keys_that_cannot_be_loaded_at_sighup_change_nothing(tmp_path: Path) -> None:
    with receiver(DONE) as hook, serving(tmp_path / "data") as server:
        subscribe(server, hook.url)
        before = jwks(server)
        key = tmp_path / "data" / "webhook.key"
        key.write_bytes(b"{}")
        server.signal(signal.SIGHUP)
        assert eventually(lambda: "not a complete file" in server.stderr)
        assert jwks(server) == before
        append(server)
        assert eventually(lambda: bool(hook.requests) and is_signed(hook.requests[0], before))


def test_a_file_of_keys_that_is_missing_at_sighup_changes_nothing(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    options = ("--webhook-ca", authority.ca)
    with receiver(DONE) as hook, serving(tmp_path / "data", *options) as server:
        subscribe(server, hook.url)
        before = jwks(server)
        key = tmp_path / "data" / "webhook.key"
        content = key.read_bytes()
        key.unlink()
        server.signal(signal.SIGHUP)
        assert eventually(lambda: "webhook.key does not exist any more" in server.stderr)
        assert "loaded again" not in server.stderr
        assert jwks(server) == before
        assert not key.exists()
        key.write_bytes(content)
        key.chmod(0o600)
        server.signal(signal.SIGHUP)
        assert eventually(lambda: "the keys of webhooks are loaded again" in server.stderr)
        assert jwks(server) == before


def test_authorities_are_loaded_again_before_there_are_keys(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    old, new = Authority(tmp_path / "a"), Authority(tmp_path / "b")
    trusted = tmp_path / "ca.pem"
    trusted.write_bytes(Path(old.ca).read_bytes())
    options = ("--webhook-ca", str(trusted))
    with (
        receiver(DONE, tls=served(new, "hook")) as hook,
        serving(tmp_path / "data", *options) as server,
    ):
        trusted.write_bytes(Path(new.ca).read_bytes())
        server.signal(signal.SIGHUP)
        assert eventually(lambda: "loaded again" in server.stderr)
        assert subscribe(server, hook.url).status == 201
        append(server)
        assert eventually(lambda: show(server)["pending_count"] == 0)
        assert len(hook.requests) == 1


def test_a_server_without_the_package_that_signs_serves_everything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, package = tmp_path / "data", tmp_path / "path" / "cryptography"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('not installed')")
    with receiver(OK) as hook:
        with serving(data) as server:
            assert subscribe(server, hook.url).status == 201
            server.signal(signal.SIGTERM)
            assert server.wait() == 0
        monkeypatch.setenv("PYTHONPATH", str(package.parent))
        with serving(data) as server:
            for target in ("jwks.json", "subscriptions/s", "subscriptions"):
                answer = server.ask("GET", f"{CONTROL}/{target}")
                assert answer.status == 500
                error = answer.json["error"]
                assert error["message"] == "the server cannot use its keys of webhooks; see its log"
            append(server)
            assert eventually(lambda: "cannot be signed: not installed" in server.stderr)
            assert "Traceback" not in server.stderr
            append(server)
            assert server.ask("DELETE", f"{CONTROL}/subscriptions/s").status == 204
            server.signal(signal.SIGTERM)
            assert server.wait() == 0
        assert hook.count == 0


def test_a_server_does_not_start_with_wrong_keys(tmp_path: Path) -> None:
    key = tmp_path / "webhook.key"
    key.write_bytes(b"{}")
    for mode, reason in ((0o644, "chmod 600"), (0o600, "not a complete file")):
        key.chmod(mode)
        with serving(tmp_path / "data", "--webhook-key", str(key)) as server:
            assert server.wait() == 64
            assert reason in server.stderr
            assert not (tmp_path / "data").exists()


def test_a_server_for_others_delivers_to_no_address_of_this_machine(tmp_path: Path) -> None:
    options = ("--host", "0.0.0.0", "--insecure", "--public-url", "https://semel.example/x/")
    with receiver(DONE) as hook, serving(tmp_path / "data", *options) as server:
        for url in (hook.url, hook.url.replace("127.0.0.1", "localhost"), "http://10.0.0.1/hook"):
            answer = subscribe(server, url)
            assert answer.status == 400
            assert answer.json["error"]["code"] == "WEBHOOK_URL_REJECTED"
        assert subscribe(server, "https://hooks.example.com/").status == 201
        signing = show(server)["webhook"]["signing"]
        assert signing["jwks_url"] == "https://semel.example/x/v1/stream/__ds/jwks.json"
        assert hook.count == 0


def test_a_server_for_others_needs_a_public_url(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--host", "0.0.0.0", "--insecure") as server:
        answer = subscribe(server, "https://hooks.example.com/")
        assert answer.status == 400
        assert answer.json["error"]["code"] == "INVALID_REQUEST"
        assert "--public-url" in answer.json["error"]["message"]


def test_networks_and_authorities_of_the_options_are_used(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    options = (
        *("--host", "0.0.0.0", "--insecure", "--public-url", "https://semel.example"),
        *("--webhook-allow", "127.0.0.0/8", "--webhook-allow", "::1/128"),
    )
    trusted = (*options, "--webhook-ca", authority.ca)
    with receiver(DONE, tls=served(authority, "hook")) as hook:
        with serving(tmp_path / "data", *options) as server:
            subscribe(server, hook.url)
            append(server)
            assert eventually(lambda: show(server)["last_error"])
            assert show(server)["last_error"].startswith("the certificate is not valid: ")
            assert hook.requests == []
        with serving(tmp_path / "data", *trusted) as server:
            assert eventually(lambda: show(server)["pending_count"] == 0)
            (request,) = hook.requests
            wake = json.loads(request.partition(b"\r\n\r\n")[2])
            assert wake["callback_url"].startswith("https://semel.example/v1/stream/__ds/")


def test_a_url_that_the_options_no_longer_allow_is_not_reached(tmp_path: Path) -> None:
    with receiver(b"HTTP/1.1 500 X\r\n\r\n") as hook:
        with serving(tmp_path / "data") as server:
            subscribe(server, hook.url)
            append(server)
            assert eventually(lambda: show(server)["attempts"] > 0)
        count = hook.count
        options = ("--public-url", "https://semel.example")
        with serving(tmp_path / "data", *options) as server:
            assert eventually(lambda: "address" in show(server)["last_error"])
            assert show(server)["last_error"] == "the address is this machine's"
        assert hook.count == count


def test_attempts_are_bounded_by_the_option(tmp_path: Path) -> None:
    options = ("--webhook-attempts", "1")
    failed = b"HTTP/1.1 500 X\r\n\r\n"
    with receiver(failed) as hook, serving(tmp_path / "data", *options) as server:
        subscribe(server, hook.url)
        append(server)
        assert eventually(lambda: show(server)["status"] == "suspended")
        assert (hook.count, show(server)["last_error"]) == (1, "status 500")


def test_variables_set_the_options(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("SEMEL_WEBHOOK_KEY", str(tmp_path / "variable.key"))
    with serving(tmp_path / "data") as server:
        assert subscribe(server, "http://127.0.0.1:8080/").status == 201
        assert (tmp_path / "variable.key").exists()


def test_a_stop_does_not_wait_for_a_silent_receiver(tmp_path: Path) -> None:
    with receiver(wait_for_end) as hook, serving(tmp_path / "data") as server:
        subscribe(server, hook.url)
        append(server)
        assert eventually(lambda: len(hook.requests) == 1)
        started = time.monotonic()
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert time.monotonic() - started < 8  # a delivery takes 10
        assert server.stderr == ""


def test_a_wake_survives_a_kill(tmp_path: Path) -> None:
    with receiver(wait_for_end) as hook:
        with serving(tmp_path / "data") as server:
            subscribe(server, hook.url)
            append(server)
            assert eventually(lambda: len(hook.requests) == 1)
            server.kill()
        hook._answer = DONE
        with serving(tmp_path / "data") as server:
            assert eventually(lambda: show(server)["pending_count"] == 0)
            one, other = (json.loads(each) for each in hook.bodies())
            for name in ("wake_id", "generation", "streams", "callback_token"):
                assert one[name] == other[name]


def test_a_token_from_before_a_restart_is_valid(tmp_path: Path) -> None:
    with receiver(OK) as hook, serving(tmp_path / "data") as server:
        subscribe(server, hook.url)
        append(server)
        assert eventually(lambda: len(hook.requests) == 1)
        assert eventually(lambda: metric(server, "semel_subscriptions_leased") == 1)
        server.kill()
        with serving(tmp_path / "data") as again:
            wake = json.loads(hook.bodies()[0])
            body = {"wake_id": wake["wake_id"], "generation": wake["generation"], "done": True}
            answer = again.ask(
                "POST",
                f"{CONTROL}/subscriptions/s/callback",
                json.dumps(body).encode(),
                content_type=JSON,
                authorization=f"Bearer {wake['callback_token']}",
            )
            assert answer.status == 200
            assert answer.json["ok"] is True


def metric(server: Server, name: str) -> float:
    page = server.ask("GET", "/metrics").body.decode()
    (value,) = (line.split()[1] for line in page.splitlines() if line.startswith(f"{name} "))
    return float(value)
