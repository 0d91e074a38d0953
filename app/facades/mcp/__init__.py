"""The façade for MCP clients, at `/mcp` and over stdio: councils as tools, tasks, resources and prompts."""
