import json
from pathlib import Path

import pytest

from deploy.release import build_image, refusals
from tests.deploy.git_commands import git
from tests.deploy.manifests import ROOT, project

DATED = "# Changelog\n\n## [0.1.0] - 2026-01-02\n"


@pytest.fixture
def tagged(tmp_path: Path) -> Path:
    git(tmp_path, "init")
    return committed(tmp_path, DATED)


def committed(root: Path, changelog: str) -> Path:
    (root / "pyproject.toml").write_text('[project]\nversion = "0.1.0"\n')
    (root / "CHANGELOG.md").write_text(changelog)
    git(root, "add", ".")
    git(root, "commit", "--message", "a")
    git(root, "tag", "--force", "v0.1.0")
    return root


def test_a_clean_tree_with_the_tag_of_its_version_is_released(tagged: Path) -> None:
    assert refusals(tagged) == []


@pytest.mark.parametrize("name", ["CHANGELOG.md", "new.py"])
def test_a_dirty_tree_is_refused(tagged: Path, name: str) -> None:
    with (tagged / name).open("a") as file:
        file.write("more\n")
    (reason,) = refusals(tagged)
    assert "git status" in reason


@pytest.mark.parametrize("tag", [None, "v0.2.0"])
def test_a_commit_without_the_tag_of_its_version_is_refused(tagged: Path, tag: str | None) -> None:
    git(tagged, "tag", "--delete", "v0.1.0")
    if tag is not None:
        git(tagged, "tag", tag)
    (reason,) = refusals(tagged)
    assert "git tag v0.1.0" in reason


def test_a_tag_on_an_earlier_commit_is_refused(tagged: Path) -> None:
    git(tagged, "commit", "--allow-empty", "--message", "b")
    (reason,) = refusals(tagged)
    assert "git tag v0.1.0" in reason


def test_a_changelog_without_the_date_of_the_version_is_refused(tagged: Path) -> None:
    committed(tagged, DATED.replace("2026-01-02", "unreleased"))
    (reason,) = refusals(tagged)
    assert "CHANGELOG.md" in reason


@pytest.mark.parametrize(
    ("program", "reason", "files"),
    [
        ("exit 1", "neither of podman, docker answers here", []),
        ('test "$1" = info', "`podman build` and `docker build` failed, with the output above", []),
        (
            'case "$0 $1" in *podman\ build) exit 1 ;; *save) echo > "$3" ;; esac',
            None,
            ["deliberation-gateway-0.1.0.image.tar"],
        ),
        ('case "$1" in save) echo > "$3" ;; esac', None, ["deliberation-gateway-0.1.0.image.tar"]),
    ],
)
def test_the_image_is_left_out_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, reason: str | None, files: list[str]
) -> None:
    for name in ("podman", "docker"):
        (tmp_path / name).write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    dist = tmp_path / "dist"
    dist.mkdir()
    assert build_image(tmp_path, dist, "0.1.0") == reason
    assert [path.name for path in dist.iterdir()] == files


def test_every_part_of_a_release_has_one_version() -> None:
    version = project()["project"]["version"]
    assert project(ROOT / "sdk" / "python")["project"]["version"] == version
    assert json.loads((ROOT / "sdk" / "typescript" / "package.json").read_text())["version"] == version
    assert json.loads((ROOT / "openapi" / "openapi.json").read_text())["info"]["version"] == version
    assert f"## [{version}] - " in (ROOT / "CHANGELOG.md").read_text()
