"""The gateway, a coordinator and an agent in one process over an in-memory nats-server, killed at any step."""
