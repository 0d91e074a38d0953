"""The examples and the commands of the documentation, run as written."""
