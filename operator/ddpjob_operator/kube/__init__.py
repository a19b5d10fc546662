"""Access to the Kubernetes API server."""
