"""The gateway, and the pure core that both sides share."""
