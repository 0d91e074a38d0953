from collections.abc import AsyncGenerator
from dataclasses import dataclass
from itertools import product

import httpx
import pytest
from starlette.datastructures import Headers

from app.access.authorization import ACCESS
from app.access.origins import checked_host, same_site
from app.settings import Settings
from tests.components.access.keyed import PEPPER, bearer, make_key
from tests.components.openapi.documented import filled, operations
from tests.components.routes.served import Served, served

Given = list[tuple[str, str]]
LISTED = "https://listed.example"
# What browsers send with a request from such a page, and what attackers make of it.
FOREIGN: dict[str, Given] = {
    "another site": [("Origin", "https://evil.example"), ("Sec-Fetch-Site", "cross-site")],
    "another site, old browser": [("Origin", "https://evil.example")],
    "a sibling domain": [("Origin", "http://evil.localhost"), ("Sec-Fetch-Site", "same-site")],
    "another port": [("Origin", "http://localhost:3000"), ("Sec-Fetch-Site", "same-site")],
    "another port, old browser": [("Origin", "http://localhost:3000")],
    "another scheme": [("Origin", "https://localhost"), ("Sec-Fetch-Site", "cross-site")],
    "no web scheme": [("Origin", "x://localhost")],
    "an extension": [("Origin", "chrome-extension://localhost")],
    "a sandboxed frame": [("Origin", "null"), ("Sec-Fetch-Site", "cross-site")],
    "an opaque origin": [("Origin", "null")],
    "an opaque origin that calls itself the same": [("Origin", "null"), ("Sec-Fetch-Site", "same-origin")],
    "typed by the user": [("Sec-Fetch-Site", "none")],
    "no origin": [("Sec-Fetch-Site", "cross-site")],
    "an unknown relation": [("Sec-Fetch-Site", "sibling")],
    "a longer name": [("Origin", "http://localhost.evil.example")],
    "userinfo": [("Origin", "http://localhost@evil.example")],
    "userinfo first": [("Origin", "http://evil.example@localhost")],
    "a path": [("Origin", "http://localhost/")],
    "an empty origin": [("Origin", "")],
    "two origins": [("Origin", "http://localhost"), ("Origin", "https://evil.example")],
    "two origins in one": [("Origin", "http://localhost, https://evil.example")],
    "two relations": [("Sec-Fetch-Site", "same-origin"), ("Sec-Fetch-Site", "cross-site")],
    "almost a listed origin": [("Origin", "http://listed.example")],
    "a forwarded host": [("Origin", "https://evil.example"), ("X-Forwarded-Host", "evil.example")],
}
OWN: dict[str, Given] = {
    "this site": [("Origin", "http://localhost"), ("Sec-Fetch-Site", "same-origin")],
    "this site, old browser": [("Origin", "http://localhost")],
    "this site with its port": [("Origin", "http://localhost:80")],
    "this site without its origin": [("Sec-Fetch-Site", "same-origin")],
    "a listed origin": [("Origin", LISTED), ("Sec-Fetch-Site", "cross-site")],
}
# Names that another site can make a browser send, and forms that parsers read differently.
FOREIGN_HOSTS = (
    "evil.example", "localhost.evil.com", "127.0.0.1.nip.io", "127.0.0.1.evil.com:8080", "192.0.2.7:8080",
    "[2001:db8::1]", "gateway", "gateway:8080", "intranet", "0.0.0.0:8080", "[::]:8080", "127.1", "2130706433",
    "0x7f000001", "localhost.", "127.0.0.1.", "localhost:8080.", "evil.example@localhost", "localhost@evil.example",
    "localhost:80@evil.example", "localhost/evil.example", "localhost#evil.example", "localhost evil.example",
    "localhost,evil.example", "localhost:", "localhost:0", "localhost:65536", "localhost:+80", "[::1", "::1", "[", "",
    "localhost\\evil.example", "xn--localhost-", "notlocalhost", ".localhost", "127.0.0.1:80:80", "[localhost]",
)  # fmt: skip
OWN_HOSTS = (
    "localhost", "localhost:8080", "LOCALHOST:8080", "LocalHost", "127.0.0.1", "127.0.0.1:8080", "127.0.0.53",
    "[::1]", "[::1]:8080", "app.localhost:8080", "listed.example", "Listed.Example:8443",
)  # fmt: skip


