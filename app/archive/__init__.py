"""The archive: ended and running deliberations in a database, for longer than the log keeps their facts."""
