from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.components.inputs.files import Spool


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    return Spool(tmp_path)
