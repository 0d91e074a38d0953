"""`make chaos`: kill, stop and cut off everything at random under load, then read the log and tell what was lost."""
