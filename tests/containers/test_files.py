"""The other Compose files beside compose.yaml, read by Docker Compose itself."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.containers.docker import Project

FILES = [("monitoring.yaml",), ("tracing.yaml",), ("gpu.yaml",), ("gpu.yaml", "gpus.yaml"), ("engine-key.yaml",)]


@pytest.mark.parametrize("files", FILES, ids=lambda files: "+".join(files))
def test_compose_reads_every_file_beside_compose_yaml(project: Project, tmp_path: Path, files: tuple[str, ...]) -> None:
    path = str(tmp_path / "file")
    asked = {
        "METRICS_KEY_FILE": path,
        "ENGINE_KEY_FILE": path,
        "ROLES_FILE": path,
        "GRAFANA_PASSWORD": "secret",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318",
    }
    alone = replace(project, environment=project.environment | asked)
    merged = replace(alone, files=(*alone.files, *files))
    alone, together = (yaml.safe_load(each.compose("config"))["services"] for each in (alone, merged))
    assert {name for name in alone if name not in together} == ({"simulator"} if "gpu.yaml" in files else set())
    assert together != alone
