"""The directory of a node for copies of workspaces and for programs, and the children that clear it."""
