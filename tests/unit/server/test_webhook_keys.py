"""The file with the keys of webhooks, tokens of wakes, and what the server says about itself."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from semel.server.webhook_keys import (
    FILE_BYTES_MAX,
    RETIRED_MAX,
    RETIRED_SECONDS,
    BadWebhookKeys,
    WebhookKeys,
)
from semel.server.webhook_targets import TargetPolicy
from semel.server.webhooks import WebhookFiles, Webhooks, WebhookSettings, load_webhook_files
from semel.wire.webhook_signatures import verify
from tests.certificates import Authority

NOW_S = 1_800_000_000


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "webhook.key")


# ---- the file ------------------------------------------------------------------------------------


def test_the_file_is_created_once_for_its_owner_only(path: str, tmp_path: Path) -> None:
    keys = WebhookKeys.load_or_create(path)
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.stat(path).st_nlink == 1
    again = WebhookKeys.load_or_create(path)
    assert (again.kid, again.token("s", "w", 1)) == (keys.kid, keys.token("s", "w", 1))
    assert WebhookKeys.load(path).kid == keys.kid
    assert os.listdir(tmp_path) == ["webhook.key"]


def test_the_rights_do_not_depend_on_the_umask(path: str) -> None:
    old = os.umask(0)
    try:
        WebhookKeys.load_or_create(path)
    finally:
        os.umask(old)
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_two_files_have_different_keys(tmp_path: Path) -> None:
    one, other = (WebhookKeys.load_or_create(str(tmp_path / name)) for name in "ab")
    assert one.kid != other.kid
    assert one.token("s", "w", 1) != other.token("s", "w", 1)


def test_processes_that_create_the_file_at_once_use_the_same_keys(path: str) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: WebhookKeys.load_or_create(path).kid, range(32)))
    assert len(set(found)) == 1
    assert os.listdir(os.path.dirname(path)) == ["webhook.key"]


def test_without_a_file_nothing_is_found_and_loading_fails(path: str) -> None:
    assert WebhookKeys.find(path) is None
    with pytest.raises(BadWebhookKeys, match="No such file"):
        WebhookKeys.load(path)
    with pytest.raises(BadWebhookKeys, match="No such file"):
        WebhookKeys.rotate(path, NOW_S)
    with pytest.raises(BadWebhookKeys, match="cannot be created"):
        WebhookKeys.load_or_create(f"{path}/missing/webhook.key")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o602])
def test_a_file_that_others_can_use_is_refused(path: str, mode: int) -> None:
    WebhookKeys.load_or_create(path)
    os.chmod(path, mode)
    with pytest.raises(BadWebhookKeys, match="chmod 600"):
        WebhookKeys.load_or_create(path)


def changed(path: str, **changes: Any) -> None:
    document = json.loads(Path(path).read_bytes()) | changes
    Path(path).write_text(json.dumps({k: v for k, v in document.items() if v is not None}))


@pytest.mark.parametrize(
    "changes",
    [
        {"signing_key": None},
        {"token_key": None},
        {"signing_key": "AA"},
        {"token_key": "A" * 44},
        {"token_key": "!" * 43},
        {"retired": None},
        {"retired": [{}]},
        {"retired": [{"public_key": "AA", "retired_at_s": 1}]},
        {"retired": [{"public_key": "A" * 43, "retired_at_s": "1"}]},
        {"more": 1},
    ],
)
def test_a_malformed_file_is_refused_without_its_content(path: str, changes: Any) -> None:
    WebhookKeys.load_or_create(path)
    secret = json.loads(Path(path).read_bytes())["token_key"]
    changed(path, **changes)
    with pytest.raises(BadWebhookKeys, match="not a complete file") as error:
        WebhookKeys.load_or_create(path)
    assert secret not in str(error.value)
    assert error.value.__cause__ is None


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"[" * 60_000])
def test_other_bytes_are_refused(path: str, data: bytes) -> None:
    WebhookKeys.load_or_create(path)
    Path(path).write_bytes(data)
    with pytest.raises(BadWebhookKeys, match="not a complete file"):
        WebhookKeys.load(path)


def test_long_files_and_other_versions_are_refused(path: str) -> None:
    WebhookKeys.load_or_create(path)
    changed(path, version=2)
    with pytest.raises(BadWebhookKeys, match="version 2"):
        WebhookKeys.load(path)
    Path(path).write_bytes(b" " * (FILE_BYTES_MAX + 1))
    with pytest.raises(BadWebhookKeys, match="more than"):
        WebhookKeys.load(path)


def test_what_is_no_file_is_refused_at_once(path: str, tmp_path: Path) -> None:
    os.mkfifo(path, 0o600)
    with pytest.raises(BadWebhookKeys, match="not a regular file"):
        WebhookKeys.load(path)
    with pytest.raises(BadWebhookKeys, match="Is a directory"):
        WebhookKeys.load(str(tmp_path))


def test_keys_are_not_printed(path: str) -> None:
    keys = WebhookKeys.load_or_create(path)
    document = json.loads(Path(path).read_bytes())
    for shown in (repr(keys), str(keys)):
        assert document["signing_key"] not in shown
        assert document["token_key"] not in shown


# ---- rotation ------------------------------------------------------------------------------------


def kids(keys: WebhookKeys, now_s: int | None = None) -> list[str]:
    return [each["kid"] for each in json.loads(keys.jwks(now_s))["keys"]]


def test_a_rotation_replaces_the_signing_key_only(path: str, tmp_path: Path) -> None:
    old = WebhookKeys.load_or_create(path)
    new = WebhookKeys.rotate(path, NOW_S)
    assert new.kid != old.kid
    assert WebhookKeys.load(path).kid == new.kid
    assert new.token("s", "w", 1) == old.token("s", "w", 1)
    assert kids(new, NOW_S) == [new.kid, old.kid]
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["webhook.key"]


def test_a_delivery_that_the_old_key_signed_is_verified_after_a_rotation(path: str) -> None:
    header = WebhookKeys.load_or_create(path).sign(b"body", NOW_S)
    assert verify(b"body", header, WebhookKeys.rotate(path, NOW_S).jwks(NOW_S), NOW_S)


def test_a_retired_key_leaves_after_a_week(path: str) -> None:
    old = WebhookKeys.load_or_create(path)
    new = WebhookKeys.rotate(path, NOW_S)
    assert old.kid in kids(new, NOW_S + RETIRED_SECONDS)
    assert old.kid not in kids(new, NOW_S + RETIRED_SECONDS + 1)
    newest = WebhookKeys.rotate(path, NOW_S + RETIRED_SECONDS + 1)
    assert kids(newest) == [newest.kid, new.kid]


def test_there_is_a_bound_on_rotations(path: str) -> None:
    WebhookKeys.load_or_create(path)
    for _ in range(RETIRED_MAX):
        keys = WebhookKeys.rotate(path, NOW_S)
    with pytest.raises(BadWebhookKeys, match="wait"):
        WebhookKeys.rotate(path, NOW_S)
    assert WebhookKeys.load(path).kid == keys.kid
    assert os.path.getsize(path) < FILE_BYTES_MAX


def test_a_symbolic_link_stays_one(path: str, tmp_path: Path) -> None:
    real = tmp_path / "real.key"
    WebhookKeys.load_or_create(str(real))
    os.symlink(real, path)
    new = WebhookKeys.rotate(path, NOW_S)
    assert os.path.islink(path)
    assert WebhookKeys.load(str(real)).kid == new.kid


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_rotation_by_root_keeps_the_owner_of_the_file(path: str) -> None:
    WebhookKeys.load_or_create(path)
    os.chown(path, 12_345, 23_456)
    WebhookKeys.rotate(path, NOW_S)
    facts = os.stat(path)
    assert (facts.st_uid, facts.st_gid, facts.st_mode & 0o777) == (12_345, 23_456, 0o600)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_rotation_that_cannot_keep_the_owner_changes_nothing(
    path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    old = WebhookKeys.load_or_create(path)
    os.chown(path, 12_345, 23_456)
    monkeypatch.setattr(os, "chown", refuse)
    with pytest.raises(BadWebhookKeys, match="cannot be changed: Operation not permitted"):
        WebhookKeys.rotate(path, NOW_S)
    assert WebhookKeys.load(path).kid == old.kid
    assert [each.name for each in tmp_path.iterdir()] == [os.path.basename(path)]


def test_no_rotation_is_lost_when_several_run_at_once(path: str) -> None:
    WebhookKeys.load_or_create(path)
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: WebhookKeys.rotate(path, NOW_S).kid, range(16)))
    assert set(made) < set(kids(WebhookKeys.load(path)))


def test_a_rotation_that_cannot_be_written_changes_nothing(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = WebhookKeys.load_or_create(path)

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("semel.server.webhook_keys.overwrite_file", fail)
    with pytest.raises(BadWebhookKeys, match="No space left"):
        WebhookKeys.rotate(path, NOW_S)
    assert WebhookKeys.load(path).kid == old.kid
    assert os.listdir(os.path.dirname(path)) == ["webhook.key"]


# ---- tokens --------------------------------------------------------------------------------------


@pytest.fixture
def keys() -> WebhookKeys:
    return WebhookKeys(bytes(32), bytes(range(32)), ())


@pytest.mark.parametrize(
    ("name", "wake_id", "generation"),
    [
        ("s", "w_1", 1),
        ("a/b c", "w", 0),
        ("\u00e4", "\u00fc", 2**53 - 1),
        ("s", "", 1),
        ("s", "\ud800", 1),
    ],
)
def test_a_token_has_its_wake_and_generation(
    keys: WebhookKeys, name: str, wake_id: str, generation: int
) -> None:
    token = keys.token(name, wake_id, generation)
    assert token.isascii()
    assert " " not in token
    assert keys.is_token_of(token, name) == (wake_id, generation)


def test_a_token_is_of_one_subscription(keys: WebhookKeys) -> None:
    token = keys.token("s", "w_1", 1)
    for name in ("", "S", "s ", "s2", "w_1"):
        assert keys.is_token_of(token, name) is None
    # The parts have their lengths before them, so these are different.
    assert (
        keys.token("ab", "c", 1).rpartition(".")[2] != keys.token("a", "bc", 1).rpartition(".")[2]
    )


def test_a_changed_token_is_refused(keys: WebhookKeys) -> None:
    token = keys.token("s", "w_1", 17)
    for index, old in enumerate(token):
        for new in "A1.-":
            if new != old:
                changed_token = token[:index] + new + token[index + 1 :]
                assert keys.is_token_of(changed_token, "s") is None
    for other in ("", "x", token + "A", token[:-1], token + "\n", "wake1.1..", token * 20):
        assert keys.is_token_of(other, "s") is None
    assert keys.is_token_of("wake1.9999999999999999.AA." + "A" * 43, "s") is None
    assert keys.is_token_of("wake1.1._w." + "A" * 43, "s") is None  # no UTF-8
    assert keys.is_token_of("wake1.1.A." + "A" * 43, "s") is None
    assert keys.is_token_of("wake1.1.AA." + "\u00e9" * 43, "s") is None


def test_a_token_of_other_keys_is_refused(keys: WebhookKeys) -> None:
    other = WebhookKeys(bytes(32), bytes(32), ())
    assert keys.is_token_of(other.token("s", "w", 1), "s") is None


def test_tokens_need_no_package_for_signatures() -> None:
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from semel.server.webhook_keys import WebhookKeys\n"
        "keys = WebhookKeys(bytes(32), bytes(32), ())\n"
        "print(keys.is_token_of(keys.token('s', 'w', 1), 's'))\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert run.stdout == b"('w', 1)\n"


# ---- what the server says about itself -----------------------------------------------------------


def webhooks(path: str, origin: str = "http://127.0.0.1:4437", **more: Any) -> Webhooks:
    return Webhooks(WebhookSettings(key_file=path, **more), origin)


def test_keys_are_created_when_they_are_needed_first(path: str) -> None:
    hooks = webhooks(path)
    assert not os.path.exists(path)
    assert hooks.keys.kid == hooks.keys.kid == WebhookKeys.load(path).kid


def test_keys_that_were_loaded_again_are_used(path: str) -> None:
    hooks = webhooks(path)
    old = hooks.keys
    new = WebhookKeys.rotate(path, NOW_S)
    assert hooks.keys.kid == old.kid
    hooks.replace(load_webhook_files(hooks.settings))
    assert hooks.keys.kid == new.kid


def test_keys_in_use_are_kept_if_their_file_is_missing(path: str) -> None:
    hooks = webhooks(path)
    hooks.replace(load_webhook_files(hooks.settings))  # there are none yet
    used = hooks.keys
    os.unlink(path)
    with pytest.raises(BadWebhookKeys, match="does not exist any more"):
        hooks.replace(load_webhook_files(hooks.settings))
    assert hooks.keys is used


@pytest.mark.parametrize(
    ("origin", "callback", "jwks"),
    [
        ("http://127.0.0.1:4437", "http://127.0.0.1:4437", "http://localhost:9"),
        ("http://localhost:4437", "http://localhost:4437", "http://localhost:9"),
        ("https://[::1]:4437", "https://[::1]:4437", "https://localhost:9"),
        ("http://0.0.0.0:4437", None, "http://localhost:9"),
        ("http://192.168.1.1:4437", None, "http://localhost:9"),
    ],
)
def test_addresses_without_a_public_url(
    path: str, origin: str, callback: str | None, jwks: str
) -> None:
    hooks = webhooks(path, origin)
    assert hooks.callback_origin == callback
    assert hooks.jwks_origin("localhost:9") == jwks
    for host in (None, "evil.example", "evil.example:4437", "127.0.0.1.evil.example", "10.0.0.1"):
        assert hooks.jwks_origin(host) == origin
    assert (hooks.unusable() is None) is (callback is not None)


def test_a_public_url_is_used_everywhere(path: str) -> None:
    url = "https://semel.example"
    hooks = webhooks(path, "http://0.0.0.0:4437", public_url=url)
    assert hooks.callback_origin == hooks.jwks_origin(None) == hooks.jwks_origin("localhost") == url
    assert hooks.unusable() is None


def test_a_server_that_cannot_sign_says_so(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.server.webhooks.find_spec", lambda _: None)
    assert "semel[webhooks]" in str(webhooks(path).unusable())


def test_the_policy_is_that_of_the_settings(path: str) -> None:
    assert webhooks(path).refuse_url("http://127.0.0.1:8080/")
    assert webhooks(path, policy=TargetPolicy(True)).refuse_url("http://127.0.0.1:8080/") is None


def test_certificates_of_authorities_are_added(path: str, tmp_path: Path) -> None:
    ca = Authority(tmp_path).ca
    with_it = load_webhook_files(WebhookSettings(key_file=path, ca_file=ca))
    without = load_webhook_files(WebhookSettings(key_file=path))
    assert count_of(with_it) == count_of(without) + 1
    for name, reason in ((f"{ca}.missing", "No such file"), (__file__, "cannot load certificates")):
        with pytest.raises(BadWebhookKeys, match=reason):
            load_webhook_files(WebhookSettings(key_file=path, ca_file=name))


def count_of(files: WebhookFiles) -> int:
    return files.context.cert_store_stats()["x509_ca"]
