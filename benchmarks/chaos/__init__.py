"""`make chaos`: injects random faults under load, then checks the log for lost and repeated work."""
