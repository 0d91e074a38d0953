"""Options that `ray start` has no flag for: RAY_START_HOOK names a function here, which Ray calls before it starts."""

from typing import Any


def without_client_server(ray_params: Any, head: bool) -> None:  # noqa: ANN401 -- Ray's own, untyped
    """Start no server for `ray://` clients: nothing here uses it, and it takes a fixed port, 90 MB and 0.6 s of CPU."""
    ray_params.ray_client_server_port = None
