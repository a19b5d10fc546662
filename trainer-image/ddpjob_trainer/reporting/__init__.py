"""Reports of a process to its agent: steps, metrics, heartbeats."""
