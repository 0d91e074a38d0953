"""A task and mixed roles of the councils that pages show."""

MIXED = [{"role": "ARCHITECT", "count": 1}, {"role": "DEV", "count": 2}, {"role": "DATA", "count": 1}]
QUEUE = "Choose a job queue: Postgres LISTEN/NOTIFY or NATS JetStream?"
