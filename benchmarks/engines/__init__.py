"""Measures how councils share engines."""
