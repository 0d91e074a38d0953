"""The Coordinator deployment: it pulls work, folds facts, and executes what the core decides."""
