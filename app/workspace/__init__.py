"""Repositories that deliberations may read: which are allowed, the commit of a ref, and git as a bounded child."""
