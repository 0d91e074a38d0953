"""Plans over a real log."""
