"""The objects of a job on the API server."""
