"""What the status of a job says. Pure."""
