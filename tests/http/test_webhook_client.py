"""The client of webhooks on real sockets: what is reached, what is not, and what receivers do.

Nothing leaves this machine: names are looked up by functions of the tests, and every connection
that is begun is recorded.
"""

import asyncio
import gc
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from semel.server.webhook_client import DeliveryFailed, Times, WebhookClient
from semel.server.webhook_lookups import NameLookups
from semel.server.webhook_responses import WebhookResponse
from semel.server.webhook_targets import Address, TargetPolicy, parse_network
from tests.certificates import SERVER, Authority
from tests.http.webhook_receivers import (
    OK,
    Receiver,
    full_listener,
    late,
    read_request,
    receiver,
    repeat,
    reset,
    wait_for_end,
)
from tests.unit.server.test_webhook_lookups import found

SHORT = Times(connect_seconds=0.4, total_seconds=0.6)
LONG = Times(connect_seconds=20.0, total_seconds=30.0)
PUBLIC = TargetPolicy()
LOCAL = TargetPolicy(allows_loopback=True)
FIRST, SECOND = "127.0.0.1", "127.0.0.2"
NAME = "hooks.example.com"
HEADERS = [("Content-Type", "application/json")]


def allowing(*networks: str) -> TargetPolicy:
    return TargetPolicy(False, tuple(map(parse_network, networks)))


