"""The Kubernetes API server, as the operator uses it."""
