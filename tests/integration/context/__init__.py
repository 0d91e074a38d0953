"""A context service over a real log."""