@pytest.fixture(autouse=True)
def tried(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The addresses to which connections were begun."""
    addresses: list[tuple[str, int]] = []
    connect = socket.socket.connect_ex

    def recorded(self: socket.socket, address: Any) -> int:
        addresses.append(address)
        assert ip_address(address[0]).is_loopback, address
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect_ex", recorded)
    return addresses


class Names:
    """Looks up names: each lookup of a name has the next of its results, and then the last one."""

    def __init__(self, *results: tuple[str, ...]) -> None:
        self._results = list(results)
        self.count = 0

    async def __call__(self, name: str) -> tuple[Address, ...]:
        self.count += 1
        result = self._results.pop(0) if len(self._results) > 1 else self._results[0]
        return tuple(map(ip_address, result))


async def no_lookup(name: str) -> tuple[Address, ...]:
    raise AssertionError(f"{name} was looked up")


def post(
    url: str,
    policy: TargetPolicy = LOCAL,
    *,
    resolve: Any = no_lookup,
    times: Times = LONG,
    context: ssl.SSLContext | None = None,
    body: bytes = b"{}",
) -> WebhookResponse:
    context = context or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        client = WebhookClient(policy, context, times)
        try:
            return runner.run(client.post(url, body, HEADERS, resolve))
        finally:
            runner.run(client.close())


def failure(url: str, policy: TargetPolicy = LOCAL, **more: Any) -> str:
    """Return why a delivery has failed."""
    with pytest.raises(DeliveryFailed) as error:
        post(url, policy, **more)
    message = str(error.value)
    assert len(message) < 200
    assert "\n" not in message
    return message


# ---- a request -----------------------------------------------------------------------------------


def test_a_request_has_the_body_and_the_headers() -> None:
    with receiver() as hook:
        assert post(f"{hook.url}?a=b", body=b'{"x":1}') == WebhookResponse(200, body=b"{}")
        (request,) = hook.requests
    head, _, body = request.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /hook?a=b HTTP/1.1"
    assert f"Host: 127.0.0.1:{hook.port}" in lines
    assert "Content-Type: application/json" in lines
    assert "Content-Length: 7" in lines
    assert "Connection: close" in lines
    assert body == b'{"x":1}'


def test_a_long_body_arrives_as_a_whole() -> None:
    body = b"x" * 3_000_000
    with receiver() as hook:
        assert post(hook.url, body=body).is_success
        assert hook.bodies() == [body]


def test_ipv6_is_used() -> None:
    with receiver(host="::1") as hook:
        assert post(hook.url).is_success
        assert b"\r\nHost: [::1]:%d\r\n" % hook.port in hook.requests[0]


def test_variables_for_proxies_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver() as proxy, receiver() as hook:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            for each in (name, name.upper()):
                monkeypatch.setenv(each, f"http://127.0.0.1:{proxy.port}")
        assert post(hook.url).is_success
        assert (proxy.count, hook.count) == (0, 1)


# ---- what must not be reached --------------------------------------------------------------------


@contextmanager
def same_port(first: str, second: str) -> Iterator[tuple[Receiver, Receiver]]:
    """Run receivers at two addresses with one port, which other programs must not use at either."""
    while True:
        it = Receiver(host=first)
        try:
            other = Receiver(port=it.port, host=second)
        except OSError:
            it.close()
            continue
        break
    try:
        yield it, other
    finally:
        it.close()
        other.close()


@pytest.fixture
def secret() -> Iterator[Receiver]:
    """A service on this machine, for both versions of IP, that nothing must reach."""
    with same_port("::", "0.0.0.0") as (it, other):  # dual stack is off
        yield it
        assert it.count == other.count == 0


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "127.0.1",
        "0",
        "0.0.0.0",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "017700000001",
        "[::1]",
        "[::]",
        "[0:0:0:0:0:0:0:1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "localhost",
        "LOCALHOST",
        "localhost.",
        "x.localhost",
        "user@127.0.0.1",
        "example.com@127.0.0.1",
        "127.0.0.1#@example.com",
        "\uff11\uff12\uff17.0.0.1",
    ],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_no_form_of_this_machine_is_reached(
    scheme: str, host: str, secret: Receiver, tried: list[Any]
) -> None:
    failure(f"{scheme}://{host}:{secret.port}/", PUBLIC)
    assert tried == []


@pytest.mark.parametrize(
    "addresses",
    [
        ("127.0.0.1",),
        ("::1",),
        ("0.0.0.0",),
        ("::",),
        ("10.0.0.1",),
        ("192.168.0.1",),
        ("172.16.0.1",),
        ("100.64.0.1",),
        ("169.254.169.254",),
        ("fd00:ec2::254",),
        ("fe80::1",),
        ("::ffff:127.0.0.1",),
        ("::ffff:169.254.169.254",),
        ("64:ff9b::7f00:1",),
        ("224.0.0.1",),
        ("8.8.8.8", "127.0.0.1"),
        ("8.8.8.8", "2606:4700::1", "fd00::1"),
        ("127.0.0.1", "8.8.8.8"),
        ("2606:4700::1", "::ffff:10.0.0.1"),
    ],
)
@pytest.mark.parametrize("policy", [PUBLIC, LOCAL], ids=["public", "local"])
def test_a_name_with_one_such_address_is_not_reached(
    addresses: tuple[str, ...], policy: TargetPolicy, secret: Receiver, tried: list[Any]
) -> None:
    names = Names(addresses)
    message = failure(f"https://{NAME}:{secret.port}/", policy, resolve=names)
    assert message.startswith("the name has an address that is ")
    assert not any(address in message for address in addresses)
    assert tried == []


def test_a_name_is_looked_up_once_and_exactly_the_checked_address_is_used(
    tried: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_getaddrinfo(*_: Any, **__: Any) -> Any:
        raise AssertionError("a second lookup")

    with same_port(FIRST, SECOND) as (hook, secret):
        monkeypatch.setattr(socket, "getaddrinfo", no_getaddrinfo)
        names = Names((FIRST,), (SECOND,))
        url = f"http://{NAME}:{hook.port}/"
        assert post(url, allowing(f"{FIRST}/32"), resolve=names).is_success
        assert names.count == 1
        assert f"Host: {NAME}:{hook.port}".encode() in hook.requests[0]
        failure(url, allowing(f"{FIRST}/32"), resolve=names)
        assert (hook.count, secret.count) == (1, 0)
        assert tried == [(FIRST, hook.port)]


def test_a_name_server_that_changes_its_answers_all_the_time_achieves_nothing(
    tried: list[Any],
) -> None:
    """The name has an allowed address in every second lookup, and another one in the others."""
    calls: list[None] = []

    def lookup(*_: Any, **__: Any) -> Any:
        calls.append(None)
        return found(FIRST if len(calls) % 2 else SECOND)

    with same_port(FIRST, SECOND) as (hook, secret):

        async def deliver() -> list[Any]:
            lookups = NameLookups(4, lookup)
            client = WebhookClient(allowing(f"{FIRST}/32"), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
            results: list[Any] = []
            for _ in range(50):
                try:
                    url = f"http://{NAME}:{hook.port}/"
                    results.append(await client.post(url, b"{}", HEADERS, lookups.addresses))
                except DeliveryFailed as error:
                    results.append(str(error))
            lookups.close()
            await client.close()
            return results

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            results = runner.run(deliver())
        assert len(calls) == 50
        assert sum(isinstance(each, WebhookResponse) for each in results) == hook.count == 25
        assert secret.count == 0
        assert set(tried) == {(FIRST, hook.port)}


def test_one_refused_address_refuses_the_name_although_another_is_allowed() -> None:
    for addresses in ((FIRST, SECOND), (SECOND, FIRST)):
        with same_port(FIRST, SECOND) as (hook, secret):
            url = f"http://{NAME}:{hook.port}/"
            failure(url, allowing(f"{FIRST}/32"), resolve=Names(addresses))
            assert (hook.count, secret.count) == (0, 0)


@pytest.mark.parametrize("status", [300, 301, 302, 303, 305, 307, 308])
@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://10.0.0.1/",
        "http://127.0.0.1:{port}/",
        "http://127.0.0.2:{port}/",
        "//127.0.0.1:{port}/",
        "http://localhost:{port}/",
        "/other",
    ],
)
def test_no_redirect_is_followed(status: int, location: str, tried: list[Any]) -> None:
    with same_port(SECOND, FIRST) as (secret, other):
        where = location.format(port=secret.port).encode()
        response = b"HTTP/1.1 %d R\r\nLocation: %b\r\nRefresh: 0;url=%b\r\n\r\n"
        with receiver(response % (status, where, where)) as hook:
            result = post(hook.url)
            assert (result.status, result.is_success) == (status, False)
            assert (hook.count, secret.count, other.count) == (1, 0, 0)
            assert tried == [(FIRST, hook.port)]


# ---- connections ---------------------------------------------------------------------------------


def test_a_closed_port_refuses_the_connection() -> None:
    with receiver() as hook:
        url = hook.url
    assert failure(url) == "connection refused"


def test_the_next_address_is_tried() -> None:
    with receiver(host=SECOND) as hook:
        names = Names((FIRST, SECOND))
        url = f"http://{NAME}:{hook.port}/"
        assert post(url, allowing("127.0.0.0/8"), resolve=names).is_success


def test_an_address_of_a_family_that_the_machine_does_not_have_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without_ipv6(family: int, *more: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return socket.socket(family, *more)

    with receiver() as hook:
        names = Names(("::1", FIRST))
        url = f"http://{NAME}:{hook.port}/"
        module = SimpleNamespace(**{**vars(socket), "socket": without_ipv6})
        monkeypatch.setattr("semel.server.webhook_client.socket", module)
        assert post(url, allowing("127.0.0.0/8", "::1/128"), resolve=names).is_success
        message = failure(url, allowing("::1/128"), resolve=Names(("::1",)))
        assert message == "address family not supported by protocol"


def test_an_address_that_does_not_answer_leaves_time_for_the_next_one() -> None:
    with full_listener() as port, receiver(host=SECOND, port=port) as hook:
        names = Names((FIRST, SECOND))
        url = f"http://{NAME}:{port}/"
        times = Times(connect_seconds=2.0, total_seconds=30.0)
        assert post(url, allowing("127.0.0.0/8"), resolve=names, times=times).is_success
        assert hook.count == 1


def test_a_connection_that_nobody_accepts_ends_in_time() -> None:
    with full_listener() as port:
        started = time.monotonic()
        message = failure(f"http://127.0.0.1:{port}/", times=SHORT)
        assert message == "no connection within 0.4 seconds"
        assert time.monotonic() - started < 10


def test_a_lookup_that_blocks_ends_in_time() -> None:
    async def blocked(_name: str) -> tuple[Address, ...]:
        await asyncio.Event().wait()
        return ()

    message = failure(f"https://{NAME}/", PUBLIC, resolve=blocked, times=SHORT)
    assert message == "no connection within 0.4 seconds"


class ForgetfulLoop(uvloop.Loop):
    """A loop whose connections fail as those of uvloop before 0.23: the socket is not detached.

    `reused` is a file that gets the number of the closed one, as on another thread.
    """

    reused = -1

    async def create_connection(self, *_: Any, sock: socket.socket, **__: Any) -> Any:  # type: ignore[override]
        other = os.open(os.devnull, os.O_RDONLY)
        self.reused = os.dup2(other, sock.fileno())
        os.close(other)
        raise TimeoutError


def test_the_file_of_another_thread_is_not_closed() -> None:
    loop = ForgetfulLoop()
    with receiver() as hook, asyncio.Runner(loop_factory=lambda: loop) as runner:
        for scheme in ("http", "https"):
            client = WebhookClient(LOCAL, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), LONG)
            url = f"{scheme}://127.0.0.1:{hook.port}/"
            with pytest.raises(DeliveryFailed):
                runner.run(client.post(url, b"", HEADERS, no_lookup))
            gc.collect()
            os.close(loop.reused)  # fails if it was closed before


class CancelledLoop(uvloop.Loop):
    """A loop on which a connection is cancelled directly after `connection_made`."""

    async def create_connection(self, factory: Any, *, sock: socket.socket, **_: Any) -> Any:  # type: ignore[override]
        factory().connection_made(asyncio.Transport())
        os.close(sock.detach())
        raise asyncio.CancelledError


def test_a_connection_that_is_given_up_is_not_waited_for() -> None:
    with receiver() as hook, asyncio.Runner(loop_factory=CancelledLoop) as runner:
        client = WebhookClient(LOCAL, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), LONG)
        with pytest.raises(asyncio.CancelledError):
            runner.run(client.post(hook.url, b"", HEADERS, no_lookup))
        started = time.monotonic()
        runner.run(client.close())
        assert time.monotonic() - started < 0.5


def test_many_addresses_are_bounded(tried: list[Any]) -> None:
    with receiver() as hook:
        port = hook.port
    names = Names(tuple(f"127.0.0.{number}" for number in range(1, 60)))
    url = f"http://{NAME}:{port}/"
    assert failure(url, allowing("127.0.0.0/8"), resolve=names) == "connection refused"
    assert len(tried) == 4


# ---- receivers that misbehave --------------------------------------------------------------------

ENDLESS = 1 << 16


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (wait_for_end, "no complete response within 0.6 seconds"),
        (repeat(b"", b"H", 0.05), "no complete response within 0.6 seconds"),
        (repeat(b"HTTP/1.1 200 OK\r\n", b"X", 0.05), "no complete response within 0.6 seconds"),
        (
            repeat(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n", b"x", 0.05),
            "no complete response within 0.6 seconds",
        ),
    ],
    ids=["silent", "slow status line", "slow headers", "slow body"],
)
def test_a_slow_receiver_ends_in_time(answer: Any, expected: str) -> None:
    with receiver(answer) as hook:
        started = time.monotonic()
        assert failure(hook.url, times=SHORT) == expected
        assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (repeat(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * ENDLESS), "more than 65536 bytes"),
        (repeat(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 1_000), "head of the response has more than"),
        (repeat(b"HTTP/1.1 200 OK\r\nX: ", b"y" * ENDLESS), "head of the response has more than"),
        (repeat(b"", b"x" * ENDLESS), "head of the response has more than"),
        (repeat(b"", b"HTTP/1.1 100 C\r\n\r\n" * 100), "head of the response has more than"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
            "more than 65536 bytes",
        ),
        (
            repeat(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 99),
            "more than 65536 bytes",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5000000000\r\n\r\n", "more than 65536 bytes"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "ended before"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9", "ended before"),
        (b"", "ended before"),
        (reset, "the connection was reset"),
    ],
    ids=[
        "endless body",
        "endless headers",
        "endless header",
        "endless status line",
        "endless interim responses",
        "huge chunk",
        "endless chunks",
        "huge length",
        "another protocol",
        "short body",
        "short head",
        "nothing",
        "reset",
    ],
)
def test_a_wrong_response_is_a_failed_delivery(answer: Any, expected: str) -> None:
    with receiver(answer) as hook:
        assert expected in failure(hook.url)


def test_http_1_0_is_a_response() -> None:
    with receiver(b'HTTP/1.0 200 OK\r\n\r\n{"done":true}') as hook:
        assert post(hook.url) == WebhookResponse(200, body=b'{"done":true}')


def test_a_response_before_the_request_is_read_is_one() -> None:
    def early(line: socket.socket) -> None:
        line.sendall(OK)
        wait_for_end(line)

    with receiver(early, is_read=False) as hook:
        assert post(hook.url).is_success


def test_a_response_after_the_time_changes_nothing() -> None:
    event = threading.Event()
    with receiver(late(event)) as hook:
        assert failure(hook.url, times=SHORT) == "no complete response within 0.6 seconds"
        event.set()


# ---- TLS -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def served(authority: Authority, name: str, **more: Any) -> ssl.SSLContext:
    """Return the context of a server whose certificate is for 127.0.0.1 and for `dns`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue(name, SERVER, **more))
    return context


