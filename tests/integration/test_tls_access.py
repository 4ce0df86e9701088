"""A real server with TLS: versions, client certificates, and what SIGHUP loads again."""

import signal
import socket
import ssl
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from semel.cli.main import cli
from tests.certificates import SERVER, Authority
from tests.http.harness import eventually
from tests.spec.process import PATIENCE_SECONDS, Server
from tests.unit.server.issuer import jwks

OK: Final = "HTTP/1.1 200 OK"
REFUSED: Final = "the connection was closed"
REQUEST: Final = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
# So that TLS 1.0 and 1.1 can be spoken at all.
WEAK: Final = "DEFAULT:@SECLEVEL=0"


class Rig:
    """An authority, the files of a server, and the server."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory)
        self.cert, self.key = self.authority.issue("server", SERVER)
        self.servers: list[Server] = []

    def start(self, *options: str) -> Server:
        tls = ("--tls-cert", self.cert, "--tls-key", self.key)
        self.servers.append(Server(self.directory / "data", *tls, *options))
        return self.servers[-1]

    def config(self, text: str) -> str:
        file = self.directory / "semel.toml"
        file.write_text(text, encoding="utf-8")
        return str(file)

    def context(self, client: tuple[str, str] | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.authority.ca)
        if client is not None:
            context.load_cert_chain(*client)
        return context

    def ask(self, client: tuple[str, str] | None = None) -> str:
        """Return the status line of a response, or REFUSED if the handshake fails."""
        return first_line(self.servers[-1].port, self.context(client))

    def presented(self) -> bytes | None:
        """Return the certificate that the server presents to a new connection."""
        with connect(self.servers[-1].port, self.context()) as line:
            return line.getpeercert(binary_form=True)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    it = Rig(tmp_path)
    try:
        yield it
    finally:
        for server in it.servers:
            server.kill()


def connect(port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
    try:
        return context.wrap_socket(plain, server_hostname="127.0.0.1")
    except BaseException:
        plain.close()
        raise


def first_line(port: int, context: ssl.SSLContext) -> str:
    """With TLS 1.3 a client learns only from the response that its certificate is refused."""
    try:
        with connect(port, context) as line, line.makefile("rb") as file:
            line.sendall(REQUEST)
            return file.readline().decode().strip() or REFUSED
    except (ssl.SSLError, ConnectionError):
        return REFUSED


# ---- versions ------------------------------------------------------------------------------------


def only(version: ssl.TLSVersion, context: ssl.SSLContext) -> ssl.SSLContext:
    context.set_ciphers(WEAK)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # those before 1.2
        context.minimum_version = context.maximum_version = version
    return context


def test_only_tls_1_2_and_later_is_spoken(rig: Rig) -> None:
    server = rig.start()
    for version, name in ((ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")):
        with connect(server.port, only(version, rig.context())) as line:
            assert line.version() == name
    for old in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            connect(server.port, only(old, rig.context()))
    assert rig.ask() == OK
    assert "Traceback" not in server.stderr


def test_the_client_of_this_test_can_speak_old_versions(rig: Rig) -> None:
    """Without this, the test above could pass because its client refuses to connect."""
    for old in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        lax = only(old, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        lax.load_cert_chain(rig.cert, rig.key)
        up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = only(old, rig.context()).wrap_bio(down, up, server_hostname="127.0.0.1")
        server = lax.wrap_bio(up, down, server_side=True)
        for _ in range(4):
            for side in (client, server):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
        assert server.version() == ("TLSv1" if old is ssl.TLSVersion.TLSv1 else "TLSv1.1")


# ---- client certificates -------------------------------------------------------------------------


def test_a_client_certificate_is_verified_and_can_be_absent(rig: Rig) -> None:
    server = rig.start("--client-ca", rig.authority.ca)
    assert rig.ask() == OK
    assert rig.ask(rig.authority.issue("client")) == OK
    stranger = Authority(rig.directory, "stranger")
    for refused in (
        stranger.issue("client2"),
        rig.authority.issue("expired", days=-1),
        rig.authority.issue("not for clients", SERVER),
    ):
        assert rig.ask(refused) == REFUSED
    assert rig.ask() == OK
    assert "Traceback" not in server.stderr


def test_a_client_certificate_can_be_required(rig: Rig) -> None:
    rig.start("--client-ca", rig.authority.ca, "--client-certificates", "required")
    assert rig.ask() == REFUSED
    assert rig.ask(rig.authority.issue("client")) == OK


def test_without_an_authority_no_client_certificate_is_requested(rig: Rig) -> None:
    rig.start()
    assert rig.ask(Authority(rig.directory, "stranger").issue("client")) == OK


# ---- SIGHUP --------------------------------------------------------------------------------------

RULES: Final = """
[[access.certificate]]
subject = "CN=client"
principal = "billing"
scopes = ["stream:*:read"]

