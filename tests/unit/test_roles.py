from collections.abc import Callable
from decimal import Decimal
from importlib.resources import files

import pytest
import yaml

from app.deliberation.errors import InvalidRequest
from app.deliberation.roles import AgentRunner, EngineSpec, Role, api_key, parse_roles, placed
from app.deliberation.specification import Sampling

PERSONA = {"persona": "You are a cooper."}


def test_the_shipped_file_declares_five_roles_with_personas_of_their_own() -> None:
    roles = parse_roles(yaml.safe_load(files("app").joinpath("roles.yaml").read_text()))
    assert list(roles) == ["DEV", "QA", "ARCHITECT", "DEVOPS", "DATA"]
    assert len({role.persona for role in roles.values()}) == 5
    assert all(role.model is None and role.engines == () for role in roles.values()), "the default engines serve them"


def test_a_role_may_name_all_of_it() -> None:
    role = parse_roles(
        {
            "roles": {
                "COOPER": {
                    **PERSONA,
                    "model": "oak",
                    "engines": ["http://a:1/v1/", "https://b"],
                    "sampling": {"temperature": 0, "max_tokens": 10, "top_p": 0.5},
                    "replicas": {"min": 2, "max": 4},
                    "concurrency": 1,
                }
            }
        }
    )["COOPER"]
    assert [spec.url for spec in role.engines] == ["http://a:1", "https://b"], "with or without /v1"
    assert role.sampling == Sampling(temperature=0, max_tokens=10, top_p=0.5)
    assert (role.replicas.min, role.replicas.max, role.concurrency, role.model) == (2, 4, 1, "oak")


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (None, "roles.yaml"),
        ([], "roles.yaml"),
        ("DEV", "roles.yaml"),
        ({}, "roles"),
        ({"roles": {}}, "roles"),
        ({"roles": [PERSONA]}, "roles"),
        ({"roles": {"DEV": {}}}, "roles.DEV.persona"),
        ({"roles": {"DEV": {"persona": ""}}}, "roles.DEV.persona"),
        ({"roles": {"DEV": {"persona": "x" * 4_001}}}, "roles.DEV.persona"),
        ({"roles": {"DEV": {**PERSONA, "modle": "m"}}}, "roles.DEV.modle"),
        ({"roles": {"dev": PERSONA}}, "roles"),
        ({"roles": {"A.B": PERSONA}}, "roles"),
        ({"roles": {"*": PERSONA}}, "roles"),
        ({"roles": {"A" * 33: PERSONA}}, "roles"),
        ({"roles": {"DEV\n": PERSONA}}, "roles"),
        ({"roles": {"DEV": PERSONA}, "rolls": {}}, "rolls"),
        ({"roles": {"DEV": {**PERSONA, "engines": ["vllm:8000"]}}}, "roles.DEV.engines.0"),
        ({"roles": {"DEV": {**PERSONA, "engines": "http://a"}}}, "roles.DEV.engines"),
        ({"roles": {"DEV": {**PERSONA, "sampling": {"temprature": 0.1}}}}, "roles.DEV.sampling"),
        ({"roles": {"DEV": {**PERSONA, "sampling": {"temperature": 2.1}}}}, "roles.DEV.sampling.temperature"),
        ({"roles": {"DEV": {**PERSONA, "sampling": None}}}, "roles.DEV.sampling"),
        ({"roles": {"DEV": {**PERSONA, "replicas": {"min": -1}}}}, "roles.DEV.replicas.min"),
        ({"roles": {"DEV": {**PERSONA, "replicas": {"min": 0, "max": 0}}}}, "roles.DEV.replicas.max"),
        ({"roles": {"DEV": {**PERSONA, "replicas": {"min": 3, "max": 2}}}}, "roles.DEV.replicas"),
        ({"roles": {"DEV": {**PERSONA, "concurrency": 0}}}, "roles.DEV.concurrency"),
    ],
)
def test_a_fault_is_named_by_its_place(content: object, where: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_roles(content)
    assert caught.value.field == where
    assert str(caught.value).startswith(f"roles.yaml: {where}: ")


def test_a_role_in_the_coordinators_process_has_one_replica() -> None:
    bounds = {"replicas": {"min": 2, "max": 4}}
    roles = parse_roles({"roles": {"DEV": PERSONA | bounds, "QA": PERSONA | bounds | {"agents": "nats"}}})
    runs = {name: (role.agents, role.replicas.min, role.replicas.max) for name, role in placed(roles, "local").items()}
    assert runs == {"DEV": ("local", 1, 1), "QA": ("nats", 2, 4)}


@pytest.mark.parametrize("default", ["local", "ray"])
def test_no_coordinator_reaches_roles_in_ray_and_in_its_own_process(default: AgentRunner) -> None:
    other: AgentRunner = "ray" if default == "local" else "local"
    roles = {"DEV": Role(persona="x"), "QA": Role(persona="x", agents=other)}
    with pytest.raises(InvalidRequest, match=r"DEV.*QA|QA.*DEV") as refused:
        placed(roles, default)
    assert refused.value.field == f"roles.{'QA' if other == 'ray' else 'DEV'}.agents"


HOSTED = {"url": "https://api.example.com/v1", "api_key_env": "HOSTED_KEY"}
PRICES = {"currency": "USD", "prompt": 0.5, "completion": 1.5}
IN_DOLLARS = {"url": "http://a", "prices": PRICES}


def with_engines(declared: object, **role: object) -> dict[str, object]:
    return {"engines": declared, "roles": {"DEV": {**PERSONA, **role}}}


def priced(**prices: object) -> dict[str, object]:
    return with_engines({"a": {"url": "http://a", "prices": {"currency": "USD"} | prices}})


def test_prices_are_exact_whatever_number_yaml_has() -> None:
    role = parse_roles(with_engines({"a": {**IN_DOLLARS, "prices": PRICES | {"cached": 0}}}, engines=["a"]))["DEV"]
    prices = role.engines[0].prices
    assert prices is not None
    assert (prices.prompt, prices.cached, prices.completion) == (Decimal("0.5"), Decimal(0), Decimal("1.5"))


def test_a_role_names_declared_engines_first_choice_and_fallback() -> None:
    engines = {"hosted": {**HOSTED, "model": "big", "max_in_flight": 4}, "local": {"url": "http://gpu:8000"}}
    role = parse_roles(with_engines(engines, engines=["http://gpu:8000/v1", "http://other"], fallback=["hosted"]))[
        "DEV"
    ]
    assert [(spec.name, spec.url) for spec in role.engines] == [
        ("local", "http://gpu:8000"),
        (None, "http://other"),
    ], "a URL of a declared engine is that engine"
    (hosted,) = role.fallback
    assert (hosted.name, hosted.model, hosted.max_in_flight) == ("hosted", "big", 4)
    assert hosted.label == "hosted (https://api.example.com)"


WRONG: dict[str, tuple[dict[str, object], str, str]] = {
    "both sources of a key": ({**HOSTED, "api_key_file": "/k"}, "engines.a", "remove one of them"),
    "a relative path": ({"url": "http://a", "api_key_file": "k"}, "engines.a.api_key_file", "absolute path"),
    "a variable's name": ({"url": "http://a", "api_key_env": "sk-1"}, "engines.a.api_key_env", "Match ^"),
    "Authorization": ({"url": "http://a", "headers": {"AUTHORIZATION": "x"}}, "engines.a.headers", "api_key_env or"),
    "a header of our own": ({"url": "http://a", "headers": {"Host": "x"}}, "engines.a.headers", "remove it"),
    "a line break": ({"url": "http://a", "headers": {"X-A": "x\r\nB: y"}}, "engines.a.headers", "character"),
    "a line break in a name": ({"url": "http://a", "headers": {"X-A\n": "x"}}, "engines.a.headers", "character"),
    "a key beside a password": ({**HOSTED, "url": "http://u:p@a"}, "engines.a", "user or password"),
    "no url": ({"model": "m"}, "engines.a.url", "It is missing"),
    "a name inside": ({"url": "http://a", "name": "b"}, "engines", "remove `name`"),
    "a typo": ({"url": "http://a", "modell": "m"}, "engines.a.modell", "There is no such field"),
    "no slot": ({"url": "http://a", "max_in_flight": 0}, "engines.a.max_in_flight", "Give 1 or more."),
}


@pytest.mark.parametrize(("engine", "where", "remedy"), WRONG.values(), ids=WRONG)
def test_a_wrong_engine_is_one_line_with_file_field_and_remedy(
    engine: dict[str, object], where: str, remedy: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_roles(with_engines({"a": engine}), "/etc/roles.yaml")
    line = str(caught.value)
    assert line.startswith(f"/etc/roles.yaml: {where}: ") and remedy in line and "\n" not in line


@pytest.mark.parametrize(
    ("content", "where", "remedy"),
    [
        (with_engines({"a": HOSTED, "b": HOSTED}), "engines", "b has the url of a; remove one"),
        (with_engines({"A": HOSTED}), "engines", "an engine's name matches"),
        (priced(prompt=-1, completion=1), "engines.a.prices.prompt", "Give 0 or more."),
        (priced(prompt=1, cached=float("nan"), completion=1), "engines.a.prices.cached", "Give a finite number."),
        (priced(prompt=1, completion=float("inf")), "engines.a.prices.completion", "Give a finite number."),
        (priced(prompt=1, completion=2e6), "engines.a.prices.completion", "Give 1000000 or less."),
        (priced(prompt=1e-7, completion=1), "engines.a.prices.prompt", "Give at most 6 decimal places."),
        (priced(prompt=1, completion="a dollar"), "engines.a.prices.completion", "Give a number."),
        (priced(prompt=1), "engines.a.prices.completion", "It is missing. Add it."),
        (priced(prompt=1, completion=1, output=1), "engines.a.prices.output", "Remove it."),
        (priced(currency="usd", prompt=1, completion=1), "engines.a.prices.currency", "Match ^[A-Z]{3}$."),
        (
            with_engines({"a": IN_DOLLARS, "b": {"url": "http://b", "prices": PRICES | {"currency": "EUR"}}}),
            "engines",
            "b in EUR and a in USD: costs of different currencies have no sum; give all prices in one currency",
        ),
        (with_engines({"a": HOSTED}, engines=["b"]), "roles.DEV.engines.0", "declared are a. Name one of them"),
        (with_engines({}, engines=["b"]), "roles.DEV.engines.0", "none is declared"),
        (with_engines({"a": HOSTED}, fallback=["a"]), "roles.DEV", "fallback needs engines"),
        (with_engines({"a": HOSTED}, engines=["a"], fallback=["a"]), "roles.DEV", "stands twice"),
    ],
)
def test_a_wrong_choice_of_engines_is_one_line_with_field_and_remedy(content: object, where: str, remedy: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_roles(content)
    assert str(caught.value).startswith(f"roles.yaml: {where}: ") and remedy in str(caught.value)


def unreadable(path: str) -> str:
    raise PermissionError(13, "Permission denied", path)


def not_text(path: str) -> str:
    return b"\xff".decode()


OF_FILE = EngineSpec(name="hosted", url="http://a", api_key_file="/keys/hosted")
OF_VARIABLE = EngineSpec(name="hosted", url="http://a", api_key_env="HOSTED_KEY")
OF_DEFAULT = EngineSpec(url="http://a", api_key_env="VLLM_API_KEY")
SECRET = "sk-very\r\nsecret"


@pytest.mark.parametrize(
    ("spec", "environment", "read", "begins", "remedy"),
    [
        (OF_VARIABLE, {}, None, "r.yaml: engines.hosted.api_key_env: variable HOSTED_KEY", "set it where"),
        (OF_VARIABLE, {"HOSTED_KEY": " "}, None, "r.yaml: engines.hosted.api_key_env: variable HOSTED_KEY", "set it"),
        (OF_VARIABLE, {"HOSTED_KEY": SECRET}, None, "r.yaml: engines.hosted.api_key_env: ", "printable ASCII"),
        (OF_DEFAULT, {"VLLM_API_KEY": SECRET}, None, "VLLM_API_KEY: variable VLLM_API_KEY holds", "correct it"),
        (OF_FILE, {}, unreadable, "r.yaml: engines.hosted.api_key_file: /keys/hosted cannot be read", "permissions"),
        (OF_FILE, {}, not_text, "r.yaml: engines.hosted.api_key_file: /keys/hosted cannot be read", "correct"),
        (OF_FILE, {}, lambda _: "\n", "r.yaml: engines.hosted.api_key_file: /keys/hosted is empty", "write the key"),
        (OF_FILE, {}, lambda _: SECRET, "r.yaml: engines.hosted.api_key_file: /keys/hosted holds", "correct it"),
    ],
)
def test_an_unusable_key_is_one_line_with_file_field_and_remedy_and_without_the_key(
    spec: EngineSpec, environment: dict[str, str], read: Callable[[str], str] | None, begins: str, remedy: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        api_key(spec, environment, read or unreadable, "r.yaml")
    line = str(caught.value)
    assert line.startswith(begins) and remedy in line and "\n" not in line and "sk-very" not in line
    assert caught.value.__cause__ is None


def test_a_key_is_read_without_the_white_space_around_it() -> None:
    assert api_key(OF_FILE, {}, lambda _: " sk-1\n", "r.yaml") == "sk-1"
    assert api_key(OF_VARIABLE, {"HOSTED_KEY": "sk-2"}, unreadable, "r.yaml") == "sk-2"
    assert api_key(EngineSpec(url="http://a"), {}, unreadable, "r.yaml") is None
