"""Settings that Ray has no flag for: RAY_START_HOOK names one of two functions, and replicas call the third one."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, cast


def without_client_server(ray_params: Any, head: bool) -> None:  # noqa: ANN401 -- Ray's own, untyped
    """Start no server for `ray://` clients: nothing here uses it, and it takes a fixed port, 90 MB and 0.6 s of CPU."""
    ray_params.ray_client_server_port = None


def without_servers(ray_params: Any, head: bool) -> None:  # noqa: ANN401 -- Ray's own, untyped
    """Start no server for clients and no dashboard, which costs a second of CPU and 90 MB even where it is off."""
    without_client_server(ray_params, head)
    services: Any = import_module("ray._private.services")
    services.start_api_server = _start_no_dashboard


def _start_no_dashboard(*_: object, **__: object) -> tuple[str, None]:
    return "", None


def keep_replica_on_loopback() -> None:
    """Let the gRPC server listen on loopback alone where the node's address is one; Ray 2.60 binds it to all."""
    # Imported here: `ray start` imports this module too, and starts without Serve.
    replica: Any = import_module("ray.serve._private.replica")
    address: str = cast("Any", import_module("ray")).util.get_node_ip_address()
    add_port: Callable[[Any, str], int] = replica.add_port_to_grpc_server

    def add_loopback_port(server: Any, wanted: str) -> int:  # noqa: ANN401 -- gRPC's own, untyped
        return add_port(server, wanted.replace("[::]", address))

    if address.startswith("127."):
        replica.add_port_to_grpc_server = add_loopback_port
