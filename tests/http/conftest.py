"""A certificate for listeners with TLS."""

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest


@pytest.fixture
def tls(tmp_path: Path) -> ssl.SSLContext:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl for a certificate")
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    command = ["openssl", *words.split(), "-keyout", key, "-out", cert]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context
