"""Which URLs and addresses webhooks may have: the list of ways around such checks."""

from ipaddress import ip_address

import pytest

from semel.model.limits import WEBHOOK_URL_BYTES_MAX
from semel.server.webhook_targets import (
    TargetPolicy,
    WebhookTarget,
    check_url,
    parse_network,
    parse_target,
    refuse_address,
)

PUBLIC = TargetPolicy()
LOCAL = TargetPolicy(allows_loopback=True)


def allowing(*networks: str, allows_loopback: bool = False) -> TargetPolicy:
    return TargetPolicy(allows_loopback, tuple(map(parse_network, networks)))


def target(url: str) -> WebhookTarget:
    parsed = parse_target(url)
    assert isinstance(parsed, WebhookTarget)
    return parsed


# ---- URLs ----------------------------------------------------------------------------------------

REFUSED = [
    # other schemes, and no scheme
    "http://example.com/hook",
    "http://93.184.216.34/",
    "file:///etc/passwd",
    "gopher://example.com/_x",
    "ftp://example.com/",
    "ldap://example.com/",
    "javascript:alert(1)",
    "data:text/plain,x",
    "//example.com/",
    "/hook",
    "example.com",
    "",
    "https:",
    "https:/example.com/",
    "https:///hook",
    "https://",
    "https://:443/",
    " https://example.com/",
    # private and special addresses
    "http://10.0.0.1/hook",
    "https://10.0.0.1/",
    "https://10.255.255.255/",
    "https://172.16.0.1/",
    "https://172.31.255.255/",
    "https://192.168.0.1/",
    "https://100.64.0.1/",
    "https://100.127.255.255/",
    "https://0.0.0.0/",
    "https://0.1.2.3/",
    "https://169.254.0.1/",
    "https://192.0.0.1/",
    "https://192.0.2.1/",
    "https://198.18.0.1/",
    "https://198.51.100.1/",
    "https://203.0.113.1/",
    "https://192.88.99.1/",
    "https://224.0.0.1/",
    "https://239.255.255.255/",
    "https://240.0.0.1/",
    "https://255.255.255.255/",
    "https://[::]/",
    "https://[fc00::1]/",
    "https://[fd12:3456::1]/",
    "https://[fe80::1]/",
    "https://[fec0::1]/",
    "https://[ff02::1]/",
    "https://[2001:db8::1]/",
    "https://[3fff::1]/",
    "https://[100::1]/",
    "https://[2001:2::1]/",
    "https://[5f00::1]/",
    "https://[4000::1]/",
    # metadata of clouds
    "http://169.254.169.254/latest/meta-data/",
    "https://169.254.169.254/",
    "https://169.254.170.2/",
    "https://100.100.100.200/",
    "https://168.63.129.16/",
    "https://192.0.0.192/",
    "https://[fd00:ec2::254]/",
    "https://[fd20:ce::254]/",
    "https://[fe80::a9fe:a9fe]/",
    # IPv4 in IPv6
    "https://[::ffff:10.0.0.1]/",
    "https://[::ffff:0a00:0001]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:169.254.169.254]/",
    "https://[::ffff:8.8.8.8]/",
    "https://[::ffff:0:10.0.0.1]/",
    "https://[::10.0.0.1]/",
    "https://[::127.0.0.1]/",
    "https://[64:ff9b::10.0.0.1]/",
    "https://[64:ff9b::8.8.8.8]/",
    "https://[64:ff9b:1::10.0.0.1]/",
    "https://[2002:0a00:0001::1]/",
    "https://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/",
    # IPv4 in other forms
    "https://127.1/",
    "https://127.0.1/",
    "https://10.1/",
    "https://2130706433/",
    "https://0x7f000001/",
    "https://0X7F.0x0.0x0.0x1/",
    "https://0x7f.1/",
    "https://0x/",
    "https://017700000001/",
    "https://0177.0.0.1/",
    "https://127.0.0.01/",
    "https://010.0.0.1/",
    "https://8.8.8.08/",
    "https://8.8.8.256/",
    "https://8.8.8.8.8/",
    "https://8.8.8/",
    "https://example.0x7f/",
    "https://example.1/",
    "https://1.2.3.4./",
    # names
    "https://localhost/",
    "https://LOCALHOST/",
    "https://LocalHost:8443/",
    "https://localhost./",
    "https://a.localhost/",
    "https://example.com./",
    "https://example..com/",
    "https://.example.com/",
    "https://-a.example.com/",
    "https://a-.example.com/",
    "https://b\u00fccher.example/",
    "https://\uff11\uff12\uff17.0.0.1/",
    "https://\u2488\u2488\u2488\u2488/",
    "https://example\u3002com/",
    "https://ex%61mple.com/",
    "https://127.0.0.1%2f@example.com/",
    "https://exam ple.com/",
    "https://" + "a" * 64 + ".com/",
    "https://" + "a." * 127 + "com/",
    # brackets
    "https://[::1/",
    "https://::1/",
    "https://[127.0.0.1]/",
    "https://[v1.fe80::1]/",
    "https://[fe80::1%25eth0]/",
    "https://[fe80::1%eth0]/",
    "https://[]/",
    "https://[::1]x/",
    "https://[1::2::3]/",
    # user names, ports, and parts that a request does not have
    "https://user@example.com/",
    "https://user:password@example.com/",
    "https://ok@10.0.0.1/",
    "https://example.com@10.0.0.1/",
    "https://@example.com/",
    "https://example.com:443@10.0.0.1/",
    "https://example.com#@10.0.0.1/",
    "https://example.com/#fragment",
    "https://example.com#",
    "https://example.com\\@10.0.0.1/",
    "https:\\\\example.com\\",
    "https://example.com:22/",
    "https://example.com:25/",
    "https://example.com:6000/",
    "https://example.com:6667/",
    "https://example.com:0/",
    "https://example.com:65536/",
    "https://example.com:/",
    "https://example.com:x/",
    "https://example.com:+443/",
    "https://example.com:0443/",
    "https://example.com:443:443/",
    "https://example.com:\u0664\u0664\u0663/",
    # characters that end a line or a header
    "https://example.com/\r\nX-Injected: 1",
    "https://example.com/\n",
    "https://example.com/\t",
    "https://example.com/\0",
    "https://example.com/\x7f",
    "https://exa\tmple.com/",
    "https://example.com/a b",
    'https://example.com/"',
    "https://example.com/<x>",
    "https://example.com/{x}",
    "https://example.com/\ud800",
    "https://example.com/" + "x" * WEBHOOK_URL_BYTES_MAX,
]


