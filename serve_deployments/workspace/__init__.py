"""Workspaces: copies of repositories on this node, and the tools that read them for agents."""
