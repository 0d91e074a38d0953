"""The active deliberations in memory, and the entries of lists."""
