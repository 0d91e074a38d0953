"""The services of Compose, and the rights of their processes."""

from tests.deploy.manifests import compose_services

SERVICES = compose_services()
ONE_SHOT = ["migration", "streams", "volumes"]
RUNNING = sorted(set(SERVICES) - set(ONE_SHOT))

# A line of /proc/1/status each: the user, no capability in any set, no way to gain one, and a seccomp filter.
STATUS = {"Uid": "10001", "CapEff": "0" * 16, "CapPrm": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"}
