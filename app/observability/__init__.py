"""Metrics, log lines and the status of replicas."""