def trusting(authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority.ca)
    return context


def test_the_certificate_is_checked_for_the_name_and_the_name_is_sent(authority: Authority) -> None:
    with receiver(tls=served(authority, "good", dns=NAME)) as hook:
        url = f"https://{NAME}:{hook.port}/"
        result = post(
            url, allowing(f"{FIRST}/32"), resolve=Names((FIRST,)), context=trusting(authority)
        )
        assert result.is_success
        assert hook.names == [NAME]


def test_the_certificate_is_checked_for_an_address(authority: Authority) -> None:
    with receiver(tls=served(authority, "address")) as hook:
        assert post(hook.url, context=trusting(authority)).is_success
    with receiver(host=SECOND, tls=served(authority, "address2")) as hook:
        message = failure(hook.url, context=trusting(authority))
        assert message.startswith("the certificate is not valid: IP address mismatch")
        assert hook.requests == []


@pytest.mark.parametrize(
    ("case", "expected"),
    [("name", "Hostname mismatch"), ("expired", "expired"), ("self-signed", "certificate")],
)
def test_a_wrong_certificate_ends_the_delivery_before_the_request(
    authority: Authority, tmp_path: Path, case: str, expected: str
) -> None:
    context = {
        "name": lambda: served(authority, "other", dns="other.example.com"),
        "expired": lambda: served(authority, "expired", dns=NAME, days=-1),
        "self-signed": lambda: served(Authority(tmp_path, "stranger"), "self", dns=NAME),
    }[case]()
    with receiver(tls=context) as hook:
        message = failure(
            f"https://{NAME}:{hook.port}/",
            allowing(f"{FIRST}/32"),
            resolve=Names((FIRST,)),
            context=trusting(authority),
        )
        assert message.startswith("the certificate is not valid: ")
        assert expected in message
        assert hook.count == 1
        assert hook.requests == []