@pytest.mark.parametrize("url", REFUSED)
def test_a_url_is_refused(url: str) -> None:
    assert check_url(url, PUBLIC)


@pytest.mark.parametrize("url", REFUSED)
def test_most_are_also_refused_on_a_server_that_listens_on_loopback(url: str) -> None:
    host = url.partition("://")[2].lower()
    is_this_machine = host.startswith(("localhost/", "localhost:", "a.localhost/"))
    assert bool(check_url(url, LOCAL)) is not is_this_machine


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "https://127.0.0.1/",
        "http://127.0.0.1:8080/hook?x=1",
        "http://127.255.255.254:8080/",
        "http://[::1]:8080/",
        "http://localhost:8080/",
        "https://localhost/",
        "http://a.localhost:8080/",
    ],
)
def test_this_machine_is_allowed_only_on_a_server_that_listens_on_loopback(url: str) -> None:
    assert check_url(url, LOCAL) is None
    assert check_url(url, PUBLIC)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "https://example.com/",
        "https://example.com/hook?a=b&c=%20d",
        "https://example.com?a=b",
        "HTTPS://Example.COM:8443/Hook",
        "https://example.com:443/",
        "https://example.com:80/",
        "https://xn--bcher-kva.example/",
        "https://a_b.example.com/",
        "https://intranet/",
        "https://1and1.example/",
        "https://8.8.8.8/",
        "https://[2606:4700:4700::1111]/",
        "https://[2606:4700:4700::1111]:8443/",
        "https://example.com/" + "x" * (WEBHOOK_URL_BYTES_MAX - 20),
    ],
)
def test_a_public_url_is_allowed(url: str) -> None:
    assert check_url(url, PUBLIC) is None
    assert check_url(url, LOCAL) is None


def test_the_parts_of_a_url_are_those_of_the_request() -> None:
    assert target("HTTPS://Example.COM/Hook?A=b") == WebhookTarget(
        True, "example.com", 443, None, "/Hook?A=b"
    )
    assert target("https://example.com?a=b").path == "/?a=b"
    assert target("https://example.com").authority == "example.com"
    assert target("https://example.com:443").authority == "example.com"
    assert target("https://example.com:8443").authority == "example.com:8443"
    assert target("http://example.com:80").authority == "example.com"
    assert target("https://[2606:4700::0:1]:80/").authority == "[2606:4700::1]:80"
    assert target("https://[2606:4700::1]").host == "2606:4700::1"


