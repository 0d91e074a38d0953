"""What Ray has no flag for: RAY_START_HOOK names a function here, and replicas call the other as they start."""

from typing import Any


def without_client_server(ray_params: Any, head: bool) -> None:  # noqa: ANN401 -- Ray's own, untyped
    """Start no server for `ray://` clients: nothing here uses it, and it takes a fixed port, 90 MB and 0.6 s of CPU."""
    ray_params.ray_client_server_port = None


def keep_replica_on_loopback() -> None:
    """Let this replica's gRPC server listen on loopback alone where its node's address is one.

    Ray 2.60 binds it to all interfaces (`ReplicaBase._on_initialized`), after the replica's own initialization.
    """
    # Imported here: `ray start` imports this module too, and starts without Serve.
    import ray
    from ray.serve._private import replica

    address, add_port = ray.util.get_node_ip_address(), replica.add_port_to_grpc_server
    if address.startswith("127."):
        replica.add_port_to_grpc_server = lambda server, wanted: add_port(server, wanted.replace("[::]", address))
