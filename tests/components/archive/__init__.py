"""The gateway with an archive, over the log in memory."""
