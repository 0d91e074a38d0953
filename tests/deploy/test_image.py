import fnmatch
import re

import pytest

from tests.deploy.manifests import ROOT, project

DOCKERFILE = (ROOT / "Dockerfile").read_text()
IGNORED = (ROOT / ".dockerignore").read_text()


def instructions(text: str) -> list[tuple[str, str]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined)]


def copied(text: str) -> list[str]:
    copies = [rest.split()[:-1] for word, rest in instructions(text) if word == "COPY"]
    return [source for sources in copies for source in sources if not sources[0].startswith("--from")]


def reaches_builder(source: str, ignored: str) -> bool:
    sent = True
    for pattern in ignored.splitlines():
        if pattern and not pattern.startswith("#") and fnmatch.fnmatch(source, pattern.removeprefix("!")):
            sent = pattern.startswith("!")
    return sent


def arguments(text: str) -> dict[str, str]:
    given = [rest.partition("=") for word, rest in instructions(text) if word == "ARG"]
    return {name: default for name, _, default in given}


def dockerfile_faults(text: str) -> list[str]:
    found = instructions(text)
    runs = [rest for word, rest in found if word == "RUN"]
    installs = [part for run in runs for part in run.split("&&") if re.search(r"pip .*install ", part)]
    stages = [rest for word, rest in found if word == "FROM"]
    users = [rest for word, rest in found if word == "USER"]
    last_user = users[-1] if users else "root"
    version = project()["tool"]["pyright"]["pythonVersion"]
    base = arguments(text).get("BASE", "")
    rules = (
        (re.match(rf"python:{re.escape(version)}(\.\d+)?-slim-\w+", base) is not None, f"is not of Python {version}"),
        (stages == ["${BASE} AS build", "${BASE}"], "has other stages than one that builds and one that runs"),
        (re.fullmatch(r"[1-9]\d*:[1-9]\d*", last_user) is not None, "runs as root, or under a name"),
        (all("--require-hashes" in each or "--no-index" in each for each in installs), "installs what is not locked"),
        (bool(installs), "installs nothing"),
        (any("--no-build-isolation" in run for run in runs), "builds with what is not locked"),
        ("ENTRYPOINT" not in dict(found), "hides its command behind an entry point"),
        (dict(found).get("CMD") == '["python", "-m", "app.main"]', "does not start the gateway"),
        (not any("apt-get" in run or "curl" in run for run in runs), "fetches what is not locked"),
    )
    return [what for holds, what in rules if not holds]


def test_the_image_is_locked_and_unprivileged() -> None:
    assert dockerfile_faults(DOCKERFILE) == []


def test_the_lock_is_resolved_for_the_python_of_the_image() -> None:
    resolved = set(re.findall(r"--python-version (\S+)", (ROOT / "Makefile").read_text()))
    assert resolved == {project()["tool"]["pyright"]["pythonVersion"]}


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ("ARG BASE=python:3.11-slim-bookworm", "ARG BASE=python:latest"),
        ("USER 10001:10001", "USER root"),
        ("USER 10001:10001", ""),
        (" --require-hashes -r requirements.lock", " -r requirements.lock"),
        (" --no-build-isolation", ""),
        ('CMD ["python", "-m", "app.main"]', 'ENTRYPOINT ["/start.sh"]'),
        ("COPY app app", "RUN apt-get install -y curl"),
    ],
)
def test_finds_a_weakened_image(written: str, instead: str) -> None:
    assert written in DOCKERFILE
    assert dockerfile_faults(DOCKERFILE.replace(written, instead))


def test_copied_files_exist_and_are_not_ignored() -> None:
    sources = copied(DOCKERFILE)
    assert {"app", "serve_deployments", "requirements.lock", "pyproject.toml"} <= set(sources)
    assert [source for source in sources if not (ROOT / source).exists()] == []
    assert [source for source in sources if not reaches_builder(source, IGNORED)] == []


@pytest.mark.parametrize("stray", [".git", ".venv", ".deliberate", "tests", "deploy", ".env"])
def test_other_files_are_ignored(stray: str) -> None:
    assert not reaches_builder(stray, IGNORED)


def test_the_image_is_labelled_with_its_version() -> None:
    assert arguments(DOCKERFILE)["VERSION"] == project()["project"]["version"]


def test_the_lock_includes_the_build_backend() -> None:
    """The Dockerfile extracts it with sed, from its name to the first line without a continuation."""
    match = re.search(r"^setuptools==.*?[^\\]$", (ROOT / "requirements-dev.lock").read_text(), re.MULTILINE | re.DOTALL)
    assert match is not None and "--hash=sha256:" in match.group()
    least = re.search(r"setuptools>=(\d+)", project()["build-system"]["requires"][0])
    assert least is not None and int(match.group().removeprefix("setuptools==").partition(".")[0]) >= int(
        least.group(1)
    )


def test_the_lock_includes_every_declared_dependency() -> None:
    locked = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    declared = {re.split(r"[\[<>=!~; ]", each)[0].lower() for each in project()["project"]["dependencies"]}
    assert declared - locked == set()