def test_a_reason_does_not_repeat_what_is_secret() -> None:
    for url in REFUSED:
        reason = check_url(url, PUBLIC)
        assert reason is not None
        assert "password" not in reason or "user name or a password" in reason
        assert "\n" not in reason
        assert len(reason) < 200


# ---- addresses of names --------------------------------------------------------------------------

SPECIAL = [
    "0.0.0.0",
    "10.0.0.1",
    "100.64.0.1",
    "127.0.0.1",
    "127.8.8.8",
    "169.254.1.1",
    "169.254.169.254",
    "168.63.129.16",
    "172.16.0.1",
    "192.0.0.1",
    "192.0.2.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.19.255.255",
    "224.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::ffff:10.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:8.8.8.8",
    "::127.0.0.1",
    "64:ff9b::10.0.0.1",
    "64:ff9b::127.0.0.1",
    "64:ff9b::169.254.169.254",
    "64:ff9b::168.63.129.16",
    "64:ff9b:1::8.8.8.8",
    "2002:7f00:1::",
    "2001::1",
    "2001:db8::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%1",
    "ff02::1",
]
NAME = target("https://hooks.example.com/")


@pytest.mark.parametrize("address", SPECIAL)
@pytest.mark.parametrize("policy", [PUBLIC, LOCAL], ids=["public", "local"])
def test_a_name_cannot_have_a_special_address(address: str, policy: TargetPolicy) -> None:
    assert refuse_address(ip_address(address), NAME, policy)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1", "64:ff9b::8.8.8.8"])
def test_a_name_can_have_a_public_address(address: str) -> None:
    assert refuse_address(ip_address(address), NAME, PUBLIC) is None


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_only_localhost_can_have_an_address_of_this_machine(address: str) -> None:
    localhost = target("http://localhost:8080/")
    assert refuse_address(ip_address(address), localhost, LOCAL) is None
    assert refuse_address(ip_address(address), localhost, PUBLIC)
    assert refuse_address(ip_address(address), NAME, LOCAL)


def test_localhost_with_another_address_is_refused() -> None:
    localhost = target("http://localhost:8080/")
    assert refuse_address(ip_address("8.8.8.8"), localhost, LOCAL)
    assert refuse_address(ip_address("10.0.0.1"), localhost, LOCAL)


# ---- networks that are allowed -------------------------------------------------------------------


def test_a_network_that_is_allowed_can_be_used_with_http_and_https() -> None:
    policy = allowing("10.1.0.0/16", "fd12::/16")
    for url in ("http://10.1.2.3/", "https://10.1.2.3/", "http://[fd12::1]/"):
        assert check_url(url, policy) is None
    for url in ("http://10.2.0.1/", "https://10.2.0.1/", "https://[fd13::1]/", "http://8.8.8.8/"):
        assert check_url(url, policy)
    plain = target("http://hooks.internal/")
    assert check_url("http://hooks.internal/", policy) is None
    assert refuse_address(ip_address("10.1.2.3"), plain, policy) is None
    assert refuse_address(ip_address("10.2.2.3"), plain, policy)
    assert refuse_address(ip_address("8.8.8.8"), plain, policy) == "public, which needs https"


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "169.254.170.2",
        "169.254.0.23",
        "169.254.42.42",
        "168.63.129.16",
        "100.100.100.200",
        "fd00:ec2::254",
        "fd00:c1::a9fe:a9fe",
        "fd00:42::42",
        "::ffff:169.254.169.254",
        "::ffff:10.0.0.1",
        "::10.0.0.1",
        "::2",
        "64:ff9b::169.254.169.254",
        "2002:a9fe:a9fe::1",
    ],
)
def test_no_network_allows_metadata_or_hidden_addresses(address: str) -> None:
    policy = allowing("0.0.0.0/0", "::/0", allows_loopback=True)
    assert refuse_address(ip_address(address), NAME, policy)
    url = f"http://[{address}]/" if ":" in address else f"http://{address}/"
    assert check_url(url, policy)


def test_a_network_can_allow_this_machine_to_names() -> None:
    policy = allowing("127.0.0.0/8")
    assert check_url("http://localhost:8080/", policy) is None
    assert check_url("http://127.0.0.1:8080/", policy) is None
    assert refuse_address(ip_address("127.0.0.1"), NAME, policy) is None
    assert refuse_address(ip_address("::1"), NAME, policy)
    assert check_url("http://localhost:8080/", allowing("10.0.0.0/8"))


@pytest.mark.parametrize("text", ["", "x", "10.0.0.0/33", "10.0.0.1/8", "example.com", "10.1"])
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a network"):
        parse_network(text)
