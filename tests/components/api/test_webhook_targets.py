from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.webhook_targets import Rules, Target, UnfitUrl, address_refused, parsed
from tests.reported_inputs import REPORTED, reported

RULES = Rules.of([443, 8443], ["receiver.test", "10.0.0.9:9000"])
SPECIAL = (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
    "192.0.2.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4",
    "240.0.0.0/4",
    "::/128", "::1/128", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/32", "2001:db8::/32",
    "2002::/16", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
)  # fmt: skip


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://hooks.example.com", "https://hooks.example.com:443"),
        ("https://hooks.example.com/a/b?c=d&e=%20", "https://hooks.example.com:443"),
        ("https://Hooks.Example.COM:8443/", "https://hooks.example.com:8443"),
        ("https://xn--bcher-kva.example?x", "https://xn--bcher-kva.example:443"),
        ("https://93.184.215.14/hook", "https://93.184.215.14:443"),
        ("https://[2606:4700::1111]/hook", "https://[2606:4700::1111]:443"),
        ("http://receiver.test:5000/hook", "http://receiver.test:5000"),
        ("http://10.0.0.9:9000/hook", "http://10.0.0.9:9000"),
    ],
)
def test_permits_public_https_urls_and_listed_hosts(url: str, target: str) -> None:
    assert str(RULES.check(url)) == target


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/",
        "ftp://hooks.example.com/",
        "hooks.example.com",
        "//hooks.example.com/",
        "https:///path",
        "https://",
        "javascript:alert(1)",
        "https://hooks.example.com:22/",
        "https://hooks.example.com:0/",
        "https://hooks.example.com:65536/",
        "https://hooks.example.com:443443/",
        "https://hooks.example.com:+443/",
        "https://user:secret@hooks.example.com/",
        "https://user@hooks.example.com/",
        "https://@hooks.example.com/",
        "https://good.example\\@10.0.0.1/",
        "https://good.example\\.evil/",
        "https://hooks.example.com/#fragment",
        "https://hooks.example.com/a b",
        "https://hooks.example.com/\r\nHost: evil",
        "https://hooks.exa\tmple.com/",
        "https://bücher.example/",
        "https://hooks_1.example.com/",
        "https://-hooks.example.com/",
        "https://hooks..example.com/",
        "https://hooks.example.com./",
        "https://.example.com/",
        f"https://{'a' * 64}.example/",
        f"https://{'a.' * 127}example/",
        f"https://hooks.example.com/{'a' * 2_048}",
        "https://localhost/",
        "https://a.localhost/",
        "https://printer.local/",
        "https://metadata.google.internal/",
        "https://127.0.0.1/",
        "https://127.1/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0x7f.1/",
        "https://0177.0.0.1/",
        "https://1.2.3/",
        "https://169.254.169.254/latest/meta-data",
        "https://168.63.129.16/",
        "https://100.100.100.200/",
        "https://[::1]:443/",
        "https://[::ffff:127.0.0.1]/",
        "https://[fd00:ec2::254]/",
        "https://[fe80::1%25eth0]/",
        "https://[fe80::1%eth0]/",
        "https://[::]/",
        "https://[/",
        "https://10.0.0.9/",
        "http://10.0.0.9:9001/",
    ],
)
def test_refuses_every_other_url(url: str) -> None:
    with pytest.raises(UnfitUrl):
        RULES.check(url)


@pytest.mark.parametrize("network", SPECIAL)
def test_refuses_all_addresses_of_special_networks(network: str) -> None:
    block = ip_network(network)
    assert all(address_refused(str(block[place])) for place in (0, -1, block.num_addresses // 2))


@given(st.ip_addresses(v=4))
def test_refuses_every_address_that_ipaddress_calls_not_global(address: IPv4Address) -> None:
    if not address.is_global or address.is_multicast or address.is_reserved:
        assert address_refused(str(address))


@given(st.ip_addresses(v=4))
def test_refuses_ipv6_addresses_that_embed_ipv4(address: IPv4Address) -> None:
    number = int(address)
    mapped = IPv6Address((0xFFFF << 32) | number)
    six_to_four = IPv6Address((0x2002 << 112) | (number << 80) | 1)
    nat64 = IPv6Address(int(IPv6Network("64:ff9b::/96").network_address) | number)
    assert all(address_refused(str(each)) for each in (mapped, six_to_four, nat64, IPv6Address(number)))


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.215.14", "168.63.129.17", "2606:4700::1111", "2a00:1450::1"])
def test_permits_public_addresses(address: str) -> None:
    assert not address_refused(address)


@pytest.mark.parametrize("address", ["", "localhost", "fe80::1%eth0", "2606:4700::1111%1", "1.1.1.1/32", "0x7f000001"])
def test_refuses_text_that_is_not_a_plain_address(address: str) -> None:
    assert address_refused(address)


@given(st.text(max_size=80).map("https://{}".format))
def test_parsing_any_url_raises_nothing_but_unfit_url(url: str) -> None:
    try:
        target = parsed(url)
    except UnfitUrl as unfit:
        assert str(unfit) and unfit.remedy
    else:
        assert parsed(target.url) == target


def test_a_target_shows_neither_path_nor_query() -> None:
    assert str(Target("https", "::1", 443)) == "https://[::1]:443"
    assert str(parsed("https://hooks.example.com/secret?token=1")) == "https://hooks.example.com:443"


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("https://hooks_1.example.com/x", "underscore"),
        ("https://hooks.example.com./x", "ends with a dot"),
        ("https://hooks.example.com/#top", "fragment"),
        ("https://bücher.example/x", "other characters than ASCII"),
        ("https://hooks.example.com/a b", "must escape"),
        ("https://hooks.example.com/ä", "must escape"),
        ("ftp://hooks.example.com/x", "scheme is ftp"),
        ("https://hooks.example.com:https/x", "cannot be read"),
        ("HTTPS://USER@HOOKS.EXAMPLE.COM/x", "credentials"),
        (f"https://hooks.example.com/{'a' * 2_048}", "too long"),
    ],
)
def test_a_url_is_refused_for_its_own_fault(url: str, cause: str) -> None:
    with pytest.raises(UnfitUrl, match=cause):
        RULES.check(url)


@pytest.mark.parametrize(
    ("url", "requested"),
    [
        ("HTTPS://Hooks.Example.com/X?Y=Z", "https://hooks.example.com:443/X?Y=Z"),
        ("https://hooks.example.com:/x", "https://hooks.example.com:443/x"),
        ("https://hooks.example.com?x", "https://hooks.example.com:443/?x"),
        ("https://[2606:4700:0:0::1111]/x", "https://[2606:4700::1111]:443/x"),
        ("https://XN--BCHER-KVA.example/x", "https://xn--bcher-kva.example:443/x"),
    ],
)
def test_a_url_is_requested_in_one_spelling(url: str, requested: str) -> None:
    assert RULES.check(url).url == requested


@pytest.mark.parametrize("name", reported("webhook URLs"))
def test_a_reported_url_is_taken_or_refused_for_its_own_fault(name: str) -> None:
    url, expected = REPORTED[name]["input"]["request"]["webhook"]["url"], REPORTED[name]["expected"]
    if "refused" in expected:
        with pytest.raises(UnfitUrl, match=expected["refused"]):
            RULES.check(url)
    else:
        assert RULES.check(url).url == expected["requested"]
