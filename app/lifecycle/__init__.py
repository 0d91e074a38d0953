"""A deliberation's beginning and removal: specify, accept, delete."""