def test_an_old_version_of_tls_is_refused(authority: Authority) -> None:
    old = served(authority, "old")
    with pytest.deprecated_call():
        old.maximum_version = ssl.TLSVersion.TLSv1_1
        old.minimum_version = ssl.TLSVersion.TLSv1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with receiver(tls=old) as hook:
        context = trusting(authority)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        assert failure(hook.url, context=context)
        assert hook.requests == []


def test_a_port_without_tls_and_one_with_it_do_not_fit() -> None:
    with receiver(b"HTTP/1.1 400 Bad\r\n\r\n", is_read=False) as hook:
        assert failure(hook.url.replace("http:", "https:")).startswith("TLS failed: ")


def test_a_handshake_that_is_not_answered_ends_in_time() -> None:
    with receiver(wait_for_end, is_read=False) as hook:
        url = hook.url.replace("http:", "https:")
        assert failure(url, times=SHORT) == "no connection within 0.4 seconds"


def test_a_receiver_that_does_not_end_tls_delays_nothing(authority: Authority) -> None:
    def answer(line: socket.socket) -> None:
        line.sendall(OK)
        wait_for_end(line)

    with receiver(answer, tls=served(authority, "open")) as hook:
        started = time.monotonic()
        assert post(hook.url, context=trusting(authority)).is_success
        assert time.monotonic() - started < 10


def test_the_helper_reads_requests() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.sendall(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nabc")
        assert read_request(other).endswith(b"abc")
