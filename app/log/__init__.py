"""The log of facts over NATS JetStream: the only package that imports `nats`."""
