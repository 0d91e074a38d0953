"""`make release`: the files of a release in dist/, from the tag at HEAD.

Wheel, sdist, lock, bill of materials, OpenAPI documents, both clients and the Helm chart have the same bytes wherever
the same tools build the same tag. The image is built where podman or docker can; its bytes differ from build to build.

    python -m deploy.release            # in the root of a checkout; SDK_DIR as for sdk/build.py
"""

import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

from deploy.helm import NAME, write_chart
from sdk import build as clients

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
BUILDERS = ("podman", "docker")


def _run(*command: str | Path, cwd: Path) -> None:
    subprocess.run(command, check=True, cwd=cwd, stdout=sys.stderr)


def _git(root: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], check=True, cwd=root, stdout=subprocess.PIPE).stdout


def version_of(root: Path) -> str:
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]


def refusals(root: Path) -> list[str]:
    """The reasons for which this checkout cannot be released, each with its remedy; empty if it can."""
    version = version_of(root)
    tags = _git(root, "tag", "--points-at", "HEAD").decode().split()
    dated = re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", (root / "CHANGELOG.md").read_text(), re.M)
    rules = (
        (not _git(root, "status", "--porcelain"), "files differ from HEAD: commit or remove what `git status` lists"),
        (dated, f"CHANGELOG.md has no date for {version}: write `## [{version}] - YYYY-MM-DD` and commit it"),
        (f"v{version}" in tags, f"HEAD has no tag: `git tag v{version}`"),
    )
    return [reason for holds, reason in rules if not holds]


def unpack(root: Path, folder: Path) -> None:
    """Write the files of HEAD into a folder: an ignored build/ of the checkout would get into the wheel."""
    with tarfile.open(fileobj=io.BytesIO(_git(root, "archive", "HEAD"))) as archive:
        archive.extractall(folder, filter="data")


def normalise(packed_tar: Path, time_s: int) -> None:
    """Give all members of an archive one time and owner.

    Setuptools does not, for an sdist: https://github.com/pypa/setuptools/issues/2133.
    """
    with tarfile.open(packed_tar) as archive:
        members = sorted(archive.getmembers(), key=lambda member: member.name)
        contents = {each.name: file.read() for each in members if (file := archive.extractfile(each))}
    with (
        packed_tar.open("wb") as written,
        gzip.GzipFile(filename="", mode="wb", fileobj=written, mtime=time_s) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for each in members:
            each.mtime, each.uid, each.gid, each.uname, each.gname, each.pax_headers = time_s, 0, 0, "", "", {}
            archive.addfile(each, io.BytesIO(contents[each.name]) if each.name in contents else None)


def build_python(source: Path, dist: Path, *formats: str) -> None:
    """Build the sdist of a folder, and a wheel; without a format the wheel is made from the sdist."""
    uv = [BIN / "uv", "build", "--quiet", "--offline", "--no-build-isolation", "--no-create-gitignore"]
    _run(*uv, *formats, "--python", sys.executable, "--out-dir", dist, source, cwd=source)


def build_bill(source: Path, dist: Path, version: str) -> None:
    """Write the bill of materials as `make sbom` does, with the tools of this environment."""
    _run("make", "--old-file=.venv/.installed-dev", f"BIN={BIN}", "sbom", cwd=source)
    shutil.copy(source / "build" / "sbom.json", dist / f"deliberation-gateway-{version}.cdx.json")


def build_clients(dist: Path) -> None:
    """Generate both clients, and pack them."""
    clients.main()
    build_python(clients.work() / "python", dist, "--wheel")
    pack = [clients.NODE, clients.NPM, "pack", "--silent", "--ignore-scripts", "--pack-destination", dist]
    clients.run(*pack, cwd=clients.work() / "typescript")


def build_chart(dist: Path, version: str, time_s: int) -> None:
    packed = dist / f"{NAME}-{version}.tgz"
    with TemporaryDirectory() as made, tarfile.open(packed, "w:gz") as archive:
        write_chart(Path(made) / NAME)
        archive.add(Path(made) / NAME, NAME)
    normalise(packed, time_s)


def build_image(source: Path, dist: Path, version: str) -> str | None:
    """Build the image and save it, or return why there is none; a builder may lack the base image and a registry."""
    builders = [name for name in BUILDERS if _succeeds(name, "info", cwd=source)]
    if not builders:
        return f"neither of {', '.join(BUILDERS)} answers here"
    tag = f"{NAME}:{version}"
    builder = next((name for name in builders if _succeeds(name, "build", "--tag", tag, ".", cwd=source)), None)
    if builder is None:
        return f"`{'` and `'.join(f'{name} build' for name in builders)}` failed, with the output above"
    _run(builder, "save", "--output", dist / f"deliberation-gateway-{version}.image.tar", tag, cwd=source)
    return None


def _succeeds(*command: str, cwd: Path) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, cwd=cwd, stdout=sys.stderr).returncode == 0


def write_sums(dist: Path) -> list[str]:
    """Write SHA256SUMS over all files of the release, and return its lines."""
    files = sorted(path for path in dist.iterdir() if path.is_file())
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in files]
    (dist / "SHA256SUMS").write_text("\n".join(lines) + "\n")
    return lines


def main() -> int:
    if reasons := refusals(ROOT):
        print("\n".join(f"refused: {reason}" for reason in reasons), file=sys.stderr)
        return 1
    version, time_s = version_of(ROOT), int(_git(ROOT, "log", "-1", "--format=%ct"))
    os.environ["SOURCE_DATE_EPOCH"] = str(time_s)
    # Archives hold the modes of files that tools write.
    os.umask(0o022)
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir()
    with TemporaryDirectory() as made:
        source = Path(made)
        unpack(ROOT, source)
        _run(BIN / "deliberate", "openapi", "--check", cwd=source)
        build_python(source, dist)
        normalise(dist / f"deliberation_gateway-{version}.tar.gz", time_s)
        build_bill(source, dist, version)
        for path in (source / "requirements.lock", *(source / "openapi").iterdir()):
            shutil.copy(path, dist)
        build_clients(dist)
        build_chart(dist, version, time_s)
        without_image = build_image(source, dist, version)
    print("\n".join(write_sums(dist)))
    if without_image is not None:
        print(f"left out: the image, because {without_image}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as exc:
        sys.exit(f"release.py: {exc}")
