"""The text of the simulated model: seeded outputs in the shapes that a request's JSON schema names."""
