from collections.abc import Iterator

import pytest

from tests.components.cli.council_run import Council, Served, StubGateway, council_of


@pytest.fixture(scope="session")
def council() -> Council:
    return council_of()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    one = Served()
    yield one
    one.stop()


@pytest.fixture
def stub(served: Served, council: Council) -> StubGateway:
    served.stub = StubGateway(council)
    return served.stub


@pytest.fixture
def url(served: Served, stub: StubGateway) -> str:
    return served.url
