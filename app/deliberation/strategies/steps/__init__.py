"""Steps that several strategies share."""
