"""What the archive takes of the throughput of the stack."""
