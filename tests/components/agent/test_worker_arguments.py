import pytest

from app.deliberation.errors import InvalidRequest
from serve_deployments.agent.worker import roles_of
from serve_deployments.arguments import WorkerArgs


@pytest.mark.parametrize("name", ["", "NOPE"])
def test_a_role_that_does_not_exist_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"there is no role {name!r}; the roles are DEV, "):
        roles_of(WorkerArgs(worker_roles=(name,)))
