"""The processes of a worker: start, observe, end."""
