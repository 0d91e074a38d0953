import pytest

from app.deliberation.errors import InvalidRequest
from app.deliberation.roles import EngineSpec, engine_base, engine_endpoint, parse_roles

CHAT = "/chat/completions"


@pytest.mark.parametrize(
    ("given", "chat"),
    [
        ("http://gpu:8000", "http://gpu:8000/v1/chat/completions"),
        ("http://gpu:8000/", "http://gpu:8000/v1/chat/completions"),
        ("http://gpu:8000/v1", "http://gpu:8000/v1/chat/completions"),
        ("http://gpu:8000/v1/", "http://gpu:8000/v1/chat/completions"),
        ("http://gpu:8000/v1/chat/completions", "http://gpu:8000/v1/chat/completions"),
        ("http://gpu:8000/proxy", "http://gpu:8000/proxy/v1/chat/completions"),
        ("https://h/api/paas/v4", "https://h/api/paas/v4/chat/completions"),
        ("https://h/api/v3/chat/completions", "https://h/api/v3/chat/completions"),
        ("https://h/v1beta/openai/", "https://h/v1beta/openai/chat/completions"),
        ("https://h/openai/v1", "https://h/openai/v1/chat/completions"),
        ("https://h/client/v4/accounts/x/ai/v1", "https://h/client/v4/accounts/x/ai/v1/chat/completions"),
        (
            "https://h/openai/deployments/m?api-version=2024-10-21",
            "https://h/openai/deployments/m/chat/completions?api-version=2024-10-21",
        ),
        (
            "https://h/openai/deployments/m/chat/completions?api-version=2024-10-21",
            "https://h/openai/deployments/m/chat/completions?api-version=2024-10-21",
        ),
    ],
)
def test_an_engine_is_found_at_the_addresses_that_people_have(given: str, chat: str) -> None:
    assert engine_endpoint(engine_base(given), CHAT) == chat
    assert engine_base(engine_base(given)) == engine_base(given), "a checked address is not changed again"


@pytest.mark.parametrize(
    "given",
    [
        "gpu:8000",
        "ftp://gpu",
        "http://",
        "http://gpu/v1/completions",
        "http://gpu/v1/responses",
        "http://gpu/v1/messages",
        "http://gpu:11434/api/chat",
        "http://gpu:11434/api/generate",
        "http://gpu/v1#x",
    ],
)
def test_an_address_that_cannot_work_is_refused_at_the_start(given: str) -> None:
    roles = {"roles": {"DEV": {"persona": "p", "engines": [{"url": given}]}}}
    with pytest.raises(InvalidRequest, match=r"roles\.DEV\.engines"):
        parse_roles(roles)


def test_a_deployment_names_its_model() -> None:
    assert EngineSpec(url="https://h/openai/deployments/m?api-version=1").deployment == "m"
    assert EngineSpec(url="https://h/v1").deployment is None


@pytest.mark.parametrize("proxy", ["socks5://p:1080", "p:3128", "http://"])
def test_a_proxy_that_speaks_no_http_is_refused(proxy: str) -> None:
    with pytest.raises(ValueError, match="a proxy is an http"):
        EngineSpec(url="http://gpu", proxy=proxy)
