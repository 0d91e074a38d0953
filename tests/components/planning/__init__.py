"""Plans over the log in memory."""
