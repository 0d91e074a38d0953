"""Lanes, panels, reports, progress and lines of the command line."""
