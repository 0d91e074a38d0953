"""Faults of a running stack: killed processes, a full disk, a dead engine."""
