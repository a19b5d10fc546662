"""The operator: a functional core that decides and a shell that observes and executes."""
