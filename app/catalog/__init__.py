"""All deliberations in memory: the index behind lists and statistics, and what a client sees of one."""