[[access.jwt]]
name = "corp"
issuer = "https://login.example"
audience = "semel"
jwks_file = "{}"
[[access.jwt.grants]]
scopes = ["stream:*:read"]
"""


def has_logged(server: Server, text: str, count: int) -> bool:
    return eventually(lambda: server.stderr.count(text) == count)


def test_sighup_loads_everything_or_nothing(rig: Rig) -> None:
    keys = rig.directory / "jwks.json"
    keys.write_bytes(jwks())
    rules = RULES.format(keys)
    config = rig.config(rules)
    ca = rig.directory / "client-ca.pem"
    ca.write_bytes(Path(rig.authority.ca).read_bytes())
    server = rig.start("--client-ca", str(ca), "--config", config)
    client = rig.authority.issue("client")
    assert rig.ask(client) == OK
    first = rig.presented()

    rig.authority.issue("server", SERVER)  # a new certificate in the same files
    wrong = (
        (ca, b"not PEM"),
        (keys, b"{}"),
        (Path(config), b"[[access.jwt]]\n"),
        (Path(config), b"port = \n"),
        (Path(config), RULES.format("absent.json").encode()),
        (Path(rig.key), b"not a key"),
    )
    for failures, (file, broken) in enumerate(wrong, 1):
        whole = file.read_bytes()
        file.write_bytes(broken)
        server.signal(signal.SIGHUP)
        assert has_logged(server, "SIGHUP: ", failures)
        assert has_logged(server, "the server keeps its present certificate and rules", failures)
        assert rig.presented() == first
        assert rig.ask(client) == OK
        file.write_bytes(whole)

    other = Authority(rig.directory, "other")
    ca.write_bytes(Path(other.ca).read_bytes())
    server.signal(signal.SIGHUP)
    assert eventually(lambda: rig.presented() != first)
    assert f"SIGHUP: the certificate is loaded again from {rig.cert}" in server.stderr
    assert f"SIGHUP: the table [access] is loaded again from {config}" in server.stderr
    assert rig.ask(client) == REFUSED, "the new authority has not signed it"
    assert rig.ask(other.issue("client3")) == OK
    assert "Traceback" not in server.stderr
    server.signal(signal.SIGTERM)
    assert server.wait() == 0


def test_sighup_loads_the_rules_of_a_server_without_tls(tmp_path: Path) -> None:
    keys = tmp_path / "jwks.json"
    keys.write_bytes(jwks())
    rules = RULES[RULES.index("[[access.jwt]]") :].format(keys)
    config = tmp_path / "semel.toml"
    config.write_text("long_poll_timeout = 1\n")
    server = Server(tmp_path / "data", "--config", str(config))
    try:
        config.write_text(rules)
        server.signal(signal.SIGHUP)
        assert eventually(lambda: "the table [access] is loaded again" in server.stderr)
        config.unlink()
        server.signal(signal.SIGHUP)
        assert eventually(lambda: "cannot be read: No such file" in server.stderr)
        assert server.ask("GET", "/health").status == 200
    finally:
        server.kill()


# ---- wrong options -------------------------------------------------------------------------------


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["serve", *arguments])
    assert result.exit_code == 64
    return result.stderr


def test_options_that_need_others_are_refused(rig: Rig) -> None:
    ca, tls = rig.authority.ca, ("--tls-cert", rig.cert, "--tls-key", rig.key)
    assert "--client-ca requires --tls-cert" in refused("--client-ca", ca)
    required = ("--client-certificates", "required")
    assert "requires --client-ca" in refused(*tls, *required)
    assert "requires --client-ca" in refused(*required)
    assert "absent.pem cannot be read" in refused(*tls, "--client-ca", "absent.pem")
    assert "pass a PEM file with --client-ca" in refused(*tls, "--client-ca", rig.key)
    certificates = RULES[: RULES.index("[[access.jwt]]")]
    rules = rig.config(certificates)
    assert f"{rules}: [[access.certificate]] requires --client-ca" in refused("--config", rules)
    tables = rig.config("[[access]]\n")
    assert f"{tables}: [access] is [{{}}]; expected a table" in refused("--config", tables)
    absent = rig.config(RULES.format("absent.json"))
    found = refused("--config", absent, *tls, "--client-ca", ca)
    assert f"{absent}: [[access.jwt]]: 'jwks_file': absent.json cannot be read" in found
    misspelled = rig.config("[acess]\n")
    assert "'acess' is not a setting; did you mean 'access'?" in refused("--config", misspelled)


def test_jwts_without_the_package_are_refused(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    config = rig.config(RULES[RULES.index("[[access.jwt]]") :].format("jwks.json"))
    monkeypatch.setitem(sys.modules, "semel.server.jwks", None)
    assert "pip install 'semel[jwt]'" in refused("--config", config)
