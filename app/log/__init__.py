"""The log of facts over NATS JetStream: the only room that imports `nats`."""
