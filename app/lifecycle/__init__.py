"""The operations on deliberations: specify, accept, cancel, delete."""
