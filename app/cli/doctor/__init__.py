"""`deliberate doctor`, and the checks of a set-up that it shares with `up`."""
