"""The Agent deployment: one replica runs the calls of a stage and records each answer."""
