"""The connection between a process and its agent."""
