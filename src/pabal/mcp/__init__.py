"""MCP: the tools through which agents send and receive messages, in the Model Context Protocol."""
