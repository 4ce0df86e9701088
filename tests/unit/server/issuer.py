"""An issuer of JWTs for tests: keys, tokens made of any parts, and a JWKS server on loopback."""

import base64
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import Algorithm, get_default_algorithms

from semel.model.rights import parse_scope
from semel.server.identities import Grant, JwtRule

NOW_MS: Final = 1_800_000_000_000
HOUR: Final = 3600
ISSUER: Final = "https://login.example"
AUDIENCE: Final = "semel"
READ: Final = parse_scope("stream:*:read")
WRITE: Final = parse_scope("stream:orders/*:write")
KIDS: Final = {"RS256": "rsa-1", "ES256": "ec-1", "EdDSA": "ed-1"}

Keys = dict[str, Any]  # a private key for each algorithm


@cache
def private_keys(seed: int) -> Keys:
    """Return keys; others for each seed."""
    del seed
    return {
        "RS256": rsa.generate_private_key(65537, 2048),
        "ES256": ec.generate_private_key(ec.SECP256R1()),
        "EdDSA": ed25519.Ed25519PrivateKey.generate(),
    }


def algorithm(name: str) -> Algorithm:
    return get_default_algorithms()[name]


def jwk(name: str, seed: int = 0, **more: Any) -> dict[str, Any]:
    """Return the public key for an algorithm, as in a JWKS document."""
    public = private_keys(seed)[name].public_key()
    document: dict[str, Any] = json.loads(algorithm(name).to_jwk(public))
    return document | {"kid": KIDS[name], "key_ops": ["verify"], "use": "sig"} | more


def jwks(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys or [jwk(name) for name in KIDS]}).encode()


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def claims(**changes: Any) -> dict[str, Any]:
    """Return valid claims with these changes; None removes a claim."""
    found = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": NOW_MS // 1000 + HOUR}
    return {name: value for name, value in (found | changes).items() if value is not None}


def token(
    name: str = "RS256",
    *,
    header: dict[str, Any] | None = None,
    seed: int = 0,
    sign: Callable[[bytes], bytes] | None = None,
    payload: bytes | None = None,
    **changes: Any,
) -> str:
    """Return a signed token. The claims, the header, the key or the signature can differ."""
    fields = {"alg": name, "kid": KIDS.get(name, "rsa-1")} | (header or {})
    fields = {key: value for key, value in fields.items() if value is not None}
    body = json.dumps(claims(**changes)).encode() if payload is None else payload
    signed = f"{encode(json.dumps(fields).encode())}.{encode(body)}"
    if sign is None:
        signature = algorithm(name).sign(signed.encode(), private_keys(seed)[name])
    else:
        signature = sign(signed.encode())
    return f"{signed}.{encode(signature)}"


def rule(**changes: Any) -> JwtRule:
    grants = (Grant((READ,)), Grant((WRITE,), "groups", "writers"))
    fields = {"name": "corp", "issuer": ISSUER, "audience": AUDIENCE, "grants": grants}
    return JwtRule(**(fields | changes))


class KeyServer:
    """An HTTP server on loopback. `answer` writes a complete response to a socket file."""

    def __init__(
        self, answer: Callable[[Any], None] | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.body = jwks()
        self.status = 200
        self.headers: list[tuple[str, str]] = []
        self.requests: list[dict[str, str]] = []
        self.answer = answer
        outer = self

        class Responses(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append({"path": self.path, **dict(self.headers.items())})
                if outer.answer is not None:
                    outer.answer(self.wfile)
                    return
                self.send_response(outer.status)
                for name, value in outer.headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(outer.body)))
                self.end_headers()
                self.wfile.write(outer.body)

            def log_message(self, *_arguments: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Responses)
        if tls is not None:
            self.http.socket = tls.wrap_socket(self.http.socket, server_side=True)
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self.http.server_port}/keys?tenant=1"


@contextmanager
def key_server(
    answer: Callable[[Any], None] | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[KeyServer]:
    server = KeyServer(answer, tls)
    thread = threading.Thread(target=server.http.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        thread.join()
        server.http.server_close()
