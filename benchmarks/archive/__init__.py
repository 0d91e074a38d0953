"""The archive's figures."""
