"""The archive's share of the CPU."""
