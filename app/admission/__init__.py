"""What may be taken on: the backlog, the measured throughput and the concurrency limit."""
