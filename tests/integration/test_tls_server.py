"""A real server with TLS: silent handshakes leave it files to work with; SIGHUP reloads."""

import http.client
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.http.harness import eventually
from tests.integration.test_cli_streams import certificate
from tests.spec.process import PATIENCE_SECONDS

FILES: Final = 256
SPARE_FILES: Final = 16
SILENT: Final = 400

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="needs openssl for a certificate"
)


class TlsServer:
    """A `semel serve` process with TLS that may open only a few files."""

    def __init__(self, directory: Path) -> None:
        self.cert, self.key = certificate(directory)
        self._errors = directory / "stderr"
        serve = [sys.executable, "-m", "semel", "serve", "--data", str(directory / "data")]
        serve += ["--port", "0", "--reserve-bytes", "0", "--tls-cert", self.cert]
        serve += ["--tls-key", self.key]
        limited = ["sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh", *serve]
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(limited, stdout=subprocess.PIPE, stderr=errors)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().decode().rpartition(":")[2])

    @property
    def stderr(self) -> str:
        return self._errors.read_text()

    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def ask(self, method: str, target: str, body: bytes = b"") -> tuple[int, str]:
        context = ssl.create_default_context(cafile=self.cert)
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=PATIENCE_SECONDS, context=context
        )
        try:
            connection.request(method, target, body or None, {"Content-Type": "text/plain"})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def metric(self, name: str) -> float:
        _, page = self.ask("GET", "/metrics")
        (value,) = (line.split()[1] for line in page.splitlines() if line.startswith(f"{name} "))
        return float(value)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TlsServer]:
    server = TlsServer(tmp_path)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait(PATIENCE_SECONDS)
        assert server.process.stdout is not None
        server.process.stdout.close()


@contextmanager
def silent_connections(port: int) -> Iterator[None]:
    """Open connections that never begin the TLS handshake."""
    with ExitStack() as stack:
        for _ in range(SILENT):
            line = stack.enter_context(socket.socket())
            line.settimeout(PATIENCE_SECONDS)
            line.connect(("127.0.0.1", port))
        yield


def test_silent_handshakes_do_not_use_up_the_files_and_others_are_served(server: TlsServer) -> None:
    assert server.ask("PUT", "/v1/stream/a")[0] == 201
    idle_files = server.files()
    with silent_connections(server.port):
        most = 0
        for number in range(20):
            assert server.ask("POST", "/v1/stream/a", b"%d," % number)[0] == 204
            most = max(most, server.files())
        assert most <= FILES - SPARE_FILES
        assert "Too many open files" not in server.stderr
        assert server.metric("semel_tls_handshakes") > 0  # they still hang
        assert server.metric("semel_tls_handshakes_dropped_total") > 0
        assert server.ask("GET", "/v1/stream/a?offset=-1")[1].endswith("18,19,")
    assert eventually(lambda: server.files() <= idle_files + 2)


def test_sighup_loads_the_certificate_again_and_a_bad_one_is_not_used(
    server: TlsServer, tmp_path: Path
) -> None:
    first = Path(server.cert).read_text()
    assert presented(server.port) == der_of(first)
    certificate(tmp_path)  # overwrites the files
    second = Path(server.cert).read_text()
    assert presented(server.port) == der_of(first)
    server.process.send_signal(signal.SIGHUP)
    assert eventually(lambda: presented(server.port) == der_of(second))
    assert f"SIGHUP: the certificate is loaded again from {server.cert}" in server.stderr

    Path(server.key).write_text("not a key")
    server.process.send_signal(signal.SIGHUP)
    assert eventually(lambda: "the server keeps its present certificate" in server.stderr)
    assert "Traceback" not in server.stderr
    assert presented(server.port) == der_of(second)
    assert server.ask("PUT", "/v1/stream/a")[0] == 201
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(PATIENCE_SECONDS) == 0


def presented(port: int) -> bytes:
    """Return the certificate that the server presents to a new connection."""
    text = ssl.get_server_certificate(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
    return der_of(text)


def der_of(text: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert(text)
