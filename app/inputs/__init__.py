"""Inputs: files that clients upload, and the text or the picture that agents get of each."""
