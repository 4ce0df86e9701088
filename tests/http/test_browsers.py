"""Which requests of web browsers are refused, whatever other requests came before them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.server.browsers import NO_CORS, VARIES, BrowserPolicy, BrowserRules
from semel.server.host_names import ANY, parse_host, parse_origin
from semel.server.limits_http import HttpLimits
from semel.server.request_head import HeadCache

LIMITS = HttpLimits()
LISTED = "https://app.example"
WRITES = ("POST", "PUT", "PATCH", "DELETE")
READS = ("GET", "HEAD")


def rules(*origins: str, hosts: tuple[str, ...] = ()) -> BrowserRules:
    return BrowserRules(cors_origins=origins, allowed_hosts=hosts)


def raw(method: str = "GET", *lines: str, host: str | None = "localhost:4437") -> bytes:
    fields = [f"{method} /v1/stream/a HTTP/1.{0 if host is None else 1}"]
    fields += [] if host is None else [f"Host: {host}"]
    return "\r\n".join([*fields, *lines]).encode("latin-1")


def decided(policy: BrowserPolicy, head: bytes) -> tuple[int, str]:
    """Return the status of the refusal, or 0, and the kind of header lines.

    The head is read four times, so that it is cached at the end.
    """
    heads = HeadCache(LIMITS, policy)
    found = {_decision(heads, head) for _ in range(4)}
    (one,) = found
    return one


def _decision(heads: HeadCache, head: bytes) -> tuple[int, str]:
    request, _ = heads.read(head)
    refusal = request.head.refusal
    return 0 if refusal is None else refusal.status, request.head.cors


# ---- Host ----------------------------------------------------------------------------------------

OWN_HOSTS = ["localhost", "localhost:4437", "LocalHost:1", "a.localhost", "a.b.localhost:9"]
OWN_HOSTS += [
    "localhost.",
    "127.0.0.1",
    "127.0.0.1:80",
    "127.8.9.1",
    "[::1]:4437",
    "[2001:db8::1]",
    "10.1.2.3:80",
]
OWN_HOSTS += ["box.lan", "BOX.lan:4437", ""]
OTHER_HOSTS = ["evil.example", "evil.example:4437", "localhost.evil.example", "notlocalhost"]
OTHER_HOSTS += [
    "127.0.0.1.evil.example",
    "box.lan.evil.example",
    "127.1",
    "0.0.0.0:4437",
    "[::]",
    "10.1.2.4",
    "203.0.113.5",
    "0x7f.0.0.1",
    "box",
    ":1",
]


def box() -> BrowserPolicy:
    """Return the policy of a server that listens on a name with two addresses."""
    return BrowserPolicy(None, "box.lan", ["10.1.2.3", "2001:db8::1"])


@pytest.mark.parametrize("method", [*READS, *WRITES, "OPTIONS"])
@pytest.mark.parametrize("host", OWN_HOSTS)
def test_localhost_and_the_bound_name_and_addresses_are_names_of_the_server(
    host: str, method: str
) -> None:
    assert decided(box(), raw(method, host=host)) == (0, NO_CORS)


@pytest.mark.parametrize("method", [*READS, *WRITES, "OPTIONS"])
@pytest.mark.parametrize("host", OTHER_HOSTS)
def test_any_other_name_is_refused(host: str, method: str) -> None:
    assert decided(box(), raw(method, host=host)) == (421, NO_CORS)


@pytest.mark.parametrize(("bound", "other"), [("0.0.0.0", "::"), ("::", "0.0.0.0")])
def test_a_server_for_all_addresses_accepts_each_of_them(bound: str, other: str) -> None:
    policy = BrowserPolicy(None, bound, [bound])
    for host in ("10.1.2.4", "[2001:db8::7]:4437", "[::]" if bound == "::" else bound):
        assert decided(policy, raw(host=host)) == (0, NO_CORS)
    assert decided(policy, raw(host="[::]" if other == "::" else other)) == (421, NO_CORS)
    assert decided(policy, raw(host="evil.example")) == (421, NO_CORS)


def test_a_request_without_a_host_comes_from_no_browser() -> None:
    assert decided(BrowserPolicy(), raw(host=None)) == (0, NO_CORS)


def test_the_host_in_the_target_counts_if_there_is_one() -> None:
    head = b"GET http://evil.example/v1/streams HTTP/1.1\r\nHost: localhost"
    assert decided(BrowserPolicy(), head) == (421, NO_CORS)
    head = b"GET http://localhost/v1/streams HTTP/1.1\r\nHost: evil.example"
    assert decided(BrowserPolicy(), head) == (0, NO_CORS)


def test_a_probe_may_ask_for_the_health_under_any_name() -> None:
    assert decided(BrowserPolicy(), b"GET /health HTTP/1.1\r\nHost: pod-7") == (0, NO_CORS)
    assert decided(BrowserPolicy(), b"GET /health/ HTTP/1.1\r\nHost: pod-7") == (421, NO_CORS)
    assert decided(BrowserPolicy(), b"GET /metrics HTTP/1.1\r\nHost: pod-7") == (421, NO_CORS)


@pytest.mark.parametrize(
    ("allowed", "host", "status"),
    [
        ("Semel.Example", "semel.example:4437", 0),
        ("semel.example", "a.semel.example", 421),
        ("*.example", "a.b.example", 0),
        ("*.example", "example", 421),
        ("*", "anything.at.all", 0),
        ("semel.", "semel", 0),
        ("[fd00:0:0:0:0:0:0:1]", "[fd00::1]", 0),
        ("FD00::1", "[fd00::1]:4437", 0),
        ("[fd00::1]", "[FD00:0::1]:4437", 0),
        ("[fd00::1]", "[fd00::2]", 421),
        ("[::ffff:10.1.2.3]", "[::ffff:a01:203]", 0),
        ("10.1.2.3", "10.1.2.3:4437", 0),
        ("10.1.2.3", "10.1.2.4", 421),
        ("::", "[fd00::1]", 421),
        ("0.0.0.0", "10.1.2.3", 421),
    ],
)
def test_more_names_can_be_allowed(allowed: str, host: str, status: int) -> None:
    policy = BrowserPolicy(rules(hosts=(allowed,)))
    assert decided(policy, raw(host=host)) == (status, NO_CORS)


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("evil.example:4437", "evil.example"),
        ("[fd00::1]:4437", "'[fd00::1]'"),
        ("[fd00::1]", "'[fd00::1]'"),
        ("$(x):1", "'$(x)'"),
    ],
)
def test_the_advice_names_the_host_without_its_port(host: str, name: str) -> None:
    """A person may copy it to a shell."""
    request, _ = HeadCache(LIMITS, BrowserPolicy()).read(raw(host=host))
    assert request.head.refusal is not None
    assert request.head.refusal.message.endswith(f" --allowed-host {name}")
    assert request.head.refusal.facts == {"host": host}


def test_the_names_that_are_remembered_are_bounded() -> None:
    policy = BrowserPolicy()
    for number in range(10_000):
        heads = HeadCache(LIMITS, policy)
        assert _decision(heads, raw(host=f"h{number}.example")) == (421, NO_CORS)
    assert len(policy._known) <= 4096
    assert decided(policy, raw(host="h" * 300)) == (421, NO_CORS)
    assert "h" * 300 not in policy._known


# ---- Origin and Sec-Fetch-Site -------------------------------------------------------------------

OWN = ["http://localhost:4437", "https://localhost:4437", "HTTP://LOCALHOST:4437"]
STRANGERS = ["null", "http://evil.example", "http://localhost", "http://localhost:3000", ""]
STRANGERS += ["http://127.0.0.1:4437", "ftp://localhost:4437", "http://localhost:4437.evil.example"]


@pytest.mark.parametrize("method", WRITES)
@pytest.mark.parametrize("origin", STRANGERS)
def test_a_page_of_another_origin_changes_nothing(method: str, origin: str) -> None:
    assert decided(BrowserPolicy(), raw(method, f"Origin: {origin}")) == (403, NO_CORS)


@pytest.mark.parametrize("method", [*READS, *WRITES])
@pytest.mark.parametrize("origin", OWN)
def test_a_page_of_the_server_itself_is_no_stranger(method: str, origin: str) -> None:
    lines = f"Origin: {origin}", "Sec-Fetch-Site: same-origin"
    assert decided(BrowserPolicy(), raw(method, *lines)) == (0, NO_CORS)


def test_two_origins_are_none() -> None:
    lines = f"Origin: {LISTED}", "Origin: http://localhost:4437"
    assert decided(BrowserPolicy(rules(LISTED)), raw("POST", *lines)) == (403, NO_CORS)


@pytest.mark.parametrize("origin", STRANGERS)
def test_a_read_of_an_old_browser_is_answered_but_not_for_the_page(origin: str) -> None:
    assert decided(BrowserPolicy(), raw("GET", f"Origin: {origin}")) == (0, NO_CORS)


@pytest.mark.parametrize("method", [*READS, *WRITES])
@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site", "something new"])
@pytest.mark.parametrize("origin", [None, "http://evil.example", OWN[0]])
def test_what_a_page_of_another_origin_started_is_refused(
    method: str, site: str, origin: str | None
) -> None:
    """Images, frames and links have no Origin, but renew a TTL and hold a connection."""
    lines = [f"Sec-Fetch-Site: {site}", *([] if origin is None else [f"Origin: {origin}"])]
    assert decided(BrowserPolicy(), raw(method, *lines)) == (403, NO_CORS)


def test_a_person_may_enter_the_address() -> None:
    assert decided(BrowserPolicy(), raw("GET", "Sec-Fetch-Site: none")) == (0, NO_CORS)


@pytest.mark.parametrize("origin", STRANGERS)
def test_a_preflight_is_answered_but_does_not_allow_the_origin(origin: str) -> None:
    lines = f"Origin: {origin}", "Sec-Fetch-Site: cross-site"
    assert decided(BrowserPolicy(), raw("OPTIONS", *lines)) == (0, NO_CORS)


# ---- allowed origins -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", [*READS, *WRITES, "OPTIONS"])
@pytest.mark.parametrize("site", ["cross-site", "same-site", None])
def test_a_listed_origin_may_do_everything(method: str, site: str | None) -> None:
    lines = [f"Origin: {LISTED}", *([] if site is None else [f"Sec-Fetch-Site: {site}"])]
    policy = BrowserPolicy(rules("http://other.example", LISTED))
    assert decided(policy, raw(method, *lines)) == (0, LISTED)
    assert decided(policy, raw(method, *lines, host="evil.example")) == (421, LISTED)


@pytest.mark.parametrize(
    ("method", "cors"), [*[(each, VARIES) for each in (*READS, "OPTIONS")], ("POST", NO_CORS)]
)
@pytest.mark.parametrize("origin", [None, "http://evil.example", OWN[0], f"{LISTED}.evil.example"])
def test_an_answer_that_a_cache_may_keep_varies_with_the_origin(
    method: str, cors: str, origin: str | None
) -> None:
    lines = [] if origin is None else [f"Origin: {origin}"]
    assert decided(BrowserPolicy(rules(LISTED)), raw(method, *lines))[1] == cors


@pytest.mark.parametrize("origin", [None, "null", "http://evil.example"])
def test_every_page_may_use_the_server_if_the_origin_is_a_star(origin: str | None) -> None:
    policy = BrowserPolicy(rules(LISTED, ANY))
    lines = ["Sec-Fetch-Site: cross-site", *([] if origin is None else [f"Origin: {origin}"])]
    assert decided(policy, raw("GET", *lines)) == (0, ANY)
    assert decided(policy, raw("POST", *lines)) == (0, NO_CORS if origin is None else ANY)
    assert decided(policy, raw("GET", *lines, host="evil.example")) == (421, ANY)


def test_the_header_lines_name_one_origin() -> None:
    assert set(BrowserPolicy().header_lines()) == {NO_CORS, VARIES}
    policy = BrowserPolicy(rules(LISTED, "http://b.example"))
    lines = policy.header_lines()
    assert set(lines) == {NO_CORS, VARIES, LISTED, "http://b.example"}
    for key, text in lines.items():
        assert "X-Content-Type-Options: nosniff\r\n" in text
        assert "Cross-Origin-Resource-Policy: cross-origin\r\n" in text
        assert ("Access-Control-Allow-Origin" in text) == (key in (LISTED, "http://b.example"))
        assert ("Vary: Origin\r\n" in text) == (key != NO_CORS)
    assert f"Access-Control-Allow-Origin: {LISTED}\r\n" in lines[LISTED]
    assert "Access-Control-Expose-Headers: Stream-Next-Offset" in lines[LISTED]
    star = BrowserPolicy(rules(ANY)).header_lines()[ANY]
    assert "Access-Control-Allow-Origin: *\r\n" in star
    assert "Vary" not in star
    own = BrowserPolicy().header_lines()[NO_CORS]
    assert "Cross-Origin-Resource-Policy: same-origin\r\n" in own


# ---- the head cache ------------------------------------------------------------------------------

LINES = ["Origin: http://evil.example", f"Origin: {LISTED}", "Origin: null", f"Origin: {OWN[0]}"]
LINES += ["origin: http://evil.example", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: none"]
LINES += ["sec-fetch-site: same-site", "Content-Length: 3", "Producer-Seq: 7", "X: y"]
heads = st.builds(
    lambda method, host, lines: raw(method, *lines, host=host),
    st.sampled_from([*READS, *WRITES, "OPTIONS"]),
    st.sampled_from(["localhost:4437", "evil.example", "127.0.0.1", None]),
    st.lists(st.sampled_from(LINES), max_size=3, unique=True),
)


@given(st.lists(heads, min_size=1, max_size=12), st.sampled_from([(), (LISTED,), (ANY,)]))
def test_a_cached_head_is_decided_as_a_new_one(raws: list[bytes], origins: tuple[str, ...]) -> None:
    known = HeadCache(LIMITS, BrowserPolicy(rules(*origins)))
    for head in [*raws, *raws, *raws]:
        fresh = HeadCache(LIMITS, BrowserPolicy(rules(*origins)))
        assert _decision(known, head) == _decision(fresh, head)


# ---- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("http://localhost:3000", "http://localhost:3000"),
        ("HTTPS://App.Example:443/", "https://app.example"),
        ("http://app.example:80", "http://app.example"),
        ("http://app.example:443", "http://app.example:443"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("http://[0:0:0:0:0:0:0:1]:3000", "http://[::1]:3000"),
        ("http://[::ffff:127.0.0.1]", "http://[::ffff:7f00:1]"),
        ("http://127.0.0.1:65535", "http://127.0.0.1:65535"),
        ("http://127.0.0.1.example:1", "http://127.0.0.1.example:1"),
        ("http://1a.0xg", "http://1a.0xg"),
        ("tauri://localhost", "tauri://localhost"),
        ("extension://123", "extension://123"),
        ("*", "*"),
    ],
)
def test_an_origin_is_compared_as_browsers_write_it(text: str, origin: str) -> None:
    assert parse_origin(text) == origin


@pytest.mark.parametrize(
    "text",
    [
        *("", "null", "app.example", "http://", "http://a/b", "http://a?b", "http://a b", "**"),
        *("http://a:", "http://a:0", "http://a:99999", "http://a:65536", "http://a:03000"),
        *("http://[:::]", "http://[127.0.0.1]", "http://[::1", "http://[fe80::1%1]", "http://::1"),
        *("http://999.1.1.1", "http://127.1", "http://1", "http://0x7f.0.0.1", "http://a.0x"),
        *(
            "http://01.2.3.4",
            "http://*.a",
            "http://u@a",
            "http://a:x",
            "http://a\r\nX: y",
            "http://é.example",
        ),
    ],
)
def test_what_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an origin"):
        parse_origin(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "a:1", "http://a", "a/b", "a b", "*.*.a", "a.*", "é", "a..b"),
        *("*.", "*..", ".", "**", "*.*", "* "),
        *("[fd00::1", "fd00::1]", "[fd00::1]:4437", "[[fd00::1]]", "[10.1.2.3]", "[]", "[:::]"),
        *("fe80::1%eth0", "[fe80::1%eth0]", "10.1.2.3:80"),
    ],
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a host name"):
        parse_host(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("*", "*"),
        ("*.Example.", "*.example"),
        ("fd00:0:0:0:0:0:0:1", "[fd00::1]"),
        ("[FD00::1]", "[fd00::1]"),
        ("10.1.2.3", "10.1.2.3"),
    ],
)
def test_a_name_is_written_in_one_way(text: str, name: str) -> None:
    assert parse_host(text) == name


@pytest.mark.parametrize(
    ("origin", "flag"),
    [
        ("http://evil.example", "http://evil.example"),
        *[(each, "*") for each in ("null", "*", "http://a/", "HTTP://A", "http://a:0", "http://1")],
    ],
)
def test_the_advice_names_an_origin_that_can_be_listed(origin: str, flag: str) -> None:
    request, _ = HeadCache(LIMITS, BrowserPolicy()).read(raw("POST", f"Origin: {origin}"))
    assert request.head.refusal is not None
    assert f" --cors-origin '{flag}'" in request.head.refusal.message


def test_a_refusal_is_logged_once_and_not_without_end(caplog: pytest.LogCaptureFixture) -> None:
    policy = BrowserPolicy()
    for number in range(100):
        for _ in range(3):
            HeadCache(LIMITS, policy).read(raw("POST", f"Origin: http://a{number}.example\x80"))
    assert len(caplog.messages) == 16
    assert "the origin 'http://a0.example?' cannot use this server" in caplog.messages[0]