@dataclass
class Site:
    gateway: Served
    headers: dict[str, str]
    running: str

    async def ask(self, method: str, path: str, given: Given, headers: dict[str, str]) -> httpx.Response:
        url = filled(path, deliberation_id=self.running, role="DEV", model="council/DEV")
        accept = {"Accept": "application/json"} if "events" in path else {}
        return await self.gateway.client.request(method, url, headers=[*given, *(headers | accept).items()])

    def changes(self) -> list[str]:
        return [record.subject for record in self.gateway.journal.records]


@pytest.fixture
async def in_development() -> AsyncGenerator[Site, None]:
    async with served(cors_origins=(LISTED,), allowed_hosts=("listed.example",)) as gateway:
        yield Site(gateway, {}, await gateway.accepted())


@pytest.fixture
async def with_session() -> AsyncGenerator[Site, None]:
    async with served(key_pepper=PEPPER, cors_origins=(LISTED,)) as gateway:
        key = await make_key(gateway.journal)
        session = await gateway.client.post("/login", json={"key": key})
        cookie = session.headers["set-cookie"].partition(";")[0]
        gateway.client.cookies.clear()
        made = await gateway.client.post("/deliberations", json={"task": "t"}, headers=bearer(key))
        yield Site(gateway, {"Cookie": cookie}, made.json()["id"])


SAFE = [each for each in operations() if each[1] == "GET"]
CHANGES = [each for each in operations() if each[1] != "GET"]


async def _check_changes(site: Site, name: str, method: str, path: str, headers: dict[str, str]) -> None:
    before = site.changes()
    for page, given in FOREIGN.items():
        response = await site.ask(method, path, given, headers)
        assert (response.status_code, '"cross_site"' in response.text) == (403, True), (name, page, response.text)
        assert "CORS_ORIGINS" in response.text, "the remedy"
        assert "set-cookie" not in response.headers
    assert site.changes() == before
    for page, given in OWN.items():
        assert (await site.ask(method, path, given, headers)).status_code not in (401, 403), (name, page)


@pytest.mark.parametrize(("name", "method", "path"), CHANGES)
async def test_development_mode_refuses_changes_from_other_sites(
    in_development: Site, name: str, method: str, path: str
) -> None:
    await _check_changes(in_development, name, method, path, {})
    # Nor does a header that only looks like a credential help.
    await _check_changes(in_development, name, method, path, bearer("whatever"))
    without_browser = await in_development.ask(method, path, [], {})
    assert without_browser.status_code not in (401, 403)


@pytest.mark.parametrize(("name", "method", "path"), CHANGES)
async def test_a_session_makes_no_changes_for_other_sites(
    with_session: Site, name: str, method: str, path: str
) -> None:
    await _check_changes(with_session, name, method, path, with_session.headers)
    without_browser = await with_session.ask(method, path, [], with_session.headers)
    needed = ACCESS[name]
    assert (without_browser.status_code == 403) == (needed is not None), "a cookie comes from a browser that says where"


@pytest.mark.parametrize(("name", "method", "path"), CHANGES)
async def test_a_key_makes_changes_whatever_the_page(with_session: Site, name: str, method: str, path: str) -> None:
    """A page can send a key only after a preflight, which unlisted origins do not pass."""
    if ACCESS[name] is None:
        return
    key = bearer(await make_key(with_session.gateway.journal))
    for page, given in FOREIGN.items():
        assert (await with_session.ask(method, path, given, key)).status_code not in (401, 403), page
    preflight = [("Origin", "https://evil.example"), ("Access-Control-Request-Method", method)]
    response = await with_session.ask(
        "OPTIONS", path, [*preflight, ("Access-Control-Request-Headers", "authorization")], {}
    )
    assert response.status_code in (400, 405) and "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize(("name", "method", "path"), SAFE)
async def test_reads_need_no_site(in_development: Site, with_session: Site, name: str, method: str, path: str) -> None:
    """A link from anywhere may be followed; without CORS, a page of another site cannot read the answer."""
    for site, (page, given) in product((in_development, with_session), FOREIGN.items()):
        response = await site.ask(method, path, given, site.headers)
        assert response.status_code not in (401, 403), (name, page)
        assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize(("name", "method", "path"), operations())
