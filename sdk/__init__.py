"""Recipes that generate and package clients of the gateway; see docs/sdks.md."""
