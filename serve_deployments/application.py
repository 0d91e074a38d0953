"""The Serve application: one Coordinator, and one Agent deployment per role of roles.yaml.

`build(args)` serves `serve run serve_deployments.application:build`, `deliberate up` (`python -m
serve_deployments.application` deploys to the cluster at RAY_ADDRESS and stays) and a RayService's serveConfigV2.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import chdir, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TypeVar, cast

import ray
from ray import serve
from ray.exceptions import GetTimeoutError, RayError
from ray.serve import Application, Deployment
from ray.serve.config import HTTPOptions, ProxyLocation
from ray.serve.schema import ApplicationStatus

from app.deliberation.errors import InvalidRequest
from app.deliberation.roles import Role, placed, run_by
from app.deliberation.specification import TIMEOUT_S_MAX
from app.process_settings import default_engines, load_roles
from serve_deployments.arguments import ApplicationArgs, with_engines
from serve_deployments.deployments import Agent, Coordinator, replicas_for_calls

_T = TypeVar("_T")

NAME = "deliberations"
CONTROLLER = ("SERVE_CONTROLLER_ACTOR", "serve")
STAGES_PER_REPLICA_MAX = 2_048
# A replica is added within 30 s of the need, of which its start takes up to 15 s on a busy machine.
REPORT_INTERVAL_S = 2.0
LOOK_BACK_S = 15.0
UPSCALE_DELAY_S = 5.0
DOWNSCALE_DELAY_S = 20.0
# The first use of a role waits for its replica: the last replica stays longer.
DOWNSCALE_TO_ZERO_DELAY_S = 600.0
WATCH_INTERVAL_S = 2.0
DEPLOYED_POLL_S = 0.1
# Longer than any single step of Serve's controller, deploying included.
CONTROLLER_SILENCE_MAX_S = 15.0
RAY_STARTS_WITHIN_S = 600.0
# Agents whose calls take longer finish them if their cluster runs on.
SHUTDOWN_WITHIN_S = 10.0


def _options(cpus: float, drain_s: float) -> dict[str, Any]:
    return {
        # The defaults (5 ongoing, checks every 10 s within 30 s) cap a replica at 10 calls/s and hide a death.
        "health_check_period_s": 2.0,
        "health_check_timeout_s": 5.0,
        # A replica that hangs does not get it: RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS.
        "graceful_shutdown_timeout_s": drain_s,
        # How often a stopping replica checks for requests under way.
        "graceful_shutdown_wait_loop_s": 0.2,
        # A line per handle call would be the busiest log, and the facts hold the same.
        "logging_config": {"enable_access_log": False},
        "ray_actor_options": {"num_cpus": cpus},
    }


def _scale(role: Role) -> dict[str, Any]:
    bounds = role.replicas
    if bounds.min == bounds.max:
        # With a fixed number handles push no autoscaling metrics.
        return {"num_replicas": bounds.min}
    scaling = {
        "min_replicas": bounds.min,
        "max_replicas": bounds.max,
        "policy": {"policy_function": replicas_for_calls},
        "target_ongoing_requests": role.concurrency,
        # Deprecated in favour of variables that Ray 2.60 does not read yet.
        "metrics_interval_s": REPORT_INTERVAL_S,
        "look_back_period_s": LOOK_BACK_S,
        "upscale_delay_s": UPSCALE_DELAY_S,
        "downscale_delay_s": DOWNSCALE_DELAY_S,
        "downscale_to_zero_delay_s": DOWNSCALE_TO_ZERO_DELAY_S,
    }
    return {"autoscaling_config": scaling}


def _deployment(of: type) -> Deployment:
    # Ray types its decorator as returning a function.
    return cast("Deployment", serve.deployment(of))


def _roles_of(args: ApplicationArgs) -> Mapping[str, Role]:
    roles = placed(load_roles(args.roles_file), args.agents)
    for local in run_by("local", roles):
        remedy = "give it `agents: ray` or `agents: nats`, or run `python -m serve_deployments.coordinator`"
        raise InvalidRequest(f"role {local} runs in the process of a coordinator without Ray", f"roles.{local}", remedy)
    return roles


def build(args: ApplicationArgs) -> Application:
    roles, engines = _roles_of(args), default_engines(args.engine_urls)
    workers = run_by("nats", roles)
    agents: dict[str, Any] = {}
    for name, role in roles.items():
        if name in workers:
            continue
        deployment = _deployment(Agent).options(
            name=f"Agent:{name}",
            **_scale(role),
            max_ongoing_requests=STAGES_PER_REPLICA_MAX,
            max_queued_requests=STAGES_PER_REPLICA_MAX,
            # No call outlives the deadline of its deliberation.
            **_options(0.1, TIMEOUT_S_MAX),
        )
        agents[name] = deployment.bind(
            name,
            with_engines(role, engines, args.model),
            args.nats_url,
            args.stream_deltas,
            args.publications,
            args.engine_away_timeout_s,
            args.repositories,
            args.workspace_dir,
        )
    coordinator = _deployment(Coordinator).options(num_replicas=args.coordinator_replicas, **_options(0.1, 5.0))
    return coordinator.bind(
        agents, workers, args.nats_url, args.coordinator_slots, args.publications, args.coordinator_clusters
    )


def _status() -> ApplicationStatus | None:
    application = serve.status().applications.get(NAME)
    return application.status if application else None


def _run(args: ApplicationArgs) -> None:
    """Deploy and return as soon as the application runs (`serve.run` looks once a second); raises RuntimeError."""
    target = serve.RunTarget(build(args), name=NAME, route_prefix=None)
    serve.run_many([target], wait_for_applications_running=False)
    while (application := serve.status().applications[NAME]).status != ApplicationStatus.RUNNING:
        if application.status == ApplicationStatus.DEPLOY_FAILED:
            raise RuntimeError(f"the application cannot be deployed: {application.message}")
        sleep(DEPLOYED_POLL_S)


def deploy(args: ApplicationArgs) -> None:
    serve.start(http_options=HTTPOptions(location=ProxyLocation.Disabled))
    if _status() != ApplicationStatus.RUNNING:
        _run(args)


def redeploy() -> None:
    """Replace every replica, a few at a time, by one with the current roles; returns when all are replaced.

    When the roles are invalid or the deployment fails, it prints why, and the old replicas run on.
    """
    try:
        _run(ApplicationArgs())
    except (InvalidRequest, RuntimeError) as error:
        print(f"not deployed anew: {error}", flush=True)
    else:
        print("deployed anew", flush=True)


def _revive_controller() -> None:
    """Kill Serve's controller when it hangs: Ray restarts it, and it adopts the running replicas.

    Ray itself does not notice. Without a controller calls go on, but no dead replica is replaced.
    """
    try:
        controller = cast("Any", ray.get_actor(*CONTROLLER))
    except ValueError:
        # There is none: the application's status shows it.
        return
    try:
        ray.get(controller.check_alive.remote(), timeout=CONTROLLER_SILENCE_MAX_S)
    except GetTimeoutError:
        print(f"Serve's controller did not answer for {CONTROLLER_SILENCE_MAX_S:g} s: it is started again", flush=True)
        ray.kill(controller, no_restart=False)
    except RayError:
        # Ray is restarting the controller.
        return


def _shut_down() -> None:
    """Stop the application; returns after SHUTDOWN_WITHIN_S at most, unlike `serve.shutdown`."""
    # The controller ends itself at last, so that its answer is an error.
    with suppress(ValueError, RayError):
        controller = cast("Any", ray.get_actor(*CONTROLLER))
        ray.get(controller.graceful_shutdown.remote(), timeout=SHUTDOWN_WITHIN_S)


async def _watched(call: Callable[[], _T]) -> _T:
    """The result of a call of Serve's, which would wait for a hung controller without an end.

    One call at a time: Serve's configuration cannot be read by two threads at once.
    """
    answer = asyncio.create_task(asyncio.to_thread(call))
    while not answer.done():
        await asyncio.wait([answer], timeout=WATCH_INTERVAL_S)
        if not answer.done():
            await asyncio.to_thread(_revive_controller)
    return answer.result()


async def _stay() -> None:
    """Wait for SIGTERM or SIGINT; SIGHUP redeploys. Raises SystemExit when the application is lost."""
    received, woken, loop = set[signal.Signals](), asyncio.Event(), asyncio.get_running_loop()

    def receive(number: signal.Signals) -> None:
        received.add(number)
        woken.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, receive, number)
    while received <= {signal.SIGHUP}:
        woken.clear()
        if received:
            received.clear()
            await _watched(redeploy)
        status = await _watched(_status)
        if status in (None, ApplicationStatus.DEPLOY_FAILED):
            raise SystemExit(f"the application is {status}")
        with suppress(TimeoutError):
            async with asyncio.timeout(WATCH_INTERVAL_S):
                await woken.wait()


def until_listening(address: str) -> None:
    """Wait until a server listens at `host:port`, for ten minutes at most; other addresses are left to Ray."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return
    print(f"waiting for Ray at {address}", flush=True)
    ends_at_s = monotonic() + RAY_STARTS_WITHIN_S
    while monotonic() < ends_at_s:
        with suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), timeout=1.0):
            return
        sleep(0.05)


def main() -> None:
    """Deploy to the cluster at RAY_ADDRESS, also a starting one, print `ready`, and stay until SIGTERM."""
    arguments = ApplicationArgs()
    try:
        _roles_of(arguments)
        default_engines(arguments.engine_urls)
    except InvalidRequest as error:
        raise SystemExit(f"not deployed: {error}") from None
    address = os.environ.get("RAY_ADDRESS", "auto")
    until_listening(address)
    # Workers import from this process's directory first, where the user may have a module `app`.
    with chdir(Path(__file__).parents[1]):
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    deploy(arguments)
    print("ready", flush=True)
    asyncio.run(_stay())
    _shut_down()
    # Otherwise a cluster started by this process (RAY_ADDRESS=local) ends it with SIGABRT.
    ray.shutdown()


if __name__ == "__main__":
    main()
