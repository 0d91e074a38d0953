"""Measurements of the benefit of deliberation."""
