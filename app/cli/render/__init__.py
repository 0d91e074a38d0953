"""What the command line prints: lanes, panels, rankings, progress and lines."""
