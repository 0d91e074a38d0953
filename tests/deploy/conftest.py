import copy

import pytest

from tests.deploy.manifests import Document, combined

VARIANTS: dict[str, tuple[list[str], list[str]]] = {
    "local": (["overlays/local"], []),
    "gpu": (["overlays/gpu"], []),
    "gpus": (["overlays/gpu"], ["components/gpu-replicas"]),
    "shared gpu": (["overlays/gpu"], ["components/gpu-replicas", "components/gpu-share"]),
    "everything": (
        ["overlays/local"],
        [
            "components/planning",
            "components/context",
            "components/archive",
            "components/nats-r3",
            "components/nats-users",
            "components/gcs-ft",
            "components/log-key",
            "components/engine-keys",
            "components/tracing",
            "components/ray-autoscaler",
        ],
    ),
}


@pytest.fixture(scope="session")
def variants(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Document]]:
    return {name: combined(tmp_path_factory.mktemp(name), *parts) for name, parts in VARIANTS.items()}


@pytest.fixture(params=list(VARIANTS))
def variant(request: pytest.FixtureRequest, variants: dict[str, list[Document]]) -> list[Document]:
    return variants[request.param]


@pytest.fixture
def local(variants: dict[str, list[Document]]) -> list[Document]:
    return copy.deepcopy(variants["local"])
