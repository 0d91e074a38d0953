"""Façades: other protocols over the same deliberations, one package each."""
