"""Admission of work: the backlog, the measured throughput and the concurrency limit."""
