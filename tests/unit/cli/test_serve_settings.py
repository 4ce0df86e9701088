"""Where a setting of `semel serve` comes from: command line, environment, file, default."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from semel.cli import serve
from semel.cli.main import cli
from semel.cli.serve import ServeOptions
from semel.model.limits import BODY_BYTES_MAX, SEGMENT_BYTES_DEFAULT


class Started:
    """Replaces `_serve` and records the options it is called with."""

    serving: ServeOptions

    def __call__(self, serving: ServeOptions, *_others: Any) -> None:
        self.serving = serving


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    started = Started()
    monkeypatch.setattr(serve, "_serve", started)
    monkeypatch.setattr("semel.cli.serve.uvloop.run", lambda _main: None)
    for name in ("CONFIG", "DATA", "HOST", "PORT", "LONG_POLL_TIMEOUT", "SEGMENT_BYTES"):
        monkeypatch.delenv(f"SEMEL_{name}", raising=False)
    return started


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(cli, ["serve", *arguments], env=environment)


def a_file(directory: Path, text: str) -> str:
    file = directory / "semel.toml"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_the_defaults_serve_this_machine_only(started: Started) -> None:
    assert run().exit_code == 0
    assert started.serving == ServeOptions(
        data="semel-data",
        host="127.0.0.1",
        port=4437,
        long_poll_timeout=30.0,
        segment_bytes=SEGMENT_BYTES_DEFAULT,
        reserve_bytes=256 * 1024 * 1024,
        body_bytes_max=BODY_BYTES_MAX,
        checkpoint_seconds=120.0,
        checkpoint_bytes=None,
        dedup=None,
        strict_payloads=False,
        producer_idle_seconds=None,
        producer_tombstone_hours=168,
        gap_hold_ms=0,
        unread_bytes_per_address=128 * 1024 * 1024,
        cors_origin=(),
        allowed_host=(),
        tls_cert=None,
        tls_key=None,
        client_ca=None,
        client_certificates="optional",
        access="auto",
        insecure=False,
        strict_rights=False,
        unowned="allow",
        webhook_key=None,
        public_url=None,
        webhook_allow=(),
        webhook_ca=None,
        webhook_attempts=1_500,
        config=None,
    )


def test_an_empty_host_does_not_mean_every_address(started: Started) -> None:
    result = run("--host", "")
    assert (result.exit_code, "0.0.0.0" in result.stderr) == (64, True)
    assert not hasattr(started, "serving")


def test_the_file_goes_before_the_default(started: Started, tmp_path: Path) -> None:
    text = 'data = "there"\nport = 1\nlong_poll_timeout = 2\nsegment_bytes = 8192\n'
    assert run("--config", a_file(tmp_path, text)).exit_code == 0
    assert started.serving.data == "there"
    assert started.serving.port == 1
    assert started.serving.long_poll_timeout == 2.0
    assert started.serving.segment_bytes == 8192
    assert started.serving.host == "127.0.0.1"


def test_the_environment_goes_before_the_file(started: Started, tmp_path: Path) -> None:
    file = a_file(tmp_path, 'port = 1\nhost = "file"\n')
    assert run(SEMEL_CONFIG=file, SEMEL_PORT="2").exit_code == 0
    assert started.serving.port == 2
    assert started.serving.host == "file"


def test_the_command_line_goes_before_all(started: Started, tmp_path: Path) -> None:
    other = a_file(tmp_path, "port = 1\n")
    run("--port", "3", "--config", other, SEMEL_PORT="2", SEMEL_CONFIG="not there")
    assert started.serving.port == 3


# rows: P24
def test_every_setting_has_a_variable_and_a_key(started: Started, tmp_path: Path) -> None:
    values = {
        "data": "d",
        "host": "h",
        "port": 5,
        "long_poll_timeout": 6.5,
        "segment_bytes": 16384,
        "reserve_bytes": 7,
        "body_bytes_max": 8,
        "dedup": "off",
        "checkpoint_seconds": 5,
        "checkpoint_bytes": 65536,
        "strict_payloads": True,
        "producer_idle_seconds": 9.5,
        "gap_hold_ms": 10,
        "cors_origin": ["http://localhost:3000", "https://app.example"],
        "allowed_host": ["semel.example", "*.internal"],
        "client_certificates": "optional",
        "webhook_key": "k",
        "public_url": "https://semel.example/base",
        "webhook_allow": ["10.1.0.0/16", "fd12::/16"],
        "webhook_attempts": 11,
    }
    lines = [f"{k} = {v!r}\n".replace("'", '"').replace("True", "true") for k, v in values.items()]
    assert run("--config", a_file(tmp_path, "".join(lines))).exit_code == 0
    expected = started.serving
    environment = {
        f"SEMEL_{name.upper()}": " ".join(value) if isinstance(value, list) else str(value)
        for name, value in values.items()
    }
    assert run(**environment).exit_code == 0
    assert started.serving == replace(expected, config=None)
    assert expected.body_bytes_max == 8
    assert (expected.dedup, expected.strict_payloads) == ("off", True)
    assert expected.cors_origin == ("http://localhost:3000", "https://app.example")
    assert expected.allowed_host == ("semel.example", "*.internal")
    assert expected.webhook_allow == ("10.1.0.0/16", "fd12::/16")
    assert (expected.public_url, expected.webhook_attempts) == ("https://semel.example/base", 11)


def test_an_option_that_may_be_repeated_keeps_every_value(started: Started) -> None:
    origins = ["--cors-origin", "HTTP://A.example:80/", "--cors-origin", "*"]
    assert run(*origins, "--allowed-host", "Semel.Example").exit_code == 0
    assert started.serving.cors_origin == ("http://a.example", "*")
    assert started.serving.allowed_host == ("semel.example",)


def test_a_star_with_a_dot_does_not_allow_every_host(started: Started) -> None:
    for result in (run("--allowed-host", "*."), run(SEMEL_ALLOWED_HOST="*.")):
        assert result.exit_code == 64
        assert "'*.' is not a host name" in result.output
    assert run("--allowed-host", "*").exit_code == 0
    assert started.serving.allowed_host == ("*",)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("prot = 1\n", "did you mean 'port'?"),
        ("long-poll-timeout = 1\n", "did you mean 'long_poll_timeout'?"),
        ("config = 'x'\n", "'config' is not a setting"),
        ("zzz = 1\n", "expected one of access, allowed_host, body_bytes_max, checkpoint_bytes"),
        ("[port]\nnumber = 1\n", "'port' is {'number': 1}; expected an integer"),
        ('port = "1"\n', "'port' is '1'; expected an integer"),
        ("port = true\n", "'port' is True; expected an integer"),
        ("segment_bytes = 8192.5\n", "'segment_bytes' is 8192.5; expected an integer"),
        ("long_poll_timeout = '3'\n", "'long_poll_timeout' is '3'; expected a number of seconds"),
        ("data = 3\n", "'data' is 3; expected a string"),
        ("port = 70000\n", "Invalid value for '--port'"),
        ("long_poll_timeout = nan\n", "Invalid value for '--long-poll-timeout'"),
        ("strict_payloads = 1\n", "'strict_payloads' is 1; expected true or false"),
        ("dedup = true\n", "'dedup' is True; expected a string"),
        ("dedup = 'maybe'\n", "Invalid value for '--dedup'"),
        ("cors_origin = 'http://a'\n", "'cors_origin' is 'http://a'; expected a list of strings"),
        ("cors_origin = ['a.example']\n", "'a.example' is not an origin"),
        ("allowed_host = [1]\n", "'allowed_host' is [1]; expected a list of strings"),
        ("allowed_host = ['a:1']\n", "'a:1' is not a host name"),
        ("allowed_host = ['*.']\n", "'*.' is not a host name"),
        ("cors_origin = ['http://a:99999']\n", "'http://a:99999' is not an origin"),
        ("gap_hold_ms = 1001\n", "Invalid value for '--gap-hold-ms'"),
        ("producer_idle_seconds = 0\n", "Invalid value for '--producer-idle-seconds'"),
        ("segment_bytes = 4097\n", "multiple of 8"),
        ("port =\n", "is not a valid TOML file"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(
    started: Started, tmp_path: Path, text: str, complaint: str
) -> None:
    result = run("--config", a_file(tmp_path, text))
    assert result.exit_code == 64
    assert complaint in result.stderr
    assert not hasattr(started, "serving")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    result = run("--config", str(tmp_path / "absent.toml"))
    assert result.exit_code == 64
    assert "cannot be read" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--tls-key", "k"], "--tls-key requires --tls-cert"),
        (["--tls-cert", "absent.pem"], "absent.pem cannot be read"),
        (["--long-poll-timeout", "0"], "above 0"),
        (["--long-poll-timeout", "x"], "not a number"),
        (["--body-bytes-max", "99999999"], "Invalid value"),
        (["--public-url", "semel.example"], "'semel.example' is not the URL of a server"),
        (["--webhook-allow", "10.0.0.1/8"], "'10.0.0.1/8' is not a network"),
        (["--webhook-allow", "internal.example"], "'internal.example' is not a network"),
        (["--webhook-attempts", "0"], "expected an integer from 1"),
        (["--webhook-ca", "absent.pem"], "absent.pem cannot be read"),
        (["--webhook-ca", __file__], "cannot load certificates from"),
        (["--webhook-key", __file__], "run `chmod 600` on it"),
    ],
)
def test_a_wrong_option_is_refused_with_the_reason(
    started: Started, arguments: list[str], complaint: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 64
    assert complaint in result.stderr
    assert not hasattr(started, "serving")


def test_a_file_that_is_no_certificate_is_refused(started: Started, tmp_path: Path) -> None:
    result = run("--tls-cert", a_file(tmp_path, "nothing\n"))
    assert result.exit_code == 64
    assert "PEM" in result.stderr
    assert not hasattr(started, "serving")
