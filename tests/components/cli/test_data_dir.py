import os
import stat
from pathlib import Path

import pytest

from app.cli.exits import CommandError
from app.cli.stack.layout import make_data_dir


@pytest.fixture(autouse=True)
def own_umask() -> object:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_an_existing_directory_holds_is_closed_to_others(tmp_path: Path) -> None:
    place = tmp_path / "old"
    place.mkdir()
    place.chmod(0o777)
    (place / "archive.db").touch(mode=0o644)
    (place / "nats").mkdir(mode=0o755)
    make_data_dir(place)
    assert [mode_of(place / name) for name in ("archive.db", "nats")] == [0o600, 0o700]
    assert mode_of(place) == 0o755, "nobody else may write there any more"
    (place / "new").touch()
    assert mode_of(place / "new") == 0o600, "children create files for their owner only"


def test_a_new_directory_is_its_owners(tmp_path: Path) -> None:
    make_data_dir(tmp_path / "a" / "b")
    assert mode_of(tmp_path / "a" / "b") == 0o700


@pytest.mark.parametrize("fault", ["link", "writable within", "foreign", "foreign entry"])
def test_what_others_may_have_planted_is_refused(tmp_path: Path, fault: str) -> None:
    place = tmp_path / "planted"
    place.mkdir()
    match fault:
        case "link":
            (place / "logs").symlink_to(tmp_path)
        case "writable within":
            (place / "nats").mkdir()
            (place / "nats").chmod(0o777)
        case _:
            if os.geteuid() != 0:
                pytest.skip("only root can give a file to another user")
            (place / "log_key").touch()
            os.chown(place if fault == "foreign" else place / "log_key", 12_345, -1)
    with pytest.raises(CommandError) as refused:
        make_data_dir(place)
    assert refused.value.code == "data_dir_unusable" and "--data-dir" in str(refused.value.remedy)
