"""Server-sent events: the live feed, replay, resume, snapshots and frames."""
