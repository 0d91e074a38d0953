"""Measurements: each prints its floor beside the product, in one run, and asserts no time."""
