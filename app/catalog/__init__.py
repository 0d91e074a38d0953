"""All deliberations in memory: the index behind lists and statistics, and the projection of one for clients."""
