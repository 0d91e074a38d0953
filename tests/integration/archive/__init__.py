"""The archive on real databases and a real nats-server."""
