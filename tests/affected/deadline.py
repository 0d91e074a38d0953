"""A plugin of pytest: no test begins after a moment; the files of tests that did not run are appended to a file."""

import time
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--until", type=float, help="seconds since the epoch")
    parser.addoption("--left-to", type=Path)
    parser.addoption("--order", type=Path, help="a file with the paths of test files in the order in which they run")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    order = {path: place for place, path in enumerate(config.getoption("order").read_text().splitlines())}
    items.sort(key=lambda item: order[item.nodeid.partition("::")[0]])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    if time.time() < item.config.getoption("until"):
        return None
    with item.config.getoption("left_to").open("a") as left:
        left.write(f"{item.nodeid.partition('::')[0]}\n")
    return True
