"""Tools of agents: the sources that give them, and the connections to MCP servers."""
