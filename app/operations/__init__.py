"""The survey of an installation: all parts are asked once, and checks and the document read the answers."""