async def test_development_mode_answers_only_to_its_own_names(
    in_development: Site, name: str, method: str, path: str
) -> None:
    before = in_development.changes()
    for host in FOREIGN_HOSTS:
        response = await in_development.ask(method, path, [("Host", host)], {})
        assert (response.status_code, response.json()["code"]) == (400, "foreign_host"), host
    two = [("Host", "localhost"), ("Host", "evil.example")]
    for given in (two, two[::-1], [two[0]] * 2):
        assert (await in_development.ask(method, path, given, {})).status_code == 400
    assert in_development.changes() == before
    for host in OWN_HOSTS:
        assert (await in_development.ask(method, path, [("Host", host)], {})).status_code not in (400, 403) or (
            method == "POST"
        ), host


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json", "/ui/page.js", "/nothing"])
async def test_pages_and_unknown_paths_check_the_host_too(in_development: Site, path: str) -> None:
    assert (await in_development.ask("GET", path, [("Host", "evil.example")], {})).status_code == 400
    assert (await in_development.ask("GET", path, [("Host", "localhost:8080")], {})).status_code in (200, 404)


async def test_a_rebound_name_cannot_read(in_development: Site) -> None:
    """The page's name resolves to loopback: to the browser, it and the gateway have one origin."""
    rebound = [("Host", "evil.example:8080"), ("Origin", "http://evil.example:8080"), ("Sec-Fetch-Site", "same-origin")]
    for method, path in (("GET", "/deliberations"), ("POST", "/deliberations/{deliberation_id}/cancel")):
        response = await in_development.ask(method, path, rebound, {})
        assert (response.status_code, response.json()["code"]) == (400, "foreign_host")
        assert "ALLOWED_HOSTS" in response.json()["errors"][0]["remedy"]


async def test_with_keys_any_one_host_is_accepted_unless_hosts_are_listed() -> None:
    for listed, host, status in (
        ((), "anything.example", 200),
        ((), "gateway", 200),
        (("api.example",), "api.example", 200),
        (("api.example",), "api.example:8443", 200),
        (("api.example",), "localhost:8080", 200),
        (("api.example",), "anything.example", 400),
        (("api.example",), "sub.api.example", 400),
        (("api.example",), "", 400),
    ):
        async with served(key_pepper=PEPPER, allowed_hosts=listed) as gateway:
            response = await gateway.client.get("/healthz", headers={"Host": host})
            assert response.status_code == status, (listed, host)
            two = await gateway.client.get("/healthz", headers=[("Host", "localhost"), ("Host", host)])
            assert two.status_code == 400


@pytest.mark.parametrize(
    ("scheme", "host", "origin", "same"),
    [
        ("http", "localhost:8080", "http://localhost:8080", True),
        ("http", "LOCALHOST:8080", "http://localhost:8080", True),
        ("http", "[::1]:8080", "http://[::1]:8080", True),
        ("https", "api.example", "https://api.example:443", True),
        ("https", "api.example:443", "https://api.example", True),
        ("http", "api.example", "https://api.example", False),
        ("https", "api.example", "http://api.example", False),
        ("http", "api.example:443", "http://api.example", False),
        ("x", "127.0.0.1", "x://127.0.0.1", False),
        ("http", "", "null", False),
        ("http", "", "http://", False),
        ("http", "127.0.0.1", "x://127.0.0.1", False),
        ("http", "127.0.0.1", "//127.0.0.1", False),
        ("http", "127.0.0.1", "127.0.0.1", False),
    ],
)
def test_an_origin_equals_scheme_host_and_port(scheme: str, host: str, origin: str, same: bool) -> None:
    assert same_site(Headers({"host": host, "origin": origin}), scheme, ()) == same


@pytest.mark.parametrize("host", ["https://a", "a:80", "A.example", "a.", "*.example", "*", "", "a/b", "u@a"])
def test_rejects_inexact_hosts(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    with pytest.raises(ValueError, match="not a host"):
        checked_host(host)
    if host:
        monkeypatch.setenv("ALLOWED_HOSTS", f"fine.example, {host}")
        with pytest.raises(ValueError, match="ALLOWED_HOSTS"):
            Settings()
    monkeypatch.setenv("ALLOWED_HOSTS", "fine.example, [2001:db8::1],192.0.2.7")
    assert Settings().allowed_hosts == ("fine.example", "[2001:db8::1]", "192.0.2.7")
